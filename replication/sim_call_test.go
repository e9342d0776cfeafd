package replication

import (
	"context"
	"fmt"
	"iter"
	"strings"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/record"
)

// simOp is a call of a client: an append, or a read of a mark. It runs as a coroutine, so
// that the real code runs from one wait to the next and only when the scheduler says so.
type simOp struct {
	id     int
	node   *simNode
	client string
	// Of an append: intent numbers what the writer wants to have written once, over all calls
	// that try to.
	req    *pb.AppendRequest
	writes []simWrite
	intent int
	p      *pending
	// Of a read.
	read pb.Consistency
	key  string

	next      func() (struct{}, bool)
	yield     func()
	ctx       context.Context
	cancel    context.CancelFunc
	waiting   <-chan struct{} // what the call is parked on
	round     *simRound       // or this
	impatient bool
	lost      bool // the node or the run has ended
	done      bool

	// What was known when the call began, see sim.floor, sim.shown and simNode.seen.
	floor, shown, seen uint64

	// expect is the model's judgement of the moment at which admission judged last.
	expect simExpect
	// Once admitted:
	tenure    *simTenure
	entry     *simEntry // in the log of the node that proposed it
	givenBack bool
	logged    bool // the entry is committed
	// Of a committed one: refused by the log, or landed. markBehind is what the writer had in
	// flight behind it when this was published.
	refusal    *pb.AppendFailure
	decidedAt  uint64
	landed     []*simLanded
	markBehind uint64
	// resumedAt is the published position when the call was resumed last, but for what it asked
	// of the voters.
	resumedAt uint64

	// The answer.
	results   []writeResult
	confirmed bool
	code      pb.ErrorCode
	failure   *pb.AppendFailure
	err       error
	got       simRead
}

// simRead is what a read answered.
type simRead struct {
	position, mark, version uint64
	inFlight                *uint64
	holder                  *pb.Holder
}

type simExpectKind int

const (
	expectNothing simExpectKind = iota
	expectNotLeader
	expectNotReady
	expectAdmitted
	expectRefused
	expectOriginal
	expectAttached
)

// simExpect is what the model says that admission answers.
type simExpect struct {
	kind     simExpectKind
	position uint64
	failure  *pb.AppendFailure
	original []*simLanded
	same     *simOp
}

// decidedBy says whether the state published as of an index decides the request.
func (o *simOp) decidedBy(index uint64) bool {
	return o.logged && o.entry.index <= index && o.entry.term == o.tenure.t.term
}

// definiteNo says whether the answer promises that the call's write never lands.
func (o *simOp) definiteNo() bool {
	if !o.done || o.lost {
		return false
	}
	switch o.code {
	case pb.ErrorCode_ERROR_CODE_NOT_LEADER, pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY, pb.ErrorCode_ERROR_CODE_REPLICATION_BACKPRESSURE:
		return true
	}
	return o.failure != nil
}

// call starts a call on a node.
func (s *sim) call(o *simOp, run func()) {
	o.floor, o.shown, o.seen = s.floor, s.shown, o.node.seen
	o.ctx, o.cancel = context.WithCancel(context.Background())
	s.ops[o.id] = o
	s.order = append(s.order, o)
	o.next, _ = iter.Pull(func(yield func(struct{}) bool) {
		o.yield = func() { yield(struct{}{}) }
		run()
	})
	s.resume(o)
}

func (s *sim) append(o *simOp) {
	o.p = newPending(o.req)
	s.byPending[o.p] = o
	s.call(o, func() { o.results, o.confirmed, o.err = o.node.sh.append(o.ctx, o.p) })
}

func (s *sim) readMark(o *simOp) {
	k := record.MakeKey("acme", "orders", o.key)
	s.call(o, func() {
		view, inFlight, err := o.node.sh.ReadMark(o.ctx, ReadOptions{Consistency: o.read}, k, o.client)
		if o.err = err; err != nil {
			return
		}
		defer view.Release()
		o.got = simRead{position: view.Applied().Position, inFlight: inFlight}
		head, err := markHead(view, k)
		o.got.version = head.Version
		if err == nil {
			o.got.mark, err = view.Mark(k, o.client)
		}
		if err == nil {
			o.got.holder, err = o.node.sh.Holder(view, k, o.client, o.got.mark)
		}
		o.err = err
	})
}

// resumable says whether the scheduler may let a call go on.
func (o *simOp) resumable() bool {
	switch {
	case o.done:
		return false
	case o.waiting != nil:
		return isClosed(o.waiting) || o.ctx.Err() != nil || o.impatient
	case o.round != nil:
		return o.round.done || o.ctx.Err() != nil
	}
	return true
}

// attached says whether the call waits for another one's write.
func (o *simOp) attached() bool { return o.req != nil && o.waiting != nil && o.tenure == nil }

// resume lets a call run to its next wait or its end, and compares what it did with the
// model's judgement of the moment.
func (s *sim) resume(o *simOp) {
	n := o.node
	if o.req != nil && !o.lost && o.tenure == nil && o.round == nil {
		o.resumedAt = n.sh.view.Applied().Position
		if o.waiting == nil || o.judgedAfresh() {
			o.expect = n.expected(o)
		}
	} else if !o.lost && o.round == nil {
		o.resumedAt = n.sh.view.Applied().Position
	}
	s.current = o
	_, more := o.next()
	s.current = nil
	switch {
	case o.lost:
		o.done = o.done || !more
		return
	case !more:
		o.done = true
		o.cancel()
		o.code = api.CodeOf(o.err)
		o.failure, _ = api.DetailOf[*pb.AppendFailure](o.err)
		s.note("%s", o.answer())
		s.finish(o)
	case o.req == nil || o.tenure != nil:
	case o.p.done != nil:
		o.tenure = n.cur
		n.cur.admitted = append(n.cur.admitted, o)
		if o.expect.kind != expectAdmitted {
			s.unlike(o, "it was admitted")
		}
	case o.waiting != nil:
		if o.expect.kind != expectAttached || o.waiting != o.expect.same.p.done {
			s.unlike(o, "it waits for a write in flight")
		}
	}
}

