package tail

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/tidwall/wal"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// small makes segments of a few records, so that every test crosses several.
const small = 1 << 10

// entry makes an entry whose content follows from its index and term.
func entry(index, term uint64, size int) *raft.Log {
	r := rand.New(rand.NewPCG(index, term))
	data := make([]byte, size)
	for i := range data {
		data[i] = byte(r.Uint32()) | 1 // no zeros: a hole must be seen as one
	}
	e := &raft.Log{Index: index, Term: term, Type: raft.LogCommand, Data: data,
		AppendedAt: time.Unix(1_700_000_000+int64(index), int64(term)).UTC()}
	if index%3 == 0 {
		e.Extensions = []byte(fmt.Sprintf("ext-%d", index))
	}
	if size == 0 {
		e.Data, e.Type = nil, raft.LogNoop
	}
	return e
}

// entries makes the entries from..to of a term, of various sizes.
func entries(from, to, term uint64) []*raft.Log {
	var es []*raft.Log
	for i := from; i <= to; i++ {
		es = append(es, entry(i, term, int(i*37%300)))
	}
	return es
}

// mustOpen opens a log that is closed when the test ends.
func mustOpen(t testing.TB, dir string) *Log {
	t.Helper()
	return mustOpenWith(t, Options{Dir: dir, SegmentSize: small}, realOps())
}

func mustOpenWith(t testing.TB, o Options, ops *ops) *Log {
	t.Helper()
	l, err := open(o, ops)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func mustStore(t testing.TB, l *Log, es []*raft.Log) {
	t.Helper()
	if err := l.StoreLogs(es); err != nil {
		t.Fatalf("store %d..%d: %v", es[0].Index, es[len(es)-1].Index, err)
	}
}

// wantLog asserts that l holds exactly want, also through its bounds.
func wantLog(t testing.TB, l *Log, want []*raft.Log) {
	t.Helper()
	var first, last uint64
	if len(want) > 0 {
		first, last = want[0].Index, want[len(want)-1].Index
	}
	gotFirst, err1 := l.FirstIndex()
	gotLast, err2 := l.LastIndex()
	if err := errors.Join(err1, err2); err != nil || gotFirst != first || gotLast != last {
		t.Fatalf("bounds: want %d..%d, got %d..%d, %v", first, last, gotFirst, gotLast, err)
	}
	for _, w := range want {
		var got raft.Log
		if err := l.GetLog(w.Index, &got); err != nil {
			t.Fatalf("get %d: %v", w.Index, err)
		}
		if !reflect.DeepEqual(&got, w) {
			t.Fatalf("get %d: want %+v, got %+v", w.Index, w, got)
		}
	}
	for _, i := range []uint64{0, first - 1, last + 1, last + 1000} {
		if i >= first && i <= last && i != 0 {
			continue
		}
		if err := l.GetLog(i, new(raft.Log)); err != raft.ErrLogNotFound {
			t.Fatalf("get %d: want exactly raft.ErrLogNotFound, got %v", i, err)
		}
	}
}

// copyDir copies a log's directory as a process that is killed would leave it.
func copyDir(t testing.TB, from string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// logDir returns the directory of the only incarnation in dir.
func logDir(t testing.TB, dir string) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "log-*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("want one log in %s, got %v, %v", dir, found, err)
	}
	return found[0]
}

// segmentFiles returns the segment files in dir, lowest first.
func segmentFiles(t testing.TB, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(logDir(t, dir), "0*"))
	if err != nil || len(found) == 0 {
		t.Fatalf("segments: %v, %v", found, err)
	}
	slices.Sort(found)
	return found
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func writeFile(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o640); err != nil {
		t.Fatal(err)
	}
}

func TestStoreAndGet(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := mustOpen(t, dir)
	wantLog(t, l, nil)
	all := entries(1, 100, 1)
	for i := 0; i < len(all); {
		n := min(1+i%7, len(all)-i)
		mustStore(t, l, all[i:i+n])
		i += n
		wantLog(t, l, all[:i])
	}
	if err := l.StoreLog(entry(101, 2, 5)); err != nil {
		t.Fatal(err)
	}
	all = append(all, entry(101, 2, 5))
	wantLog(t, l, all)
	if err := l.StoreLogs(nil); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = mustOpen(t, dir)
	wantLog(t, l, all)
}

