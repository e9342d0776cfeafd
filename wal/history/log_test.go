package history

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tidemark-db/tidemark/wal/record"
)

// StoredBatches finds each batch once, whatever the order and the number of lives, passes over
// what was trimmed or deleted, and takes nothing else that is missing for that.
func TestStoredBatches(t *testing.T) {
	s := open(t, Options{})
	rng := rand.New(rand.NewPCG(3, 3))
	keys := awkwardAggregates()[:6]
	head := map[record.Key]*Head{}
	var changes []Change
	text := func(c Change) string { return fmt.Sprintf("%s %d %d", c.Key, c.Incarnation, c.Version) }
	commit(t, s, func(b *Batch) {
		for i, k := range keys {
			head[k] = &Head{Version: 40, Incarnation: uint32(1 + i%3), Floor: uint64(1 + 10*(i%2)), Deleted: i == 5}
			b.PutHead(k, head[k])
			for version := uint64(1); version <= 40; version++ {
				for incarnation := uint32(1); incarnation <= head[k].Incarnation; incarnation++ {
					c := Change{Key: k, Incarnation: incarnation, Version: version, Kind: ChangeBatch}
					changes = append(changes, c)
					if !head[k].Gone(incarnation, version) {
						h := record.BatchHeader{Key: k, Incarnation: incarnation, Version: version, ClientID: "a"}
						b.PutBatch(&h, record.Hash{}, []byte(text(c)))
					}
				}
			}
			changes = append(changes, Change{Key: k, Incarnation: 1, Version: 3, Kind: ChangeTrim}, Change{Key: k, Kind: ChangeDelete})
		}
	})
	v := s.View()
	defer v.Release()
	for range 50 {
		rng.Shuffle(len(changes), func(i, j int) { changes[i], changes[j] = changes[j], changes[i] })
		part := changes[:rng.IntN(len(changes)+1)]
		found := map[int]int{}
		err := v.StoredBatches(part, func(i int, stored []byte) error {
			found[i]++
			_, _, _, events, err := record.ParseBatch(stored)
			if string(events) != text(part[i]) {
				t.Errorf("change %d, %s, has the batch %q", i, text(part[i]), events)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		for i, c := range part {
			want := 1
			if c.Kind != ChangeBatch || head[c.Key].Gone(c.Incarnation, c.Version) {
				want = 0
			}
			if found[i] != want {
				t.Errorf("%s of kind %d was found %d times, want %d", text(c), c.Kind, found[i], want)
			}
		}
	}
	stop := errors.New("enough")
	n := 0
	err := v.StoredBatches(changes, func(int, []byte) error { n++; return stop })
	if !errors.Is(err, stop) || n != 1 {
		t.Errorf("stopped after %d: %v", n, err)
	}
	for _, c := range []Change{
		{Key: keys[0], Incarnation: 1, Version: 41, Kind: ChangeBatch},
		{Key: record.MakeKey("no", "such", "one"), Incarnation: 1, Version: 1, Kind: ChangeBatch},
	} {
		err := v.StoredBatches(append(slices.Clone(changes[:9]), c), func(int, []byte) error { return nil })
		if !errors.Is(err, record.ErrCorrupt) {
			t.Errorf("%s: %v, want damage", text(c), err)
		}
	}
}

// A batch is found although the version before it was trimmed, where a search for that one ends
// at it, and at the very end of the batches, where there is nothing to go on to.
func TestStoredBatchesAfterATrimmedOne(t *testing.T) {
	s := open(t, Options{})
	a, b := record.MakeKey("a", "t", "1"), record.MakeKey("b", "t", "1")
	const version, floor = 4, 4
	commit(t, s, func(w *Batch) {
		for _, k := range []record.Key{a, b} {
			w.PutHead(k, &Head{Version: version, Incarnation: 1, Floor: floor})
			h := record.BatchHeader{Key: k, Incarnation: 1, Version: version, ClientID: "a"}
			w.PutBatch(&h, record.Hash{}, []byte(k))
		}
	})
	v := s.View()
	defer v.Release()
	of := func(k record.Key, versions ...uint64) (out []Change) {
		for _, n := range versions {
			out = append(out, Change{Key: k, Incarnation: 1, Version: n, Kind: ChangeBatch})
		}
		return out
	}
	for _, c := range []struct {
		changes []Change
		want    []string
	}{
		{of(b, 3, 4), []string{"1 b/t/1"}},
		{of(b, 2, 4), []string{"1 b/t/1"}},
		{of(b, 1, 2, 3, 4), []string{"3 b/t/1"}},
		{of(b, 4, 3), []string{"0 b/t/1"}},
		{of(b, 1, 2, 3), nil},
		{slices.Concat(of(b, 3, 4), of(a, 3, 4)), []string{"3 a/t/1", "1 b/t/1"}},
		{slices.Concat(of(a, 3), of(b, 4)), []string{"1 b/t/1"}},
	} {
		var got []string
		err := v.StoredBatches(c.changes, func(i int, stored []byte) error {
			_, _, _, events, err := record.ParseBatch(stored)
			got = append(got, fmt.Sprintf("%d %s", i, record.Key(events)))
			return err
		})
		if err != nil || !slices.Equal(got, c.want) {
			t.Errorf("%v: found %q, %v, want %q", c.changes, got, err, c.want)
		}
	}
}
