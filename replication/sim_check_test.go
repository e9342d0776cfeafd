package replication

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/record"
)

// simViolation is what a run was found to do wrong.
type simViolation struct {
	kind, text string
	event      int // the event during which it was found
}

func (s *sim) violated(kind, format string, args ...any) {
	if s.violation == nil {
		s.violation = &simViolation{kind: kind, text: fmt.Sprintf(format, args...), event: s.at}
	}
}

func (s *sim) bug(format string, args ...any) { s.violated("bug of the simulation", format, args...) }

// unlike reports that a call was judged otherwise than the contract says for what the node
// had published and had in flight at that moment. It looks inside; everything else that is
// checked is what clients see and what the log says.
func (s *sim) unlike(o *simOp, got string) {
	if s.conf.outsideOnly {
		return
	}
	want := "2011"
	switch o.expect.kind {
	case expectNotReady:
		want = "2015"
	case expectAdmitted:
		want = "that it is admitted"
	case expectRefused:
		want = failureText(o.expect.failure)
	case expectOriginal:
		want = "the original result"
	case expectAttached:
		want = fmt.Sprintf("that it waits for call %d", o.expect.same.id)
	}
	s.violated("judged otherwise", "%s\n  %s\n  the contract, as of position %d, says %s", o, got, o.expect.position, want)
}

// finish checks an answer.
func (s *sim) finish(o *simOp) {
	switch {
	case o.req == nil:
		s.finishRead(o)
	case o.failure != nil:
		s.finishRefused(o)
	case o.err == nil:
		s.finishOK(o)
	case o.code == pb.ErrorCode_ERROR_CODE_INTERNAL:
		s.violated("internal error", "%s: %v", o, o.err)
	}
	if o.definiteNo() && len(o.landed) > 0 {
		s.noThatLanded(o)
	}
}

func (s *sim) noThatLanded(o *simOp) {
	s.violated("a definite no that landed", "%s\n  %s\n  but it landed at position %d", o, o.answer(), o.landed[0].position)
}

// landedNow checks a call whose write has just landed.
func (s *sim) landedNow(o *simOp) {
	if o.definiteNo() {
		s.noThatLanded(o)
	}
	for _, other := range s.order {
		if other != o && other.intent == o.intent && len(other.landed) > 0 && o.writes[0].enforce {
			s.violated("written twice", "%s landed at position %d, and as %s at position %d", o, o.landed[0].position, other, other.landed[0].position)
		}
	}
}

// resultsOf compares an answer with where the writes landed.
func (s *sim) resultsOf(o *simOp, landed []*simLanded) {
	ok := len(o.results) == len(landed)
	for i := 0; ok && i < len(landed); i++ {
		r, l := &o.results[i], landed[i]
		ok = l.write.key == o.writes[i].key && r.version == l.version && r.position == l.position && r.firstEvent == l.firstEvent &&
			r.incarnation == 1 && r.committedAt == l.at && !r.noChain && r.chain == s.chains[l.position]
	}
	if !ok {
		var want string
		for _, l := range landed {
			want += fmt.Sprintf(" [%s version %d position %d event %d committed_at %d]", l.write.key, l.version, l.position, l.firstEvent, l.at)
		}
		s.violated("an OK that is not the log's", "%s\n  %s\n  the log says%s", o, o.answer(), want)
	}
}

func (s *sim) finishOK(o *simOp) {
	s.noteChains(o)
	switch {
	case !o.confirmed && len(o.landed) == 0:
		s.violated("acknowledged and lost", "%s\n  %s\n  the log does not have it", o, o.answer())
		return
	case !o.confirmed:
		s.resultsOf(o, o.landed)
	default:
		original := s.model.original(o.client, o.writes, s.model.position())
		if original == nil {
			s.violated("acknowledged and lost", "%s\n  %s\n  no such request is in the log", o, o.answer())
			return
		}
		s.resultsOf(o, original)
		if o.tenure == nil && o.expect.kind != expectOriginal && o.expect.kind != expectAttached {
			s.unlike(o, "it was confirmed")
		}
	}
	for i := range o.results {
		s.floor = max(s.floor, o.results[i].position)
	}
}

// noteChains remembers the first chain hash told for a position: every other must agree.
func (s *sim) noteChains(o *simOp) {
	for i := range o.results {
		if r := &o.results[i]; s.chains[r.position] == (record.Hash{}) {
			s.chains[r.position] = r.chain
		}
	}
}

