package linear

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// checkGuards looks for two acknowledgements, both of a new write, for one sequence or for
// one version guard.
func checkGuards(ops []Op) error {
	type guard struct {
		aggregate string
		expected  uint64
	}
	type sequence struct {
		aggregate, writer string
		seq               uint64
	}
	guards, sequences := map[guard]*Op{}, map[sequence]*Op{}
	var errs []error
	for i := range ops {
		op := &ops[i]
		if op.Kind != Append || op.Code != 0 {
			continue
		}
		for j, w := range op.Request.Writes {
			if op.Results[j].Already {
				continue
			}
			for seq := w.First; seq <= w.Last; seq++ {
				key := sequence{w.Aggregate, op.Request.Writer, seq}
				if first := sequences[key]; first != nil {
					errs = append(errs, fmt.Errorf("two OKs for sequence %d of %s on %s:\n    %v\n    %v", seq, key.writer, key.aggregate, first, op))
				}
				sequences[key] = op
			}
			if w.Expected == nil {
				continue
			}
			key := guard{w.Aggregate, *w.Expected}
			if first := guards[key]; first != nil {
				errs = append(errs, fmt.Errorf("two OKs for expected version %d of %s:\n    %v\n    %v", key.expected, key.aggregate, first, op))
			}
			guards[key] = op
		}
	}
	return errors.Join(errs...)
}

// checkAtomic holds requests over several aggregates, and the positions of all aggregates
// together, against each other.
func checkAtomic(ops []Op, batches map[string][]Batch) error {
	type placed struct {
		Batch
		aggregate string
	}
	var all []placed
	at := map[uint64]placed{} // by position
	var errs []error
	for _, aggregate := range sorted(batches) {
		last := uint64(0)
		for _, b := range batches[aggregate] {
			p := placed{b, aggregate}
			if other, taken := at[b.Position]; taken {
				errs = append(errs, fmt.Errorf("position %d is version %d of %s and version %d of %s", b.Position, other.Version, other.aggregate, b.Version, aggregate))
			}
			if b.Position <= last {
				errs = append(errs, fmt.Errorf("%s: version %d is at position %d, the one before at %d", aggregate, b.Version, b.Position, last))
			}
			last = b.Position
			at[b.Position] = p
			all = append(all, p)
		}
	}
	// A request is found again by its first write's event id and sequence.
	requests := map[string]*Request{}
	id := func(writer, event string, first uint64) string { return fmt.Sprint(writer, "/", event, "/", first) }
	for i := range ops {
		if r := ops[i].Request; r != nil {
			for _, w := range r.Writes {
				requests[id(r.Writer, w.ID, w.First)+w.Aggregate] = r
			}
		}
	}
	for _, p := range all {
		r := requests[id(p.Writer, p.ID, p.First)+p.aggregate]
		if r == nil {
			continue // told by newLedger
		}
		i := slices.IndexFunc(r.Writes, func(w Write) bool { return w.Aggregate == p.aggregate })
		if int(p.CommitCount) != len(r.Writes) || p.CommitFirst+uint64(i) != p.Position {
			errs = append(errs, fmt.Errorf("%s: version %d is at position %d of a commit of %d from %d, and was write %d of a request of %d", p.aggregate, p.Version, p.Position, p.CommitCount, p.CommitFirst, i, len(r.Writes)))
			continue
		}
		for j, w := range r.Writes {
			if q := at[p.CommitFirst+uint64(j)]; q.aggregate != w.Aggregate || q.Writer != r.Writer || q.ID != w.ID || q.First != w.First || q.Last != w.Last {
				errs = append(errs, fmt.Errorf("half of a request: write %d of %s is version %d of %s, and at position %d there is not write %d, %v", i, r.Writer, p.Version, p.aggregate, p.CommitFirst+uint64(j), j, w))
			}
		}
	}
	return errors.Join(append(errs, checkOrder(ops))...)
}

// checkOrder: a write that was sent after another was acknowledged has a higher position.
func checkOrder(ops []Op) error {
	type event struct {
		when time.Duration
		back bool
		op   *Op
	}
	var events []event
	for i := range ops {
		if op := &ops[i]; op.Kind == Append && op.Code == 0 && !op.Results[0].Already {
			events = append(events, event{op.Call, false, op}, event{op.Return, true, op})
		}
	}
	slices.SortStableFunc(events, func(a, b event) int {
		switch {
		case a.when != b.when:
			return int(min(max(a.when-b.when, -1), 1))
		case a.back == b.back:
			return 0
		case a.back:
			return 1 // at the same moment a call comes first: they overlap
		}
		return -1
	})
	var newest *Op // the highest position acknowledged so far
	before := map[*Op]*Op{}
	for _, e := range events {
		first := e.op.Results[0].Position
		if !e.back {
			before[e.op] = newest
			continue
		}
		if b := before[e.op]; b != nil && b.Results[len(b.Results)-1].Position >= first {
			return fmt.Errorf("a write was sent after another was acknowledged and has a lower position:\n    %v\n    %v", b, e.op)
		}
		if newest == nil || e.op.Results[len(e.op.Results)-1].Position > newest.Results[len(newest.Results)-1].Position {
			newest = e.op
		}
	}
	return nil
}
