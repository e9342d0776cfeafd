package mark

import (
	"unsafe"

	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// Head is what is known of an aggregate. Exists false is knowledge too: it never existed.
type Head struct {
	history.Head
	Exists bool
}

// Cache holds heads and marks; see the package comment for its rules.
type Cache struct {
	heads *lru[Head]
	marks *lru[uint64]
	buf   []byte
	// forgotten says, for aggregates whose writers were forgotten, as of which index that was:
	// marks from before are not marks any more.
	forgotten map[record.Key]uint64
}

// maxForgotten bounds Cache.forgotten. Beyond it all marks are dropped, which says the same.
const maxForgotten = 1024

// NewCache makes a cache of at most headBytes for heads and markBytes for marks.
func NewCache(headBytes, markBytes int64) *Cache {
	return &Cache{
		heads: newLRU(headBytes, func(h Head) int { return int(unsafe.Sizeof(h)) + len(h.LastClient) }),
		marks: newLRU(markBytes, func(uint64) int { return 8 }),

		forgotten: make(map[record.Key]uint64),
	}
}

// Head returns the cached head. The pointer is valid until the next call that changes the
// cache, and must not be written through.
func (c *Cache) Head(k record.Key) (*Head, bool) {
	c.buf = append(c.buf[:0], k...)
	return c.heads.get(c.buf)
}

// PutHead writes through the head that is right from index on.
func (c *Cache) PutHead(k record.Key, h Head, index uint64) {
	c.buf = append(c.buf[:0], k...)
	c.heads.put(c.buf, h, index)
}

// FillHead offers a head that was read from the history as of index.
func (c *Cache) FillHead(k record.Key, h Head, index uint64) bool {
	c.buf = append(c.buf[:0], k...)
	return c.heads.fill(c.buf, h, index)
}

// Mark returns the cached mark of a writer that is not the head's last one.
func (c *Cache) Mark(k record.Key, client string) (uint64, bool) {
	v, ok := c.marks.getSince(c.key(k, client), c.since(k))
	if !ok {
		return 0, false
	}
	return *v, true
}

// PutMark writes through the mark that is right from index on.
func (c *Cache) PutMark(k record.Key, client string, mark, index uint64) {
	c.marks.put(c.key(k, client), mark, index)
}

// FillMark offers a mark that was read from the history as of index.
func (c *Cache) FillMark(k record.Key, client string, mark, index uint64) bool {
	since := c.since(k)
	if index < since {
		return false
	}
	key := c.key(k, client)
	c.marks.getSince(key, since) // drops one from before
	return c.marks.fill(key, mark, index)
}

// Forget drops the marks of all writers of an aggregate, and refuses those that were read
// before index, at which they were forgotten.
func (c *Cache) Forget(k record.Key, index uint64) {
	if _, known := c.forgotten[k]; !known && len(c.forgotten) >= maxForgotten {
		c.marks.reset(index)
		clear(c.forgotten)
		return
	}
	c.forgotten[k] = index
}

// since is the index before which no mark on the aggregate counts.
func (c *Cache) since(k record.Key) uint64 {
	if len(c.forgotten) == 0 {
		return 0
	}
	return c.forgotten[k]
}

// key joins an aggregate's key, which ends in a zero byte, and a client_id, which has none.
func (c *Cache) key(k record.Key, client string) []byte {
	c.buf = append(append(c.buf[:0], k...), client...)
	return c.buf
}

// Stats is what a cache did so far and holds now.
type Stats struct {
	Hits, Misses, Evictions uint64
	Entries, Bytes, Limit   int64
}

// Stats returns the figures of heads and marks. Unlike the other methods it may be called by
// any goroutine at any time.
func (c *Cache) Stats() (heads, marks Stats) { return c.heads.stats(), c.marks.stats() }

func (l *lru[V]) stats() Stats {
	return Stats{
		Hits: l.hits.Load(), Misses: l.misses.Load(), Evictions: l.evictions.Load(),
		Entries: l.entries.Load(), Bytes: l.used.Load(), Limit: max(l.limit, 0),
	}
}

// Reset drops everything, and refuses what is filled in from now on but was read before
// index: the state as of index came from elsewhere, and any value may have changed with it.
func (c *Cache) Reset(index uint64) {
	c.heads.reset(index)
	c.marks.reset(index)
	clear(c.forgotten)
}

func (l *lru[V]) reset(index uint64) {
	for l.root.prev != &l.root {
		l.drop(l.root.prev)
	}
	l.barrier = max(l.barrier, index)
}
