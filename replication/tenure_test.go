package replication

import (
	"context"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// Raft gives back what it had in flight before it tells that leadership is gone. The slot
// that became free used to be taken by what was queued, which then was answered as unknown
// although it had never been in any log.
func TestNothingIsHandedOverAfterLeadershipWasLost(t *testing.T) {
	lose := make(chan struct{})
	proposals := make(chan struct{}, 8)
	s := openShard(t, Options{Dir: t.TempDir(), MaxOutstandingEntries: 1, Hooks: Hooks{Propose: func(func() func() error) func() error {
		proposals <- struct{}{}
		return func() error {
			<-lose
			return raft.ErrLeadershipLost
		}
	}}})
	proposed := goAppend(context.Background(), s, appendOf("a", "1", seqs(1)))
	<-proposals
	queued := start(t, s, appendOf("a", "2", seqs(1)))
	close(lose)
	_, err := proposed.wait(t)
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN)
	s.endTenure("the notice comes now")
	_, err = queued.wait(t)
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
	stopWithin(t, s, 20*time.Second)
	if n := len(proposals); n != 0 {
		t.Errorf("%d entries were handed over after leadership was lost", n)
	}
}

// A future of raft may never resolve. Its callers have their deadlines, what is queued behind
// it ends with the term, the next term is none the worse, and a stop does not wait for it.
func TestFutureThatNeverResolves(t *testing.T) {
	broken := make(chan bool, 1)
	broken <- true
	never := make(chan error)
	s := openShard(t, Options{Dir: t.TempDir(), MaxOutstandingEntries: 1, Hooks: Hooks{Propose: func(next func() func() error) func() error {
		select {
		case <-broken:
			return func() error { return <-never }
		default:
			return next()
		}
	}}})
	t.Cleanup(func() { close(never) }) // only the test's own goroutine is left waiting for it
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Append(ctx, appendOf("a", "1", seqs(1), expect(0))); status.Code(err) != codes.DeadlineExceeded {
		t.Fatalf("the call ended with %v, expected its deadline", err)
	}
	queued := start(t, s, appendOf("b", "2", seqs(1)))
	wantFailure(t, s, appendOf("a", "1", seqs(1), expect(0)), &pb.AppendFailure{
		Code: 2013, Aggregate: key("1"), ExpectedVersion: version(0), AttemptedSeq: 1, InFlightMark: version(1)})
	s.endTenure("the term ends in a test")
	_, err := queued.wait(t)
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
	s.beginTenure(s.group.get())
	waitReady(t, s)
	if resp := mustAppend(t, s, appendOf("a", "1", seqs(1), expect(0))); resp.Results[0].Position != 1 {
		t.Fatalf("the retry in the next term: %v, expected position 1", resp)
	}
	stopWithin(t, s, 20*time.Second)
}

func version(v uint64) *uint64 { return &v }
