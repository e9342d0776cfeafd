package linear

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Check judges a history. batches are what is there at the end, of every aggregate that the
// operations name; within is how long each aggregate may take.
func Check(ops []Op, batches map[string][]Batch, within time.Duration) error {
	by := map[string][]*Op{}
	for i := range ops {
		op := &ops[i]
		if op.Kind != Append {
			by[op.Aggregate] = append(by[op.Aggregate], op)
			continue
		}
		for _, w := range op.Request.Writes {
			by[w.Aggregate] = append(by[w.Aggregate], op)
		}
	}
	for aggregate := range batches {
		by[aggregate] = by[aggregate][:len(by[aggregate]):len(by[aggregate])] // also those that nobody asked about
	}
	var errs []error
	for _, aggregate := range sorted(by) {
		l, err := newLedger(aggregate, batches[aggregate], by[aggregate])
		if err != nil {
			errs = append(errs, err) // there is no order to look for
			continue
		}
		errs = append(errs, l.check(by[aggregate], within))
	}
	errs = append(errs, checkGuards(ops), checkAtomic(ops, batches))
	return errors.Join(errs...)
}

// sorted are the keys of a map, in order.
func sorted[V any](m map[string]V) []string {
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// check looks for an order of the operations on one aggregate.
func (l *ledger) check(ops []*Op, within time.Duration) error {
	var history []porcupine.Operation
	add := func(c claim, call, back time.Duration) {
		history = append(history, porcupine.Operation{Input: c, Call: int64(call), Return: int64(back)})
	}
	for i := range l.batches {
		b := &l.batches[i]
		add(l.landing(b), b.call, b.back)
	}
	for _, op := range ops {
		for _, c := range l.claims(op) {
			add(c, op.Call, op.Return)
		}
	}
	model := porcupine.Model{
		Init: func() any { return uint64(0) },
		Step: func(state, input, _ any) (bool, any) {
			version, c := state.(uint64), input.(claim)
			if c.holds(version) != nil {
				return false, version
			}
			if c.write != nil {
				version++
			}
			return true, version
		},
		Hash: func(state any) uint64 { return state.(uint64) },
	}
	switch porcupine.CheckOperationsTimeout(model, history, within) {
	case porcupine.Ok:
		return nil
	case porcupine.Unknown:
		return fmt.Errorf("%s: no verdict on %d operations within %v, which is as good as none: fewer operations per aggregate, or more time", l.aggregate, len(history), within)
	}
	_, info := porcupine.CheckOperationsVerbose(model, history, within)
	return fmt.Errorf("%s: no order explains what its clients saw (%d operations, %d versions)%s", l.aggregate, len(history), len(l.batches), l.explain(history, info))
}

// explain tells how far the longest order got and what did not fit behind it.
func (l *ledger) explain(history []porcupine.Operation, info porcupine.LinearizationInfo) string {
	var longest []porcupine.Operation
	for _, partial := range info.PartialLinearizationsOperations()[0] {
		if len(partial) > len(longest) {
			longest = partial
		}
	}
	version := uint64(0)
	placed := map[string]bool{}
	for _, o := range longest {
		if o.Input.(claim).write != nil {
			version++
		}
		placed[describe(o)] = true
	}
	var rest []porcupine.Operation
	for _, o := range history {
		if !placed[describe(o)] {
			rest = append(rest, o)
		}
	}
	slices.SortFunc(rest, func(a, b porcupine.Operation) int { return int(min(max(a.Return-b.Return, -1), 1)) })
	var s strings.Builder
	fmt.Fprintf(&s, "\n  the longest order ends at version %d; next, by the end of their calls:", version)
	for _, o := range rest[:min(len(rest), 6)] {
		fmt.Fprintf(&s, "\n    %s", describe(o))
		if err := o.Input.(claim).holds(version); err != nil {
			fmt.Fprintf(&s, "\n      not at version %d: %v", version, err)
		}
	}
	return s.String()
}

func describe(o porcupine.Operation) string {
	c := o.Input.(claim)
	if c.write == nil {
		return c.op.String()
	}
	until := "any time"
	if c.write.back != forever {
		until = c.write.back.Round(time.Microsecond).String()
	}
	return fmt.Sprintf("%v..%s write by %s %v, version %d at position %d", c.write.call.Round(time.Microsecond), until, c.write.Writer, c.write.write, c.write.Version, c.write.Position)
}
