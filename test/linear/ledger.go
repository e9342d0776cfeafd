package linear

import (
	"errors"
	"fmt"
	"math"
	"sort"
	"time"
)

// forever is the end of an operation that may take effect at any time after it began.
const forever = time.Duration(math.MaxInt64)

// landed is a write that is there, and the calls that can have put it there.
type landed struct {
	Batch
	write        Write
	call, back   time.Duration // when it can have taken effect
	acknowledged bool
}

// ledger is the history of one aggregate: batches[i] is version i+1.
type ledger struct {
	aggregate string
	batches   []landed
	// of are the versions of each writer, in order. With enforcement its sequences rise too.
	of map[string][]uint64
}

// newLedger puts together what is there at the end with what was asked for. The errors are
// about what no order of operations can explain.
func newLedger(aggregate string, batches []Batch, ops []*Op) (*ledger, error) {
	l := &ledger{aggregate: aggregate, of: map[string][]uint64{}}
	events := uint64(1)
	for i, b := range batches {
		if b.Version != uint64(i)+1 || b.FirstNumber != events || b.Incarnation != 1 {
			return nil, fmt.Errorf("%s: batch %d is version %d of incarnation %d with event number %d, expected 1 and %d", aggregate, i+1, b.Version, b.Incarnation, b.FirstNumber, events)
		}
		events += b.Events
		l.batches = append(l.batches, landed{Batch: b, call: forever, back: forever})
		l.of[b.Writer] = append(l.of[b.Writer], b.Version)
	}
	var errs []error
	for _, op := range ops {
		errs = append(errs, l.attribute(op))
	}
	for _, b := range l.batches {
		if b.call == forever {
			errs = append(errs, fmt.Errorf("%s: version %d (%s seq %d..%d %q) is there, and no call is known that may have put it there", aggregate, b.Version, b.Writer, b.First, b.Last, b.ID))
		}
	}
	for writer, versions := range l.of {
		for i := 1; i < len(versions); i++ {
			before, after := l.batches[versions[i-1]-1], l.batches[versions[i]-1]
			if after.First <= before.Last {
				errs = append(errs, fmt.Errorf("%s: %s has sequence %d..%d at version %d and %d..%d at version %d: expected rising sequences, each landed once", aggregate, writer,
					before.First, before.Last, before.Version, after.First, after.Last, after.Version))
			}
		}
	}
	return l, errors.Join(errs...)
}

// attribute notes what an append has to do with what is there.
func (l *ledger) attribute(op *Op) error {
	if op.Kind != Append || (op.Code != 0 && op.Code != Unknown) {
		return nil
	}
	for i, w := range op.Request.Writes {
		if w.Aggregate != l.aggregate {
			continue
		}
		if op.Code == Unknown {
			if b := l.find(op.Request.Writer, w); b != nil && !b.acknowledged {
				b.call, b.write = min(b.call, op.Call), w
			}
			continue
		}
		r := op.Results[i]
		if r.Version == 0 || r.Version > uint64(len(l.batches)) {
			return fmt.Errorf("%s: version %d was acknowledged and is not there (%d are): %v", l.aggregate, r.Version, len(l.batches), op)
		}
		b := &l.batches[r.Version-1]
		if b.Writer != op.Request.Writer || b.First != w.First || b.Last != w.Last || b.ID != w.ID || b.Position != r.Position {
			return fmt.Errorf("%s: version %d is %s seq %d..%d %q at position %d, which is not what was acknowledged: %v", l.aggregate, r.Version, b.Writer, b.First, b.Last, b.ID, b.Position, op)
		}
		if r.Already {
			continue // a claim, see claims.go
		}
		if b.acknowledged {
			return fmt.Errorf("%s: version %d was acknowledged twice as new, the second time: %v", l.aggregate, r.Version, op)
		}
		b.call, b.back, b.write, b.acknowledged = op.Call, op.Return, w, true
	}
	return nil
}

// find returns the batch that a write of a writer made.
func (l *ledger) find(writer string, w Write) *landed {
	for _, v := range l.of[writer] {
		if b := &l.batches[v-1]; b.First == w.First && b.Last == w.Last && b.ID == w.ID {
			return b
		}
	}
	return nil
}

// newest returns the newest batch of a writer as of a version.
func (l *ledger) newest(version uint64, writer string) *landed {
	versions := l.of[writer]
	n := sort.Search(len(versions), func(i int) bool { return versions[i] > version })
	if n == 0 {
		return nil
	}
	return &l.batches[versions[n-1]-1]
}

// mark is a writer's mark as of a version.
func (l *ledger) mark(version uint64, writer string) uint64 {
	if b := l.newest(version, writer); b != nil {
		return b.Last
	}
	return 0
}

// holder is the batch that recorded a sequence of a writer, as of a version.
func (l *ledger) holder(version uint64, writer string, seq uint64) *Holder {
	for _, v := range l.of[writer] {
		if b := l.batches[v-1]; v <= version && b.First <= seq && seq <= b.Last {
			return &Holder{Version: v, Position: b.Position, First: b.First, Last: b.Last, ID: b.ID}
		}
	}
	return nil
}
