package history

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

// Stats is what the history has in memory and on disk, and what it did since it was opened.
// Sizes are bytes.
type Stats struct {
	// The cache of blocks that were read.
	BlockCacheBytes, BlockCacheLimit int64
	BlockCacheHits, BlockCacheMisses int64
	// Memtables that are written or wait for a flush, and those that only readers still hold.
	// MemtableLimit is the size of one.
	Memtables, ZombieMemtables                        int64
	MemtableBytes, ZombieMemtableBytes, MemtableLimit int64
	// Snapshots are the moments that readers hold.
	Snapshots int
	// L0Sublevels is how many tables of the first level a look-up may have to ask,
	// ReadAmplification how many of all levels, and CompactionDebtBytes how much is to be
	// compacted.
	L0Sublevels, ReadAmplification int
	CompactionDebtBytes            int64
	DiskBytes                      int64
	// LevelBytes and LevelTables are the tables of each level, BlobBytes the blob files.
	LevelBytes, LevelTables [levels]int64
	BlobBytes               int64
	// ObsoleteBytes are of files that wait for their removal, ZombieBytes of those that only
	// readers still need.
	ObsoleteBytes, ZombieBytes int64
	Tombstones                 uint64

	Flushes, Compactions, CompactionsFailed, CompactionsRunning int64
	FlushedBytes, CompactedBytes                                uint64
	// Stalls is how often commits had to wait for a flush or a compaction, and Stalled how
	// long. SlowOperations are those on files that took seconds.
	Stalls, SlowOperations uint64
	Stalled                time.Duration
}

// levels is how many Pebble has.
const levels = len(pebble.Metrics{}.Levels)

// limits are sizes of Options, for Stats.
type limits struct{ blockCache, memTable int64 }

// Stats says how full the store is. It waits for Pebble's locks, which may be held over an
// fsync, but not for longer than until a fatal error: then it is nil. The caller must hold a
// view, so that the store stays open.
func (s *Store) Stats() *Stats {
	if s.fatal.Load() != nil {
		return nil
	}
	var m *pebble.Metrics
	if err := s.unlessBroken(func() error { m = s.db.Metrics(); return nil }); err != nil {
		return nil
	}
	st := &Stats{
		BlockCacheBytes: m.BlockCache.Size, BlockCacheLimit: s.limits.blockCache,
		BlockCacheHits: m.BlockCache.Hits, BlockCacheMisses: m.BlockCache.Misses,
		Memtables: m.MemTable.Count, ZombieMemtables: m.MemTable.ZombieCount,
		MemtableBytes: int64(m.MemTable.Size), ZombieMemtableBytes: int64(m.MemTable.ZombieSize),
		MemtableLimit: s.limits.memTable,
		Snapshots:     m.Snapshots.Count,
		L0Sublevels:   int(m.Levels[0].Sublevels), ReadAmplification: m.ReadAmp(),
		CompactionDebtBytes: int64(m.Compact.EstimatedDebt),
		DiskBytes:           int64(m.DiskSpaceUsage()),
		BlobBytes:           int64(m.BlobFiles.LiveSize),
		ObsoleteBytes:       int64(m.Table.ObsoleteSize + m.BlobFiles.ObsoleteSize),
		ZombieBytes:         int64(m.Table.ZombieSize + m.BlobFiles.ZombieSize),
		Tombstones:          m.Keys.TombstoneCount,
		Flushes:             m.Flush.Count, Compactions: m.Compact.Count,
		CompactionsFailed: m.Compact.FailedCount, CompactionsRunning: m.Compact.NumInProgress,
		SlowOperations: s.stalls.slow.Load(),
	}
	st.Stalls, st.Stalled = s.stalls.soFar(time.Now())
	for i := range m.Levels {
		l := &m.Levels[i]
		st.LevelBytes[i], st.LevelTables[i] = l.TablesSize, l.TablesCount
		st.FlushedBytes += l.TableBytesFlushed + l.BlobBytesFlushed
		st.CompactedBytes += l.TableBytesCompacted + l.BlobBytesCompacted
	}
	return st
}

// DiskBytes is what the store takes on disk, files that wait for their removal included.
func (s *Store) DiskBytes() uint64 { return s.db.Metrics().DiskSpaceUsage() }

// stalls counts how often and how long commits wait. Pebble tells of one at a time, under its
// locks: nothing is called while mu is held.
type stalls struct {
	slow atomic.Uint64

	mu    sync.Mutex
	count uint64
	past  time.Duration // in stalls that are over
	since time.Time     // when the one that goes on began; zero = none does
}

func (s *stalls) begin(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	s.since = now
}

func (s *stalls) end(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.past, s.since = s.upTo(now), time.Time{}
}

// soFar returns how many there were and how long they took, the one that goes on included.
func (s *stalls) soFar(now time.Time) (uint64, time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count, s.upTo(now)
}

// upTo is the time spent waiting until now. mu is held.
func (s *stalls) upTo(now time.Time) time.Duration {
	if s.since.IsZero() {
		return s.past
	}
	return s.past + max(0, now.Sub(s.since))
}
