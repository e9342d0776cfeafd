package mark

import "sync/atomic"

// entryOverhead is what an entry costs beside its key and value: the struct, the map's
// bucket and the allocator's rounding. Measured at 100-130 bytes on amd64; see
// TestLimitIsMemory.
const entryOverhead = 120

// lru is a map with a limit in bytes that forgets the least recently used first.
type lru[V any] struct {
	limit int64
	size  func(V) int
	m     map[string]*entry[V]
	root  entry[V] // root.next is the newest, root.prev the oldest
	// barrier is the highest index of any value evicted: an older fill is refused, because
	// it may be older than what was evicted.
	barrier uint64

	// The owner alone changes these; anybody may read them.
	used, entries           atomic.Int64
	hits, misses, evictions atomic.Uint64
}

type entry[V any] struct {
	prev, next *entry[V]
	key        string
	index      uint64
	bytes      int64
	value      V
}

func newLRU[V any](limit int64, size func(V) int) *lru[V] {
	l := &lru[V]{limit: limit, size: size, m: make(map[string]*entry[V])}
	l.root.prev, l.root.next = &l.root, &l.root
	return l
}

// get returns the cached value; key is not kept.
func (l *lru[V]) get(key []byte) (v *V, ok bool) {
	e := l.m[string(key)]
	if e == nil {
		l.misses.Add(1)
		return nil, false
	}
	l.hits.Add(1)
	l.touch(e)
	return &e.value, true
}

// getSince is get for a value that is right from since on, or later; an older one is dropped.
func (l *lru[V]) getSince(key []byte, since uint64) (v *V, ok bool) {
	if e := l.m[string(key)]; e != nil && e.index < since {
		l.drop(e)
	}
	return l.get(key)
}

// put records the value that is right from index on.
func (l *lru[V]) put(key []byte, v V, index uint64) {
	if e := l.m[string(key)]; e != nil {
		was := e.bytes
		e.value, e.index = v, index
		e.bytes = l.cost(len(key), v)
		l.used.Add(e.bytes - was)
		l.touch(e)
	} else {
		l.add(key, v, index)
	}
	l.shrink()
}

// fill records a value that was read at index, unless something newer may be known.
func (l *lru[V]) fill(key []byte, v V, index uint64) bool {
	if index < l.barrier {
		return false
	}
	if e := l.m[string(key)]; e != nil {
		return e.index >= index
	}
	l.add(key, v, index)
	l.shrink()
	return true
}

func (l *lru[V]) add(key []byte, v V, index uint64) {
	e := &entry[V]{key: string(key), value: v, index: index, bytes: l.cost(len(key), v)}
	l.m[e.key] = e
	l.used.Add(e.bytes)
	l.entries.Add(1)
	l.link(e)
}

func (l *lru[V]) cost(key int, v V) int64 { return int64(entryOverhead + key + l.size(v)) }

func (l *lru[V]) link(e *entry[V]) {
	e.prev, e.next = &l.root, l.root.next
	e.prev.next, e.next.prev = e, e
}

func (l *lru[V]) touch(e *entry[V]) {
	if l.root.next == e {
		return
	}
	e.prev.next, e.next.prev = e.next, e.prev
	l.link(e)
}

func (l *lru[V]) shrink() {
	for l.used.Load() > l.limit && l.root.prev != &l.root {
		l.drop(l.root.prev)
		l.evictions.Add(1)
	}
}

func (l *lru[V]) drop(e *entry[V]) {
	e.prev.next, e.next.prev = e.next, e.prev
	delete(l.m, e.key)
	l.used.Add(-e.bytes)
	l.entries.Add(-1)
	if e.index > l.barrier {
		l.barrier = e.index
	}
}
