package writers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/record"
)

// Recheck makes the next Check start from the first batch again.
func (s *Set) Recheck() {
	s.position = 0
	for _, a := range s.aggregates {
		*a = aggregate{key: a.key}
	}
	for _, w := range s.writers {
		clear(w.seen)
	}
}

// Check reads what was written since the last Check, and holds it against the answers. No
// one else may have written to the server.
func (s *Set) Check(ctx context.Context, client pb.EventStoreServiceClient) error {
	var positions []uint64
	var errs []error
	for _, a := range s.aggregates {
		got, err := s.checkAggregate(ctx, client, a)
		positions = append(positions, got...)
		errs = append(errs, err)
	}
	for _, w := range s.writers {
		errs = append(errs, w.checkSeen())
	}
	slices.Sort(positions)
	for _, p := range positions {
		if p != s.position+1 {
			errs = append(errs, fmt.Errorf("position %d is followed by %d", s.position, p))
			break
		}
		s.position = p
	}
	return errors.Join(errs...)
}

// checkSeen holds the number of requests found against the number of answers.
func (w *writer) checkSeen() error {
	var errs []error
	acked, sent := w.acknowledged(), len(w.requests)
	for i, n := range w.seen {
		switch {
		case n < acked:
			errs = append(errs, fmt.Errorf("writer %s on %v: %d requests are there, %d were acknowledged", w.id, w.aggregates[i].key, n, acked))
		case n > sent:
			errs = append(errs, fmt.Errorf("writer %s on %v: %d requests are there, %d were sent that may be", w.id, w.aggregates[i].key, n, sent))
		case n != w.seen[0]:
			errs = append(errs, fmt.Errorf("writer %s: request %d is on %d of its aggregates' %d, not on all", w.id, min(n, w.seen[0]), i, len(w.seen)))
		}
	}
	return errors.Join(errs...)
}

// checkAggregate reads one aggregate on and returns the positions that it found.
func (s *Set) checkAggregate(ctx context.Context, client pb.EventStoreServiceClient, a *aggregate) ([]uint64, error) {
	stream, err := client.Read(ctx, &pb.ReadRequest{Aggregate: a.key, FromVersion: a.version + 1})
	if err != nil {
		return nil, err
	}
	var positions []uint64
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return positions, nil
		case api.CodeOf(err) == pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND && a.version == 0:
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("read %v from version %d: %w", a.key, a.version+1, err)
		}
		for _, b := range m.GetBatches() {
			if err := s.checkBatch(a, b); err != nil {
				return positions, fmt.Errorf("%v version %d: %w", a.key, b.GetVersion(), err)
			}
			positions = append(positions, b.GetPosition())
		}
	}
}

// checkBatch holds one batch against the request that it must be.
func (s *Set) checkBatch(a *aggregate, b *pb.Batch) error {
	if b.GetVersion() != a.version+1 || b.GetFirstEventNumber() != a.events+1 || b.GetIncarnation() != 1 {
		return fmt.Errorf("incarnation %d, version %d, event number %d; expected 1, %d, %d", b.GetIncarnation(), b.GetVersion(), b.GetFirstEventNumber(), a.version+1, a.events+1)
	}
	if prev := a.chain; a.version > 0 && !bytes.Equal(prev, b.GetPreviousChainHash()) {
		return fmt.Errorf("previous chain hash %x, expected %x", b.GetPreviousChainHash(), prev)
	}
	if want := chainHash(b); !bytes.Equal(want, b.GetChainHash()) {
		return fmt.Errorf("chain hash %x, its content hashes to %x", b.GetChainHash(), want)
	}
	i := slices.IndexFunc(s.writers, func(w *writer) bool { return w.id == b.GetClientId() })
	if i < 0 {
		return fmt.Errorf("written by %q, which is nobody", b.GetClientId())
	}
	w := s.writers[i]
	at := slices.Index(w.aggregates, a)
	if at < 0 {
		return fmt.Errorf("written by %s, which does not write there", w.id)
	}
	n := w.seen[at]
	if n >= len(w.requests) {
		return fmt.Errorf("%s has sequence %d there, and sent only %d requests that may be", w.id, b.GetEvents()[0].GetClientSeq(), len(w.requests))
	}
	r := w.requests[n]
	if err := w.sameEvents(r, at, b); err != nil {
		return fmt.Errorf("request %d of %s: %w", n, w.id, err)
	}
	if uint32(len(w.aggregates)) != b.GetCommitCount() || b.GetCommitFirstPosition()+uint64(at) != b.GetPosition() {
		return fmt.Errorf("position %d of a commit of %d from %d; expected write %d of %d", b.GetPosition(), b.GetCommitCount(), b.GetCommitFirstPosition(), at, len(w.aggregates))
	}
	if r.results != nil {
		res := r.results[at]
		if res.GetVersion() != b.GetVersion() || res.GetPosition() != b.GetPosition() || !bytes.Equal(res.GetChainHash(), b.GetChainHash()) ||
			!proto.Equal(res.GetCommittedAt(), b.GetCommittedAt()) || res.GetFirstEventNumber() != b.GetFirstEventNumber() {
			return fmt.Errorf("request %d of %s was answered with %v, and is there as version %d at position %d, hash %x", n, w.id, res, b.GetVersion(), b.GetPosition(), b.GetChainHash())
		}
	}
	w.seen[at]++
	a.version, a.events, a.chain = b.GetVersion(), a.events+uint64(len(b.GetEvents())), b.GetChainHash()
	return nil
}

func (w *writer) sameEvents(r request, at int, b *pb.Batch) error {
	want := w.events(r, at)
	if len(want) != len(b.GetEvents()) {
		return fmt.Errorf("%d events, expected %d", len(b.GetEvents()), len(want))
	}
	for i, e := range b.GetEvents() {
		got := newEvent(e)
		if !proto.Equal(got, want[i]) || e.GetEventNumber() != b.GetFirstEventNumber()+uint64(i) {
			return fmt.Errorf("event %d (number %d) is %v, expected %v", i, e.GetEventNumber(), got, want[i])
		}
	}
	return nil
}

// newEvent is an event as it was sent.
func newEvent(e *pb.Event) *pb.NewEvent {
	return &pb.NewEvent{
		ClientSeq: e.GetClientSeq(), EventId: e.GetEventId(), Type: e.GetType(), Schema: e.GetSchema(), OccurredAt: e.GetOccurredAt(),
		Payload: e.GetPayload(), ContentType: e.GetContentType(), Metadata: e.GetMetadata(), Encryption: e.GetEncryption(),
	}
}

// chainHash recomputes the hash of a batch from what a read returned.
func chainHash(b *pb.Batch) []byte {
	k := b.GetAggregate()
	h := &record.BatchHeader{
		Key: record.MakeKey(k.GetOrg(), k.GetType(), k.GetId()), Incarnation: b.GetIncarnation(), Version: b.GetVersion(),
		Shard: b.GetShard(), Position: b.GetPosition(), CommitFirst: b.GetCommitFirstPosition(), CommitCount: b.GetCommitCount(),
		ClientID: b.GetClientId(), CommittedAt: b.GetCommittedAt().AsTime().UnixNano(), FirstEventNumber: b.GetFirstEventNumber(),
		EventCount: uint32(len(b.GetEvents())),
	}
	var events []byte
	for _, e := range b.GetEvents() {
		events = record.AppendEvent(events, newEvent(e))
	}
	var prev record.Hash
	copy(prev[:], b.GetPreviousChainHash())
	_, sum := record.AppendBatch(nil, h, prev, events)
	return sum[:]
}
