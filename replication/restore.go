package replication

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/tidemark-db/tidemark/wal/history"
)

// histories are the history in use, and those that gave way to another node's and are still
// read:
//
//	history/<n>/    the history; the highest number counts
//
// A new one is made complete as <n>.new; the rename decides which of them a crash leaves. The
// old one keeps its directory until its last view is released: Pebble opens files by name.
type histories struct {
	dir string
	n   uint64 // the one in use
	// slots bounds how many are retired at a time.
	slots   chan struct{}
	mu      sync.Mutex
	retired map[*history.Store]struct{}
	wg      sync.WaitGroup // of the ends of retired ones
}

const (
	historyNew = ".new"
	// maxRetired is how many histories may be kept for those who still read them, besides
	// the one in use. Each has its block cache. One more replacement waits.
	maxRetired = 2
)

func historyName(n uint64) string { return fmt.Sprintf("%010d", n) }

func (h *histories) path(n uint64) string { return filepath.Join(h.dir, historyName(n)) }

// open finds the history that counts, and removes what a crash left of others.
func (h *histories) open(dir string) error {
	h.dir, h.slots, h.retired = dir, make(chan struct{}, maxRetired), make(map[*history.Store]struct{})
	if err := makeDir(dir); err != nil {
		return err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	h.n = 1
	for _, e := range entries {
		if n, ok := parseHistoryName(e.Name()); ok {
			h.n = max(h.n, n)
		}
	}
	// The newest may owe its name to a rename that is not durable yet.
	if err := syncDir(dir); err != nil {
		return err
	}
	for _, e := range entries {
		if _, ok := parseHistoryName(strings.TrimSuffix(e.Name(), historyNew)); ok && e.Name() != historyName(h.n) {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func parseHistoryName(name string) (uint64, bool) {
	n, err := strconv.ParseUint(name, 10, 64)
	return n, err == nil && n > 0 && name == historyName(n)
}

// take makes a copy of a checkpoint the history that counts, and returns the number of the
// one before. A crash leaves one of the two, whole.
func (h *histories) take(checkpoint string) (old uint64, err error) {
	final := h.path(h.n + 1)
	tmp := final + historyNew
	if err := os.RemoveAll(tmp); err != nil {
		return 0, err
	}
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return 0, err
	}
	files, err := checkpointFiles(checkpoint)
	if err != nil {
		return 0, err
	}
	for _, f := range files {
		from, to := filepath.Join(checkpoint, f.name), filepath.Join(tmp, f.name)
		// Tables and blob files never change and are shared; the rest is written to.
		if ext := filepath.Ext(f.name); ext == ".sst" || ext == ".blob" {
			err = os.Link(from, to)
		} else {
			err = copyDurably(from, to)
		}
		if err != nil {
			return 0, err
		}
	}
	if err := syncDir(tmp); err != nil {
		return 0, err
	}
	if err := os.Rename(tmp, final); err != nil {
		return 0, err
	}
	old, h.n = h.n, h.n+1
	return old, syncDir(h.dir)
}

func copyDurably(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	// Plain writes: the suite that cuts the power does not model copy_file_range.
	_, err = io.Copy(struct{ io.Writer }{dst}, src)
	return errors.Join(err, dst.Sync(), dst.Close())
}

// retire gives a store up, for which a slot is taken, and removes its files once nobody reads
// it any more.
func (h *histories) retire(store *history.Store, n uint64, log *zap.Logger) {
	h.mu.Lock()
	h.retired[store] = struct{}{}
	h.mu.Unlock()
	h.wg.Add(1)
	store.Retire(func(err error) {
		defer h.wg.Done()
		if err = errors.Join(err, os.RemoveAll(h.path(n))); err != nil {
			log.Error("the history that gave way to another node's could not be removed; the next start tries again", zap.Error(err))
		}
		h.mu.Lock()
		delete(h.retired, store)
		h.mu.Unlock()
		<-h.slots
	})
}

// close waits for the end of those that nobody reads any more; for others it returns an
// error.
func (h *histories) close() error {
	h.mu.Lock()
	var stores []*history.Store
	for s := range h.retired {
		stores = append(stores, s)
	}
	h.mu.Unlock()
	var errs []error
	for _, s := range stores {
		errs = append(errs, s.Close())
	}
	err := errors.Join(errs...)
	if err == nil {
		h.wg.Wait()
	}
	return err
}

// openStore opens the history that counts.
func (s *Shard) openStore() (*history.Store, error) {
	return history.Open(history.Options{
		Dir: s.hist.path(s.hist.n), FS: vfs.Default, BlockCacheBytes: s.opts.BlockCacheBytes,
		MemTableBytes: s.opts.MemTableBytes, Logger: s.log, OnFatal: s.fatal,
	})
}

// openHistory opens the history, first taking it from the newest snapshot if it lacks what
// that stands for, finishes what a crash has cut short in the restoring of another node's
// snapshot, and checks that history, snapshot and log belong together.
func (s *Shard) openHistory() (err error) {
	if err := s.hist.open(s.path("history")); err != nil {
		return fmt.Errorf("history: %w", err)
	}
	if s.store, err = s.openStore(); err != nil {
		return err
	}
	m := s.snaps.newest()
	if m != nil {
		if err := s.checkSnapshot(m); err != nil {
			return err
		}
	}
	if m != nil && s.store.Applied().Index < m.AppliedIndex {
		s.log.Warn("the history is behind the newest snapshot and is taken from it",
			zap.Uint64("applied_index", s.store.Applied().Index), zap.Uint64("snapshot_applied_index", m.AppliedIndex))
		if err := s.store.Abandon(); err != nil {
			return err
		}
		s.store = nil
		old, err := s.hist.take(s.snaps.historyDir(m.ID))
		if err != nil {
			return fmt.Errorf("take the history from snapshot %s: %w", m.ID, err)
		}
		if s.store, err = s.openStore(); err != nil {
			return err
		}
		if err := os.RemoveAll(s.hist.path(old)); err != nil {
			return err
		}
	}
	if err := s.checkHistory(s.store.Applied(), m); err != nil {
		return err
	}
	if m != nil && m.Pending {
		if _, err := s.logs.follow(m); err != nil {
			return err
		}
		if err := s.snaps.settle(m); err != nil {
			return err
		}
	}
	return s.checkLog(m)
}

// checkSnapshot refuses a snapshot of another cluster.
func (s *Shard) checkSnapshot(m *snapshotMeta) error {
	if id := s.identity(); m.ClusterID != id.ClusterID || m.Timeline != id.Timeline {
		return fmt.Errorf("%w: snapshot %s is of cluster %s, timeline %s, and %s says %s, %s: the files are of different clusters; put back the ones that belong together",
			ErrDamaged, m.ID, m.ClusterID, m.Timeline, s.path(identityFile), id.ClusterID, id.Timeline)
	}
	return nil
}

// checkHistory refuses a history of another timeline, or one that has less than the snapshot
// that it was taken from.
func (s *Shard) checkHistory(applied history.Applied, m *snapshotMeta) error {
	if t := applied.Timeline; t != "" && t != s.identity().Timeline {
		return fmt.Errorf("%w: %s holds timeline %s, %s says %s: the files are of different clusters; put back the ones that belong together", ErrDamaged, s.path("history"), t, s.path(identityFile), s.identity().Timeline)
	}
	if m != nil && applied.Index < m.AppliedIndex {
		return fmt.Errorf("%w: expected the checkpoint of snapshot %s to hold entry %d, found one that ends at %d", ErrDamaged, m.ID, m.AppliedIndex, applied.Index)
	}
	return nil
}

// checkLog refuses a log that lacks what it must hold: all that the history has not applied,
// the entry of the newest snapshot, and everything that this node ever acknowledged, of which
// only the part that was applied is known here.
func (s *Shard) checkLog(m *snapshotMeta) error {
	applied := s.store.Applied().Index
	var index uint64
	if m != nil {
		index = m.Index
	}
	first, last, term, err := s.logs.at(index)
	if err != nil {
		return err
	}
	reached := applied
	if m != nil && m.Received && applied <= m.CheckpointIndex {
		reached = m.Index // what the checkpoint has beyond that, this node never had in its log
	}
	switch {
	case first > max(index, 1):
		return fmt.Errorf("%w: %s begins at entry %d, but the history ends at entry %d and the newest snapshot at %d: entries between them are missing; put the missing files back or restore from a backup", ErrDamaged, s.path("tail"), first, applied, index)
	case last < max(reached, index):
		return fmt.Errorf("%w: %s ends at entry %d, but %s has applied entry %d, and the newest snapshot ends at %d: acknowledged entries are missing from the tail; put its files back or restore from a backup", ErrDamaged, s.path("tail"), last, s.path("history"), applied, index)
	case m != nil && term != m.Term:
		return fmt.Errorf("%w: %s holds entry %d of term %d, but the newest snapshot is of term %d there: the files do not belong together; put back the ones that do", ErrDamaged, s.path("tail"), index, term, m.Term)
	}
	return nil
}

// errStopping is returned by a restore that the end of the shard has cut short.
var errStopping = errors.New("this node is stopping")

// Restore takes another node's snapshot, which was received whole. Raft calls it in the
// goroutine that applies, and appends nothing meanwhile.
func (f *fsm) Restore(rc io.ReadCloser) error {
	err := f.s.restore(rc)
	if err != nil && !errors.Is(err, errStopping) {
		f.s.fatal(err)
	}
	return errors.Join(err, rc.Close())
}

func (s *Shard) restore(rc io.ReadCloser) error {
	if s.failed() {
		return errStopping // the process is ending
	}
	inner := rc
	if w, ok := rc.(raft.ReadCloserWrapper); ok {
		inner = w.WrappedReadCloser()
	}
	stream, ok := inner.(*snapshotStream)
	if !ok {
		return fmt.Errorf("restore: expected a snapshot of this node's store, found a %T", inner)
	}
	if err := s.restoringStep("received"); err != nil {
		return err
	}
	stale, err := s.adopt(stream.meta)
	if err == nil && stale {
		s.restartRaft("its newest log entries conflicted with a snapshot and are gone")
	}
	return err
}

// adoptNewest finishes the restoring of a snapshot that raft was shut down over. Raft does
// not run.
func (s *Shard) adoptNewest() error {
	if m := s.snaps.newest(); m != nil {
		if _, err := s.adopt(m); err != nil {
			return err
		}
	}
	s.logs.unseal()
	return nil
}

// adopt makes the newest snapshot, received from another node, this node's state: first the
// history, then the log, and then it is recorded that both follow on the snapshot. Whatever
// a crash leaves of that, openHistory goes on from. stale: raft remembers entries that are
// gone, and must be started again; until then the log refuses its calls.
func (s *Shard) adopt(m *snapshotMeta) (stale bool, err error) {
	if !m.Pending {
		return false, nil // a leader that missed the answer sends its snapshot twice
	}
	if err := s.checkSnapshot(m); err != nil {
		return false, err
	}
	// The log may have more entries than the history has applied, but never the other way
	// round: a history that has all that the snapshot stands for has it from the same log.
	if s.proc.applied.Index < m.AppliedIndex {
		if err := s.replaceHistory(m); err != nil {
			return false, err
		}
	}
	s.logs.seal()
	gone, err := s.logs.follow(m)
	if err != nil {
		return false, err
	}
	if err := s.restoringStep("log follows"); err != nil {
		return false, err
	}
	if err := s.snaps.settle(m); err != nil {
		return false, err
	}
	if err := s.restoringStep("settled"); err != nil {
		return false, err
	}
	// Raft takes the snapshot for the newest entry if its own is older, and is right then.
	if stale = gone >= m.Index; !stale {
		s.logs.unseal()
	}
	return stale, nil
}

// replaceHistory puts a snapshot's history in the place of the shard's.
func (s *Shard) replaceHistory(m *snapshotMeta) error {
	select {
	case s.hist.slots <- struct{}{}:
	case <-s.stopped:
		return errStopping
	}
	old, err := s.hist.take(s.snaps.historyDir(m.ID))
	if err != nil {
		return fmt.Errorf("take the history from snapshot %s: %w", m.ID, err)
	}
	if err := s.restoringStep("history taken"); err != nil {
		return err
	}
	store, err := s.openStore()
	if err != nil {
		return err
	}
	if err := s.checkHistory(store.Applied(), m); err != nil {
		return errors.Join(err, store.Abandon())
	}
	before, after := s.proc.applied, store.Applied()
	replaced, err := s.publishHistory(store)
	if err != nil {
		return errors.Join(err, store.Abandon())
	}
	s.hist.retire(replaced, old, s.log)
	if err := s.restoringStep("history published"); err != nil {
		return err
	}
	s.log.Info("another node's snapshot was restored", zap.Uint64("snapshot_index", m.Index), zap.Uint64("snapshot_term", m.Term),
		zap.Uint64("applied_index", after.Index), zap.Uint64("position", after.Position), zap.Uint64("position_before", before.Position))
	return nil
}

func (s *Shard) restoringStep(name string) error {
	if hook := s.opts.Hooks.Restoring; hook != nil {
		return hook(name)
	}
	return nil
}

// publishHistory makes store the history at one moment, as publish does with a step: the
// view, and nothing cached of the old one. It returns the store that it replaces, which
// readers still have views of.
func (s *Shard) publishHistory(store *history.Store) (*history.Store, error) {
	// The notice that this node does not lead any more may not be here yet.
	s.endTenure("another leader sent this node its snapshot")
	cache := s.proc.cache
	view := store.View()
	applied := view.Applied()
	proc := newProcessor(s.opts.Shard, store, cache)
	proc.rebuilt = &s.meter.applyRebuilt
	if err := proc.schemas.load(view); err != nil {
		view.Release()
		return nil, fmt.Errorf("schemas: %w", err)
	}
	proc.applied.Timeline = s.identity().Timeline
	s.mu.Lock()
	if t := s.tenure; t != nil && t.ready {
		s.mu.Unlock()
		view.Release()
		return nil, errors.New("restore: expected a node that does not lead, found one that admits writes")
	}
	old, replaced := s.view, s.store
	s.view, s.store, s.proc = view, store, proc
	s.revisions = maps.Clone(proc.schemas.revisions)
	s.cache.Reset(applied.Index)
	s.lastStamp = max(s.lastStamp, applied.CommittedAt)
	s.progressed()
	s.mu.Unlock()
	old.Release()
	s.feed.Reset(applied.Position)

	cache.Reset(applied.Index)
	s.digests.reset()
	s.digests.addAll([]entryResult{{index: applied.Index, digest: applied.Digest}})
	return replaced, nil
}
