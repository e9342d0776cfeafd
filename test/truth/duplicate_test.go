package truth

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// The write under test is the second on its aggregate: writer a, sequence 8, after sequence
// 7 made version 1. There are two of them, one guarded and one not, each on its own aggregate.
var (
	guardedFirst = write{aggregate: "guarded", client: "a", seq: 7}
	plainFirst   = write{aggregate: "plain", client: "a", seq: 7}
	guarded      = write{aggregate: "guarded", client: "a", seq: 8, expect: version(1)}
	plain        = write{aggregate: "plain", client: "a", seq: 8}
)

func (c *cluster) prepare(t *testing.T, leader *node) {
	t.Helper()
	a := leader.settled(t, guardedFirst.request())
	a.ok(t, 1)
	c.timeline = a.resp.GetTimeline()
	leader.settled(t, plainFirst.request()).ok(t, 1)
}

// in2013 is the whole of a 2013 about one of them.
func in2013(w write) *pb.AppendFailure {
	f := w.failed(inFlight, 1, 7)
	mark := w.seq
	f.InFlightMark = &mark
	return f
}

// retriesGet2013 asks again in every way about writes that are on the leader's disk alone.
func retriesGet2013(t *testing.T, leader *node) {
	t.Helper()
	leader.ask(t, guarded.request()).refused(t, in2013(guarded))
	leader.ask(t, guarded.unguarded().request()).refused(t, in2013(guarded.unguarded()))
	leader.ask(t, plain.request()).refused(t, in2013(plain))
	for _, w := range []write{guarded, plain} {
		m, err := leader.GetMark(t.Context(), &pb.GetMarkRequest{Aggregate: key(w.aggregate), ClientId: "a", Consistency: pb.Consistency_CONSISTENCY_LEADER})
		if err != nil || m.GetMark() != 7 || m.InFlightMark == nil || m.GetInFlightMark() != 8 || m.GetHolder().GetClientSeq() != 7 {
			t.Fatalf("GetMark on %s: %v, %v; expected mark 7 and 8 in flight", w.aggregate, m, err)
		}
	}
}

// Contract 2.2, "A 2013 always resolves", and the truth table's "in flight; the same again";
// 2.5, "still in flight: the call waits". Followers that come back within the lease commit
// the write.
func TestRetryWithinTheLeaseIs2013AndTheWriteLands(t *testing.T) {
	t.Parallel()
	c, leader, followers := form(t, 10*time.Second, 10*time.Second)
	c.prepare(t, leader)

	freeze(t, followers...)
	first := leader.onDisk(t, guarded)
	second := leader.onDisk(t, plain)
	retriesGet2013(t, leader)
	attached := leader.begin(t, guarded.confirm(), patience)
	retriesGet2013(t, leader)
	unanswered(t, first, second, attached)

	thaw(t, followers...)
	r1, r2 := await(t, first).ok(t, 2), await(t, second).ok(t, 2)
	original := proto.Clone(r1).(*pb.WriteResult)
	original.AlreadyCommitted = true
	if a := await(t, attached); a.err != nil || len(a.resp.GetResults()) != 1 || !proto.Equal(a.resp.GetResults()[0], original) {
		t.Fatalf("CONFIRM found %v, expected the result of the first call, %v", a, original)
	}
	if leader.state(t).Role != "leader" {
		t.Fatal("the leader lost its lease: the answers above prove less than they should")
	}
	leader.ask(t, guarded.unguarded().request()).refused(t, guarded.unguarded().held(used, 2, 8, r1))
	leader.ask(t, guarded.request()).refused(t, guarded.held(conflict, 2, 8, r1))
	leader.ask(t, plain.request()).refused(t, plain.held(used, 2, 8, r2))
	c.same(t, r2.GetPosition(), guarded.aggregate, plain.aggregate)
}

// Contract 3, 2014 and 2011: what was handed to raft when the leader stepped down may still
// land, what was not did not. Then the followers come back, and whoever leads says what
// became of the writes: they landed, or they are made now.
func TestStepDownLeavesTheOutcomeOpenAndTheRetrySettlesIt(t *testing.T) {
	t.Parallel()
	c, leader, followers := form(t, time.Second, time.Second)
	c.prepare(t, leader)

	freeze(t, followers...)
	queued := write{aggregate: "queued", client: "q", seq: 1}
	first := leader.onDisk(t, guarded)
	second := leader.onDisk(t, plain)
	third := leader.begin(t, queued.request(), patience) // no more than two entries are handed over at once
	await(t, first).is(t, outcomeOpen)
	await(t, second).is(t, outcomeOpen)
	await(t, third).is(t, notLeader)
	leader.ask(t, guarded.request()).is(t, notLeader)
	leader.ask(t, guarded.unguarded().request()).is(t, notLeader)
	leader.ask(t, guarded.confirm()).is(t, notLeader)
	leader.ask(t, plain.request()).is(t, notLeader)

	thaw(t, followers...)
	next := c.leader(t, c.nodes...)
	var last uint64
	for _, w := range []write{guarded, plain} {
		a := next.settled(t, w.request())
		if a.err == nil {
			a.ok(t, 2)
		} else if h := a.failure().GetHolder(); h.GetEventId() != w.event() || h.GetVersion() != 2 {
			t.Fatalf("the retry on %s must succeed or say that the first attempt landed, found %v", next.id, a)
		}
		last = next.landed(t, w, 2).GetPosition()
	}
	// "queued" got a definite no.
	position := next.settled(t, queued.request()).ok(t, 1).GetPosition()
	if position != last+1 {
		t.Errorf("the refused write is at position %d, expected %d", position, last+1)
	}
	c.same(t, position, guarded.aggregate, plain.aggregate, queued.aggregate)
}