// finishRefused checks a refusal: against what clients may rely on, and, unless a call may
// only be looked at from outside, field by field against the model.
func (s *sim) finishRefused(o *simOp) {
	f := o.failure
	want := o.expect.failure
	switch {
	case o.tenure != nil: // Apply refused it
		if want = o.refusal; want == nil {
			s.violated("refused though it landed", "%s\n  %s", o, o.answer())
			return
		}
		want = proto.Clone(want).(*pb.AppendFailure)
		if o.markBehind > 0 {
			want.InFlightMark = &o.markBehind
		}
		if o.p.confirm && confirmable(want) {
			if s.model.original(o.client, o.writes, o.resumedAt) != nil {
				s.violated("not confirmed", "%s\n  %s\n  it was recorded as of position %d", o, o.answer(), o.resumedAt)
			}
			s.model.markContentDiffers(want, o.writes)
		}
		if !s.conf.outsideOnly && !sameFailure(f, want) {
			s.violated("judged otherwise", "%s\n  %s\n  the log says %s", o, o.answer(), failureText(want))
		}
	case o.expect.kind == expectAttached:
		want = proto.Clone(want).(*pb.AppendFailure)
		want.Code, want.InFlightVersion = 2013, nil
		if !sameFailure(f, want) {
			s.unlike(o, o.answer())
		}
	case o.expect.kind != expectRefused || !sameFailure(f, want):
		s.unlike(o, o.answer())
	}
	s.checkTruth(o)
}

// checkTruth demands of a refusal that all that it says was the committed state at one
// moment: of a definite one, between the call and its answer; of another one, at any time
// before, but not before what a read on that node had shown.
func (s *sim) checkTruth(o *simOp) {
	f := o.failure
	definite := f.Code != 2013 && (f.Code != 2002 || f.Holder == nil)
	from := o.seen
	if definite {
		from = max(from, o.floor)
	}
	judged := o.expect.position
	if o.tenure != nil {
		judged = o.decidedAt
	}
	if judged < from || judged > s.model.position() || !s.trueAt(o, judged) {
		judged = s.model.position() + 1
		for p := from; p <= s.model.position(); p++ {
			if s.trueAt(o, p) {
				judged = p
				break
			}
		}
	}
	if judged > s.model.position() {
		kind := "a definite refusal that is not true"
		if !definite {
			kind = "a refusal that is not true"
		}
		s.violated(kind, "%s\n  %s\n  nothing of the kind was committed from position %d, which was told before the call, to %d", o, o.answer(), from, s.model.position())
		return
	}
	if definite {
		// It held from its aggregate's last change on: later calls must see that much.
		for p := judged; p > s.floor; p-- {
			if s.model.landed[p-1].write.key == f.Aggregate.Id {
				s.floor = p
				break
			}
		}
	}
	if f.Holder != nil {
		s.floor = max(s.floor, f.Holder.Position)
	}
}

// trueAt says whether everything in a refusal holds as of a position.
func (s *sim) trueAt(o *simOp, position uint64) bool {
	f, m := o.failure, s.model
	w := &o.writes[f.WriteIndex]
	mark := m.mark(w.key, o.client, position)
	version := m.version(w.key, position)
	if f.CurrentVersion != version || f.Mark != mark {
		return false
	}
	h := f.Holder
	if h != nil && h.ContentDiffers {
		h = proto.Clone(h).(*pb.Holder)
		h.ContentDiffers = false
	}
	if want := m.holder(w.key, o.client, w.lo, position); (h == nil) != (want == nil) || h != nil && !proto.Equal(h, want) {
		return false
	}
	inFlight := f.GetInFlightMark()
	switch f.Code {
	case 2002:
		return w.enforce && w.lo <= mark
	case 2003:
		if f.InFlightVersion != nil {
			return w.expect != nil && version <= *w.expect && *w.expect < *f.InFlightVersion
		}
		return w.expect != nil && *w.expect != version
	case 2005:
		return version == 0 && !w.create
	case 2013:
		return w.enforce && w.lo > mark && w.lo <= inFlight || o.expect.kind == expectAttached
	case 2030:
		if o.tenure != nil { // what Apply refuses is judged by what is committed alone
			inFlight = 0
		}
		return w.previous != nil && *w.previous != max(mark, inFlight)
	}
	return false
}

