package history

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-db/tidemark/wal/record"
)

// TestHotKeyReachesPebbleOnce: of many puts of one key in a batch, only the last is written.
func TestHotKeyReachesPebbleOnce(t *testing.T) {
	s := open(t, Options{})
	b := s.NewBatch()
	for i := range uint64(100) {
		b.PutHead(key("hot"), &Head{Version: i + 1})
		b.PutHead(key(fmt.Sprint("cold ", i)), &Head{Version: 1})
	}
	if b.Len() != 200 {
		t.Errorf("Len is %d, want 200", b.Len())
	}
	b.SetApplied(Applied{Index: 1})
	if err := s.Commit(b); err != nil {
		t.Fatal(err)
	}
	if n := b.pb.Count(); n != 102 {
		t.Errorf("%d keys reached Pebble, want 101 heads and m/applied", n)
	}
	v := s.View()
	defer v.Release()
	if h, ok, err := v.Head(key("hot")); !ok || err != nil || h.Version != 100 {
		t.Errorf("the head is %v, %t, %v, want the last one put", h, ok, err)
	}
}

// TestCommitRefused: what cannot be stored, or would make m/applied lie, changes nothing.
func TestCommitRefused(t *testing.T) {
	s := open(t, Options{})
	commit(t, s, func(b *Batch) {
		b.PutHead(key("1"), &Head{Version: 1})
		b.SetApplied(Applied{Index: 10, Position: 5})
	})
	good := Change{Key: key("1"), Kind: ChangeBatch}
	for name, c := range map[string]struct {
		fill func(*Batch)
		text string
	}{
		"no applied":         {func(b *Batch) {}, "call SetApplied before Commit"},
		"index back":         {func(b *Batch) { b.SetApplied(Applied{Index: 9, Position: 5}) }, "from index 10, position 5 back to index 9, position 5"},
		"position back":      {func(b *Batch) { b.SetApplied(Applied{Index: 11, Position: 4}) }, "back to index 11, position 4"},
		"malformed key":      {func(b *Batch) { b.PutHead("acme\x00orders\x001", &Head{}) }, "not three non-empty"},
		"key of four":        {func(b *Batch) { b.PutHead(key("1")+"x\x00", &Head{}) }, "not three non-empty"},
		"batch without key":  {func(b *Batch) { b.PutBatch(&record.BatchHeader{ClientID: "a"}, record.Hash{}, nil) }, "not three non-empty"},
		"empty client":       {func(b *Batch) { b.PutRow(&Row{Key: key("1")}) }, `client_id "" is empty`},
		"client with zero":   {func(b *Batch) { b.PutRow(&Row{Key: key("1"), Client: "a\x00b"}) }, "holds a zero byte"},
		"no changes":         {func(b *Batch) { b.PutChanges(6, nil) }, "0 changes from position 6"},
		"position 0":         {func(b *Batch) { b.PutChanges(0, []Change{good}) }, "positions start at 1"},
		"unknown kind":       {func(b *Batch) { b.PutChanges(6, []Change{{Key: key("1")}}) }, "acme/orders/1 is of unknown kind 0"},
		"change without key": {func(b *Batch) { b.PutChanges(6, []Change{{Kind: ChangeTrim}}) }, "not three non-empty"},
	} {
		b := s.NewBatch()
		b.PutHead(key("2"), &Head{Version: 1})
		if name != "no applied" {
			b.SetApplied(Applied{Index: 11, Position: 6})
		}
		c.fill(b)
		if err := s.Commit(b); err == nil || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: error is %v, want one with %q", name, err, c.text)
		}
		// After a Reset the batch is as good as new.
		b.Reset()
		b.SetApplied(s.Applied())
		if err := s.Commit(b); err != nil {
			t.Errorf("%s: after Reset: %v", name, err)
		}
	}
	v := s.View()
	defer v.Release()
	if got := collect(t, v.Aggregates("", "")); len(got) != 1 || v.Applied() != (Applied{Index: 10, Position: 5}) {
		t.Errorf("the store holds %v at %v", got, v.Applied())
	}
}

