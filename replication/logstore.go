package replication

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/tidemark-db/tidemark/wal/tail"
)

// logStore stands between raft and the tail. It holds what raft assumes of a log behind a
// snapshot, and does not itself see to:
//
//   - The log holds the entry of the newest snapshot's index, in the snapshot's term. Raft
//     compares with it whatever a leader sends next; without it, a leader whose entries
//     conflict with those behind the snapshot sends that snapshot over and over (hashicorp/raft
//     issue 697). After another node's snapshot was restored, an entry of no effect stands
//     for it, which is never sent to anyone: raft sends it only after one before it, and this
//     log has none. So the log is never empty again, and one that is empty was lost.
//   - Entries that a restored snapshot contradicts are gone before raft appends. Raft keeps
//     the index and term of its newest entry in memory, and goes on as if they were there:
//     until it is started again, the log refuses every call.
//   - The log has no gaps. Raft leaves one where a snapshot is ahead of it.
//   - The log behind a snapshot that is being sent is kept for the node that gets it, within a
//     bound: else a node could be sent one snapshot after another.
//
// It also keeps the newest entries in memory: each is read back once by a follower, and once
// for each follower by a leader.
type logStore struct {
	tail  *tail.Log
	snaps *snapshotStore
	log   *zap.Logger
	// maxLent is how many bytes of log are kept for a node that is sent a snapshot.
	maxLent int64
	cache   *entryCache
	sealed  atomic.Bool
	step    func(name string) error // Hooks.Restoring
}

var _ raft.LogStore = (*logStore)(nil)

var (
	errSealed    = errors.New("the log was begun anew behind a snapshot: raft is started again")
	errCommitted = errors.New("raft would delete entries that a snapshot stands for")
)

// seal refuses every call until unseal.
func (l *logStore) seal() { l.sealed.Store(true) }

// unseal lets a raft use the log that knows nothing of it yet.
func (l *logStore) unseal() { l.sealed.Store(false) }

func (l *logStore) usable() error {
	if l.sealed.Load() {
		return errSealed
	}
	return nil
}

// FirstIndex returns the lowest index, 0 if the log is empty.
func (l *logStore) FirstIndex() (uint64, error) {
	if err := l.usable(); err != nil {
		return 0, err
	}
	return l.tail.FirstIndex()
}

// LastIndex returns the highest index, 0 if the log is empty.
func (l *logStore) LastIndex() (uint64, error) {
	if err := l.usable(); err != nil {
		return 0, err
	}
	return l.tail.LastIndex()
}

// GetLog reads an entry. What its slices hold is shared and must not be changed.
func (l *logStore) GetLog(index uint64, out *raft.Log) error {
	if err := l.usable(); err != nil {
		return err
	}
	if l.cache.get(index, out) {
		return nil
	}
	return l.tail.GetLog(index, out)
}

// StoreLog stores one entry, see StoreLogs.
func (l *logStore) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs appends entries that follow on the last one, durably.
func (l *logStore) StoreLogs(entries []*raft.Log) error {
	if err := l.usable(); err != nil {
		return err
	}
	last, err := l.tail.LastIndex()
	if err != nil || len(entries) == 0 {
		return err
	}
	if first := entries[0].Index; first != last+1 {
		return fmt.Errorf("store in the log: expected index %d next, found %d", last+1, first)
	}
	if err := l.tail.StoreLogs(entries); err != nil {
		return err
	}
	l.cache.add(entries)
	return nil
}

// DeleteRange deletes entries at one end of the log: at the front those that raft does not
// need any more, unless others do, and at the back those that conflict with the leader's.
func (l *logStore) DeleteRange(lo, hi uint64) error {
	if err := l.usable(); err != nil {
		return err
	}
	first, err := l.tail.FirstIndex()
	if err != nil {
		return err
	}
	last, err := l.tail.LastIndex()
	if err != nil || first == 0 {
		return err
	}
	if hi < last {
		if hi = min(hi, l.keepFrom(last)-1); hi < lo {
			return nil
		}
	} else if m := l.snaps.newest(); m != nil && lo <= m.Index {
		return fmt.Errorf("%w: %d to %d, the snapshot's is %d", errCommitted, lo, hi, m.Index)
	}
	l.cache.drop(lo, hi)
	return l.tail.DeleteRange(lo, hi)
}

// keepFrom is the lowest index that must stay in the log.
func (l *logStore) keepFrom(last uint64) uint64 {
	keep := last
	if m := l.snaps.newest(); m != nil {
		keep = min(keep, m.Index)
	}
	if lent, ok := l.snaps.lent(); ok && lent < keep {
		if size := l.tail.SizeFrom(lent + 1); size <= l.maxLent {
			return lent + 1
		}
		l.log.Warn("the log behind a snapshot that was sent to another node is dropped: it will need another snapshot",
			zap.Uint64("snapshot_index", lent), zap.Int64("kept_at_most_bytes", l.maxLent))
	}
	return keep
}

// sinceSnapshot is how many bytes of log stand behind the newest snapshot.
func (l *logStore) sinceSnapshot() int64 {
	if m := l.snaps.newest(); m != nil {
		return l.tail.SizeFrom(m.Index + 1)
	}
	return l.tail.SizeFrom(0)
}

// follow makes the log follow on a snapshot: if it holds the snapshot's entry, that and what
// stands behind it stays, else nothing does. It returns the index of the last entry that is
// gone, 0 if there was none. Raft must not use the log meanwhile. After a crash on the way it
// is to be done again.
func (l *logStore) follow(m *snapshotMeta) (gone uint64, err error) {
	first, last, found, err := l.at(m.Index)
	if err != nil || found == m.Term {
		return 0, err
	}
	if first > m.Index {
		return 0, fmt.Errorf("%w: expected a log that reaches back to entry %d, which the snapshot is of, found one that begins at %d", ErrDamaged, m.Index, first)
	}
	l.log.Info("the log is begun anew behind another node's snapshot", zap.Uint64("snapshot_index", m.Index), zap.Uint64("snapshot_term", m.Term),
		zap.Uint64("dropped_from", first), zap.Uint64("dropped_to", last))
	l.cache.drop(0, last)
	if last > 0 {
		if err := l.tail.DeleteRange(first, last); err != nil {
			return 0, err
		}
	}
	if err := l.step("log emptied"); err != nil {
		return 0, err
	}
	return last, l.tail.StoreLog(&raft.Log{Index: m.Index, Term: m.Term, Type: raft.LogNoop})
}

// at returns the bounds of the log, and the term of its entry at index; 0 = there is none.
func (l *logStore) at(index uint64) (first, last, term uint64, err error) {
	if first, err = l.tail.FirstIndex(); err != nil {
		return 0, 0, 0, err
	}
	if last, err = l.tail.LastIndex(); err != nil {
		return 0, 0, 0, err
	}
	if index < first || index > last || first == 0 {
		return first, last, 0, nil
	}
	var e raft.Log
	if err := l.tail.GetLog(index, &e); err != nil {
		return 0, 0, 0, err
	}
	return first, last, e.Term, nil
}