func TestEveryFieldOfAnEntryComesBack(t *testing.T) {
	t.Parallel()
	for name, e := range map[string]*raft.Log{
		"zero time":       {Index: 1, Term: 9, Type: raft.LogNoop},
		"data only":       {Index: 1, Term: 1, Data: []byte{0}},
		"extensions only": {Index: 1, Term: 1, Extensions: []byte("x")},
		"all":             {Index: 1, Term: 1<<64 - 1, Type: raft.LogConfiguration, Data: []byte("d"), Extensions: []byte("e"), AppendedAt: time.Unix(-5, 999).UTC()},
		"zeros":           {Index: 1, Term: 1, Type: raft.LogBarrier, Data: make([]byte, 5000), Extensions: make([]byte, 70)},
		"large":           entry(1, 1, 512<<10),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := mustOpen(t, dir)
			mustStore(t, l, []*raft.Log{e})
			wantLog(t, l, []*raft.Log{e})
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			wantLog(t, mustOpen(t, dir), []*raft.Log{e})
		})
	}
}

func TestReadDoesNotShareMemory(t *testing.T) {
	t.Parallel()
	for _, size := range []int{100, 2 * windowRecord} {
		l := mustOpenWith(t, Options{Dir: t.TempDir()}, realOps())
		want := []*raft.Log{entry(1, 1, size), entry(2, 1, size), entry(3, 1, size)}
		mustStore(t, l, want)
		for range 2 { // the second round is served by the window
			for _, w := range want {
				var got raft.Log
				if err := l.GetLog(w.Index, &got); err != nil {
					t.Fatal(err)
				}
				clear(got.Data)
				clear(got.Extensions)
				if cap(got.Data) > len(got.Data) {
					t.Fatal("an append to Data would write into Extensions")
				}
			}
			wantLog(t, l, want)
		}
	}
}

func TestStoreRefusesWhatIsNotNext(t *testing.T) {
	t.Parallel()
	l := mustOpen(t, t.TempDir())
	mustStore(t, l, entries(1, 10, 1))
	for name, es := range map[string][]*raft.Log{
		"stored already":  entries(10, 11, 2),
		"below the log":   {entry(0, 1, 1)},
		"not consecutive": {entry(11, 1, 1), entry(13, 1, 1)},
	} {
		if err := l.StoreLogs(es); err == nil || errors.Is(err, ErrPoisoned) {
			t.Fatalf("%s: want an error that poisons nothing, got %v", name, err)
		}
		wantLog(t, l, entries(1, 10, 1))
	}
	mustStore(t, l, entries(11, 11, 1))
	wantLog(t, l, entries(1, 11, 1))
}

