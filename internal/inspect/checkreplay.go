package inspect

import (
	"errors"
	"fmt"
)

// errReached ends a walk of the log at what the history has applied last.
var errReached = errors.New("reached")

// replay decides once more over the entries that lead from the newest snapshot, or from
// nothing, to the history, and compares what they come to: the digest is over every outcome.
func (v *verifier) replay(checkpoints map[string]Applied) error {
	l := &v.log
	if v.report.Damage > 0 || !l.complete || !v.sound || v.applied.Index == 0 || l.last < v.applied.Index {
		return nil
	}
	if err := v.doing("the entries that the history has applied"); err != nil {
		return err
	}
	var base *store
	from := uint64(0)
	if n := len(v.d.Snapshots); n > 0 {
		s := &v.d.Snapshots[n-1]
		a, ok := checkpoints[s.Dir]
		if !ok || a.Index > v.applied.Index || l.first > max(a.Index+1, s.Meta.Index) {
			return nil
		}
		from = a.Index
		opened, err := openStore(s.history())
		if err != nil {
			return err
		}
		base = opened
	} else if l.first > 1 {
		return nil
	}
	r := newReplay(base)
	_, err := v.d.walkTail(func(e Entry) error {
		if e.Index > v.applied.Index {
			return errReached
		}
		if e.Type == TypeCommand && e.Index > from {
			v.report.Applied++
		}
		if err := v.ctx.Err(); err != nil {
			return err
		}
		return r.entry(e)
	})
	if base != nil {
		err = errors.Join(err, base.close())
	}
	var unknown *unknownRequest
	switch {
	case errors.As(err, &unknown):
		v.report.Applied = 0
		v.found(Finding{File: v.d.path("tail"), Offset: -1, Text: fmt.Sprintf("the entries were not applied anew: %v", err)})
		return nil
	case err != nil && !errors.Is(err, errReached):
		return err
	}
	want := r.applied
	want.Timeline = v.applied.Timeline // the log does not say
	if want != v.applied {
		v.found(Finding{Damage: true, File: v.d.History, Offset: -1, Key: fmt.Sprintf("%q", keyApplied), Text: fmt.Sprintf(
			"expected what the log's entries %d to %d lead to, index %d, term %d, position %d, committed at %d, digest %x; found %d, %d, %d, %d, %x",
			from+1, v.applied.Index, want.Index, want.Term, want.Position, want.CommittedAt, want.Digest,
			v.applied.Index, v.applied.Term, v.applied.Position, v.applied.CommittedAt, v.applied.Digest)})
	}
	return nil
}

// unknownRequest is a request that replay does not know how to decide over.
type unknownRequest struct{ kind RequestKind }

func (e *unknownRequest) Error() string {
	return fmt.Sprintf("what a request of kind %s does is not known here", e.kind)
}
