package replication

import (
	"encoding/binary"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/record"
)

// This file is the contract's sections 2.1 to 2.5 once more, written to be read and not to be
// fast, and knowing nothing of decide.go, overlay.go or the history: every answer is computed
// anew from the list of what landed.

// simEvent and simWrite are a request as the model sees it.
type simEvent struct {
	seq         uint64
	id, payload string
}

type simWrite struct {
	key              string // the aggregate's id
	enforce, create  bool
	expect, previous *uint64
	events           []simEvent
	lo, hi           uint64
}

func simWrites(r *pb.AppendRequest) []simWrite {
	var out []simWrite
	for _, w := range r.Writes {
		sw := simWrite{key: w.Aggregate.Id, enforce: w.EnforceClientIdempotency, create: w.AllowCreate, expect: w.ExpectedVersion, previous: w.PreviousClientSeq}
		for i, e := range w.Events {
			sw.events = append(sw.events, simEvent{e.ClientSeq, e.EventId, string(e.Payload)})
			if i == 0 || e.ClientSeq < sw.lo {
				sw.lo = e.ClientSeq
			}
			sw.hi = max(sw.hi, e.ClientSeq)
		}
		out = append(out, sw)
	}
	return out
}

// simLanded is a write that landed.
type simLanded struct {
	op          *simOp
	client      string
	write       *simWrite
	index       uint64 // of the entry
	version     uint64
	position    uint64
	firstEvent  uint64
	at          int64
	commitFirst uint64
	commitCount int
}

// simModel is what the committed log says.
type simModel struct {
	landed []*simLanded            // landed[i] has the position i+1
	byKey  map[string][]*simLanded // by aggregate
	// positions[i] and stamps[i] are the last position and committed_at as of entry i+1.
	positions []uint64
	stamps    []int64
	events    map[string]uint64 // per aggregate
	at        int64
}

func newSimModel() *simModel {
	return &simModel{byKey: map[string][]*simLanded{}, events: map[string]uint64{}}
}

func (m *simModel) position() uint64 { return uint64(len(m.landed)) }

// apply decides over the requests of a committed entry.
func (m *simModel) apply(s *sim, e *simEntry) {
	if p := e.proposal; p != nil {
		for _, o := range p.ops {
			o.logged = true
			if p.tenure.t.term == e.term { // the fence: else it has no effect
				m.request(s, o, e.index)
			}
		}
	}
	m.positions = append(m.positions, m.position())
	m.stamps = append(m.stamps, m.at)
}

func (m *simModel) request(s *sim, o *simOp, index uint64) {
	o.decidedAt = m.position()
	if o.refusal = m.judge(o.client, o.writes, m.position(), nil); o.refusal != nil {
		return
	}
	m.at = max(m.at, int64(binary.BigEndian.Uint64(o.p.buf[5:])))
	first := m.position() + 1
	for i := range o.writes {
		w := &o.writes[i]
		l := &simLanded{
			op: o, client: o.client, write: w, index: index, at: m.at, commitFirst: first, commitCount: len(o.writes),
			version: uint64(len(m.byKey[w.key])) + 1, position: m.position() + 1, firstEvent: m.events[w.key] + 1,
		}
		m.landed = append(m.landed, l)
		m.byKey[w.key] = append(m.byKey[w.key], l)
		m.events[w.key] += uint64(len(w.events))
		o.landed = append(o.landed, l)
	}
	s.landedNow(o)
}

// version, mark and holder are of an aggregate and a writer as of a position.
func (m *simModel) version(key string, position uint64) uint64 {
	n := uint64(0)
	for _, l := range m.byKey[key] {
		if l.position <= position {
			n++
		}
	}
	return n
}

func (m *simModel) mark(key, client string, position uint64) (mark uint64) {
	for _, l := range m.byKey[key] {
		if l.position <= position && l.client == client {
			mark = max(mark, l.write.hi)
		}
	}
	return mark
}

func (m *simModel) holder(key, client string, seq, position uint64) (h *pb.Holder) {
	all := m.byKey[key]
	for i := len(all) - 1; i >= 0; i-- {
		l := all[i]
		if l.position > position || l.client != client {
			continue
		}
		first, times := 0, 0
		for j, e := range l.write.events {
			if e.seq == seq {
				if times++; times == 1 {
					first = j
				}
			}
		}
		if times == 0 {
			continue
		}
		if h != nil {
			h.Others = true
			return h
		}
		h = &pb.Holder{
			Version: l.version, Incarnation: 1, Position: l.position, CommittedAt: record.Timestamp(l.at), ClientSeq: seq,
			EventId: l.write.events[first].id, FirstClientSeq: l.write.lo, LastClientSeq: l.write.hi,
			EventCount: uint32(len(l.write.events)), Others: times > 1,
		}
	}
	return h
}