// A log opened with other segment sizes than it was written with continues at the right place.
func TestSegmentSizeMayChange(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(1, 2))
	var all []*raft.Log
	for round := range 30 {
		l := mustOpenWith(t, Options{Dir: dir, SegmentSize: []int{1, 200, small, 10 * small}[r.IntN(4)]}, realOps())
		wantLog(t, l, all)
		for range r.IntN(4) {
			next := uint64(len(all)) + 1
			es := entries(next, next+uint64(r.IntN(6)), uint64(round))
			mustStore(t, l, es)
			all = append(all, es...)
		}
		wantLog(t, l, all)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// A batch longer than what one write takes is still one batch.
func TestLongBatch(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := mustOpenWith(t, Options{Dir: dir}, realOps())
	var es []*raft.Log
	for i := uint64(1); i <= 20; i++ {
		es = append(es, entry(i, 1, 512<<10))
	}
	es = append(es, entry(21, 1, 9<<20), entry(22, 1, 1))
	mustStore(t, l, es)
	wantLog(t, l, es)
	wantLog(t, mustOpen(t, copyDir(t, dir)), es)
	if l.frame != nil && cap(l.frame) > 2*chunkSize {
		t.Fatalf("a frame of %d bytes is kept", cap(l.frame))
	}
	if h, _ := parseHeader(readFile(t, segmentFiles(t, dir)[1])[3:]); h.batch != 1 {
		t.Fatalf("want batch 1 in the second segment, got %+v", h)
	}
}

// A batch that fills several segments: after a power loss the name of one may be missing
// while a later one is there, if both were pending at a time.
func TestNamesOfSegmentsBecomeDurableInTurn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ops := realOps()
	l := mustOpenWith(t, Options{Dir: dir, SegmentSize: small}, ops)
	durable := map[string]bool{segmentFiles(t, dir)[0]: true}
	ops.syncDir = func(path string) error {
		for _, f := range segmentFiles(t, dir) {
			durable[f] = true
		}
		return syncDir(path)
	}
	most := 0
	ops.write = func(w *wal.Log, b *wal.Batch) error {
		err := w.WriteBatch(b)
		pending := 0
		for _, f := range segmentFiles(t, dir) {
			if !durable[f] {
				pending++
			}
		}
		most = max(most, pending)
		return err
	}
	for from := uint64(1); from < 200; from += 50 {
		mustStore(t, l, entries(from, from+49, 1))
	}
	wantLog(t, l, entries(1, 200, 1))
	if n := len(segmentFiles(t, dir)); n < 20 || most != 1 {
		t.Errorf("%d segments were written and up to %d new names pending at a time, want at least 20 and 1", n, most)
	}
	for _, f := range segmentFiles(t, dir) {
		if !durable[f] {
			t.Errorf("%s was acknowledged and its name was not flushed", f)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	t.Parallel()
	for _, size := range []int{-1, maxSegmentSize + 1} {
		if l, err := Open(Options{Dir: t.TempDir(), SegmentSize: size}); err == nil {
			_ = l.Close()
			t.Fatalf("segment size %d was accepted", size)
		}
	}
}

func TestClosedLogRefusesCalls(t *testing.T) {
	t.Parallel()
	l := mustOpen(t, t.TempDir())
	mustStore(t, l, entries(1, 30, 1))
	if err := errors.Join(l.Close(), l.Close()); err != nil {
		t.Fatal(err)
	}
	for name, err := range everyCall(l) {
		if err != ErrClosed {
			t.Errorf("%s: want ErrClosed, got %v", name, err)
		}
	}
}

// everyCall makes every call that touches the log.
func everyCall(l *Log) map[string]error {
	errs := map[string]error{}
	_, errs["FirstIndex"] = l.FirstIndex()
	_, errs["LastIndex"] = l.LastIndex()
	errs["GetLog"] = l.GetLog(1, new(raft.Log))
	errs["StoreLog"] = l.StoreLog(entry(31, 1, 1))
	errs["StoreLogs"] = l.StoreLogs(entries(31, 32, 1))
	errs["StoreLogs jump"] = l.StoreLogs(entries(1000, 1001, 1))
	errs["DeleteRange front"] = l.DeleteRange(1, 5)
	errs["DeleteRange back"] = l.DeleteRange(20, 30)
	errs["DeleteRange all"] = l.DeleteRange(1, 30)
	return errs
}

func TestSizeBytesIsThatOfTheFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := mustOpen(t, dir)
	check := func(when string) {
		t.Helper()
		var sum int64
		for _, f := range segmentFiles(t, dir) {
			sum += int64(len(readFile(t, f)))
		}
		if got := l.SizeBytes(); got != sum {
			t.Fatalf("%s: want %d bytes, got %d", when, sum, got)
		}
	}
	check("empty")
	mustStore(t, l, entries(1, 100, 1))
	check("stored")
	for _, r := range [][2]uint64{{1, 40}, {80, 100}, {41, 41}} {
		if err := l.DeleteRange(r[0], r[1]); err != nil {
			t.Fatal(err)
		}
		check(fmt.Sprint("deleted ", r))
	}
	mustStore(t, l, entries(80, 90, 2))
	check("stored again")
	mustStore(t, l, entries(1000, 1010, 2))
	check("jumped")
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = mustOpen(t, dir)
	check("reopened")
}

func TestOnSyncReportsEveryFlush(t *testing.T) {
	t.Parallel()
	var got []int
	dir := t.TempDir()
	o := Options{Dir: dir, SegmentSize: small, OnSync: func(d time.Duration, n int) {
		if d <= 0 {
			t.Errorf("want a duration, got %v", d)
		}
		got = append(got, n)
	}}
	l := mustOpenWith(t, o, realOps())
	mustStore(t, l, entries(1, 3, 1))
	mustStore(t, l, entries(4, 60, 1))
	if len(got) != 2 || int64(got[0]+got[1]) != l.SizeBytes() || got[0] >= got[1] {
		t.Fatalf("want two flushes that add up to %d bytes, got %v", l.SizeBytes(), got)
	}
}

// However much of the log is read, few files are open and little of it is held.
func TestCachesAreBounded(t *testing.T) {
	t.Parallel()
	l := mustOpen(t, t.TempDir())
	for i := uint64(1); i <= 40; i++ {
		mustStore(t, l, entries(i*10-9, i*10, 1))
	}
	for i := uint64(1); i <= 400; i++ {
		if err := l.GetLog(i, new(raft.Log)); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(l.segs); n <= 2*maxHandles {
		t.Fatalf("the test needs more segments, got %d", n)
	}
	if n := len(l.files.open); n != maxHandles {
		t.Fatalf("want %d open files, got %d", maxHandles, n)
	}
	if n := cap(l.forward.buf); n > windowSize {
		t.Fatalf("want a window of at most %d bytes, got %d", windowSize, n)
	}
}

// tidwall/wal: concurrent reads race with cache eviction. Run it with -race.
func TestConcurrentRandomReadersWhileWriting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := mustOpen(t, dir)
	mustStore(t, l, entries(1, 200, 1))
	var readers, writers sync.WaitGroup
	done := make(chan struct{})
	for g := range 8 {
		readers.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 7))
			for {
				select {
				case <-done:
					return
				default:
				}
				first, err1 := l.FirstIndex()
				last, err2 := l.LastIndex()
				if err := errors.Join(err1, err2); err != nil || last < first {
					t.Errorf("bounds %d..%d, %v", first, last, err)
					return
				}
				i := first + r.Uint64N(last-first+1)
				for n := range uint64(1 + r.IntN(20)) {
					var got raft.Log
					err := l.GetLog(i+n, &got)
					if err == raft.ErrLogNotFound {
						break // deleted meanwhile, or beyond the end
					}
					if err != nil || !slices.ContainsFunc([]uint64{1, 2, 3}, func(term uint64) bool {
						return reflect.DeepEqual(&got, entry(i+n, term, int((i+n)*37%300)))
					}) {
						t.Errorf("get %d: %v, %+v", i+n, err, got)
						return
					}
				}
			}
		})
	}
	appended := make(chan struct{})
	writers.Go(func() {
		defer close(appended)
		next, term := uint64(201), uint64(1)
		for round := range 40 {
			if err := l.StoreLogs(entries(next, next+9, term)); err != nil {
				t.Error(err)
			}
			next += 10
			if round%4 == 3 { // as a new leader does
				if err := l.DeleteRange(next-25, next-1); err != nil {
					t.Error(err)
				}
				next -= 25
				term = 1 + term%3
			}
		}
	})
	writers.Go(func() { // as raft's snapshots do, beside the appends
		for {
			select {
			case <-appended:
				return
			default:
			}
			first, err1 := l.FirstIndex()
			last, err2 := l.LastIndex()
			if err := errors.Join(err1, err2); err != nil {
				t.Error(err)
			}
			if last > first+60 {
				if err := l.DeleteRange(first, first+8); err != nil {
					t.Error(err)
				}
			}
		}
	})
	writers.Wait()
	close(done)
	readers.Wait()
	if t.Failed() {
		return
	}
	first, err1 := l.FirstIndex()
	last, err2 := l.LastIndex()
	if err := errors.Join(err1, err2, l.Close()); err != nil {
		t.Fatal(err)
	}
	l = mustOpen(t, dir)
	for i := first; i <= last; i++ {
		if err := l.GetLog(i, new(raft.Log)); err != nil {
			t.Fatal(err)
		}
	}
}

