package replication

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	peerpb "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// An answer to a question that was asked before a call came says nothing to that call.
func TestRoundUnderWayDoesNotServeALaterCall(t *testing.T) {
	t.Parallel()
	asked := make(chan chan error)
	r := newTermRounds(func(context.Context, uint64) error {
		answer := make(chan error)
		asked <- answer
		return <-answer
	})
	results := make(chan string, 4)
	call := func(name string) {
		go func() {
			err := r.confirm(context.Background(), 7)
			if err != nil {
				name += " " + err.Error()
			}
			results <- name
		}()
	}
	call("first")
	first := <-asked
	call("second")
	call("third")
	await(t, "both to wait", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.next != nil && r.next.callers == 2
	})
	first <- nil
	if got := <-results; got != "first" {
		t.Fatalf("the first round served %q", got)
	}
	second := <-asked
	select {
	case got := <-results:
		t.Fatalf("%q was served before its round ended", got)
	default:
	}
	second <- errors.New("refused")
	for range 2 {
		if got := <-results; got != "second refused" && got != "third refused" {
			t.Fatalf("the second round served %q", got)
		}
	}
}

func TestConfirmNeedsAMajorityThatAnswersInTheTerm(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	leader := c.leader()
	g := leader.raftGroup()
	ask := func(term uint64) error { return leader.askTerm(within(t, 5*time.Second), g, term) }
	if err := ask(g.term()); err != nil {
		t.Fatal(err)
	}
	if err := ask(g.term() + 1); err == nil {
		t.Fatal("a majority confirmed a term that never was")
	}
	followers := c.followers()
	c.kill(followers[0])
	if err := ask(g.term()); err != nil {
		t.Fatalf("two of three are a majority: %v", err)
	}
	c.kill(followers[1])
	if err := ask(g.term()); err == nil {
		t.Fatal("one of three confirmed the term")
	}
}

// A deposed leader that believes that it leads gives no definite refusal and no
// linearizable answer.
func TestRefusalThatAMajorityDoesNotConfirmIsNotSent(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	c.converged()
	leader := c.leader()
	// The others are in a later term; this node's raft is not told.
	g := *leader.raftGroup()
	g.rounds = newTermRounds(func(ctx context.Context, term uint64) error {
		return leader.askTerm(ctx, &g, term)
	})
	later := *leader.raftGroup()
	later.rounds = newTermRounds(func(ctx context.Context, term uint64) error {
		return leader.askTerm(ctx, &later, term+1) // as far as the others know
	})
	leader.mu.Lock()
	leader.tenure.group = &later
	leader.mu.Unlock()
	defer func() {
		leader.mu.Lock()
		leader.tenure.group = &g
		leader.mu.Unlock()
	}()
	ctx := within(t, 10*time.Second)
	_, err := leader.Append(ctx, appendOf("b", "1", seqs(1), expect(7)))
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
	_, err = leader.Read(ctx, ReadOptions{Consistency: pb.Consistency_CONSISTENCY_LINEARIZABLE})
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
	// What is committed is committed: no majority is needed to say so.
	_, err = leader.Append(ctx, appendOf("a", "1", seqs(1)))
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION)
}

func TestFollowerReadsAsFarAsItHasApplied(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	position := c.write("1", 1)
	timeline := c.leader().identity().Timeline
	id := c.followers()[0]
	f := c.nodes[id]
	ctx := within(t, 20*time.Second)
	any := ReadOptions{Consistency: pb.Consistency_CONSISTENCY_ANY, MinPosition: position, Timeline: timeline}
	v, err := f.Read(ctx, any)
	if err != nil {
		t.Fatal(err)
	}
	if v.Applied().Position < position {
		t.Errorf("read at position %d, want %d", v.Applied().Position, position)
	}
	v.Release()
	any.Timeline = "00000000000000000000000000000000"
	_, err = f.Read(ctx, any)
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_TIMELINE_MISMATCH)
	for _, level := range []pb.Consistency{pb.Consistency_CONSISTENCY_LEADER, pb.Consistency_CONSISTENCY_LINEARIZABLE} {
		_, err := f.Read(ctx, ReadOptions{Consistency: level})
		wantCode(t, err, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
	}
	// What is not there yet is waited for.
	any.Timeline, any.MinPosition = timeline, position+1
	got := make(chan error, 1)
	go func() {
		v, err := f.Read(ctx, any)
		if err == nil {
			v.Release()
		}
		got <- err
	}()
	await(t, "the read to wait", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return f.progressWait != nil
	})
	c.write("1", 2)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

// A follower may apply an entry before the leader does; whoever has read it there must find
// it in a linearizable read.
func TestLinearizableReadWaitsForWhatIsCommitted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	var stall atomic.Pointer[Shard]
	stalled, release := make(chan struct{}), make(chan struct{})
	for _, n := range c.nodes {
		n.opts.Hooks.BeforePublish = func() {
			if s := stall.Load(); s != nil && s == n.Shard && stall.CompareAndSwap(s, nil) {
				close(stalled)
				<-release
			}
		}
	}
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	leader := c.leader()
	before := leader.applied()
	stall.Store(leader.Shard)
	write := start(t, leader.Shard, appendOf("a", "1", seqs(2)))
	<-stalled
	read := make(chan uint64, 1)
	go func() {
		v, err := leader.Read(within(t, 20*time.Second), ReadOptions{Consistency: pb.Consistency_CONSISTENCY_LINEARIZABLE})
		if err != nil {
			t.Error(err)
			close(read)
			return
		}
		defer v.Release()
		read <- v.Applied().Position
	}()
	await(t, "the read to wait", func() bool {
		leader.mu.Lock()
		defer leader.mu.Unlock()
		return leader.progressWait != nil
	})
	if got := leader.applied(); got != before {
		t.Fatalf("applied %s in spite of the stall", got)
	}
	close(release)
	if got := <-read; got != 2 {
		t.Errorf("read at position %d what was committed at 2", got)
	}
	if _, err := write.wait(t); err != nil {
		t.Fatal(err)
	}
}

// While raft is started again, the new one may vote before it is the one that is asked.
func TestVoteOfARaftThatIsBeingStartedIsConfirmed(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.start("n1")
	n := c.leader()
	voted := n.raftGroup().term() + 1
	if err := n.stable.SetUint64([]byte("CurrentTerm"), voted); err != nil {
		t.Fatal(err)
	}
	resp, err := peerService{s: n.Shard}.ConfirmTerm(context.Background(), &peerpb.ConfirmTermRequest{Term: voted - 1})
	if err != nil || resp.GetTerm() != voted {
		t.Errorf("after a vote in term %d: %v, %v", voted, resp, err)
	}
}