// judgedAfresh says whether what the call was attached to ended so that admission judges the
// call once more.
func (o *simOp) judgedAfresh() bool {
	if !isClosed(o.waiting) || o.expect.same == nil {
		return false
	}
	kind := o.expect.same.p.outcome.kind
	return kind != committed && kind != unknown
}

// expected is the model's judgement of what admission answers now.
func (n *simNode) expected(o *simOp) simExpect {
	m, t := n.s.model, n.cur
	switch {
	case t == nil:
		return simExpect{kind: expectNotLeader}
	case !t.t.ready:
		return simExpect{kind: expectNotReady}
	}
	e := simExpect{position: n.sh.view.Applied().Position}
	inFlight := n.inFlight()
	e.failure = m.judge(o.client, o.writes, e.position, inFlight)
	if e.failure == nil {
		e.kind = expectAdmitted
		return e
	}
	e.kind = expectRefused
	if !o.p.confirm || !confirmable(e.failure) {
		return e
	}
	if e.original = m.original(o.client, o.writes, e.position); e.original != nil {
		e.kind = expectOriginal
		return e
	}
	m.markContentDiffers(e.failure, o.writes)
	for _, f := range inFlight {
		if f.client == o.client && sameWrites(f.writes, o.writes) {
			e.kind, e.same = expectAttached, f
			return e
		}
	}
	return e
}

// running are the calls that have not ended, the oldest first.
func (s *sim) running() (ops []*simOp) {
	for _, o := range s.order {
		if !o.done {
			ops = append(ops, o)
		}
	}
	return ops
}

// abandon lets a call whose answer nobody gets run to its end.
func (s *sim) abandon(o *simOp) {
	o.lost = true
	o.cancel()
	for !o.done {
		s.resume(o)
	}
}

func (o *simOp) String() string {
	if o.req == nil {
		return fmt.Sprintf("call %d: %s reads its mark on %s at %s, %s", o.id, o.client, o.key, simNodeName(o.node.id), strings.TrimPrefix(o.read.String(), "CONSISTENCY_"))
	}
	return fmt.Sprintf("call %d: %s at %s", o.id, requestText(o.req), simNodeName(o.node.id))
}

func requestText(r *pb.AppendRequest) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s appends", r.ClientId)
	for _, w := range r.Writes {
		fmt.Fprintf(&b, " [%s", w.Aggregate.Id)
		for _, e := range w.Events {
			fmt.Fprintf(&b, " seq=%d id=%s", e.ClientSeq, e.EventId)
			if string(e.Payload) != e.EventId {
				fmt.Fprintf(&b, " payload=%s", e.Payload)
			}
		}
		if w.ExpectedVersion != nil {
			fmt.Fprintf(&b, " expect=%d", *w.ExpectedVersion)
		}
		if w.PreviousClientSeq != nil {
			fmt.Fprintf(&b, " previous=%d", *w.PreviousClientSeq)
		}
		if !w.EnforceClientIdempotency {
			b.WriteString(" unenforced")
		}
		if !w.AllowCreate {
			b.WriteString(" no-create")
		}
		b.WriteString("]")
	}
	if r.OnDuplicate == pb.OnDuplicate_ON_DUPLICATE_CONFIRM {
		b.WriteString(" CONFIRM")
	}
	return b.String()
}

// answer is the call's answer in words.
func (o *simOp) answer() string {
	switch {
	case o.failure != nil:
		return fmt.Sprintf("call %d: %s", o.id, failureText(o.failure))
	case o.err != nil:
		return fmt.Sprintf("call %d: %d %v", o.id, o.code, o.err)
	case o.req == nil:
		text := fmt.Sprintf("call %d: position %d, version %d, mark %d", o.id, o.got.position, o.got.version, o.got.mark)
		if o.got.inFlight != nil {
			text += fmt.Sprintf(", in flight %d", *o.got.inFlight)
		}
		return text
	}
	text := fmt.Sprintf("call %d: OK", o.id)
	for i, r := range o.results {
		text += fmt.Sprintf(" [%s version %d position %d]", o.writes[i].key, r.version, r.position)
	}
	if o.confirmed {
		text += " already committed"
	}
	return text
}

func failureText(f *pb.AppendFailure) string {
	if f == nil {
		return "no refusal"
	}
	text := fmt.Sprintf("%d about %s: version %d, mark %d", f.Code, f.Aggregate.Id, f.CurrentVersion, f.Mark)
	if f.InFlightVersion != nil {
		text += fmt.Sprintf(", in flight version %d", *f.InFlightVersion)
	}
	if f.InFlightMark != nil {
		text += fmt.Sprintf(", in flight mark %d", *f.InFlightMark)
	}
	if h := f.Holder; h != nil {
		text += fmt.Sprintf(", holder %s version %d position %d seqs %d..%d", h.EventId, h.Version, h.Position, h.FirstClientSeq, h.LastClientSeq)
		if h.Others {
			text += " and others"
		}
		if h.ContentDiffers {
			text += " other content"
		}
	}
	return text
}