// tidwall/wal: its lock is held across a flush. Ours is not: a reader is served while a
// flush hangs, and does not see what is not durable.
func TestReadersDoNotWaitForAFlushNorSeeWhatIsNotDurable(t *testing.T) {
	t.Parallel()
	flushing, release := make(chan struct{}), make(chan struct{})
	ops := realOps()
	hang := false
	flush := ops.flush
	ops.flush = func(f *os.File) error {
		if hang {
			close(flushing)
			<-release
		}
		return flush(f)
	}
	l := mustOpenWith(t, Options{Dir: t.TempDir(), SegmentSize: small}, ops)
	mustStore(t, l, entries(1, 20, 1))
	hang = true
	stored := make(chan error)
	go func() { stored <- l.StoreLogs(entries(21, 22, 1)) }() // ends with release
	<-flushing
	wantLog(t, l, entries(1, 20, 1))
	select {
	case err := <-stored:
		t.Fatalf("the store returned before its flush: %v", err)
	default:
	}
	hang = false
	close(release)
	if err := <-stored; err != nil {
		t.Fatal(err)
	}
	wantLog(t, l, entries(1, 22, 1))
}

// observed makes a logger whose warnings a test can read.
func observed() (*zap.Logger, *observer.ObservedLogs) {
	core, logs := observer.New(zap.WarnLevel)
	return zap.New(core), logs
}

func mustEqual(t testing.TB, what string, want, got []byte) {
	t.Helper()
	if !bytes.Equal(want, got) {
		t.Fatalf("%s: want %d bytes %x, got %d bytes %x", what, len(want), want, len(got), got)
	}
}
