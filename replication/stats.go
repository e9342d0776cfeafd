package replication

import "github.com/tidemark-db/tidemark/mark"

// Stats is how far a shard uses what its options bound. Sizes are bytes.
type Stats struct {
	// MaxInFlightBytes bounds Status.InFlightBytes. MinFreeDiskBytes is the reserve of disk
	// space; 0 = none.
	MaxInFlightBytes, MinFreeDiskBytes int64
	// OutstandingEntries are proposed and not decided.
	OutstandingEntries, MaxOutstandingEntries int

	// The caches of admission and those of Apply.
	AdmissionHeads, AdmissionMarks mark.Stats
	ApplyHeads, ApplyMarks         mark.Stats

	// LogCache keeps the newest log entries.
	LogCache EntryCacheStats
	// RetiredHistories gave way to another node's and are still read, of MaxRetiredHistories:
	// the next one to give way would wait then. LentSnapshots are being sent to other nodes, or
	// were until a minute ago: the log behind them is kept, up to MaxLentLogBytes.
	RetiredHistories, MaxRetiredHistories int
	LentSnapshots                         int
	MaxLentLogBytes                       int64

	// History is nil once the shard is closed or has failed.
	History *HistoryStats
}

// HistoryStats is what the history has in memory and on disk.
type HistoryStats struct {
	// The cache of blocks that were read.
	BlockCacheBytes, BlockCacheLimit int64
	BlockCacheHits, BlockCacheMisses int64
	// Memtables that are written or wait for a flush, and those that only readers still hold.
	// MemtableLimit is the size of one.
	Memtables, ZombieMemtables                        int64
	MemtableBytes, ZombieMemtableBytes, MemtableLimit int64
	// Snapshots are the moments that readers hold.
	Snapshots int
	// L0Sublevels is how many tables of the first level a look-up may have to ask, and
	// CompactionDebtBytes how much is to be compacted.
	L0Sublevels         int
	CompactionDebtBytes int64
	DiskBytes           int64
}

// Stats says how full the shard's bounded things are. It never waits for Apply.
func (s *Shard) Stats() Stats {
	o := s.opts
	st := Stats{
		MaxInFlightBytes: o.MaxInFlightBytes, MaxOutstandingEntries: o.MaxOutstandingEntries,
		MinFreeDiskBytes: max(o.MinFreeDiskBytes, 0),
		LogCache:         s.logs.cache.stats(),
		RetiredHistories: len(s.hist.slots), MaxRetiredHistories: maxRetired,
		LentSnapshots: s.snaps.lentCount(), MaxLentLogBytes: s.logs.maxLent,
	}
	s.mu.Lock()
	cache, proc, store, view := s.cache, s.proc, s.store, s.acquireView()
	if s.tenure != nil {
		st.OutstandingEntries = len(s.tenure.proposed)
	}
	s.mu.Unlock()
	st.AdmissionHeads, st.AdmissionMarks = cache.Stats()
	if proc != nil {
		st.ApplyHeads, st.ApplyMarks = proc.cache.Stats()
	}
	if view == nil {
		return st
	}
	// The store is not closed while a view of it is held.
	defer view.Release()
	if s.failed() {
		return st // Pebble may have stopped with its locks held
	}
	m := store.Metrics()
	st.History = &HistoryStats{
		BlockCacheBytes: m.BlockCache.Size, BlockCacheLimit: o.BlockCacheBytes,
		BlockCacheHits: m.BlockCache.Hits, BlockCacheMisses: m.BlockCache.Misses,
		Memtables: m.MemTable.Count, ZombieMemtables: m.MemTable.ZombieCount,
		MemtableBytes: int64(m.MemTable.Size), ZombieMemtableBytes: int64(m.MemTable.ZombieSize),
		MemtableLimit: o.MemTableBytes,
		Snapshots:     m.Snapshots.Count,
		L0Sublevels:   int(m.Levels[0].Sublevels), CompactionDebtBytes: int64(m.Compact.EstimatedDebt),
		DiskBytes: int64(m.DiskSpaceUsage()),
	}
	return st
}