func (s *sim) finishRead(o *simOp) {
	if o.err != nil {
		if o.code == pb.ErrorCode_ERROR_CODE_INTERNAL || o.code == 0 && o.ctx.Err() == nil {
			s.violated("internal error", "%s: %v", o, o.err)
		}
		return
	}
	m, g := s.model, &o.got
	switch {
	case g.position > m.position():
		s.violated("a read ahead of the log", "%s\n  %s", o, o.answer())
		return
	case g.position < o.seen:
		s.violated("a read that goes back", "%s\n  %s\n  this node had shown position %d before", o, o.answer(), o.seen)
		return
	case o.read == pb.Consistency_CONSISTENCY_LINEARIZABLE && g.position < max(o.floor, o.shown):
		s.violated("a stale LINEARIZABLE read", "%s\n  %s\n  position %d was told before the call", o, o.answer(), max(o.floor, o.shown))
		return
	}
	holder := m.holder(o.key, o.client, g.mark, g.position)
	if g.version != m.version(o.key, g.position) || g.mark != m.mark(o.key, o.client, g.position) ||
		(holder == nil) != (g.holder == nil) || holder != nil && !proto.Equal(holder, g.holder) {
		s.violated("a read that is not the log's", "%s\n  %s\n  the log says version %d, mark %d", o, o.answer(), m.version(o.key, g.position), m.mark(o.key, o.client, g.position))
	}
	var want *uint64
	if o.node.cur != nil && o.node.cur.t.ready {
		for _, f := range o.node.inFlight() {
			for _, w := range f.writes {
				if f.client == o.client && w.key == o.key && (want == nil || w.hi > *want) {
					want = &w.hi
				}
			}
		}
	}
	if (want == nil) != (g.inFlight == nil) || want != nil && *want != *g.inFlight {
		if !s.conf.outsideOnly {
			s.violated("judged otherwise", "%s\n  %s\n  in flight is %v", o, o.answer(), ptrText(want))
		}
	}
	o.node.seen = max(o.node.seen, g.position)
	s.shown = max(s.shown, g.position)
	if o.read == pb.Consistency_CONSISTENCY_LINEARIZABLE {
		s.floor = max(s.floor, g.position)
	}
}

func ptrText(v *uint64) string {
	if v == nil {
		return "nothing"
	}
	return fmt.Sprint(*v)
}

// checkState compares all that a node holds with the model.
func (s *sim) checkState(n *simNode) {
	v := n.sh.currentView()
	defer v.Release()
	fail := func(what string, args ...any) {
		s.violated("state is not the log's", "%s: %s", simNodeName(n.id), fmt.Sprintf(what, args...))
	}
	m := s.model
	if p := v.Applied().Position; p != m.position() {
		fail("position %d, want %d", p, m.position())
		return
	}
	for key, batches := range m.byKey {
		k := record.MakeKey("acme", "orders", key)
		head, err := markHead(v, k)
		last := batches[len(batches)-1]
		if err != nil || head.Version != last.version || head.EventCount != m.events[key] || head.Position != last.position ||
			head.LastClient != last.client || head.LastMark != m.mark(key, last.client, m.position()) || head.CommittedAt != last.at {
			fail("head of %s is %+v (%v)", key, head.Head, err)
			return
		}
		for _, l := range batches {
			b, ok, err := v.Batch(k, 1, l.version)
			if err != nil || !ok {
				fail("batch %d of %s: %v, %v", l.version, key, ok, err)
				return
			}
			_, _, chain, _, err := record.ParseBatch(b)
			if told := s.chains[l.position]; err != nil || told != (record.Hash{}) && told != chain {
				fail("batch %d of %s has another chain hash than was told (%v)", l.version, key, err)
				return
			}
			s.chains[l.position] = chain
			for _, e := range l.write.events {
				r, ok, err := v.Row(k, l.client, e.seq, l.position)
				first := l.write.events[slices.IndexFunc(l.write.events, func(o simEvent) bool { return o.seq == e.seq })]
				if err != nil || !ok || r.Version != l.version || r.EventID != first.id || r.FirstSeq != l.write.lo || r.LastSeq != l.write.hi || r.CommitFirst != l.commitFirst {
					fail("row of %s seq %d at position %d: %+v, %v, %v", key, e.seq, l.position, r, ok, err)
					return
				}
			}
		}
		for _, client := range simClients {
			if got, err := v.Mark(k, client); err != nil || got != m.mark(key, client, m.position()) {
				fail("mark of %s on %s is %d (%v), want %d", client, key, got, err, m.mark(key, client, m.position()))
			}
		}
	}
}
