package history

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidemark-db/tidemark/wal/record"
)

// putVersions puts batches of "a", each with its row.
func putVersions(b *Batch, k record.Key, incarnation uint32, from, to, position uint64) {
	for v := from; v <= to; v++ {
		h := record.BatchHeader{Key: k, Incarnation: incarnation, Version: v, Position: position, ClientID: "a"}
		b.PutBatch(&h, record.Hash{}, nil)
		b.PutRow(&Row{Key: k, Client: "a", ClientSeq: v, Position: position})
		position++
	}
}

// found is what a view holds of an aggregate: the versions of each life, and the sequences of
// "a" with their positions.
func found(t *testing.T, v *View, k record.Key) string {
	t.Helper()
	all, err := dump(v)
	if err != nil {
		t.Fatal(err)
	}
	var batches, rows []string
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if key, incarnation, version, err := parseBatchKey([]byte(name)); err == nil && key == k {
			batches = append(batches, fmt.Sprintf("%d.%d", incarnation, version))
		}
		if row, err := parseRowKey([]byte(name)); err == nil && row.Key == k {
			rows = append(rows, fmt.Sprintf("%d@%d", row.ClientSeq, row.Position))
		}
	}
	return fmt.Sprint(batches, rows)
}

// TestDrops: what is dropped is gone, in the commit that put it and in a later one, by single
// tombstones and by ranges; nothing else is, not the neighbours and not what is put behind it in
// the same commit; and a view from before has it all.
func TestDrops(t *testing.T) {
	one, next := key("1"), key("1\x01") // the neighbour in key order; no real key is that close
	for _, many := range []uint64{3, dropSingly + 10} {
		for _, together := range []bool{true, false} {
			for _, flushed := range []bool{false, true} {
				t.Run(fmt.Sprintf("many=%d/together=%t/flushed=%t", many, together, flushed), func(t *testing.T) {
					s := open(t, Options{})
					put := func(b *Batch) {
						putVersions(b, one, 1, 1, many, 1)
						putVersions(b, next, 1, 1, 1, 1)
					}
					drop := func(b *Batch) {
						b.DropBatches(one, 1, 1, many)
						b.DropRows(one)
						putVersions(b, one, 2, 1, 2, 100)
						b.DropRows(one)
						putVersions(b, one, 3, 1, 1, 102)
					}
					var before *View
					if together {
						commit(t, s, func(b *Batch) { put(b); drop(b) })
					} else {
						commit(t, s, put)
						before = s.View()
						if flushed {
							if err := s.Flush(); err != nil {
								t.Fatal(err)
							}
						}
						commit(t, s, drop)
					}
					if flushed {
						if err := s.Flush(); err != nil {
							t.Fatal(err)
						}
					}
					v := s.View()
					if got, want := found(t, v, one), fmt.Sprintf("[1.%d 2.1 2.2 3.1] [1@102]", many); got != want {
						t.Errorf("got %s, want %s", got, want)
					}
					if got, want := found(t, v, next), "[1.1] [1@1]"; got != want {
						t.Errorf("the neighbour: %s, want %s", got, want)
					}
					if mark, err := v.Mark(one, "a"); err != nil || mark != 1 {
						t.Errorf("mark %d, %v; want 1", mark, err)
					}
					if _, ok, err := v.Batch(one, 1, 1); ok || err != nil {
						t.Errorf("the dropped batch: %t, %v; want none", ok, err)
					}
					v.Release()
					if before != nil {
						if mark, err := before.Mark(one, "a"); err != nil || mark != many {
							t.Errorf("mark in the view from before: %d, %v; want %d", mark, err, many)
						}
						before.Release()
					}
				})
			}
		}
	}
}

func TestDropsThatCannotBe(t *testing.T) {
	s := open(t, Options{})
	for name, drop := range map[string]func(*Batch){
		"a malformed key":       func(b *Batch) { b.DropBatches("x", 1, 1, 2) },
		"rows of malformed key": func(b *Batch) { b.DropRows("") },
		"nothing":               func(b *Batch) { b.DropBatches(key("1"), 1, 2, 2) },
	} {
		b := s.NewBatch()
		drop(b)
		b.SetApplied(Applied{Index: 1})
		if err := s.Commit(b); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// Many deletes in a row do not pile up range tombstones in one memtable: each look-up would go
// through all of them.
func TestRangeDropsAreBounded(t *testing.T) {
	var flushed atomic.Int64 // memtables
	s := open(t, Options{tune: func(o *pebble.Options) {
		o.AddEventListener(pebble.EventListener{FlushBegin: func(info pebble.FlushInfo) { flushed.Add(int64(info.Input)) }})
	}})
	for range 3 {
		commit(t, s, func(b *Batch) {
			for i := range maxRangeDrops {
				b.DropRows(key(fmt.Sprint(i)))
			}
		})
	}
	commit(t, s, func(*Batch) {})
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	if got := flushed.Load(); got != 4 {
		t.Errorf("%d memtables for three times %d range drops and one commit more, want 4", got, maxRangeDrops)
	}
}

// A batch that was put behind the removal of another, in one commit, was taken for that: those
// who followed the log were handed nothing, or the next batch, and the node ended as damaged.
func TestStoredIsTheBatchThatWasPutWhateverWasDropped(t *testing.T) {
	s := open(t, Options{})
	b := s.NewBatch()
	one, two := key("1"), key("2")
	putVersions(b, one, 1, 1, 3, 1)
	b.DropBatches(one, 1, 1, 3)
	putVersions(b, one, 1, 4, 4, 5)
	b.DropBatches(two, 1, 1, 2)
	putVersions(b, two, 2, 2, 2, 7)
	check := func(want ...uint64) {
		t.Helper()
		for n, position := range want {
			var v record.BatchView
			if err := record.ViewBatch(b.Stored(n), &v); err != nil || v.Position != position {
				t.Errorf("batch %d that was put is of position %d (%v), expected %d", n, v.Position, err, position)
			}
		}
	}
	check(1, 2, 3, 5, 7)
	b.Reset()
	putVersions(b, two, 2, 3, 3, 8)
	check(8)
}
