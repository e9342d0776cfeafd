package history

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// untilStats waits for the figures to be as they should.
func untilStats(t *testing.T, s *Store, what string, ok func(*Stats) bool) {
	t.Helper()
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(20 * time.Second); !ok(s.Stats()); <-ticker.C {
		if time.Now().After(deadline) {
			t.Fatalf("no %s: %+v", what, s.Stats())
		}
	}
}

// fillHeads writes the same heads and rows again, of about 100 KB.
func fillHeads(t *testing.T, s *Store, round uint64) {
	t.Helper()
	commit(t, s, func(b *Batch) {
		for i := range uint64(1000) {
			k := key(fmt.Sprint(i))
			b.PutHead(k, &Head{Version: round, LastClient: strings.Repeat("c", 60)})
			b.PutRow(&Row{Key: k, Client: "w", ClientSeq: round, Position: round*1000 + i})
		}
	})
}

// onlyAsked leaves out compactions that nobody asks for.
func onlyAsked(p *pebble.Options) { p.DisableAutomaticCompactions = true }

func compactAll(t *testing.T, s *Store) {
	t.Helper()
	if err := errors.Join(s.Flush(), s.db.Compact(t.Context(), []byte("a"), []byte("z"), false)); err != nil {
		t.Fatal(err)
	}
}

