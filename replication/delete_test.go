package replication

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// goDelete deletes on its own; err is set when done is closed.
func goDelete(t *testing.T, s *Shard, deletes ...*pb.AggregateDelete) *call {
	t.Helper()
	before := s.Status().InFlightRequests
	c := &call{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		_, c.err = s.Delete(context.Background(), &pb.DeleteRequest{Deletes: deletes})
	}()
	await(t, "the delete is in flight", func() bool { return s.Status().InFlightRequests > before })
	return c
}

// waits asserts that a call is not admitted while it lasts, and is told nothing that would make
// its writer believe that it was.
func waits(t *testing.T, s *Shard, r *pb.AppendRequest) {
	t.Helper()
	before := s.Status().InFlightRequests
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	resp, err := s.Append(ctx, r)
	if st := status.Convert(err); st.Code() != codes.DeadlineExceeded || st.Message() != context.DeadlineExceeded.Error() {
		t.Errorf("answered %v, %v; want it to wait until its deadline, not admitted", resp, err)
	}
	if after := s.Status().InFlightRequests; after != before {
		t.Errorf("%d requests in flight, %d before the call", after, before)
	}
}

// A write to an aggregate with a delete in flight waits for that outcome, within its deadline
// (contract 2.2): whether it may create, and what its guard means, hangs on it.
func TestWriteWaitsForADeleteInFlight(t *testing.T) {
	g := newGate()
	s := openShard(t, Options{Dir: t.TempDir(), Hooks: g.hooks()})
	defer func() { _ = s.Abandon() }()
	original := mustAppend(t, s, appendOf("a", "1", seqs(1))).Results[0]
	mustAppend(t, s, appendOf("a", "2", seqs(1)))

	g.shut()
	deleted := goDelete(t, s, &pb.AggregateDelete{Aggregate: key("1"), AllowRecreate: true})
	waits(t, s, appendOf("a", "1", seqs(2), expect(1)))
	waits(t, s, appendOf("a", "1", seqs(1)))
	both := appendOf("b", "2", seqs(1))
	both.Writes = append(both.Writes, appendOf("b", "1", seqs(1)).Writes...)
	waits(t, s, both)
	waits(t, s, appendOf("a", "1", seqs(1), confirmRequest))
	elsewhere := start(t, s, appendOf("b", "2", seqs(5))) // another aggregate: admitted
	guarded := goAppend(context.Background(), s, appendOf("a", "1", seqs(2), expect(1)))
	creates := goAppend(context.Background(), s, appendOf("b", "1", seqs(1), expect(0)))
	confirmed := goAppend(context.Background(), s, appendOf("a", "1", seqs(1), confirmRequest))
	g.lift()
	for _, c := range []*call{deleted, elsewhere} {
		if _, err := c.wait(t); err != nil {
			t.Fatal(err)
		}
	}
	// Only b's create can pass, whichever of the three is judged first.
	if _, err := guarded.wait(t); err == nil || status.Code(err) != codes.FailedPrecondition {
		t.Errorf("guarded by the deleted life's version: %v, want 2003", err)
	}
	if resp, err := creates.wait(t); err != nil || resp.Results[0].Version != 2 || resp.Results[0].Incarnation != 2 || resp.Results[0].FirstEventNumber != 2 {
		t.Errorf("creates: %v, %v; want version 2, incarnation 2", resp, err)
	}
	want := proto.Clone(original).(*pb.WriteResult)
	want.AlreadyCommitted, want.ChainHash = true, nil
	if resp, err := confirmed.wait(t); err != nil || !proto.Equal(resp.Results[0], want) {
		t.Errorf("confirmed: %v, %v; want %v", resp, err, want)
	}
}

// A delete that raft gave back is over, and who waits is judged without it; one whose outcome is
// open keeps them waiting until the term ends, and then nobody is told anything but 2011.
func TestWriteBehindADeleteThatIsNotKnownToHaveHappened(t *testing.T) {
	g := newGate()
	s := openShard(t, Options{Dir: t.TempDir(), Hooks: g.hooks()})
	mustAppend(t, s, appendOf("a", "1", seqs(1)))
	for _, c := range []struct {
		fails error
		code  pb.ErrorCode
	}{{raft.ErrNotLeader, 2011}, {raft.ErrLeadershipLost, 2014}} {
		g.shut()
		deleted := goDelete(t, s, &pb.AggregateDelete{Aggregate: key("1")})
		behind := goAppend(context.Background(), s, appendOf("a", "1", seqs(2), expect(1)))
		g.lift(c.fails)
		_, err := deleted.wait(t)
		if e, ok := err.(*api.Error); !ok || e.Code != c.code {
			t.Fatalf("the delete: %v, want %d", err, c.code)
		}
		if c.code == 2011 {
			if resp, err := behind.wait(t); err != nil || resp.Results[0].Version != 2 {
				t.Fatalf("behind a delete that did not happen: %v, %v", resp, err)
			}
			continue
		}
		waits(t, s, appendOf("a", "1", seqs(3), expect(2)))
		s.endTenure("the term is over")
		_, err = behind.wait(t)
		if e, ok := err.(*api.Error); !ok || e.Code != 2011 {
			t.Errorf("behind a delete of unknown outcome: %v, want 2011", err)
		}
		if err := s.Abandon(); err != nil {
			t.Fatal(err)
		}
	}
}

// Below the reserve writes are refused; what makes room goes on.
func TestTrimsAndDeletesGoOnOnAFullDisk(t *testing.T) {
	var free atomic.Int64
	free.Store(1 << 30)
	s := openShard(t, Options{Dir: t.TempDir(), MinFreeDiskBytes: 1 << 20, FreeDisk: func(string) (int64, error) { return free.Load(), nil }})
	defer func() { _ = s.Abandon() }()
	mustAppend(t, s, appendOf("a", "1", seqs(1)))
	mustAppend(t, s, appendOf("a", "1", seqs(2)))
	free.Store(1)
	await(t, "the disk is seen to be full", func() bool { return s.disk.low() >= 0 })
	if _, err := s.Append(context.Background(), appendOf("a", "1", seqs(3))); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("append: %v, want 2018", err)
	}
	timeline := s.identity().Timeline
	trimmed, err := s.Trim(context.Background(), &pb.TrimRequest{Aggregate: key("1"), KeepFromVersion: 2})
	if want := (&pb.TrimResponse{FirstVersion: 2, Position: 3, Timeline: timeline}); err != nil || !proto.Equal(trimmed, want) {
		t.Errorf("trim: %v, %v; want %v", trimmed, err, want)
	}
	deleted, err := s.Delete(context.Background(), &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{{Aggregate: key("1")}}})
	if want := (&pb.DeleteResponse{Results: []*pb.DeleteResult{{Aggregate: key("1"), Position: 4}}, Timeline: timeline}); err != nil || !proto.Equal(deleted, want) {
		t.Errorf("delete: %v, %v; want %v", deleted, err, want)
	}
	if _, err := s.Trim(context.Background(), &pb.TrimRequest{Aggregate: key("1"), Timeline: "ffffffffffffffffffffffffffffffff"}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("trim on another timeline: %v, want 2031", err)
	}
}
