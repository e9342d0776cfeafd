package replication

import (
	"slices"

	"github.com/tidemark-db/tidemark/wal/record"
)

// overlay is what the leader has in flight in one term: admitted and not yet decided by
// Apply. Guarded by Shard.mu. It dies with the term.
type overlay struct {
	aggregates map[record.Key]int // writes in flight; never 0
	writers    map[string]*flight // by aggregate key and client_id
	deletes    map[record.Key][]*pending
	// registrations of schemas, by org and type.
	registrations map[string][]*pending
	free          []*flight // emptied ones, to be used again
	buf           []byte    // scratch for look-ups
}

// flight is what one writer has in flight on one aggregate.
type flight struct {
	key   string
	max   uint64 // highest sequence
	items []flightItem
}

type flightItem struct {
	p     *pending
	index int // of the write in p
}

// maxFree bounds the flights kept for reuse.
const maxFree = 4096

func newOverlay() *overlay {
	return &overlay{aggregates: make(map[record.Key]int), writers: make(map[string]*flight), deletes: make(map[record.Key][]*pending),
		registrations: make(map[string][]*pending)}
}

func (o *overlay) writer(k record.Key, client string) *flight {
	o.buf = append(append(o.buf[:0], k...), client...)
	return o.writers[string(o.buf)]
}

// mark is the highest sequence that a writer has in flight on an aggregate; nil if nothing.
func (o *overlay) mark(k record.Key, client string) *uint64 {
	f := o.writer(k, client)
	if f == nil {
		return nil
	}
	m := f.max
	return &m
}

// fill completes a write's state with what is in flight.
func (o *overlay) fill(s *writeState, k record.Key, client string) {
	s.inFlight = o.aggregates[k]
	s.inFlightMark = 0
	if s.inFlight > 0 {
		if f := o.writer(k, client); f != nil {
			s.inFlightMark = f.max
		}
	}
}

// inTheWay returns a request in flight whose outcome p has to wait for, or nil: one that deletes
// an aggregate of p's writes, or registers a schema for a type of theirs.
func (o *overlay) inTheWay(p *pending) *pending {
	if len(o.deletes)+len(o.registrations) == 0 {
		return nil
	}
	for i := range p.writes {
		if rs := o.registrations[p.writes[i].Key.OfType()]; len(rs) > 0 {
			return rs[len(rs)-1]
		}
		if ds := o.deletes[p.writes[i].Key]; len(ds) > 0 {
			return ds[len(ds)-1]
		}
	}
	return nil
}

// end lets go of who waits for a delete or a registration in flight: the term is over.
func (o *overlay) end() {
	for _, ds := range o.deletes {
		for _, d := range ds {
			d.leave()
		}
	}
	for _, rs := range o.registrations {
		for _, r := range rs {
			r.leave()
		}
	}
	o.deletes, o.registrations = nil, nil
}

// add records an admitted request.
func (o *overlay) add(p *pending) {
	for _, k := range p.deletes {
		o.deletes[k] = append(o.deletes[k], p)
	}
	if p.registers != "" {
		o.registrations[p.registers] = append(o.registrations[p.registers], p)
	}
	for i := range p.writes {
		w := &p.writes[i]
		o.aggregates[w.Key]++
		f := o.writer(w.Key, p.client)
		if f == nil {
			if n := len(o.free); n > 0 {
				f, o.free = o.free[n-1], o.free[:n-1]
			} else {
				f = &flight{}
			}
			f.key = string(o.buf)
			o.writers[f.key] = f
		}
		f.items = append(f.items, flightItem{p, i})
		f.max = max(f.max, w.Highest)
	}
}

// remove forgets a request that was decided or is known not to have landed; the in-flight
// mark of its writer is computed anew from what stays.
func (o *overlay) remove(p *pending) {
	for _, k := range p.deletes {
		if ds := slices.DeleteFunc(o.deletes[k], func(d *pending) bool { return d == p }); len(ds) > 0 {
			o.deletes[k] = ds
		} else {
			delete(o.deletes, k)
		}
	}
	if k := p.registers; k != "" {
		if rs := slices.DeleteFunc(o.registrations[k], func(r *pending) bool { return r == p }); len(rs) > 0 {
			o.registrations[k] = rs
		} else {
			delete(o.registrations, k)
		}
	}
	p.leave()
	for i := range p.writes {
		w := &p.writes[i]
		if n := o.aggregates[w.Key]; n > 1 {
			o.aggregates[w.Key] = n - 1
		} else {
			delete(o.aggregates, w.Key)
		}
		f := o.writer(w.Key, p.client)
		kept := f.items[:0]
		f.max = 0
		for _, it := range f.items {
			if it.p != p {
				kept = append(kept, it)
				f.max = max(f.max, it.p.writes[it.index].Highest)
			}
		}
		clear(f.items[len(kept):])
		f.items = kept
		if len(kept) == 0 {
			delete(o.writers, f.key)
			if len(o.free) < maxFree {
				o.free = append(o.free, f)
			}
		}
	}
}

// same returns the request in flight that CONFIRM may attach to: the same writer's, with
// the same batches on the same aggregates. The oldest of several is the original.
func (o *overlay) same(p *pending) *pending {
	f := o.writer(p.writes[0].Key, p.client)
	if f == nil {
		return nil
	}
	for _, it := range f.items { // in the order of admission
		if it.p.sameContent(p) {
			return it.p
		}
	}
	return nil
}
