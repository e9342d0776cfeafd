package history

import (
	"fmt"
	"testing"

	"github.com/tidemark-db/tidemark/wal/record"
)

// fillWrites puts n writes of one event each, as Apply would: a batch, a head and a row for
// every write, positions for the lot. Writer is the same for all.
func fillWrites(b *Batch, changes []Change, index, first uint64, n int) []Change {
	event := make([]byte, 270) // a 200-byte payload in its canonical form
	id := []byte("event-1")
	changes = changes[:0]
	for i := range uint64(n) {
		position := first + i
		// Multiplying by an odd number spreads the aggregates over the key space.
		k := record.MakeKey("acme", "orders", fmt.Sprintf("%016x", position*0x9E3779B97F4A7C15))
		h := record.BatchHeader{
			Key: k, Incarnation: 1, Version: 1, Position: position, CommitFirst: position, CommitCount: 1,
			ClientID: "writer", CommittedAt: 1, FirstEventNumber: 1, EventCount: 1,
		}
		chain := b.PutBatch(&h, record.Hash{}, event)
		b.PutHead(k, &Head{Version: 1, Incarnation: 1, Floor: 1, FirstLive: position, EventCount: 1, Position: position, LastClient: "writer", LastMark: 1, Chain: chain})
		b.PutRowBytes(&Row{Key: k, Client: "writer", ClientSeq: 1, Position: position, Version: 1, Incarnation: 1, EventNumber: 1, FirstSeq: 1, LastSeq: 1, EventCount: 1, CommitFirst: position, CommitCount: 1}, id)
		changes = append(changes, Change{Key: k, Incarnation: 1, Version: 1, Kind: ChangeBatch})
	}
	b.PutChanges(first, changes)
	b.SetApplied(Applied{Index: index, Position: first + uint64(n) - 1})
	return changes
}

// BenchmarkBuild is what a write costs before Pebble: encoding, hashing, sorting.
func BenchmarkBuild(b *testing.B) {
	s := open(b, Options{Dir: b.TempDir()})
	batch := s.NewBatch()
	var changes []Change
	const writes = 500
	b.ReportAllocs()
	for n := uint64(0); b.Loop(); n++ {
		batch.Reset()
		changes = fillWrites(batch, changes, n+1, 1+n*writes, writes)
		if err := batch.build(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/writes, "ns/write")
}

// BenchmarkCommit is the whole of it, with flushes and compactions on the disk beneath.
func BenchmarkCommit(b *testing.B) {
	s := open(b, Options{Dir: b.TempDir()})
	batch := s.NewBatch()
	var changes []Change
	const writes = 500
	b.ReportAllocs()
	for n := uint64(0); b.Loop(); n++ {
		batch.Reset()
		changes = fillWrites(batch, changes, n+1, 1+n*writes, writes)
		if err := s.Commit(batch); err != nil {
			b.Fatal(err)
		}
		s.View().Release()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/writes, "ns/write")
}

// BenchmarkView: every commit has its view.
func BenchmarkView(b *testing.B) {
	s := open(b, Options{})
	batch := s.NewBatch()
	b.ReportAllocs()
	for n := uint64(1); b.Loop(); n++ {
		batch.Reset()
		batch.SetApplied(Applied{Index: n})
		if err := s.Commit(batch); err != nil {
			b.Fatal(err)
		}
		s.View().Release()
	}
}

// BenchmarkLookUp asks a compacted store of 50,000 aggregates.
func BenchmarkLookUp(b *testing.B) {
	s := open(b, Options{Dir: b.TempDir()})
	batch := s.NewBatch()
	const aggregates = 50_000
	fillWrites(batch, nil, 1, 1, aggregates)
	if err := s.Commit(batch); err != nil {
		b.Fatal(err)
	}
	if err := s.Flush(); err != nil {
		b.Fatal(err)
	}
	if err := s.db.Compact(b.Context(), []byte("a"), []byte("z"), false); err != nil {
		b.Fatal(err)
	}
	v := s.View()
	defer v.Release()
	at := func(n uint64) record.Key {
		return record.MakeKey("acme", "orders", fmt.Sprintf("%016x", (1+n*7919%aggregates)*0x9E3779B97F4A7C15))
	}
	for name, ask := range map[string]func(uint64) error{
		"head":           func(n uint64) error { _, _, err := v.Head(at(n)); return err },
		"head of none":   func(n uint64) error { _, _, err := v.Head(at(n)[:20] + "\x00"); return err },
		"mark":           func(n uint64) error { _, err := v.Mark(at(n), "writer"); return err },
		"mark of none":   func(n uint64) error { _, err := v.Mark(at(n), "another"); return err },
		"stored batch":   func(n uint64) error { _, _, err := v.Batch(at(n), 1, 1); return err },
		"acquired again": func(uint64) error { v.Acquire(); v.Release(); return nil },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for n := uint64(0); b.Loop(); n++ {
				if err := ask(n); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
