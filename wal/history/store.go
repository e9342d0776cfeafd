package history

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"go.uber.org/zap"
)

// Store is the history on disk. Commit and View may be called concurrently; Commit by one
// goroutine at a time is what it is made for, more of them take turns.
type Store struct {
	dir string
	db  *pebble.DB
	log *zap.Logger

	onFatal, onBackground func(error)
	// fatal is set, and broken closed, before OnFatal is called: from then on nothing touches
	// Pebble any more.
	fatal  atomic.Pointer[error]
	broken chan struct{}
	// What was reported last, so that it is not reported over and over.
	lastBackground, lastDamaged atomic.Pointer[string]

	// commitMu is held over a commit, so that a view never falls between Pebble's state and
	// the Applied that describes it.
	commitMu sync.Mutex
	// current is the newest view made, and holds one reference to it. It may be older than the
	// last commit; then View replaces it under commitMu.
	current atomic.Pointer[View]
	applied atomic.Pointer[Applied] // written under commitMu
	// reclaiming: Compact runs, and blob files are rewritten for any garbage at all.
	reclaiming atomic.Int32
	// rangeDrops is how many range tombstones were committed since a flush was last asked for
	// over them; under commitMu.
	rangeDrops int
	// Under commitMu: Close or Retire was called, and it has ended.
	closed, ended bool
	// retired is not nil once Retire was called; under commitMu.
	retired *retirement

	snapshots reaper
	lock      *pebble.Lock
	stalls    stalls
	limits    limits
}

// Applied is how far the store is: as recovered by Open, then as of the last Commit.
func (s *Store) Applied() Applied { return *s.applied.Load() }

// NewBatch makes an empty batch for Commit.
func (s *Store) NewBatch() *Batch {
	return &Batch{pb: s.db.NewBatch(pebble.WithMaxRetainedSizeBytes(maxRetained))}
}

// Commit makes b's puts and its Applied visible, all at once. It does not write to the disk:
// a crash takes back whole commits, the last ones, until the next flush. It waits if memtables
// are not flushed as fast as they fill.
//
// An error before anything is changed leaves the store as it was: no SetApplied, an Applied
// that goes back, or a malformed put.
func (s *Store) Commit(b *Batch) error {
	if err := b.build(); err != nil {
		return err
	}
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	if was := s.applied.Load(); b.applied.Index < was.Index || b.applied.Position < was.Position {
		return fmt.Errorf("history: commit would take m/applied from index %d, position %d back to index %d, position %d; skip entries that are applied already",
			was.Index, was.Position, b.applied.Index, b.applied.Position)
	}
	if err := s.db.Apply(b.pb, pebble.NoSync); err != nil {
		return s.storageError("commit", err)
	}
	applied := b.applied
	s.applied.Store(&applied)
	return s.boundRangeDrops(len(b.ranges))
}

// boundRangeDrops flushes the memtable once it holds maxRangeDrops of them; the caller holds
// commitMu.
func (s *Store) boundRangeDrops(n int) error {
	if s.rangeDrops += n; s.rangeDrops < maxRangeDrops {
		return nil
	}
	s.rangeDrops = 0
	_, err := s.db.AsyncFlush()
	return s.storageError("flush", err)
}

// usable says whether Pebble may be called; the caller holds commitMu.
func (s *Store) usable() error {
	if err := s.fatal.Load(); err != nil {
		return *err
	}
	if s.closed {
		return ErrClosed
	}
	return nil
}

// View returns the store as of the last Commit; the caller must Release it. Views of one
// moment are one and the same. Called after a Commit by the goroutine that committed, it
// never waits; another goroutine may wait for a commit that is going on.
//
// After Close, or a fatal error, the view is one whose reads fail.
func (s *Store) View() *View {
	for {
		if v := s.current.Load(); v != nil && v.applied == s.applied.Load() && v.tryAcquire() {
			return v
		}
		if v := s.newView(); v != nil {
			return v
		}
	}
}

// newView makes a view of this moment, unless another goroutine was faster, and makes it the
// current one.
func (s *Store) newView() *View {
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	if err := s.usable(); err != nil {
		v := &View{s: s, applied: s.applied.Load(), unusable: err}
		v.refs.Store(1)
		return v
	}
	old := s.current.Load()
	if old != nil && old.applied == s.applied.Load() {
		return nil
	}
	v := &View{s: s, applied: s.applied.Load(), snap: s.db.NewSnapshot()}
	v.refs.Store(2) // the caller's and the store's
	s.snapshots.made(v.applied.Index)
	s.current.Store(v)
	if old != nil {
		old.Release()
	}
	return v
}

// Flush writes the memtables to tables and waits for it: what was committed before is on disk
// afterwards. While flushes fail, see Options.OnBackgroundError, it goes on waiting, but not
// for longer than until a fatal error.
func (s *Store) Flush() error {
	if err := s.fatal.Load(); err != nil {
		return *err
	}
	return s.storageError("flush", s.unlessBroken(s.db.Flush))
}

// Checkpoint makes dir, which must not exist, a store of its own that holds at least what was
// committed before the call, and, like after a crash, the state at exactly its m/applied. It
// is on disk when Checkpoint returns. Tables are hard links, so dir must be on the same file
// system, or they are copied. Commits may go on meanwhile.
func (s *Store) Checkpoint(dir string) error {
	// Pebble's checkpoint holds tables and its own log; without that log, the memtables are
	// only in it if they are flushed first.
	if err := s.Flush(); err != nil {
		return err
	}
	return s.storageError("checkpoint to "+dir, s.db.Checkpoint(dir))
}

// Close flushes and closes the store. While views are held it only flushes, and returns an
// error that matches ErrViewsHeld and says how many: they stay readable, and Close may be
// called again. Commits and new views are refused from the first call on. After a fatal error,
// and as soon as there is one, it does nothing more and returns that error.
func (s *Store) Close() error { return s.close(true) }

// Abandon is Close without the flush: on disk is what a crash would leave.
func (s *Store) Abandon() error { return s.close(false) }

func (s *Store) close(flush bool) error {
	// The goroutine that met a fatal error stops with its locks held: ask before taking one.
	if err := s.fatal.Load(); err != nil {
		return *err
	}
	s.commitMu.Lock()
	defer s.commitMu.Unlock()
	if s.ended {
		return nil
	}
	if s.retired != nil {
		return s.awaitRetired()
	}
	s.refuse()
	var flushed error
	if flush {
		flushed = s.storageError("flush", s.unlessBroken(s.db.Flush))
		if err := s.fatal.Load(); err != nil {
			return *err
		}
	}
	if held := s.snapshots.stop(); held > 0 {
		return errors.Join(viewsHeld(held), flushed)
	}
	s.ended = true
	return errors.Join(flushed, s.storageError("close "+s.dir, s.unlessBroken(func() error {
		return errors.Join(s.db.Close(), s.lock.Close())
	})))
}
