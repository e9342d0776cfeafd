package history

import (
	"fmt"
	"iter"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-db/tidemark/wal/record"
)

// The aggregates and writers of these tests are prefixes of each other, differ in length and
// in bytes above ASCII, and their sequences lie on both sides of every change of width.
func awkwardAggregates() []record.Key {
	var keys []record.Key
	for _, kind := range [][2]string{{"acme", "o"}, {"acme", "orders"}, {"acmee", "o"}, {"é", "o"}} {
		for _, id := range []string{"a", "ab", "a b", "aé", "日本", "日本語", "\U0010ffff"} {
			keys = append(keys, record.MakeKey(kind[0], kind[1], id))
		}
	}
	return keys
}

func awkwardWriters() []string {
	return []string{"a", "ab", "ä", "日", "日本", strings.Repeat("w", 200)}
}

func awkwardSeqs() []uint64 {
	return []uint64{1, 255, 256, 1 << 32, 1<<63 - 1, 1 << 63, math.MaxUint64}
}

// library is a store's content as plain slices.
type library struct {
	heads   []Aggregate
	rows    []Row
	entries []Entry
}

// fillLibrary stores, in random order and over several commits and flushes, rows of every
// writer on some of the aggregates, heads of most, and three lives of batches.
func fillLibrary(t *testing.T, s *Store) *library {
	t.Helper()
	rng := rand.New(rand.NewPCG(5, 5))
	l := &library{}
	var fills []func(*Batch)
	position := uint64(0)
	for i, k := range awkwardAggregates() {
		if i%7 != 3 {
			h := Head{
				Version: uint64(i) + 1, Incarnation: 3, Floor: 1, FirstLive: 2, EventCount: 9, CreatedAt: -1, CommittedAt: math.MaxInt64,
				Position: uint64(i) << 40, LastClient: "ä", LastMark: math.MaxUint64, Deleted: i%2 == 0, Recreatable: i%3 == 0, Restart: i%4 == 0,
				Chain: record.ContentHash([]byte(k)),
			}
			l.heads = append(l.heads, Aggregate{k, h})
			fills = append(fills, func(b *Batch) { b.PutHead(k, &h) })
		}
		for incarnation := uint32(1); incarnation <= 3; incarnation++ {
			for version := uint64(1); version <= 5; version++ {
				header := record.BatchHeader{Key: k, Incarnation: incarnation, Version: version, ClientID: "a"}
				fills = append(fills, func(b *Batch) { b.PutBatch(&header, record.Hash{}, []byte(k)) })
			}
		}
		if i%5 == 2 {
			continue
		}
		for _, client := range awkwardWriters() {
			for _, seq := range awkwardSeqs() {
				for range rng.IntN(3) {
					position += 1 + rng.Uint64N(1<<55)
					r := Row{
						Key: k, Client: client, ClientSeq: seq, Position: position, Version: position, Incarnation: math.MaxUint32,
						EventIndex: 1, EventNumber: 2, CommittedAt: math.MinInt64, FirstSeq: seq - 1, LastSeq: seq, EventCount: 3,
						CommitFirst: position, CommitCount: 1, EventID: "event " + client, Content: record.ContentHash([]byte(client)),
					}
					l.rows = append(l.rows, r)
					fills = append(fills, func(b *Batch) { b.PutRow(&r) })
				}
			}
		}
	}
	for first := uint64(1); first < 40; {
		e := Entry{First: first}
		for i := range 1 + rng.Uint64N(4) {
			e.Changes = append(e.Changes, Change{Key: awkwardAggregates()[(first+i)%20], Incarnation: 1, Version: first, Kind: ChangeKind(1 + i%3)})
		}
		first += uint64(len(e.Changes))
		l.entries = append(l.entries, e)
		fills = append(fills, func(b *Batch) { b.PutChanges(e.First, e.Changes) })
	}
	rng.Shuffle(len(fills), func(i, j int) { fills[i], fills[j] = fills[j], fills[i] })
	for part := range slices.Chunk(fills, len(fills)/9) {
		commit(t, s, func(b *Batch) {
			for _, fill := range part {
				fill(b)
			}
		})
		if rng.IntN(3) == 0 {
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
	slices.SortFunc(l.heads, func(a, b Aggregate) int { return strings.Compare(string(a.Key), string(b.Key)) })
	return l
}

// TestViewAnswers asks for everything that is there, and for what is not there beside it,
// from memtables, from L0 and from the last level.
func TestViewAnswers(t *testing.T) {
	s := open(t, Options{})
	l := fillLibrary(t, s)
	ask := func(name string) {
		t.Run(name, func(t *testing.T) {
			v := s.View()
			defer v.Release()
			l.askRows(t, v)
			l.askHeads(t, v)
			l.askBatches(t, v)
			l.askPositions(t, v)
		})
	}
	ask("some flushed")
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	ask("flushed")
	if err := s.db.Compact(t.Context(), []byte("a"), []byte("z"), false); err != nil {
		t.Fatal(err)
	}
	if n := s.db.Metrics().Levels[6].TablesCount; n == 0 {
		t.Fatal("nothing is in the last level")
	}
	ask("compacted")
}

func (l *library) askRows(t *testing.T, v *View) {
	type writer struct {
		k      record.Key
		client string
	}
	bySeq := map[writer]map[uint64][]Row{}
	for _, r := range l.rows {
		w := writer{r.Key, r.Client}
		if bySeq[w] == nil {
			bySeq[w] = map[uint64][]Row{}
		}
		bySeq[w][r.ClientSeq] = append(bySeq[w][r.ClientSeq], r)
	}
	newestFirst := func(rows []Row) []Row {
		rows = slices.Clone(rows)
		slices.SortFunc(rows, func(a, b Row) int { return -compare(a.Position, b.Position) })
		return rows
	}
	for _, k := range awkwardAggregates() {
		var top []Row // of every writer
		clients := slices.Sorted(slices.Values(append(awkwardWriters(), "nobody", "a\x01", "z")))
		for _, client := range clients {
			w := writer{k, client}
			var mark uint64
			for seq := range bySeq[w] {
				mark = max(mark, seq)
			}
			if got, err := v.Mark(k, client); err != nil || got != mark {
				t.Errorf("Mark(%s, %q) = %d, %v, want %d", k, client, got, err, mark)
			}
			if mark > 0 {
				top = append(top, newestFirst(bySeq[w][mark])[0])
			}
			for _, seq := range append(awkwardSeqs(), 0, 3, 1<<63+1) {
				want := newestFirst(bySeq[w][seq])
				same(t, fmt.Sprintf("Rows(%s, %q, %d)", k, client, seq), collect(t, v.Rows(k, client, seq)), want)
				for _, r := range want {
					if got, ok, err := v.Row(k, client, seq, r.Position); !ok || err != nil || got != r {
						t.Errorf("Row(%s, %q, %d, %d) = %v, %t, %v, want %v", k, client, seq, r.Position, got, ok, err, r)
					}
					if got, ok, err := v.Row(k, client, seq, r.Position+1); ok || err != nil {
						t.Errorf("Row(%s, %q, %d, %d) = %v, %t, %v, want none", k, client, seq, r.Position+1, got, ok, err)
					}
				}
			}
		}
		for _, after := range append(clients, "") {
			var want []Row
			for _, r := range top {
				if r.Client > after {
					want = append(want, r)
				}
			}
			same(t, fmt.Sprintf("Writers(%s, %q)", k, after), collect(t, v.Writers(k, after)), want)
		}
	}
}

func (l *library) askHeads(t *testing.T, v *View) {
	want := map[record.Key]Head{}
	for _, a := range l.heads {
		want[a.Key] = a.Head
	}
	for _, k := range append(awkwardAggregates(), record.MakeKey("acme", "orders", "nothing"), record.MakeKey("a", "b", "c")) {
		h, there := want[k]
		if got, ok, err := v.Head(k); err != nil || ok != there || got != h {
			t.Errorf("Head(%s) = %v, %t, %v, want %v, %t", k, got, ok, err, h, there)
		}
	}
	for _, prefix := range []string{"", "acme", "acme\x00", "acme\x00o", "acme\x00orders\x00", "acme\x00orders\x00a", "é\x00o\x00日本", "x", "\xff", "\xff\xff"} {
		for _, after := range append(awkwardAggregates(), "", record.MakeKey("acmea", "x", "y")) {
			var want []Aggregate
			for _, a := range l.heads {
				if strings.HasPrefix(string(a.Key), prefix) && a.Key > after {
					want = append(want, a)
				}
			}
			same(t, fmt.Sprintf("Aggregates(%q, %q)", prefix, after), collect(t, v.Aggregates(prefix, after)), want)
		}
	}
}

func (l *library) askBatches(t *testing.T, v *View) {
	for _, k := range awkwardAggregates()[:4] {
		for incarnation := range uint32(5) {
			there := incarnation >= 1 && incarnation <= 3
			stored := func(version uint64) []byte {
				b, _ := record.AppendBatch(nil, &record.BatchHeader{Key: k, Incarnation: incarnation, Version: version, ClientID: "a"}, record.Hash{}, []byte(k))
				return b
			}
			for version := range uint64(8) {
				got, ok, err := v.Batch(k, incarnation, version)
				if want := there && version >= 1 && version <= 5; ok != want || err != nil {
					t.Errorf("Batch(%s, %d, %d) = %t, %v, want %t", k, incarnation, version, ok, err, want)
				} else if ok {
					equalBytes(t, "batch", got, stored(version))
				}
				for _, to := range []uint64{0, 1, 3, 5, 6, math.MaxUint64} {
					for _, backward := range []bool{false, true} {
						var want []uint64
						for n := uint64(1); there && n <= 5; n++ {
							if n >= version && (n <= to || to == 0) {
								want = append(want, n)
							}
						}
						if backward {
							slices.Reverse(want)
						}
						var got []uint64
						it := v.Batches(k, incarnation, version, to, backward)
						for it.Next() {
							got = append(got, it.Version())
							equalBytes(t, "batch in range", it.Value(), stored(it.Version()))
						}
						if it.Next() {
							t.Error("Next after the end")
						}
						if err := it.Close(); err != nil {
							t.Error(err)
						}
						same(t, fmt.Sprintf("Batches(%s, %d, %d, %d, %t)", k, incarnation, version, to, backward), got, want)
					}
				}
			}
		}
	}
}

func (l *library) askPositions(t *testing.T, v *View) {
	end := l.entries[len(l.entries)-1].First + uint64(len(l.entries[len(l.entries)-1].Changes))
	for from := range end + 3 {
		var want []Entry
		for _, e := range l.entries {
			cut := min(max(from, e.First)-e.First, uint64(len(e.Changes)))
			if e.First, e.Changes = e.First+cut, e.Changes[cut:]; len(e.Changes) > 0 {
				want = append(want, e)
			}
		}
		same(t, fmt.Sprintf("Positions(%d)", from), collect(t, v.Positions(from)), want)
	}
	same(t, "Positions of the end of time", collect(t, v.Positions(math.MaxUint64)), nil)
	for from := range end + 3 {
		var want []Entry
		for _, e := range slices.Backward(l.entries) {
			if e.First <= from {
				e.Changes = e.Changes[:min(from+1-e.First, uint64(len(e.Changes)))]
				want = append(want, e)
			}
		}
		same(t, fmt.Sprintf("PositionsBackward(%d)", from), collect(t, v.PositionsBackward(from)), want)
	}
	if got := collect(t, v.PositionsBackward(math.MaxUint64)); len(got) != len(l.entries) {
		t.Errorf("PositionsBackward(the end of time) yields %d entries, want %d", len(got), len(l.entries))
	}
}

func compare(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func collect[T any](t *testing.T, seq iter.Seq2[T, error]) []T {
	t.Helper()
	var all []T
	for x, err := range seq {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, x)
	}
	return all
}

func same[T any](t *testing.T, what string, got, want []T) {
	t.Helper()
	if len(got) == 0 && len(want) == 0 {
		return
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}