// TestLargeCommit: batches above half a memtable take another way through Pebble, which keeps
// their memory.
func TestLargeCommit(t *testing.T) {
	fs := vfs.NewMem()
	s := open(t, Options{Dir: "h", FS: fs, MemTableBytes: MinMemTableBytes})
	w := newWorkload(9)
	b := s.NewBatch()
	for range 5 {
		w.commit(t, s, b, 1)
		for b.Reset(); b.Len() < 2000; {
			w.entry(b)
		}
		if err := s.Commit(b); err != nil {
			t.Fatal(err)
		}
	}
	v := s.View()
	defer v.Release()
	if err := w.check(v); err != nil {
		t.Fatal(err)
	}
}

// TestViewsStayAsTheyAre: a view answers as of its moment, whatever is committed, flushed and
// compacted after it.
func TestViewsStayAsTheyAre(t *testing.T) {
	s := open(t, Options{MemTableBytes: MinMemTableBytes, tune: small})
	w := newWorkload(4)
	b := s.NewBatch()
	var views []*View
	for i := range 60 {
		w.commit(t, s, b, 3)
		if i%6 == 0 {
			views = append(views, s.View())
		}
	}
	if err := errors.Join(s.Flush(), s.db.Compact(t.Context(), []byte("a"), []byte("z"), false)); err != nil {
		t.Fatal(err)
	}
	for _, v := range views {
		if err := w.check(v); err != nil {
			t.Error(err)
		}
		v.Release()
	}
	if got := s.Applied(); got != w.applied {
		t.Errorf("Applied is %v, want %v", got, w.applied)
	}
}

// TestViewsAndCommitsAtOnce: readers on many goroutines see whole commits and nothing else.
func TestViewsAndCommitsAtOnce(t *testing.T) {
	s := open(t, Options{MemTableBytes: MinMemTableBytes, tune: small})
	const commits, aggregates = 300, 8
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			last := uint64(0)
			for {
				v := s.View()
				shared := v
				shared.Acquire()
				v.Release()
				at := shared.Applied().Index
				if at < last {
					t.Errorf("a view at %d after one at %d", at, last)
				}
				last = at
				for i := range aggregates {
					h, ok, err := shared.Head(key(fmt.Sprint(i)))
					if err != nil || ok != (at > 0) || h.Version != at {
						t.Errorf("at %d, head %d is %v, %t, %v", at, i, h, ok, err)
					}
				}
				mark, err := shared.Mark(key("0"), "w")
				if err != nil || mark != at {
					t.Errorf("at %d the mark is %d, %v", at, mark, err)
				}
				shared.Release()
				select {
				case <-done:
					return
				default:
				}
			}
		})
	}
	for i := range uint64(commits) {
		commit(t, s, func(b *Batch) {
			for a := range aggregates {
				b.PutHead(key(fmt.Sprint(a)), &Head{Version: i + 1, LastClient: strings.Repeat("x", 50)})
			}
			b.PutRow(&Row{Key: key("0"), Client: "w", ClientSeq: i + 1, Position: i + 1})
		})
	}
	close(done)
	wg.Wait()
}

// TestCloseWithViewsHeld: Close refuses while views are held, which stay readable, and works
// once they are not.
func TestCloseWithViewsHeld(t *testing.T) {
	disk := vfs.NewCrashableMem()
	s, err := Open(Options{Dir: "h", FS: disk})
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, func(b *Batch) { b.PutHead(key("1"), &Head{Version: 7}) })
	held := s.View()
	again := s.View()
	again.Acquire()
	commit(t, s, func(b *Batch) { b.PutHead(key("1"), &Head{Version: 8}) })
	other := s.View()
	if err := s.Close(); !errors.Is(err, ErrViewsHeld) || !strings.Contains(err.Error(), ": 2 of them") {
		t.Errorf("Close with two views held: %v", err)
	}
	if a := open(t, Options{Dir: "h", FS: disk.CrashClone(vfs.CrashCloneCfg{})}).Applied(); a.Index != 2 {
		t.Errorf("Close with two views held has flushed up to %v", a)
	}
	if h, ok, err := held.Head(key("1")); h.Version != 7 || !ok || err != nil {
		t.Errorf("the view answers %v, %t, %v", h, ok, err)
	}
	late := s.View()
	if _, _, err := late.Head(key("1")); !errors.Is(err, ErrClosed) {
		t.Errorf("a view taken after Close answers %v", err)
	}
	if late.Applied().Index != 2 {
		t.Errorf("a view taken after Close is at %v", late.Applied())
	}
	for _, err := range late.Rows(key("1"), "w", 1) {
		if !errors.Is(err, ErrClosed) {
			t.Errorf("rows after Close: %v", err)
		}
	}
	if it := late.Batches(key("1"), 1, 1, 0, false); it.Next() || !errors.Is(it.Close(), ErrClosed) {
		t.Errorf("batches after Close: %v", it.Err())
	}
	late.Release()
	b := s.NewBatch()
	b.SetApplied(Applied{Index: 3})
	if err := s.Commit(b); !errors.Is(err, ErrClosed) {
		t.Errorf("Commit after Close: %v", err)
	}
	held.Release()
	again.Release()
	again.Release()
	// An iterator holds its view.
	it := other.Batches(key("1"), 1, 1, 0, false)
	other.Release()
	if err := s.Close(); !errors.Is(err, ErrViewsHeld) || !strings.Contains(err.Error(), ": 1 of them") {
		t.Errorf("Close with an iterator open: %v", err)
	}
	if err := errors.Join(it.Close(), it.Close(), s.Close(), s.Close()); err != nil {
		t.Error(err)
	}
}

