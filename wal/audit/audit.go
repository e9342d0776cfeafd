package audit

import (
	"errors"
	"fmt"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// Finding is something that is not what was written.
type Finding struct {
	Kind pb.FindingKind
	// Key is empty if it is not known which aggregate it is about.
	Key record.Key
	// Incarnation and Version name the batch that it is about, 0 = none.
	Incarnation uint32
	Version     uint64
	// Text says what was expected and what was found.
	Text string
}

// Progress is what an Auditor has checked so far.
type Progress struct {
	// Aggregates that are finished, deleted ones included.
	Aggregates, Batches, Events, Bytes uint64
	// Key is the aggregate that is being checked, or was last.
	Key record.Key
}

// maxFindings ends a step: what is found has to be told before more is looked for.
const maxFindings = 100

// Auditor checks the aggregates of a scope, one after the other, in steps. It is for one
// goroutine.
type Auditor struct {
	// The scope: keys that start with prefix; if only is set, that one.
	prefix string
	only   record.Key

	progress Progress
	current  *aggregate // nil = the one after progress.Key is next
	found    []Finding
	applied  history.Applied // of the step's view
	done     bool
}

// New makes an Auditor of the aggregates whose stored key starts with prefix, "" for all.
func New(prefix string) *Auditor { return &Auditor{prefix: prefix} }

// NewOf makes an Auditor of one aggregate. That it does not exist is no finding.
func NewOf(k record.Key) *Auditor { return &Auditor{prefix: string(k), only: k} }

// Progress is what has been checked so far.
func (a *Auditor) Progress() Progress { return a.progress }

// Step checks at least one batch, and goes on as long as more returns true and there is not too
// much to tell. done: everything in scope has been looked at. An error means that the view
// cannot be read and nothing can be said; damage that hides which aggregates there are is a
// finding without a key, and an error that matches record.ErrCorrupt.
func (a *Auditor) Step(v *history.View, more func() bool) (found []Finding, done bool, err error) {
	a.found, a.applied = nil, v.Applied()
	for first := true; !a.done && (first || more() && len(a.found) < maxFindings); first = false {
		if err := a.advance(v, more); err != nil {
			return a.found, false, err
		}
	}
	return a.found, a.done, nil
}

// advance checks some batches of one aggregate.
func (a *Auditor) advance(v *history.View, more func() bool) error {
	var err error
	if a.current == nil {
		next, ok, nextErr := v.NextAggregate(a.prefix, a.progress.Key)
		if nextErr != nil {
			if errors.Is(nextErr, record.ErrCorrupt) {
				a.found = append(a.found, Finding{Kind: pb.FindingKind_FINDING_KIND_UNREADABLE,
					Text: fmt.Sprintf("expected to find the aggregate behind %q, found: %v", a.progress.Key, nextErr)})
			}
			return nextErr
		}
		if !ok {
			a.done = true
			return nil
		}
		a.progress.Key = next
		a.current = &aggregate{a: a, key: next}
		err = a.current.begin(v)
	} else {
		err = a.current.resume(v)
	}
	if err == nil && !a.current.finished {
		err = a.current.walk(v, more)
	}
	if errors.Is(err, record.ErrCorrupt) {
		a.current.find(pb.FindingKind_FINDING_KIND_UNREADABLE, a.current.incarnation, a.current.next, "expected to read it, found: %v", err)
		a.current.finished, err = true, nil
	}
	if err != nil {
		return err
	}
	if a.current.finished {
		a.current = nil
		a.progress.Aggregates++
		a.done = a.only != ""
	}
	return nil
}
