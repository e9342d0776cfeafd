package replication

import (
	"fmt"
	"slices"

	"github.com/hashicorp/raft"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

type simEventKind int

const (
	// Of raft and the network.
	evDeliver simEventKind = iota
	evDrop
	evDuplicate
	evReplicate
	evCampaign
	evStepDown
	evLoop
	evCut
	evHeal
	// Of a node.
	evNotice
	evBarrier
	evTake
	evPropose
	evFuture
	evApply
	evAsk
	evAskTimeout
	evClock
	evCrash
	evRestart
	// Of clients.
	evCall
	evResume
	evCancel
	evImpatient
)

// simStep is one thing that the scheduler lets happen. What it depends on is named so that
// it can still be found when events before it are left out; if it is not there, the event
// does nothing.
type simStep struct {
	kind simEventKind
	n, m int // nodes
	k    int // which of several, or how many
	// Of calls.
	op     int
	client string
	req    *pb.AppendRequest
	intent int
	fresh  bool // only if all calls before have said that the intent did not land
	read   pb.Consistency
	key    string
	at     int64
	err    error
}

// do makes an event happen, and says whether it could.
func (s *sim) do(e *simStep) bool {
	n := s.nodes[e.n]
	if e.kind != evDeliver && e.kind != evDrop && e.kind != evDuplicate && e.kind != evRestart && e.kind != evHeal && e.kind != evResume && e.kind != evCancel && e.kind != evImpatient && !n.up {
		return false
	}
	r := n.raft
	switch e.kind {
	case evDeliver, evDrop, evDuplicate:
		return s.message(e)
	case evReplicate:
		if r.role != simLeader || e.m == e.n {
			return false
		}
		r.replicate(e.m)
	case evCampaign:
		if r.role == simLeader {
			return false
		}
		r.campaign()
	case evStepDown:
		if r.role != simLeader {
			return false
		}
		r.stepDown(r.term)
	case evLoop:
		if len(r.queue) == 0 {
			return false
		}
		r.loop()
	case evCut:
		for other := range simNodes {
			if e.m == e.n || e.m == other { // e.n from all, or from e.m
				s.cut[e.n][other], s.cut[other][e.n] = true, true
			}
		}
	case evHeal:
		s.cut = [simNodes][simNodes]bool{}
	case evNotice:
		if len(r.notices) == 0 {
			return false
		}
		n.notice()
	case evBarrier:
		if n.cur == nil || n.cur.t.ready || n.cur.barrier {
			return false
		}
		n.barrier()
	case evTake:
		if n.cur == nil || !n.cur.t.ready || n.cur.taken != nil || len(n.cur.t.queue) == 0 || n.cur.outstanding >= s.conf.outstanding {
			return false
		}
		n.take()
	case evPropose:
		t := n.cur
		if e.k > 0 {
			if t = nil; e.k <= len(n.old) {
				t = n.old[e.k-1]
			}
		}
		if t == nil || t.taken == nil {
			return false
		}
		n.propose(t, e.err)
	case evFuture:
		if e.k >= len(n.futures) || !n.futures[e.k].resolved {
			return false
		}
		n.deliver(e.k)
	case evApply:
		if r.commit == r.handed && n.early == nil && n.late == nil {
			return false
		}
		n.apply(e.k)
	case evAsk:
		if n.next == nil || n.running != nil && !n.running.done {
			return false
		}
		n.ask()
	case evAskTimeout:
		if n.running == nil || n.running.done {
			return false
		}
		n.running.end(fmt.Errorf("no majority of voters answered within the time"))
	case evClock:
		n.clock = e.at
	case evCrash:
		n.crash()
		s.kept[e.n] = nil
	case evRestart:
		if n.up {
			return false
		}
		n.restart(e.k)
	default:
		return s.doCall(e)
	}
	return true
}

// ask begins the round that callers of confirm have gathered for.
func (n *simNode) ask() {
	n.running, n.next = n.next, nil
	n.running.running = true
	if n.raft.term != n.running.term { // this node does not confirm itself
		n.running.end(fmt.Errorf("the term is %d", n.raft.term))
		return
	}
	for to := range simNodes {
		if to != n.id {
			n.raft.send(&simMsg{kind: simAskTerm, to: to, term: n.running.term, round: n.running})
		}
	}
}

// message lets something happen to the message number k of a link.
func (s *sim) message(e *simStep) bool {
	k := e.k
	for i, m := range s.net {
		if m.from != e.n || m.to != e.m {
			continue
		}
		if k > 0 {
			k--
			continue
		}
		if e.kind == evDuplicate {
			s.net = append(s.net, m)
			return true
		}
		if e.kind == evDeliver && s.cut[m.from][m.to] {
			return false
		}
		s.net = append(s.net[:i], s.net[i+1:]...)
		if e.kind == evDeliver && s.nodes[m.to].up {
			s.note("%s", m)
			s.nodes[m.to].raft.receive(m)
		}
		return true
	}
	return false
}

func (s *sim) doCall(e *simStep) bool {
	if e.kind == evCall {
		n := s.nodes[e.n]
		if s.ops[e.op] != nil || e.fresh && !s.gaveUp(e.intent) {
			return false
		}
		o := &simOp{id: e.op, node: n, client: e.client, req: e.req, intent: e.intent, read: e.read, key: e.key}
		if e.req == nil {
			s.readMark(o)
			return true
		}
		o.writes = simWrites(e.req)
		// A writer never goes back to sequences that it gave up.
		if last := s.tried[e.intent]; last != nil && !e.fresh && !sameWrites(last, o.writes) {
			return false
		}
		s.tried[e.intent] = o.writes
		s.append(o)
		return true
	}
	o := s.ops[e.op]
	if o == nil || o.done {
		return false
	}
	switch e.kind {
	case evResume:
		if !o.resumable() {
			return false
		}
		s.resume(o)
	case evCancel:
		if o.ctx.Err() != nil {
			return false
		}
		o.cancel()
	case evImpatient:
		if !o.attached() {
			return false
		}
		o.impatient = true
	}
	return true
}

// gaveUp says whether a writer may write an intent under fresh sequences (contract 2.4): for
// every choice of sequences so far, each call was refused or never got in, or a refusal shows
// that none of them can land any more.
func (s *sim) gaveUp(intent int) bool {
	var tried []*simOp
	for _, o := range s.order {
		if o.req == nil || o.intent != intent {
			continue
		}
		if f := o.failure; f != nil {
			if h := f.Holder; h != nil && o.mine(h) || f.Code == 2013 || f.InFlightVersion != nil || f.GetInFlightMark() >= f.AttemptedSeq {
				return false // landed, or hold
			}
		} else if o.done && o.err == nil {
			return false // landed
		}
		tried = append(tried, o)
	}
	for _, o := range tried {
		if !o.definiteNo() && !slices.ContainsFunc(tried, func(r *simOp) bool { return r.failure != nil && sameWrites(r.writes, o.writes) && r.passed() }) {
			return false
		}
	}
	return len(tried) > 0
}

// passed says whether a refusal shows that no copy of the write can land any more.
func (o *simOp) passed() bool {
	w := &o.writes[o.failure.WriteIndex]
	return w.expect != nil && o.failure.CurrentVersion > *w.expect || w.enforce && o.failure.Mark >= w.lo
}

// mine says whether a holder is the call's own event.
func (o *simOp) mine(h *pb.Holder) bool {
	for _, w := range o.writes {
		for _, e := range w.events {
			if e.id == h.EventId {
				return true
			}
		}
	}
	return false
}

func (e *simStep) String() string {
	n, m := simNodeName(e.n), simNodeName(e.m)
	nth := ""
	if e.k > 0 {
		nth = fmt.Sprintf(" #%d", e.k)
	}
	switch e.kind {
	case evDeliver:
		return fmt.Sprintf("deliver %s->%s%s", n, m, nth)
	case evDrop:
		return fmt.Sprintf("drop %s->%s%s", n, m, nth)
	case evDuplicate:
		return fmt.Sprintf("duplicate %s->%s%s", n, m, nth)
	case evReplicate:
		return fmt.Sprintf("%s replicates to %s", n, m)
	case evCampaign:
		return n + " stands for election"
	case evStepDown:
		return n + " steps down"
	case evLoop:
		return n + " raft takes up what was handed to it"
	case evCut:
		if e.n == e.m {
			return fmt.Sprintf("cut %s off", n)
		}
		return fmt.Sprintf("cut %s and %s", n, m)
	case evHeal:
		return "heal"
	case evNotice:
		return n + " notices a change of leadership"
	case evBarrier:
		return n + " hands over its barrier"
	case evTake:
		return n + " batcher takes what is queued"
	case evPropose:
		text := n + " batcher proposes it"
		if e.k > 0 {
			text = n + " batcher of an ended tenure proposes what it took"
		}
		if e.err != nil {
			text += fmt.Sprintf(", raft: %v", e.err)
		}
		return text
	case evFuture:
		return fmt.Sprintf("%s future%s resolves", n, nth)
	case evApply:
		return fmt.Sprintf("%s applies up to %d", n, e.k)
	case evAsk:
		return n + " asks the voters for their term"
	case evAskTimeout:
		return n + " gives the round up"
	case evClock:
		return fmt.Sprintf("%s clock %d", n, e.at)
	case evCrash:
		return n + " crashes"
	case evRestart:
		if e.k > 0 {
			return fmt.Sprintf("%s starts, its history %d entries back", n, e.k)
		}
		return n + " starts"
	case evCall:
		o := simOp{id: e.op, node: &simNode{id: e.n}, client: e.client, req: e.req, read: e.read, key: e.key}
		if e.fresh {
			return o.String() + ", a fresh sequence for what was refused"
		}
		return o.String()
	case evResume:
		return fmt.Sprintf("call %d goes on", e.op)
	case evCancel:
		return fmt.Sprintf("call %d is cancelled", e.op)
	case evImpatient:
		return fmt.Sprintf("call %d loses patience", e.op)
	}
	return "?"
}

// simNever are raft's answers by which an entry is in no log, beside ErrNotLeader.
var simNever = []error{raft.ErrEnqueueTimeout, raft.ErrLeadershipTransferInProgress}
