package clients

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/linear"
)

// Content is all that one node has of a load's aggregates.
type Content struct {
	Batches map[string][]linear.Batch
	// Hashes are over every byte that reading the aggregate returns.
	Hashes map[string][sha256.Size]byte
}

// Position is the newest position that was acknowledged.
func (l *Load) Position() uint64 {
	position := uint64(0)
	for _, op := range l.Ops() {
		for _, r := range op.Results {
			position = max(position, r.Position)
		}
	}
	return position
}

// Inspect reads everything from one node, as far as it has applied, after it has applied a
// position. What it returns is what was sent, or it is an error.
func (l *Load) Inspect(ctx context.Context, conn grpc.ClientConnInterface, position uint64) (*Content, error) {
	l.mu.Lock()
	all := l.all
	l.mu.Unlock()
	c := &Content{Batches: map[string][]linear.Batch{}, Hashes: map[string][sha256.Size]byte{}}
	for _, a := range all {
		if err := l.inspect(ctx, pb.NewEventStoreServiceClient(conn), a, position, c); err != nil {
			return nil, fmt.Errorf("read %s: %w", a.name, err)
		}
	}
	return c, nil
}

func (l *Load) inspect(ctx context.Context, client pb.EventStoreServiceClient, a *aggregate, position uint64, c *Content) error {
	req := &pb.ReadRequest{Aggregate: a.key, Consistency: pb.Consistency_CONSISTENCY_ANY, MinPosition: position}
	if position > 0 {
		req.Timeline = l.options.Timeline
	}
	stream, err := client.Read(ctx, req)
	if err != nil {
		return err
	}
	h := sha256.New()
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			c.Hashes[a.name] = [sha256.Size]byte(h.Sum(nil))
			return nil
		case api.CodeOf(err) == pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND:
			return nil
		case err != nil:
			return err
		}
		for _, b := range m.GetBatches() {
			bytes, err := proto.MarshalOptions{Deterministic: true}.Marshal(b)
			if err != nil {
				return err
			}
			h.Write(bytes)
			batch := batchOf(b)
			c.Batches[a.name] = append(c.Batches[a.name], batch)
			if err := l.same(a, b, batch.ID); err != nil {
				return err
			}
		}
	}
}

// same holds a batch against what was sent.
func (l *Load) same(a *aggregate, b *pb.Batch, id string) error {
	var events []*pb.NewEvent
	for _, e := range b.GetEvents() {
		events = append(events, &pb.NewEvent{
			ClientSeq: e.GetClientSeq(), EventId: e.GetEventId(), Type: e.GetType(), Schema: e.GetSchema(), OccurredAt: e.GetOccurredAt(),
			Payload: e.GetPayload(), ContentType: e.GetContentType(), Metadata: e.GetMetadata(), Encryption: e.GetEncryption(),
		})
	}
	l.mu.Lock()
	sent, known := l.contents[id+a.name]
	l.mu.Unlock()
	if !known || sent != contentOf(events) {
		return fmt.Errorf("version %d by %s, %q, has other events than those sent (sent at all: %t)", b.GetVersion(), b.GetClientId(), id, known)
	}
	return nil
}
