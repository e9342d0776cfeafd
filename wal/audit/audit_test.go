package audit

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

const timeline = "0123456789abcdef0123456789abcdef"

// books is a history, and what Apply would do to it.
type books struct {
	t     *testing.T
	store *history.Store
	heads map[record.Key]*history.Head
	// payload is that of every event.
	payload []byte
}

func newBooks(t *testing.T) *books {
	t.Helper()
	s, err := history.Open(history.Options{Dir: "history", FS: vfs.NewMem()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err) // a view is held
		}
	})
	return &books{t: t, store: s, heads: map[record.Key]*history.Head{}}
}

// commit commits what fill puts at the next position.
func (k *books) commit(fill func(b *history.Batch, position uint64)) {
	k.t.Helper()
	b, a := k.store.NewBatch(), k.store.Applied()
	a.Index++
	a.Position++
	a.CommittedAt++
	a.Timeline = timeline
	fill(b, a.Position)
	b.SetApplied(a)
	if err := k.store.Commit(b); err != nil {
		k.t.Fatal(err)
	}
}

func (k *books) event(seq uint64) *pb.NewEvent {
	return &pb.NewEvent{ClientSeq: seq, EventId: fmt.Sprint("e", seq), Type: "T", Payload: k.payload}
}

// append writes a batch; its sequences may repeat.
func (k *books) append(key record.Key, seqs ...uint64) {
	k.t.Helper()
	k.commit(func(b *history.Batch, position uint64) {
		h, at := k.heads[key], k.store.Applied().CommittedAt+1
		if h == nil {
			h = &history.Head{Deleted: true}
			k.heads[key] = h
		}
		if h.Deleted {
			if h.Restart {
				h.Version, h.EventCount, h.Chain = 0, 0, record.Hash{}
			}
			h.Deleted, h.Recreatable, h.Restart = false, false, false
			h.Incarnation++
			h.Floor, h.FirstLive, h.CreatedAt = h.Version+1, position, at
		}
		header := record.BatchHeader{
			Key: key, Incarnation: h.Incarnation, Version: h.Version + 1, Position: position, CommitFirst: position, CommitCount: 1,
			ClientID: "a", CommittedAt: at, FirstEventNumber: h.EventCount + 1, EventCount: uint32(len(seqs)),
		}
		var events []byte
		for _, seq := range seqs {
			events = record.AppendEvent(events, k.event(seq))
		}
		h.Chain = b.PutBatch(&header, h.Chain, events)
		for i, seq := range seqs {
			if slices.Contains(seqs[:i], seq) {
				continue
			}
			b.PutRow(&history.Row{
				Key: key, Client: "a", ClientSeq: seq, Position: position, Version: header.Version, Incarnation: h.Incarnation,
				EventIndex: uint32(i), EventNumber: header.FirstEventNumber + uint64(i), CommittedAt: at,
				FirstSeq: slices.Min(seqs), LastSeq: slices.Max(seqs), EventCount: header.EventCount, CommitFirst: position, CommitCount: 1,
				EventID:  fmt.Sprint("e", seq),
				Content:  record.ContentHash(record.AppendEvent(nil, k.event(seq))),
				Repeated: slices.Contains(seqs[i+1:], seq),
			})
		}
		h.Version, h.Position, h.CommittedAt, h.LastClient = header.Version, position, at, "a"
		h.EventCount += uint64(len(seqs))
		h.LastMark = max(h.LastMark, slices.Max(seqs))
		b.PutHead(key, h)
	})
}

func (k *books) trim(key record.Key, keep uint64) {
	k.t.Helper()
	v := k.store.View()
	stored, ok, err := v.Batch(key, k.heads[key].Incarnation, keep)
	v.Release()
	var kept record.BatchView
	if err != nil || !ok || record.ViewBatch(stored, &kept) != nil {
		k.t.Fatalf("version %d: %t, %v", keep, ok, err)
	}
	k.commit(func(b *history.Batch, position uint64) {
		h := k.heads[key]
		b.DropBatches(key, h.Incarnation, h.Floor, keep)
		h.Floor, h.FirstLive, h.Position = keep, kept.Position, position
		b.PutHead(key, h)
	})
}

func (k *books) delete(key record.Key, restart bool) {
	k.t.Helper()
	k.commit(func(b *history.Batch, position uint64) {
		h := k.heads[key]
		b.DropBatches(key, h.Incarnation, h.Floor, h.Version+1)
		h.Deleted, h.Recreatable, h.Restart, h.Position = true, true, restart, position
		b.PutHead(key, h)
	})
}

// step makes one step of n batches.
func (k *books) step(a *Auditor, n int) (found []string, done bool) {
	k.t.Helper()
	v := k.store.View()
	defer v.Release()
	findings, done, err := a.Step(v, func() bool { n--; return n > 0 })
	if err != nil {
		k.t.Fatal(err)
	}
	for _, f := range findings {
		k.t.Log(f.Text)
		found = append(found, fmt.Sprintf("%s %s %d/%d", strings.TrimPrefix(f.Kind.String(), "FINDING_KIND_"), f.Key, f.Incarnation, f.Version))
	}
	return found, done
}

