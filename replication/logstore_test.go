package replication

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap/zaptest"

	"github.com/tidemark-db/tidemark/wal/tail"
)

// openLogs opens a log store in dir, with room for three small entries in its cache.
func openLogs(t *testing.T, dir string) *logStore {
	t.Helper()
	log, err := tail.Open(tail.Options{Dir: filepath.Join(dir, "tail"), SegmentSize: 512})
	if err != nil {
		t.Fatal(err)
	}
	l := &logStore{
		tail: log, snaps: openSnapshotsAt(t, filepath.Join(dir, "snapshots")), log: zaptest.NewLogger(t), maxLent: 1 << 20,
		cache: newEntryCache(3 * (entryOverhead + 10)), step: func(string) error { return nil },
	}
	t.Cleanup(func() {
		if err := l.tail.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// store appends entries from..to of a term, each with data that names both.
func (l *logStore) store(t *testing.T, from, to, term uint64) {
	t.Helper()
	for i := from; i <= to; i++ {
		if err := l.StoreLog(&raft.Log{Index: i, Term: term, Data: entryData(i, term)}); err != nil {
			t.Fatal(err)
		}
	}
}

func entryData(index, term uint64) []byte { return fmt.Appendf(nil, "%05d.%04d", index, term) }

// want compares the log with runs of entries: each has its first and last index and its term.
// A run with term 0 is one entry that stands for a snapshot, of the term in the place of last.
func (l *logStore) want(t *testing.T, runs ...[3]uint64) {
	t.Helper()
	first, err1 := l.FirstIndex()
	last, err2 := l.LastIndex()
	var wantFirst, wantLast uint64
	for _, r := range runs {
		if wantFirst == 0 {
			wantFirst = r[0]
		}
		wantLast = max(r[0], r[1])
		if r[2] == 0 {
			wantLast = r[0]
		}
	}
	if err := errors.Join(err1, err2); err != nil || first != wantFirst || last != wantLast {
		t.Fatalf("the log holds %d to %d (%v), want %d to %d", first, last, err, wantFirst, wantLast)
	}
	for _, r := range runs {
		for i := r[0]; i <= r[1]; i++ {
			var e raft.Log
			if err := l.GetLog(i, &e); err != nil {
				t.Fatalf("entry %d: %v", i, err)
			}
			want := raft.Log{Index: i, Term: r[2], Data: entryData(i, r[2])}
			if r[2] == 0 {
				want = raft.Log{Index: i, Term: r[1], Type: raft.LogNoop}
			}
			if e.Index != want.Index || e.Term != want.Term || e.Type != want.Type || string(e.Data) != string(want.Data) {
				t.Fatalf("entry %d is %+v, want %+v", i, e, want)
			}
			if r[2] == 0 {
				break
			}
		}
	}
	for _, out := range []uint64{wantFirst - 1, wantLast + 1} {
		var e raft.Log
		if err := l.GetLog(out, &e); !errors.Is(err, raft.ErrLogNotFound) {
			t.Fatalf("entry %d, outside of the log: %+v, %v", out, e, err)
		}
	}
}

// What a log does when a snapshot of entry 10 of term 3 was restored, and that whatever a
// crash leaves half way comes to the same.
func TestLogFollowsOnASnapshot(t *testing.T) {
	m := &snapshotMeta{SnapshotMeta: raft.SnapshotMeta{Index: 10, Term: 3}}
	placeholder := [3]uint64{10, 3, 0}
	for name, c := range map[string]struct {
		fill func(t *testing.T, l *logStore)
		gone uint64
		want [][3]uint64
	}{
		"empty":               {func(*testing.T, *logStore) {}, 0, [][3]uint64{placeholder}},
		"shorter":             {func(t *testing.T, l *logStore) { l.store(t, 1, 7, 2) }, 7, [][3]uint64{placeholder}},
		"holds it":            {func(t *testing.T, l *logStore) { l.store(t, 1, 5, 2); l.store(t, 6, 10, 3) }, 0, [][3]uint64{{1, 5, 2}, {6, 10, 3}}},
		"holds it and more":   {func(t *testing.T, l *logStore) { l.store(t, 1, 10, 3); l.store(t, 11, 20, 4) }, 0, [][3]uint64{{1, 10, 3}, {11, 20, 4}}},
		"conflicts":           {func(t *testing.T, l *logStore) { l.store(t, 1, 10, 2) }, 10, [][3]uint64{placeholder}},
		"conflicts, and more": {func(t *testing.T, l *logStore) { l.store(t, 1, 200, 2) }, 200, [][3]uint64{placeholder}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, crash := range []bool{false, true} {
				dir := t.TempDir()
				l := openLogs(t, dir)
				c.fill(t, l)
				if crash {
					cut := errors.New("a crash")
					l.step = func(string) error { return cut }
					if _, err := l.follow(m); err != nil && !errors.Is(err, cut) {
						t.Fatal(err)
					}
					if err := l.tail.Close(); err != nil {
						t.Fatal(err)
					}
					l = openLogs(t, dir)
				}
				gone, err := l.follow(m)
				if err != nil || (!crash && gone != c.gone) {
					t.Fatalf("entries up to %d are gone (%v), want %d", gone, err, c.gone)
				}
				l.want(t, c.want...)
				if gone, err := l.follow(m); err != nil || gone != 0 {
					t.Fatalf("again: entries up to %d are gone, %v", gone, err)
				}
				last := c.want[len(c.want)-1]
				next := max(last[0], last[1]) + 1
				l.store(t, next, next+5, 5)
				l.want(t, append(c.want, [3]uint64{next, next + 5, 5})...)
			}
		})
	}
}

// tidwall/wal refuses a jump of the index, and the tail begins anew at one: raft's log has
// neither.
func TestLogHasNoGaps(t *testing.T) {
	l := openLogs(t, t.TempDir())
	if err := l.StoreLog(&raft.Log{Index: 5, Term: 1}); err == nil || !strings.Contains(err.Error(), "expected index 1 next, found 5") {
		t.Errorf("a first entry of index 5: %v", err)
	}
	l.store(t, 1, 10, 1)
	for _, index := range []uint64{12, 10, 1} {
		if err := l.StoreLog(&raft.Log{Index: index, Term: 1}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("expected index 11 next, found %d", index)) {
			t.Errorf("entry %d behind entry 10: %v", index, err)
		}
	}
	l.want(t, [3]uint64{1, 10, 1})
}

func TestSealedLogRefusesEveryCall(t *testing.T) {
	l := openLogs(t, t.TempDir())
	l.store(t, 1, 10, 1)
	l.seal()
	_, first := l.FirstIndex()
	_, last := l.LastIndex()
	for what, err := range map[string]error{
		"first": first, "last": last, "get": l.GetLog(10, &raft.Log{}), "store": l.StoreLog(&raft.Log{Index: 11}), "delete": l.DeleteRange(1, 5),
	} {
		if !errors.Is(err, errSealed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	l.unseal()
	l.want(t, [3]uint64{1, 10, 1})
}

// Raft may delete what it does not need, but not the entry of the newest snapshot, nor what a
// node that is getting a snapshot will ask for next; and of what conflicts only entries that
// no snapshot stands for.
func TestLogKeepsWhatOthersNeed(t *testing.T) {
	l := openLogs(t, t.TempDir())
	now := time.Unix(1000, 0)
	l.snaps.now = func() time.Time { return now }
	l.store(t, 1, 50, 1)
	remove := func(lo, hi, first, last uint64) {
		t.Helper()
		if err := l.DeleteRange(lo, hi); err != nil {
			t.Fatal(err)
		}
		l.want(t, [3]uint64{first, last, 1})
	}
	if err := takeSnapshot(t, l.snaps, 20, "content"); err != nil {
		t.Fatal(err)
	}
	remove(1, 10, 11, 50)
	remove(11, 20, 20, 50)
	remove(20, 20, 20, 50)
	remove(1, 5, 20, 50)
	if err := l.DeleteRange(20, 50); !errors.Is(err, errCommitted) {
		t.Errorf("deleted all behind the snapshot and its entry: %v", err)
	}
	remove(41, 50, 20, 40)

	id := l.snaps.newest().ID
	_, reader, err := l.snaps.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	if err := takeSnapshot(t, l.snaps, 35, "newer"); err != nil {
		t.Fatal(err)
	}
	remove(20, 35, 21, 40) // the reader's node goes on from entry 21
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	remove(21, 35, 21, 40)
	now = now.Add(lentAfter / 2)
	remove(21, 35, 21, 40)
	l.maxLent = 100
	remove(21, 22, 23, 40) // more than the bound
	l.maxLent = 1 << 20
	now = now.Add(lentAfter)
	remove(23, 35, 35, 40)
}

// A snapshot that is being read stays until the last reader closes, whatever comes after it;
// a crash leaves it behind, and the next start removes it.
func TestSnapshotStaysWhileItIsSent(t *testing.T) {
	for _, crash := range []bool{false, true} {
		s := openSnapshotsAt(t, t.TempDir())
		if err := takeSnapshot(t, s, 10, "old"); err != nil {
			t.Fatal(err)
		}
		old := s.newest()
		_, a, err1 := s.Open(old.ID)
		_, b, err2 := s.Open(old.ID)
		if err := errors.Join(err1, err2); err != nil {
			t.Fatal(err)
		}
		if err := takeSnapshot(t, s, 20, "new"); err != nil {
			t.Fatal(err)
		}
		if list, err := s.List(); err != nil || len(list) != 1 || list[0].Index != 20 {
			t.Fatalf("list %v, %v", list, err)
		}
		if _, _, err := s.Open(old.ID); err == nil {
			t.Fatal("an old snapshot was opened")
		}
		if err := a.Close(); err != nil {
			t.Fatal(err)
		}
		to := openSnapshotsAt(t, t.TempDir())
		sink, err := to.Create(raft.SnapshotVersionMax, 10, 1, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := io.Copy(sink, b); err != nil || n != old.Size {
			t.Fatalf("sent %d bytes (%v), want %d", n, err, old.Size)
		}
		if err := sink.Close(); err != nil {
			t.Fatal(err)
		}
		wantSnapshot(t, to, 10, "old")
		if crash {
			s = openSnapshotsAt(t, s.dir)
		} else if err := errors.Join(b.Close(), a.Close(), b.Close()); err != nil {
			t.Fatal(err)
		}
		wantSnapshot(t, s, 20, "new")
	}
}

// Raft takes snapshots while it receives one: the one that is behind must not take the place
// of the other, on which the log rests by then.
func TestOlderSnapshotIsRefused(t *testing.T) {
	from, s := openSnapshotsAt(t, t.TempDir()), openSnapshotsAt(t, t.TempDir())
	if err := errors.Join(takeSnapshot(t, from, 20, "sent"), takeSnapshot(t, s, 5, "first")); err != nil {
		t.Fatal(err)
	}
	own, err := s.Create(raft.SnapshotVersionMax, 10, 1, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	fillSink(t, own, "own")
	if err := receive(t, from, s, 20, 1); err != nil {
		t.Fatal(err)
	}
	if err := own.Close(); !errors.Is(err, errOlderSnapshot) {
		t.Errorf("the older one was closed: %v", err)
	}
	for _, c := range [][2]uint64{{10, 1}, {20, 2}} {
		if _, err := s.Create(raft.SnapshotVersionMax, c[0], c[1], raft.Configuration{}, 1, nil); !errors.Is(err, errOlderSnapshot) {
			t.Errorf("a snapshot of entry %d of term %d was begun: %v", c[0], c[1], err)
		}
	}
	wantSnapshot(t, s, 20, "sent")
	if err := receive(t, from, s, 20, 1); err != nil { // the leader missed the answer
		t.Error(err)
	}
	wantSnapshot(t, s, 20, "sent")
}

func TestEntryCacheIsBoundedAndTrue(t *testing.T) {
	l := openLogs(t, t.TempDir())
	l.store(t, 1, 10, 1)
	if s := l.cache.stats(); s.Entries != 3 || s.Bytes != 3*(entryOverhead+10) {
		t.Fatalf("%+v; want 3 entries", s)
	}
	l.want(t, [3]uint64{1, 10, 1})
	if s := l.cache.stats(); s.Hits != 3 || s.Misses != 9 {
		t.Fatalf("%+v; want 3 hits, and 9 misses, of them 2 outside of the log", s)
	}
	// The newest conflict with a leader's: what takes their place is another entry.
	if err := l.DeleteRange(9, 10); err != nil {
		t.Fatal(err)
	}
	l.want(t, [3]uint64{1, 8, 1})
	l.store(t, 9, 9, 2)
	l.want(t, [3]uint64{1, 8, 1}, [3]uint64{9, 9, 2})
	if err := l.DeleteRange(1, 8); err != nil {
		t.Fatal(err)
	}
	l.want(t, [3]uint64{9, 9, 2})
	// One that is larger than the cache is not kept, and nothing before it.
	large := &raft.Log{Index: 10, Term: 2, Data: make([]byte, 1000)}
	if err := l.StoreLog(large); err != nil {
		t.Fatal(err)
	}
	if s := l.cache.stats(); s.Entries != 0 || s.Bytes != 0 {
		t.Fatalf("%+v; want nothing", s)
	}
	var e raft.Log
	if err := l.GetLog(10, &e); err != nil || len(e.Data) != 1000 {
		t.Fatalf("%d bytes, %v", len(e.Data), err)
	}
	l.store(t, 11, 12, 2)
	if s := l.cache.stats(); s.Entries != 2 {
		t.Fatalf("%+v; want 2 entries", s)
	}
}