// The same, but the writes cannot have landed: those who lead next never saw them. "To a
// clean write if the first attempt is rolled back" (2.2), and the old leader's copy goes.
func TestStepDownAndAnotherLeaderRollTheWriteBack(t *testing.T) {
	t.Parallel()
	c, leader, followers := form(t, time.Second, time.Second)
	c.prepare(t, leader)

	leader.hold(t, pointEntries)
	freeze(t, followers...)
	first := leader.onDisk(t, guarded)
	second := leader.onDisk(t, plain)
	retriesGet2013(t, leader)
	await(t, first).is(t, outcomeOpen)
	await(t, second).is(t, outcomeOpen)
	leader.ask(t, guarded.request()).is(t, notLeader)
	leader.ask(t, plain.request()).is(t, notLeader)

	freeze(t, leader)
	thaw(t, followers...)
	next := c.leader(t, followers...)
	next.settled(t, guarded.request()).ok(t, 2)
	position := next.settled(t, plain.request()).ok(t, 2).GetPosition()
	next.landed(t, guarded, 2)
	next.landed(t, plain, 2)
	thaw(t, leader)
	leader.release(t, pointEntries)
	c.same(t, position, guarded.aggregate, plain.aggregate)
}

// A leader is killed before a write has left it. The retry is a clean write, and the copy on
// the dead leader's disk is gone when it returns, whether there was a retry or not.
func TestWriteThatDiedWithItsLeaderIsNotThere(t *testing.T) {
	t.Parallel()
	c, leader, followers := form(t, 0, 0)
	c.prepare(t, leader)
	forgotten := write{aggregate: "forgotten", client: "z", seq: 1}

	leader.hold(t, pointEntries)
	freeze(t, followers...)
	calls := []<-chan answer{leader.onDisk(t, forgotten), leader.onDisk(t, guarded)}
	leader.ask(t, guarded.request()).refused(t, in2013(guarded))
	unanswered(t, calls...)
	leader.Kill(t)
	for _, call := range calls {
		await(t, call).lost(t)
	}

	thaw(t, followers...)
	next := c.leader(t, followers...)
	next.settled(t, guarded.request()).ok(t, 2)
	next.landed(t, guarded, 2)
	// Another writer's write takes the place that the old leader's log has a copy in.
	other := write{aggregate: "plain", client: "b", seq: 1, expect: version(1)}
	position := next.settled(t, other.request()).ok(t, 2).GetPosition()

	leader.start(t, 0)
	c.same(t, position, guarded.aggregate, plain.aggregate)
	m, err := leader.GetMark(t.Context(), &pb.GetMarkRequest{Aggregate: key(forgotten.aggregate), ClientId: "z", Consistency: anyNode})
	if err != nil || m.GetMark() != 0 || m.Holder != nil || m.InFlightMark != nil {
		t.Errorf("the old leader answers %v, %v about a write that died with it", m, err)
	}
	if leader.inTail(t, forgotten.event()) {
		t.Error("the old leader's log still holds a write that died with it")
	}
	next.settled(t, forgotten.request()).ok(t, 1)
}

// A leader is killed when a write is on the disks of two and only the other one is left to
// know: it is committed by the next leader, which says so.
func TestWriteOnAMajoritysDisksOutlivesItsLeader(t *testing.T) {
	t.Parallel()
	c, leader, followers := form(t, 0, 0)
	c.prepare(t, leader)

	leader.hold(t, pointEntries)
	first := leader.onDisk(t, guarded)
	var held uint64
	until(t, "the first entry to be held for both followers, and nothing before it to be under way", func() bool {
		at := leader.state(t).Held[pointEntries]
		held = at.Newest
		return at.Waiting == 2
	})
	freeze(t, followers[1])
	leader.hold(t, pointAnswers)
	second := leader.onDisk(t, plain)
	leader.release(t, pointEntries)
	until(t, "both entries to be on a follower's disk", func() bool { return leader.state(t).Held[pointAnswers].Newest > held })
	retriesGet2013(t, leader)
	unanswered(t, first, second)
	leader.Kill(t)
	await(t, first).lost(t)
	await(t, second).lost(t)
	followers[0].ask(t, guarded.request()).is(t, notLeader)

	thaw(t, followers[1])
	next := c.leader(t, followers...)
	a := next.settled(t, guarded.request())
	r := next.landed(t, guarded, 2)
	a.refused(t, guarded.held(conflict, 2, 8, r))
	a = next.settled(t, plain.request())
	r = next.landed(t, plain, 2)
	a.refused(t, plain.held(used, 2, 8, r))
	leader.start(t, 0)
	c.same(t, r.GetPosition(), guarded.aggregate, plain.aggregate)
}