// TestIterationsThatStop: leaving a loop releases everything, or Close would say so.
func TestIterationsThatStop(t *testing.T) {
	s := open(t, Options{})
	l := fillLibrary(t, s)
	v := s.View()
	r := l.rows[0]
	for _, err := range v.Rows(r.Key, r.Client, r.ClientSeq) {
		if err != nil {
			t.Error(err)
		}
		break
	}
	for _, err := range v.Writers(r.Key, "") {
		if err != nil {
			t.Error(err)
		}
		break
	}
	for _, err := range v.Aggregates("", "") {
		if err != nil {
			t.Error(err)
		}
		break
	}
	for _, err := range v.Positions(1) {
		if err != nil {
			t.Error(err)
		}
		break
	}
	v.Release()
}

// TestMalformedQuestions are refused, not answered with what lies next to them.
func TestMalformedQuestions(t *testing.T) {
	s := open(t, Options{})
	v := s.View()
	defer v.Release()
	bad := record.Key("acme\x00orders\x00")
	_, _, errHead := v.Head(bad)
	_, errMark := v.Mark(key("1"), "")
	_, _, errRow := v.Row(bad, "w", 1, 1)
	_, _, errBatch := v.Batch(bad, 1, 1)
	errs := []error{errHead, errMark, errRow, errBatch, v.Batches(bad, 1, 1, 0, false).Close()}
	for _, rows := range []func(func(Row, error) bool){v.Rows(key("1"), "a\x00", 1), v.Writers(bad, ""), v.Writers(key("1"), "a\x00")} {
		for _, err := range rows {
			errs = append(errs, err)
		}
	}
	for _, err := range v.Aggregates("", bad) {
		errs = append(errs, err)
	}
	if len(errs) != 9 || slices.Contains(errs, nil) {
		t.Errorf("answers: %v", errs)
	}
}