// What is written, flushed, compacted and read is in the figures.
func TestStatsOfWork(t *testing.T) {
	s := open(t, Options{BlockCacheBytes: 1 << 20, MemTableBytes: 1 << 20, tune: onlyAsked})
	was := s.Stats()
	if was.BlockCacheLimit != 1<<20 || was.MemtableLimit != 1<<20 || was.Memtables != 1 || was.Flushes != 0 || was.LevelBytes != [7]int64{} {
		t.Errorf("an empty store: %+v", was)
	}
	fillHeads(t, s, 1)
	if st := s.Stats(); st.MemtableBytes < was.MemtableBytes || st.MemtableBytes == 0 {
		t.Errorf("memtables have %d bytes after a commit, %d before", st.MemtableBytes, was.MemtableBytes)
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	flushed := s.Stats()
	if flushed.Flushes == 0 || flushed.FlushedBytes == 0 || flushed.LevelTables[0] == 0 || flushed.LevelBytes[0] == 0 ||
		flushed.L0Sublevels == 0 || flushed.ReadAmplification == 0 || flushed.DiskBytes <= was.DiskBytes {
		t.Errorf("after a flush: %+v", flushed)
	}
	fillHeads(t, s, 2)
	if err := s.db.Delete([]byte(string(appendHeadKey(nil, key("none")))), pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	// Pebble counts what is in a new table in the background.
	deadline := time.After(10 * time.Second)
	for {
		st := s.Stats()
		if st.L0Sublevels > flushed.L0Sublevels && st.Tombstones > 0 {
			break
		}
		select {
		case <-time.After(time.Millisecond):
		case <-deadline:
			t.Fatalf("after a second flush, with a deletion: %+v", st)
		}
	}
	compactAll(t, s)
	v := s.View()
	defer v.Release()
	for range 2 {
		if _, ok, err := v.Head(key("7")); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	st := s.Stats()
	if st.Compactions == 0 || st.CompactedBytes == 0 || st.LevelTables[6] == 0 || st.LevelTables[0] != 0 || st.Tombstones != 0 ||
		st.L0Sublevels != 0 || st.BlockCacheMisses == 0 || st.BlockCacheHits == 0 || st.BlockCacheBytes == 0 || st.Snapshots == 0 {
		t.Errorf("after a compaction and look-ups: %+v", st)
	}
	fillHeads(t, s, 3)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.CompactionDebtBytes == 0 {
		t.Errorf("with a level above the last one: %+v", st)
	}
}

// What only readers still hold is told from what is in use.
func TestStatsOfWhatReadersHold(t *testing.T) {
	s := open(t, Options{MemTableBytes: 1 << 20})
	fillHeads(t, s, 1)
	v := s.View()
	it, err := v.snap.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	untilStats(t, s, "memtable that is only read", func(st *Stats) bool { return st.ZombieMemtables > 0 && st.ZombieMemtableBytes > 0 })
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	if it, err = v.snap.NewIter(nil); err != nil {
		t.Fatal(err)
	}
	fillHeads(t, s, 2)
	compactAll(t, s)
	untilStats(t, s, "table that is only read", func(st *Stats) bool { return st.ZombieBytes > 0 })
	if err := it.Close(); err != nil {
		t.Fatal(err)
	}
	v.Release()
	untilStats(t, s, "end of what was held", func(st *Stats) bool { return st.ZombieBytes == 0 && st.ObsoleteBytes == 0 })
}

// A file system that holds creations of tables, or removals, until it is told to go on, and then
// fails the first of them.
type heldDisk struct {
	kind    atomic.Int64 // of operation; -1 = none
	waiting chan struct{}
	goOn    chan error
}

func (d *heldDisk) disk() vfs.FS {
	d.kind.Store(-1)
	d.waiting, d.goOn = make(chan struct{}), make(chan error)
	return errorfs.Wrap(vfs.NewMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		if int64(op.Kind) != d.kind.Load() || !strings.HasSuffix(op.Path, ".sst") {
			return nil
		}
		d.kind.Store(-1)
		d.waiting <- struct{}{}
		return <-d.goOn
	}))
}

func (d *heldDisk) waits(t *testing.T) {
	t.Helper()
	select {
	case <-d.waiting:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing met the disk")
	}
}

// A compaction at work, one that fails, and files that wait for their removal are shown.
func TestStatsOfTheBackground(t *testing.T) {
	d := &heldDisk{}
	s := open(t, Options{FS: d.disk(), Dir: "history", MemTableBytes: 1 << 20, OnBackgroundError: func(error) {}, tune: onlyAsked})
	fillHeads(t, s, 1)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	fillHeads(t, s, 2)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.CompactionsRunning != 0 || st.CompactionsFailed != 0 || st.ObsoleteBytes != 0 {
		t.Fatalf("before: %+v", st)
	}
	d.kind.Store(int64(errorfs.OpCreate))
	compacted := make(chan error, 1)
	go func() { compacted <- s.db.Compact(t.Context(), []byte("a"), []byte("z"), false) }()
	d.waits(t)
	if st := s.Stats(); st.CompactionsRunning != 1 {
		t.Errorf("while one compacts: %+v", st)
	}
	d.goOn <- errors.New("as the test wants it")
	if err := <-compacted; err == nil {
		t.Error("the compaction did not fail")
	}
	untilStats(t, s, "compaction that failed", func(st *Stats) bool { return st.CompactionsFailed > 0 && st.CompactionsRunning == 0 })

	d.kind.Store(int64(errorfs.OpRemove))
	compactAll(t, s)
	d.waits(t)
	if st := s.Stats(); st.ObsoleteBytes == 0 {
		t.Errorf("while tables are to be removed: %+v", st)
	}
	d.goOn <- nil
	untilStats(t, s, "end of the removal", func(st *Stats) bool { return st.ObsoleteBytes == 0 })
}

// Pebble's words about stalls and slow disks become figures, a stall that goes on included.
func TestStatsOfStalls(t *testing.T) {
	s := open(t, Options{})
	l := s.listener()
	l.WriteStallBegin(pebble.WriteStallBeginInfo{Reason: "memtable count limit reached"})
	began := time.Now()
	untilStats(t, s, "stall that goes on", func(st *Stats) bool { return st.Stalls == 1 && st.Stalled > 0 })
	l.WriteStallEnd()
	ended := s.Stats()
	if again := s.Stats(); again.Stalled != ended.Stalled || ended.Stalled > time.Since(began)+time.Second {
		t.Errorf("a stall that is over took %v, then %v", ended.Stalled, again.Stalled)
	}
	l.WriteStallBegin(pebble.WriteStallBeginInfo{})
	l.WriteStallEnd()
	l.DiskSlow(pebble.DiskSlowInfo{})
	if st := s.Stats(); st.Stalls != 2 || st.Stalled < ended.Stalled || st.SlowOperations != 1 {
		t.Errorf("after two stalls and a slow disk: %+v", st)
	}
}

// After a fatal error nobody waits for Pebble.
func TestStatsAfterAFatalError(t *testing.T) {
	s, err := Open(Options{FS: vfs.NewMem(), Dir: "history", OnFatal: func(error) {}})
	if err != nil {
		t.Fatal(err)
	}
	s.report(errors.New("as the test wants it"))
	if st := s.Stats(); st != nil {
		t.Errorf("after a fatal error: %+v", st)
	}
}