// judge returns the refusal of a request as of a position with these requests in flight, or
// nil if it passes.
func (m *simModel) judge(client string, writes []simWrite, position uint64, inFlight []*simOp) *pb.AppendFailure {
	type state struct{ c, a, mark, inFlightMark uint64 }
	states := make([]state, len(writes))
	for i, w := range writes {
		st := state{c: m.version(w.key, position), mark: m.mark(w.key, client, position)}
		st.a = st.c
		for _, o := range inFlight {
			for _, f := range o.writes {
				if f.key == w.key {
					st.a++
					if o.client == client {
						st.inFlightMark = max(st.inFlightMark, f.hi)
					}
				}
			}
		}
		states[i] = st
	}
	refuse := func(i int, code pb.ErrorCode, open bool) *pb.AppendFailure {
		w, st := &writes[i], states[i]
		f := &pb.AppendFailure{
			Code: code, WriteIndex: uint32(i), Aggregate: key(w.key), ExpectedVersion: w.expect, CurrentVersion: st.c,
			AttemptedSeq: w.lo, Mark: st.mark, Holder: m.holder(w.key, client, w.lo, position),
		}
		if open {
			f.InFlightVersion = &st.a
		}
		if st.inFlightMark > 0 {
			f.InFlightMark = &st.inFlightMark
		}
		return f
	}
	covered := func(i int) pb.ErrorCode {
		switch w, st := &writes[i], states[i]; {
		case w.enforce && w.lo <= st.mark:
			return 2002
		case w.enforce && w.lo <= st.inFlightMark:
			return 2013
		}
		return 0
	}
	for i, w := range writes {
		if states[i].a == 0 && !w.create {
			return refuse(i, 2005, false)
		}
	}
	for i, w := range writes {
		st := states[i]
		switch {
		case w.expect == nil || *w.expect == st.a:
		case *w.expect < st.c || *w.expect > st.a:
			return refuse(i, 2003, false)
		case covered(i) == 0:
			return refuse(i, 2003, true)
		}
	}
	for i, w := range writes {
		if code := covered(i); code != 0 {
			return refuse(i, code, false)
		}
		if w.previous != nil && w.enforce && *w.previous != max(states[i].mark, states[i].inFlightMark) {
			return refuse(i, 2030, false)
		}
	}
	return nil
}

// confirmable is contract 2.5's list.
func confirmable(f *pb.AppendFailure) bool {
	return slices.Contains([]pb.ErrorCode{2002, 2003, 2005, 2006, 2013}, f.Code)
}

// sameWrites says whether two requests are the same by contract 2.5.
func sameWrites(a, b []simWrite) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if !slices.ContainsFunc(b, func(w simWrite) bool { return w.key == a[i].key && slices.Equal(w.events, a[i].events) }) {
			return false
		}
	}
	return true
}

// original returns where the very same request landed first, as of a position, in the order
// of writes; nil if it did not.
func (m *simModel) original(client string, writes []simWrite, position uint64) []*simLanded {
	for _, l := range m.landed {
		if l.position > position || l.client != client || l.position != l.commitFirst || !sameWrites(l.op.writes, writes) {
			continue
		}
		var out []*simLanded
		for _, w := range writes {
			for _, o := range l.op.landed {
				if o.write.key == w.key {
					out = append(out, o)
				}
			}
		}
		return out
	}
	return nil
}

// markContentDiffers completes a refusal of a CONFIRM.
func (m *simModel) markContentDiffers(f *pb.AppendFailure, writes []simWrite) {
	if f.Holder == nil {
		return
	}
	held := m.landed[f.Holder.Position-1].write
	for _, e := range writes[f.WriteIndex].events {
		// Of events with one sequence the first counts.
		i := slices.IndexFunc(held.events, func(h simEvent) bool { return h.seq == e.seq })
		if i >= 0 && held.events[i].id == e.id && held.events[i].payload != e.payload {
			f.Holder.ContentDiffers = true
		}
	}
}

// sameFailure compares two refusals; both may be nil.
func sameFailure(a, b *pb.AppendFailure) bool {
	return (a == nil) == (b == nil) && (a == nil || proto.Equal(a, b))
}
