package replication

import (
	"sync"

	"github.com/hashicorp/raft"
)

// entryCache keeps the newest entries of the log, bounded by bytes.
type entryCache struct {
	mu      sync.Mutex
	limit   int64
	entries []raft.Log // of consecutive indexes
	bytes   int64
	hits    uint64
	misses  uint64
}

// EntryCacheStats is what the cache of log entries holds now, and did so far.
type EntryCacheStats struct {
	Entries, Bytes, Limit int64
	Hits, Misses          uint64
}

// entryOverhead is what an entry takes beside its data.
const entryOverhead = 128

func entryBytes(e *raft.Log) int64 {
	return int64(entryOverhead + len(e.Data) + len(e.Extensions))
}

func newEntryCache(limit int64) *entryCache { return &entryCache{limit: limit} }

// add takes entries that are in the log now, and drops the oldest beyond the limit.
func (c *entryCache) add(entries []*raft.Log) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.entries); n > 0 && c.entries[n-1].Index+1 != entries[0].Index {
		c.keep(n, n)
	}
	for _, e := range entries {
		// A copy: what raft hands over belongs to more than the entry.
		c.entries = append(c.entries, *e)
		c.bytes += entryBytes(e)
	}
	n, bytes := 0, c.bytes
	for bytes > c.limit {
		bytes -= entryBytes(&c.entries[n])
		n++
	}
	if n > 0 {
		c.keep(n, len(c.entries))
	}
}

// keep keeps entries from..to of the slice. mu is held.
func (c *entryCache) keep(from, to int) {
	for _, gone := range [][]raft.Log{c.entries[:from], c.entries[to:]} {
		for i := range gone {
			c.bytes -= entryBytes(&gone[i])
			gone[i] = raft.Log{}
		}
	}
	c.entries = c.entries[from:to]
}

// drop forgets the entries from lo to hi, which reach one end of the log.
func (c *entryCache) drop(lo, hi uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	from, to := 0, len(c.entries)
	for from < to && c.entries[from].Index >= lo && c.entries[from].Index <= hi {
		from++
	}
	for to > from && c.entries[to-1].Index >= lo && c.entries[to-1].Index <= hi {
		to--
	}
	c.keep(from, to)
}

func (c *entryCache) get(index uint64, out *raft.Log) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.entries) > 0 {
		if first := c.entries[0].Index; index >= first && index-first < uint64(len(c.entries)) {
			*out = c.entries[index-first]
			c.hits++
			return true
		}
	}
	c.misses++
	return false
}

// peek is get for /metrics: it does not count.
func (c *entryCache) peek(index uint64, out *raft.Log) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.entries) > 0 {
		if first := c.entries[0].Index; index >= first && index-first < uint64(len(c.entries)) {
			*out = c.entries[index-first]
			return nil
		}
	}
	return raft.ErrLogNotFound
}

func (c *entryCache) stats() EntryCacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return EntryCacheStats{Entries: int64(len(c.entries)), Bytes: c.bytes, Limit: max(c.limit, 0), Hits: c.hits, Misses: c.misses}
}