func (k *books) rest(a *Auditor) (found []string) {
	k.t.Helper()
	for done := false; !done; {
		var some []string
		some, done = k.step(a, 2)
		found = append(found, some...)
	}
	return found
}

func (k *books) expect(a *Auditor, want ...string) {
	k.t.Helper()
	if got := k.rest(a); !slices.Equal(got, want) {
		k.t.Errorf("found %q, expected %q", got, want)
	}
}

var x, y = record.MakeKey("acme", "orders", "x"), record.MakeKey("acme", "orders", "y")

// Nothing is found in what trims, deletes and new lives leave, whichever way a life begins.
func TestWhatMayBeIsNoFinding(t *testing.T) {
	k := newBooks(t)
	for seq := uint64(1); seq <= 6; seq++ {
		k.append(x, seq*10, seq*10+1)
		k.append(y, 5, seq, 5, 3)
	}
	k.expect(New(""))
	k.trim(x, 4)
	k.expect(New(""))
	k.delete(x, false)
	k.delete(y, true)
	k.expect(New(""))
	k.append(x, 100)
	k.append(y, 100)
	k.append(y, 101)
	k.expect(New(""))
	k.delete(y, false)
	k.append(y, 102)
	k.expect(New(""))
	if h := k.heads[y]; h.Version != 3 || h.Incarnation != 3 {
		t.Fatalf("expected the third life to go on at version 3, found %+v", h)
	}
}

// What changes between two steps is no finding, and what is wrong behind it still is one.
func TestWhatChangesBetweenSteps(t *testing.T) {
	for name, c := range map[string]struct {
		change  func(k *books)
		found   []string
		batches uint64
	}{
		"an append":               {func(k *books) { k.append(x, 9) }, nil, 7},
		"a trim behind":           {func(k *books) { k.trim(x, 2) }, nil, 7},
		"a trim ahead":            {func(k *books) { k.trim(x, 5) }, nil, 6},
		"a delete":                {func(k *books) { k.delete(x, false) }, nil, 4},
		"a new life that goes on": {func(k *books) { k.delete(x, false); k.append(x, 9) }, nil, 4},
		"a new life from 1":       {func(k *books) { k.delete(x, true); k.append(x, 9) }, nil, 4},
		"a batch that is lost":    {func(k *books) { k.lose(x, 5) }, []string{"MISSING acme/orders/x 1/5"}, 6},
		"the next, trimmed, lost": {func(k *books) { k.trim(x, 5); k.lose(x, 5) }, []string{"MISSING acme/orders/x 1/5"}, 5},
		"its head": {func(k *books) {
			k.commit(func(b *history.Batch, _ uint64) { h := *k.heads[x]; h.FirstLive++; h.Floor = 4; b.PutHead(x, &h) })
		}, []string{"HEAD acme/orders/x 1/4"}, 7},
	} {
		t.Run(name, func(t *testing.T) {
			k := newBooks(t)
			for seq := uint64(1); seq <= 6; seq++ {
				k.append(x, seq)
			}
			k.append(y, 1)
			a := New("")
			if found, done := k.step(a, 3); len(found) > 0 || done || a.Progress().Batches != 3 {
				t.Fatalf("expected three batches and nothing found, found %q, %t, %+v", found, done, a.Progress())
			}
			c.change(k)
			k.expect(a, c.found...)
			if p := a.Progress(); p.Batches != c.batches || p.Aggregates != 2 || p.Key != y {
				t.Errorf("expected %d batches of two aggregates, found %+v", c.batches, p)
			}
		})
	}
}

// lose removes a batch as no trim does.
func (k *books) lose(key record.Key, version uint64) {
	k.t.Helper()
	k.commit(func(b *history.Batch, _ uint64) { b.DropBatches(key, k.heads[key].Incarnation, version, version+1) })
}

// A step ends when there is much to tell, and nothing is left out or told twice.
func TestMuchIsFoundInSteps(t *testing.T) {
	k := newBooks(t)
	var want []string
	for i := range 2*maxFindings + 10 {
		key := record.MakeKey("acme", "orders", fmt.Sprintf("%04d", i))
		k.append(key, 1)
		k.append(key, 2)
		k.lose(key, 1)
		want = append(want, "MISSING "+key.String()+" 1/1")
	}
	a := New("acme\x00")
	var found []string
	for steps := 1; ; steps++ {
		some, done := k.step(a, 1<<30)
		if found = append(found, some...); done {
			if steps != 3 {
				t.Errorf("expected three steps, found %d", steps)
			}
			break
		}
		if len(some) != maxFindings {
			t.Errorf("expected a step with %d findings, found %d", maxFindings, len(some))
		}
	}
	if !slices.Equal(found, want) {
		t.Errorf("found %q, expected %q", found, want)
	}
}

// The scope of one aggregate is that one, and not those whose ids go on from its id.
func TestOneAggregate(t *testing.T) {
	k := newBooks(t)
	for _, id := range []string{"1", "11", "2"} {
		key := record.MakeKey("acme", "orders", id)
		k.append(key, 1)
		k.append(key, 2)
		k.lose(key, 1)
	}
	k.expect(NewOf(record.MakeKey("acme", "orders", "1")), "MISSING acme/orders/1 1/1")
	k.expect(NewOf(record.MakeKey("acme", "orders", "3")))
}
