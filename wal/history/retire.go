package history

import (
	"errors"
	"fmt"
)

// retirement is the end of a store that is not used any more, but for the views of it that
// somebody still reads.
type retirement struct {
	done chan struct{} // closed once the store is
	err  error         // written before that
}

// Retire gives the store up: commits and new views are refused from now on, and it is closed,
// without a flush, once the last view is released. done is called then, on a goroutine that
// ends with it; nothing touches the store's directory any more. Call Retire once, and not
// after Close. A store that is retired may be closed: see Close.
//
// After a fatal error, done is never called: the process has to end.
func (s *Store) Retire(done func(error)) {
	if s.fatal.Load() != nil {
		return
	}
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	r := &retirement{done: make(chan struct{})}
	s.retired = r
	s.refuse()
	s.snapshots.drain()
	go func() { // ends soon after the last view is released, or with a fatal error
		select {
		case <-s.snapshots.done:
		case <-s.broken:
			return
		}
		r.err = s.storageError("close "+s.dir, s.unlessBroken(func() error {
			return errors.Join(s.db.Close(), s.lock.Close())
		}))
		close(r.done)
		done(r.err)
	}()
}

// refuse takes no more commits and makes no more views. commitMu is held.
func (s *Store) refuse() {
	s.closed = true
	if v := s.current.Swap(nil); v != nil {
		v.Release()
	}
}

// awaitRetired waits for the end of a store whose views are all released.
func (s *Store) awaitRetired() error {
	s.snapshots.mu.Lock()
	held := s.snapshots.held
	s.snapshots.mu.Unlock()
	if held > 0 {
		return viewsHeld(held)
	}
	select {
	case <-s.retired.done:
		return s.retired.err
	case <-s.broken:
		return *s.fatal.Load()
	}
}

func viewsHeld(n int) error {
	return fmt.Errorf("%w: %d of them; release every view, then close again", ErrViewsHeld, n)
}
