package tail

import (
	"errors"
	"fmt"
)

var (
	// ErrClosed is returned by every call after Close, and by one that Close interrupts.
	ErrClosed = errors.New("the log is closed")
	// ErrPoisoned is returned by every call after a write, a flush, a truncation or a read
	// of damaged data failed. Memory and files may disagree then; nothing is retried. The
	// error also wraps what failed first.
	ErrPoisoned = errors.New("the log failed and refuses further calls until the process is restarted")
	// ErrDamaged is wrapped by every DamageError.
	ErrDamaged = errors.New("the log is damaged")
)

const adviceRestore = "keep the data directory for examination and restore this node's data from a backup or from another node"

// DamageError says which bytes of the log are not what was written. Nothing was changed.
type DamageError struct {
	File   string
	Offset int64
	Index  uint64 // of the record, 0 if it is not about one
	Reason string // what was expected and what was found
	Advice string // what the operator can do
}

func (e *DamageError) Error() string {
	at := e.File
	if e.Index != 0 {
		at = fmt.Sprintf("%s: offset %d (index %d)", e.File, e.Offset, e.Index)
	}
	return fmt.Sprintf("%v: %s: %s; %s", ErrDamaged, at, e.Reason, e.Advice)
}

// Unwrap makes errors.Is(err, ErrDamaged) true.
func (e *DamageError) Unwrap() error { return ErrDamaged }
