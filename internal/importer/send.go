package importer

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// outcome is what became of one unit.
type outcome int

const (
	imported outcome = iota
	alreadyThere
	refused
)

// sender sends units until they are answered.
type sender struct {
	client   pb.EventStoreServiceClient
	patience patience

	mu sync.Mutex
	// broken is the line of the first refused unit of each aggregate that has one. What comes
	// behind it in the file must not be sent: it would take the refused one's place, and be
	// written a second time once that is mended.
	broken map[string]int64
}

// hold makes the later units of a refused one's aggregate wait for a mended file.
func (s *sender) hold(u *unit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken == nil {
		s.broken = make(map[string]int64)
	}
	s.broken[u.aggregate] = u.line
}

// held is the line of an earlier unit of the aggregate that was refused; 0 = none.
func (s *sender) held(u *unit) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.broken[u.aggregate]
}

// send sends one unit until its fate is known. An error ends the import: the store has not
// answered for Options.RetryFor, or answers in a way that would meet every row.
func (s *sender) send(ctx context.Context, u *unit) (outcome, *Refusal, error) {
	earlier := s.held(u)
	switch {
	case u.refusal != nil:
		if earlier == 0 {
			s.hold(u)
		}
		return refused, u.refusal, nil
	case earlier != 0:
		what := "row"
		if u.run != nil {
			what = "batch"
		}
		return refused, &Refusal{Line: u.line, Rows: u.rows, Reason: fmt.Sprintf(
			"held back: line %d, an earlier %s of the same aggregate, was refused", earlier, what)}, nil
	case u.run != nil:
		u.req.Writes[0].ExpectedVersion = proto.Uint64(u.run.version)
	}
	result, err := s.untilAnswered(ctx, u)
	if err == nil {
		if u.run != nil {
			u.run.version = result.GetVersion()
		}
		if result.GetAlreadyCommitted() {
			return alreadyThere, nil, nil
		}
		return imported, nil, nil
	}
	if classify(err) != no {
		return refused, nil, err
	}
	conflict := u.run != nil && api.CodeOf(err) == pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION
	if conflict {
		same, readErr := s.isThere(ctx, u)
		if readErr != nil {
			return refused, nil, readErr
		}
		if same {
			u.run.version++
			return alreadyThere, nil, nil
		}
	}
	s.hold(u)
	why := explain(err)
	if u.run == nil {
		why = reason(err)
	} else if conflict {
		why += "; the store has another history of this aggregate than the export"
	}
	return refused, &Refusal{Line: u.line, Rows: u.rows, Reason: why}, nil
}

// explain is the store's own text of an error, without gRPC's around it.
func explain(err error) string {
	if e, ok := api.FromStatus(err); ok {
		return e.Error()
	}
	return err.Error()
}

// reason says why a row was refused, and what to do where the code alone does not.
func reason(err error) string {
	text := explain(err)
	code := api.CodeOf(err)
	if code == pb.ErrorCode_ERROR_CODE_CLIENT_SEQUENCE_GAP {
		// The rows before are in the store, or this one would not have been sent.
		text += "; the mark moved during the import: is another one running with this client id?"
	}
	if f, ok := api.DetailOf[*pb.AppendFailure](err); ok && f.GetHolder() != nil {
		if f.GetHolder().GetContentDiffers() {
			text += "; its content is another: was the file changed above its end, or another one imported with this client id?"
		} else if code == pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION {
			text += "; was another file imported with this client id?"
		}
	}
	return text
}

// untilAnswered sends the request of a unit until the answer says what became of it.
func (s *sender) untilAnswered(ctx context.Context, u *unit) (*pb.WriteResult, error) {
	var result *pb.WriteResult
	err := s.patience.retry(ctx, func(ctx context.Context) (progress bool, err error) {
		resp, err := s.client.Append(ctx, u.req)
		if err != nil {
			return false, err
		}
		if len(resp.GetResults()) != 1 {
			return false, fmt.Errorf("the answer has %d results; expected 1", len(resp.GetResults()))
		}
		result = resp.GetResults()[0]
		return false, nil
	})
	if err != nil && classify(err) != no && ctx.Err() == nil {
		err = fmt.Errorf("line %d: %w; whether this row landed may be open, and running the import again settles it", u.line, err)
	}
	return result, err
}

// isThere compares a batch that only the version guard protects with the one that the store
// has at its version.
func (s *sender) isThere(ctx context.Context, u *unit) (bool, error) {
	write := u.req.GetWrites()[0]
	version := u.run.version + 1
	var batch *pb.Batch
	err := s.patience.retry(ctx, func(ctx context.Context) (progress bool, err error) {
		batch = nil
		stream, err := s.client.Read(ctx, &pb.ReadRequest{
			Aggregate: write.GetAggregate(), FromVersion: version, ToVersion: version,
			Consistency: pb.Consistency_CONSISTENCY_LINEARIZABLE,
		})
		if err != nil {
			return false, err
		}
		for {
			resp, err := stream.Recv()
			if err != nil {
				return false, err
			}
			for _, b := range resp.GetBatches() {
				batch = b
			}
			if resp.GetEnd() != nil {
				return false, nil
			}
		}
	})
	switch {
	case err == nil:
	case classify(err) == no:
		return false, nil // trimmed or deleted: what it was can no longer be told
	default:
		return false, fmt.Errorf("line %d: %w", u.line, err)
	}
	if batch == nil || batch.GetClientId() != u.req.GetClientId() || len(batch.GetEvents()) != len(write.GetEvents()) {
		return false, nil
	}
	for i, e := range batch.GetEvents() {
		if !sameEvent(e, write.GetEvents()[i]) {
			return false, nil
		}
	}
	return true, nil
}

// sameEvent compares what was recorded with what is being sent.
func sameEvent(have *pb.Event, want *pb.NewEvent) bool {
	recorded := &pb.NewEvent{
		ClientSeq: have.GetClientSeq(), EventId: have.GetEventId(), Type: have.GetType(), Schema: have.GetSchema(),
		OccurredAt: have.GetOccurredAt(), Payload: have.GetPayload(), ContentType: have.GetContentType(),
		Metadata: have.GetMetadata(), Encryption: have.GetEncryption(),
	}
	filled := &pb.NewEvent{}
	proto.Merge(filled, want)
	for _, e := range []*pb.NewEvent{recorded, filled} {
		if e.Schema == nil {
			e.Schema = &pb.SchemaVersion{Major: 1}
		}
		if len(e.Payload) == 0 {
			e.Payload = nil
		}
	}
	return proto.Equal(recorded, filled)
}
