package linear

import "fmt"

// The codes that say something about an aggregate's state.
const (
	codeUsed      = 2002
	codeConflict  = 2003
	codeNotExists = 2005
	codeInFlight  = 2013
	codeGap       = 2030
)

// claim is what an operation says of an aggregate: holds tells whether that is true at a
// version. A write says that it takes the aggregate to its version.
type claim struct {
	op    *Op
	write *landed // nil = it changes nothing
	holds func(version uint64) error
}

// claims returns what an operation says of the ledger's aggregate.
func (l *ledger) claims(op *Op) []claim {
	if op.Kind != Append {
		return []claim{{op: op, holds: l.read(op)}}
	}
	var out []claim
	for i := range op.Request.Writes {
		if op.Request.Writes[i].Aggregate != l.aggregate {
			continue
		}
		switch {
		case op.Code == 0 && op.Results[i].Already:
			out = append(out, claim{op: op, holds: atLeast(op.Results[i].Version)})
		case op.Failure != nil && op.Failure.Write == i:
			out = append(out, claim{op: op, holds: l.refusal(op)})
		}
	}
	return out
}

// landing is the claim of a write that is there. That its sequences are above the mark is for
// newLedger to see.
func (l *ledger) landing(b *landed) claim {
	return claim{write: b, holds: func(version uint64) error {
		w, mark := b.write, l.mark(version, b.Writer)
		switch {
		case version != b.Version-1:
			return fmt.Errorf("it makes version %d", b.Version)
		case w.Expected != nil && *w.Expected != version:
			return fmt.Errorf("it expects version %d", *w.Expected)
		case w.Previous != nil && *w.Previous != mark:
			return fmt.Errorf("the mark is %d, and it follows %d", mark, *w.Previous)
		case version == 0 && !w.Create:
			return fmt.Errorf("the aggregate does not exist and it may not create it")
		}
		return nil
	}}
}

func atLeast(least uint64) func(uint64) error {
	return func(version uint64) error {
		if version < least {
			return fmt.Errorf("it speaks of version %d", least)
		}
		return nil
	}
}

// exactly or, if an older moment may be described, at any later version.
func (l *ledger) asOf(described uint64, fresh bool, says error) func(uint64) error {
	return func(version uint64) error {
		switch {
		case says != nil:
			return says
		case version < described || fresh && version != described:
			return fmt.Errorf("it describes version %d", described)
		}
		return nil
	}
}

// read is what a read, a mark or a search says.
func (l *ledger) read(op *Op) func(uint64) error {
	switch op.Kind {
	case Mark, Find:
		return func(version uint64) error {
			if op.Fresh {
				return l.looked(op, version)
			}
			for v := range version + 1 {
				if l.looked(op, v) == nil {
					return nil
				}
			}
			return l.looked(op, version)
		}
	}
	return l.asOf(op.Version, op.Fresh, l.readSays(op))
}

// readSays checks what a read returned against the version that it speaks of.
func (l *ledger) readSays(op *Op) error {
	if op.Version < op.AtLeast {
		return fmt.Errorf("it was to wait until version %d is there", op.AtLeast)
	}
	for _, b := range op.Batches {
		if b.Version == 0 || b.Version > op.Version || b.Version > uint64(len(l.batches)) || l.batches[b.Version-1].Batch != b {
			return fmt.Errorf("it returned %+v, which is not there", b)
		}
	}
	return nil
}

// looked checks what GetMark or FindEvent returned against a version.
func (l *ledger) looked(op *Op, version uint64) error {
	if version < op.AtLeast {
		return fmt.Errorf("it was to wait until version %d is there", op.AtLeast)
	}
	seq := op.Seq
	if op.Kind == Mark {
		if mark := l.mark(version, op.Writer); mark != op.Seq {
			return fmt.Errorf("the mark is %d", mark)
		}
	}
	if want := l.holder(version, op.Writer, seq); !same(want, op.Holder) {
		return fmt.Errorf("the holder is %v", want)
	}
	return nil
}

func same(a, b *Holder) bool { return a == b || a != nil && b != nil && *a == *b }

// refusal is what a refusal says of the write that it is about.
func (l *ledger) refusal(op *Op) func(uint64) error {
	f := op.Failure
	// Confirmed by a majority, as contract 2.4 wants it; the others may come from a leader
	// that is one no more.
	fresh := op.Code == codeConflict || op.Code == codeNotExists || op.Code == codeGap || op.Code == codeUsed && f.Holder == nil
	return l.asOf(f.Current, fresh, l.refusalSays(op))
}

// refusalSays checks a refusal against the version that it speaks of.
func (l *ledger) refusalSays(op *Op) error {
	f, w := op.Failure, op.Request.Writes[op.Failure.Write]
	if mark := l.mark(f.Current, op.Request.Writer); mark != f.Mark {
		return fmt.Errorf("at version %d the mark is %d", f.Current, mark)
	}
	if want := l.holder(f.Current, op.Request.Writer, w.First); !same(want, f.Holder) {
		return fmt.Errorf("at version %d the holder of sequence %d is %v", f.Current, w.First, want)
	}
	inFlight := f.Current
	if f.InFlight != nil {
		inFlight = *f.InFlight
	}
	covered := f.InFlightMark != nil && w.First <= *f.InFlightMark
	switch op.Code {
	case codeUsed:
		if w.First > f.Mark {
			return fmt.Errorf("sequence %d is above the mark", w.First)
		}
		if w.Expected != nil && *w.Expected < f.Current {
			return fmt.Errorf("the guard goes first, and it expects version %d", *w.Expected)
		}
	case codeInFlight:
		if w.First <= f.Mark || !covered {
			return fmt.Errorf("sequence %d is not one in flight", w.First)
		}
	case codeConflict:
		switch {
		case w.Expected == nil:
			return fmt.Errorf("the write has no guard")
		case f.InFlight == nil && *w.Expected == f.Current:
			return fmt.Errorf("its guard passes")
		case f.InFlight != nil && (*w.Expected < f.Current || *w.Expected >= inFlight):
			return fmt.Errorf("its guard is not within what is in flight")
		case f.InFlight != nil && (covered || w.First <= f.Mark):
			return fmt.Errorf("within what is in flight the duplicate goes first")
		}
	case codeNotExists:
		if f.Current != 0 || w.Create {
			return fmt.Errorf("version %d exists, or it may be created (%t)", f.Current, w.Create)
		}
	case codeGap:
		mark := f.Mark
		if f.InFlightMark != nil {
			mark = max(mark, *f.InFlightMark)
		}
		if w.Previous == nil || *w.Previous == mark {
			return fmt.Errorf("it follows the mark %d", mark)
		}
	}
	return nil
}
