package replication

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/record"
)

// A change is a request that is no append: a trim, a delete, or the registration of a
// schema. Admission takes it in without a look at what it is about. It is judged in Apply alone,
// so its refusals are committed, and need no majority to confirm them.

// newChange makes a pending request of a change that is encoded with 0 as its time. what names
// it in texts; deletes are the aggregates that it deletes.
func newChange(what string, buf []byte, deletes []record.Key) *pending {
	p := &pending{change: what, buf: buf, deletes: deletes, arrived: time.Now()}
	if len(deletes) > 0 {
		p.gone = make(chan struct{})
	}
	return p
}

// commitChange takes a change in and says what became of it.
func (s *Shard) commitChange(ctx context.Context, p *pending) (*outcome, error) {
	if err := s.admitChange(ctx, p); err != nil {
		return nil, err
	}
	if !s.wait(ctx, p.done, nil) {
		code := codes.Canceled
		if ctx.Err() == context.DeadlineExceeded {
			code = codes.DeadlineExceeded
		}
		return nil, status.Errorf(code, "the call ended while the %s was in flight: it may still happen; the same may be asked for again", p.change)
	}
	switch o := &p.outcome; o.kind {
	case committed:
		return o, nil
	case refused:
		return nil, o.failure
	case notProposed:
		return nil, s.notLeader(o.reason)
	case fenced:
		return nil, s.fencedOff()
	default:
		return nil, api.Errorf(pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN,
			"%s: the %s may or may not happen; the same may be asked for again", o.reason, p.change)
	}
}

// admitChange takes a change in, if there is room.
func (s *Shard) admitChange(ctx context.Context, p *pending) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.leading(); err != nil {
		return err
	}
	if err := s.room(s.tenure, p); err != nil {
		return err
	}
	s.enqueue(p)
	return nil
}

// aggregateMessage is a key as answers give it.
func aggregateMessage(k record.Key) *pb.AggregateKey {
	org, typ, id, _ := k.Parts()
	return &pb.AggregateKey{Org: org, Type: typ, Id: id}
}

// guardFailure is the answer to a change whose guard fails.
func guardFailure(code pb.ErrorCode, what string, index int, k record.Key, expected, current uint64) *api.Error {
	return api.Errorf(code, "%s of %s: expected version %d, found %d", what, k, expected, current).With(&pb.GuardFailure{
		Index: uint32(index), Aggregate: aggregateMessage(k), ExpectedVersion: &expected, CurrentVersion: current,
	})
}