// TestCheckpointWhileCommitting: a checkpoint is a store at one applied index, not below the
// one at the call.
func TestCheckpointWhileCommitting(t *testing.T) {
	fs := vfs.NewCrashableMem()
	s := open(t, Options{Dir: "h", FS: fs, MemTableBytes: MinMemTableBytes, tune: small})
	w := newWorkload(6)
	b := s.NewBatch()
	type checkpoint struct {
		dir     string
		atLeast uint64
	}
	var made []checkpoint
	for i := range 4 {
		for range 20 {
			w.commit(t, s, b, 3)
		}
		c := checkpoint{dir: fmt.Sprint("snapshots/", i), atLeast: s.Applied().Index}
		done := make(chan error)
		go func() { done <- s.Checkpoint(c.dir) }()
		for range 20 {
			w.commit(t, s, b, 3)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		made = append(made, c)
	}
	if err := s.Checkpoint(made[0].dir); err == nil || !strings.Contains(err.Error(), "file already exists") {
		t.Errorf("checkpoint into a directory that is there: %v", err)
	}
	// It must be there after a power loss, too.
	lost := fs.CrashClone(vfs.CrashCloneCfg{})
	for _, c := range made {
		before, err := lost.List(c.dir)
		if err != nil {
			t.Fatal(err)
		}
		said, err := CheckpointApplied(lost, c.dir)
		if err != nil {
			t.Fatal(err)
		}
		after, err := lost.List(c.dir)
		if err != nil {
			t.Fatal(err)
		}
		slices.Sort(before)
		slices.Sort(after)
		if after = slices.DeleteFunc(after, func(name string) bool { return name == "LOCK" }); !slices.Equal(before, after) {
			t.Errorf("%s: expected %v to stay as they are, found %v", c.dir, before, after)
		}
		s := open(t, Options{Dir: c.dir, FS: lost, MemTableBytes: MinMemTableBytes, tune: small})
		v := s.View()
		if err := w.check(v); err != nil {
			t.Errorf("%s: %v", c.dir, err)
		}
		if v.Applied() != said {
			t.Errorf("%s: expected %+v, as it is open, found %+v", c.dir, v.Applied(), said)
		}
		if v.Applied().Index < c.atLeast {
			t.Errorf("%s is at %d, below %d", c.dir, v.Applied().Index, c.atLeast)
		}
		v.Release()
	}
}

// TestMarkOfUnknownWriterReadsNothing: the bloom filters of the last level are asked, and say
// no but for one in a hundred.
func TestMarkOfUnknownWriterReadsNothing(t *testing.T) {
	s := open(t, Options{})
	k := key("1")
	commit(t, s, func(b *Batch) {
		for i := range uint64(5000) {
			b.PutRow(&Row{Key: k, Client: fmt.Sprintf("known-%d", i), ClientSeq: i + 1, Position: i + 1})
		}
	})
	if err := errors.Join(s.Flush(), s.db.Compact(t.Context(), []byte("a"), []byte("z"), false)); err != nil {
		t.Fatal(err)
	}
	if n := s.db.Metrics().Levels[6].TablesCount; n == 0 {
		t.Fatal("nothing is in the last level")
	}
	v := s.View()
	defer v.Release()
	before := s.db.Metrics().Filter
	const asked = 1000
	for i := range asked {
		if mark, err := v.Mark(k, fmt.Sprintf("known-%d-not", i)); mark != 0 || err != nil {
			t.Fatal(mark, err)
		}
	}
	after := s.db.Metrics().Filter
	if hits := after.Hits - before.Hits; hits < asked*95/100 {
		t.Errorf("filters kept %d of %d look-ups from reading tables, want nearly all", hits, asked)
	}
	for _, i := range []uint64{0, 17, 4999} {
		if mark, err := v.Mark(k, fmt.Sprintf("known-%d", i)); mark != i+1 || err != nil {
			t.Errorf("mark of writer %d is %d, %v", i, mark, err)
		}
	}
}

// TestMemory: the block cache is what was asked for, with the memtables on top.
func TestMemory(t *testing.T) {
	var cache int64
	o := Options{BlockCacheBytes: 10 << 20, MemTableBytes: 1 << 20, tune: func(p *pebble.Options) { cache = p.Cache.MaxSize() }}
	open(t, o)
	if want := int64(13 << 20); cache != want || o.MemoryBytes() != want {
		t.Errorf("Pebble's cache has %d bytes, MemoryBytes says %d, want %d", cache, o.MemoryBytes(), want)
	}
	if got, want := (&Options{}).MemoryBytes(), int64(256+3*64)<<20; got != want {
		t.Errorf("by default it takes %d bytes, want %d", got, want)
	}
	for _, o := range []Options{{}, {Dir: "h", BlockCacheBytes: -1}, {Dir: "h", MemTableBytes: 1}, {Dir: "h", MemTableBytes: 4 << 30}} {
		if _, err := Open(o); err == nil {
			t.Errorf("Open accepts %+v", o)
		}
	}
}

// TestReleaseOrder: views may be released in any order, by anybody.
func TestReleaseOrder(t *testing.T) {
	s := open(t, Options{})
	var views []*View
	for i := range 200 {
		commit(t, s, func(b *Batch) { b.PutHead(key("1"), &Head{Version: uint64(i)}) })
		views = append(views, s.View())
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(views), func(i, j int) { views[i], views[j] = views[j], views[i] })
	var wg sync.WaitGroup
	for part := range slices.Chunk(views, 20) {
		wg.Go(func() {
			for _, v := range part {
				v.Release()
			}
		})
	}
	wg.Wait()
	defer func() {
		if recover() == nil {
			t.Error("one Release too many is not noticed")
		}
	}()
	views[0].Release()
}
