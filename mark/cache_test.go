package mark

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

var agg = record.MakeKey("acme", "orders", "1")

func headAt(version uint64) Head { return Head{Exists: true, Head: history.Head{Version: version}} }

func wantMark(t *testing.T, c *Cache, client string, want uint64, ok bool) {
	t.Helper()
	got, found := c.Mark(agg, client)
	if got != want || found != ok {
		t.Fatalf("mark of %q: %d, %v; want %d, %v", client, got, found, want, ok)
	}
}

func TestWriteThroughWinsOverAnOlderFill(t *testing.T) {
	c := NewCache(1<<20, 1<<20)
	c.PutMark(agg, "a", 7, 20)
	c.FillMark(agg, "a", 3, 10)
	wantMark(t, c, "a", 7, true)

	c.PutHead(agg, headAt(5), 20)
	c.FillHead(agg, headAt(4), 10)
	if h, ok := c.Head(agg); !ok || h.Version != 5 {
		t.Fatalf("head: %v, %v; want version 5", h, ok)
	}
}

// A reader takes a view, Apply writes a newer mark, that one is evicted, and only then does
// the reader offer what it read: nothing in the cache contradicts it, and it is stale.
func TestFillOlderThanAnEvictedValueIsRefused(t *testing.T) {
	cost := int64(entryOverhead + len(agg) + 1 + 8)
	c := NewCache(0, 2*cost)
	c.PutMark(agg, "a", 7, 20)
	c.PutMark(agg, "b", 1, 21)
	c.PutMark(agg, "c", 1, 22) // evicts a
	wantMark(t, c, "a", 0, false)
	if c.FillMark(agg, "a", 3, 19) {
		t.Fatal("a fill read at index 19 was taken after a value of index 20 was evicted")
	}
	wantMark(t, c, "a", 0, false)
	if !c.FillMark(agg, "a", 7, 20) {
		t.Fatal("a fill read at index 20 was refused, though nothing newer is unknown")
	}
	wantMark(t, c, "a", 7, true)
}

func TestLeastRecentlyUsedGoesFirst(t *testing.T) {
	cost := int64(entryOverhead + len(agg) + 1 + 8)
	c := NewCache(0, 3*cost)
	for i, client := range []string{"a", "b", "c"} {
		c.PutMark(agg, client, uint64(i+1), uint64(i+1))
	}
	wantMark(t, c, "a", 1, true) // touches a
	c.PutMark(agg, "d", 4, 4)
	wantMark(t, c, "b", 0, false)
	wantMark(t, c, "a", 1, true)
	wantMark(t, c, "c", 3, true)
	wantMark(t, c, "d", 4, true)
	if _, s := c.Stats(); s.Entries != 3 || s.Bytes != 3*cost || s.Evictions != 1 || s.Hits != 4 || s.Misses != 1 {
		t.Fatalf("stats: %+v", s)
	}
}

func TestZeroBytesKeepNothing(t *testing.T) {
	c := NewCache(0, 0)
	c.PutMark(agg, "a", 7, 1)
	c.PutHead(agg, headAt(1), 1)
	c.FillMark(agg, "a", 7, 9)
	wantMark(t, c, "a", 0, false)
	if _, ok := c.Head(agg); ok {
		t.Fatal("a cache of 0 bytes kept a head")
	}
	if h, m := c.Stats(); h.Bytes != 0 || m.Bytes != 0 || h.Entries != 0 || m.Entries != 0 {
		t.Fatalf("stats: %+v %+v", h, m)
	}
}

// A reader takes a view, the whole state is replaced by one as of a later index, and only then
// does the reader offer what it read, of an aggregate that the cache never held.
func TestFillOlderThanAResetIsRefused(t *testing.T) {
	c := NewCache(1<<20, 1<<20)
	c.PutMark(agg, "a", 7, 20)
	c.PutHead(agg, headAt(5), 20)
	c.Reset(50)
	wantMark(t, c, "a", 0, false)
	if h, ok := c.Head(agg); ok {
		t.Fatalf("head %v after a reset", h)
	}
	other := record.MakeKey("acme", "orders", "2")
	for _, k := range []record.Key{agg, other} {
		if c.FillMark(k, "a", 3, 49) || c.FillHead(k, headAt(4), 49) {
			t.Fatalf("a fill of %s that was read before the reset's index was taken", k)
		}
		if !c.FillMark(k, "a", 8, 50) || !c.FillHead(k, headAt(6), 50) {
			t.Fatalf("a fill of %s that was read at the reset's index was refused", k)
		}
	}
}

// The writer and the aggregate in a mark's key must not run into each other.
func TestKeysOfMarksAreUnambiguous(t *testing.T) {
	c := NewCache(1<<20, 1<<20)
	c.PutMark(record.MakeKey("o", "t", "1"), "1x", 5, 1)
	if _, ok := c.Mark(record.MakeKey("o", "t", "11"), "x"); ok {
		t.Fatal("o/t/11 by x answered with the mark of o/t/1 by 1x")
	}
}

// The limit counts what an entry really costs, within a quarter.
func TestLimitIsMemory(t *testing.T) {
	const limit = 32 << 20
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	c := NewCache(limit, limit)
	for i := range 400_000 {
		k := record.MakeKey("acme", "orders", fmt.Sprintf("%08d", i))
		c.PutHead(k, Head{Exists: true, Head: history.Head{LastClient: fmt.Sprintf("client-%06d", i)}}, uint64(i))
		c.PutMark(k, "writer", 1, uint64(i))
	}
	used := heap() - before
	h, m := c.Stats()
	runtime.KeepAlive(c)
	if h.Bytes > limit || m.Bytes > limit || h.Evictions == 0 || m.Evictions == 0 {
		t.Fatalf("limit %d not kept or not reached: %+v %+v", limit, h, m)
	}
	if want := uint64(h.Bytes + m.Bytes); used > want*5/4 || used < want*3/4 {
		t.Fatalf("the cache counts %d bytes and takes %d of the heap", want, used)
	}
}
