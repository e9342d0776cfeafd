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
}

// NewCache makes a cache of at most headBytes for heads and markBytes for marks.
func NewCache(headBytes, markBytes int64) *Cache {
	return &Cache{
		heads: newLRU(headBytes, func(h Head) int { return int(unsafe.Sizeof(h)) + len(h.LastClient) }),
		marks: newLRU(markBytes, func(uint64) int { return 8 }),
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
	v, ok := c.marks.get(c.key(k, client))
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
	return c.marks.fill(c.key(k, client), mark, index)
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
}

func (l *lru[V]) reset(index uint64) {
	for l.root.prev != &l.root {
		l.drop(l.root.prev)
	}
	l.barrier = max(l.barrier, index)
}
