package replication

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// minPositionWait is how long a read waits for min_position, at most.
const minPositionWait = 30 * time.Second

// ReadOptions says what a read may be stale against.
type ReadOptions struct {
	// Consistency is never CONSISTENCY_UNSPECIFIED: the caller resolves the default.
	Consistency pb.Consistency
	// MinPosition, if not 0, is waited for, up to the deadline or 30 s.
	MinPosition uint64
	// Timeline, if not empty, must be this cluster's.
	Timeline string
}

// viewReader is what a view offers of heads.
type viewReader interface {
	Head(k record.Key) (history.Head, bool, error)
}

// Read returns a view that satisfies o; the caller must release it. Errors: 2031, 2011,
// 2015, and DEADLINE_EXCEEDED if min_position was not reached in time.
func (s *Shard) Read(ctx context.Context, o ReadOptions) (*history.View, error) {
	if err := s.admitRead(ctx, o); err != nil {
		return nil, err
	}
	v := s.currentView()
	if v == nil {
		return nil, s.notLeader("this node has stopped")
	}
	return v, nil
}

// ReadMark is Read together with the writer's in-flight mark on the aggregate at the same
// moment; nil if it has nothing in flight or this node does not lead.
func (s *Shard) ReadMark(ctx context.Context, o ReadOptions, k record.Key, client string) (*history.View, *uint64, error) {
	if err := s.admitRead(ctx, o); err != nil {
		return nil, nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var inFlight *uint64
	if s.tenure != nil && s.tenure.ready {
		inFlight = s.tenure.overlay.mark(k, client)
	}
	v := s.acquireView()
	if v == nil {
		return nil, nil, s.notLeader("this node has stopped")
	}
	return v, inFlight, nil
}

// Holder returns the newest committed batch of a writer that recorded seq, or nil.
func (s *Shard) Holder(v *history.View, k record.Key, client string, seq uint64) (*pb.Holder, error) {
	head, err := markHead(v, k)
	if err != nil {
		return nil, err
	}
	return holderOf(v, &head, k, client, seq)
}

// admitRead waits until a view taken from now on satisfies o.
func (s *Shard) admitRead(ctx context.Context, o ReadOptions) error {
	if s.identity().State != stateMember {
		// Its empty store says nothing of the cluster that it waits for, whatever is asked.
		return s.notMember()
	}
	if err := s.checkTimeline(o.Timeline); err != nil {
		return err
	}
	if o.Consistency != pb.Consistency_CONSISTENCY_ANY {
		s.mu.Lock()
		err := s.leading()
		t := s.tenure
		s.mu.Unlock()
		if err != nil {
			return err
		}
		if o.Consistency == pb.Consistency_CONSISTENCY_LINEARIZABLE {
			// Every write that was acknowledged before this call began is in the view: a
			// leader publishes before it answers, and was ready only after it had applied
			// what earlier leaders committed. What is left to prove is that no other leader
			// has answered since, and to wait for what is committed and not applied here:
			// somebody may have read that on another node.
			committed := t.group.committed()
			s.meter.readsWaiting.Add(1)
			err := s.confirmTerm(ctx, t)
			s.meter.readsWaiting.Add(-1)
			if err != nil {
				return err
			}
			if err := s.awaitIndex(ctx, committed); err != nil {
				return err
			}
		}
	}
	return s.awaitPosition(ctx, o.MinPosition)
}

// awaitPosition returns when position is applied.
func (s *Shard) awaitPosition(ctx context.Context, position uint64) error {
	if position == 0 {
		return nil
	}
	var timeout <-chan time.Time
	for {
		s.mu.Lock()
		at := s.view.Applied().Position
		if at >= position {
			s.mu.Unlock()
			return nil
		}
		wait := s.progress()
		s.mu.Unlock()
		if timeout == nil {
			timer := time.NewTimer(minPositionWait)
			defer timer.Stop()
			timeout = timer.C
		}
		select {
		case <-wait:
		case <-s.stopped:
			return s.notLeader("this node is stopping")
		case <-timeout:
			return status.Errorf(codes.DeadlineExceeded, "waited %s for min_position %d; this node has applied %d", minPositionWait, position, at)
		case <-ctx.Done():
			if ctx.Err() == context.DeadlineExceeded {
				return status.Errorf(codes.DeadlineExceeded, "the deadline ended before min_position %d; this node has applied %d", position, at)
			}
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// awaitIndex returns when the entry at an index, which has requests, is applied and published.
func (s *Shard) awaitIndex(ctx context.Context, index uint64) error {
	for {
		s.mu.Lock()
		applied := s.view.Applied().Index
		wait := s.progress()
		s.mu.Unlock()
		switch {
		case applied >= index:
			return nil
		case s.wait(ctx, wait, nil):
		case ctx.Err() != nil:
			return status.FromContextError(ctx.Err()).Err()
		default:
			return s.notLeader("this node is stopping")
		}
	}
}

// checkTimeline refuses a position, or a write, of another timeline. A node that is no member
// yet has none to compare with: what it may have written down while the cluster is formed can
// still be replaced.
func (s *Shard) checkTimeline(timeline string) error {
	id := s.identity()
	switch {
	case timeline == "":
		return nil
	case id.State != stateMember:
		return s.notMember()
	case timeline == id.Timeline:
		return nil
	}
	return api.Errorf(pb.ErrorCode_ERROR_CODE_TIMELINE_MISMATCH,
		"the request is about timeline %s, this cluster is on %s: it was restored or is another one; positions and marks must be read again", timeline, id.Timeline)
}

// notMember is the 2011 of a node that belongs to no cluster yet, and so knows no leader.
func (s *Shard) notMember() error { return s.notLeader("this node is not a member of a cluster yet") }
