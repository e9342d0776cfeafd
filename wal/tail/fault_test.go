package tail

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/tidwall/wal"
)

var errDisk = errors.New("input/output error")

// tidwall/wal: after a failed write memory and file disagree, after a failed flush indexes
// are ahead. Whatever fails, and whichever call meets it: nothing is retried, the owner is
// told once, every further call fails, and what was acknowledged is there after a restart.
func TestFailurePoisonsTheLog(t *testing.T) {
	t.Parallel()
	before := entries(1, 30, 1)
	store := func(l *Log) error { return l.StoreLogs(entries(31, 60, 1)) }
	storeOne := func(l *Log) error { return l.StoreLogs([]*raft.Log{entry(31, 1, 1)}) }
	front := func(l *Log) error { return l.DeleteRange(1, 15) }
	back := func(l *Log) error { return l.DeleteRange(16, 30) }
	empty := func(l *Log) error { return l.DeleteRange(1, 30) }
	jump := func(l *Log) error { return l.StoreLogs(entries(1000, 1001, 1)) }

	write := func(o *ops) { o.write = func(*wal.Log, *wal.Batch) error { return errDisk } }
	flush := func(o *ops) { o.flush = func(*os.File) error { return errDisk } }
	flushDir := func(o *ops) { o.syncDir = func(string) error { return errDisk } }
	truncate := func(o *ops) { o.truncate = func(*os.File, int64) error { return errDisk } }
	for name, c := range map[string]struct {
		call func(*Log) error
		fail func(*ops)
		// kept is what must be left in any case.
		lo, hi uint64
	}{
		"store, write":            {store, write, 1, 30},
		"store, flush":            {store, flush, 1, 30},
		"store, flush directory":  {store, flushDir, 1, 30},
		"store one, write":        {storeOne, write, 1, 30},
		"store one, flush":        {storeOne, flush, 1, 30},
		"delete front, flush":     {front, flush, 16, 30},
		"delete front, directory": {front, flushDir, 16, 30},
		"delete back, flush":      {back, flush, 1, 15},
		"delete back, directory":  {back, flushDir, 1, 15},
		"delete back, truncate":   {back, truncate, 1, 15},
		"delete all, flush":       {empty, flush, 1, 0},
		"delete all, directory":   {empty, flushDir, 1, 0},
		"jump, flush":             {jump, flush, 1, 0},
		"jump, directory":         {jump, flushDir, 1, 0},
		"jump, write":             {jump, write, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			ops, calls := realOps(), []error(nil)
			var l *Log
			l = mustOpenWith(t, Options{Dir: dir, SegmentSize: small, OnFatal: func(err error) {
				calls = append(calls, err)
				// The owner may close the log there and then.
				if err := l.Close(); !errors.Is(err, ErrPoisoned) {
					t.Errorf("close: want the failure, got %v", err)
				}
			}}, ops)
			mustStore(t, l, before)
			c.fail(ops)
			err := c.call(l)
			if !errors.Is(err, errDisk) || !errors.Is(err, ErrPoisoned) {
				t.Fatalf("want the disk's error and ErrPoisoned, got %v", err)
			}
			if len(calls) != 1 || calls[0] != err {
				t.Fatalf("want one call of OnFatal with the error, got %v", calls)
			}
			healthy := realOps()
			*ops = *healthy
			for call, err := range everyCall(l) {
				if !errors.Is(err, errDisk) || !errors.Is(err, ErrPoisoned) {
					t.Errorf("%s: want the first error again, got %v", call, err)
				}
			}
			if len(calls) != 1 {
				t.Fatalf("OnFatal was called %d times", len(calls))
			}
			l = mustOpen(t, dir)
			first, err1 := l.FirstIndex()
			last, err2 := l.LastIndex()
			if err := errors.Join(err1, err2); err != nil || c.hi > 0 && (first > c.lo || last < c.hi) {
				t.Fatalf("want at least %d..%d, got %d..%d, %v", c.lo, c.hi, first, last, err)
			}
			for i := c.lo; i <= c.hi; i++ {
				var got raft.Log
				if err := l.GetLog(i, &got); err != nil || string(got.Data) != string(before[i-1].Data) {
					t.Fatalf("get %d: %v, %+v", i, err, got)
				}
			}
		})
	}
}

// A record that went bad under a running log is found when it is read, by either way of
// reading, and ends the process like any other failure of the disk.
func TestFlipOfEveryByteIsFoundAtRead(t *testing.T) {
	t.Parallel()
	for _, sequential := range []bool{false, true} {
		dir := t.TempDir()
		l := mustOpenWith(t, Options{Dir: dir, SegmentSize: small}, quick(boot1))
		mustStore(t, l, entries(1, 12, 1))
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		path := segmentFiles(t, dir)[0]
		good := readFile(t, path)
		for i := range good {
			if i%13 != 0 && i > 120 {
				continue
			}
			fatal := 0
			l := mustOpenWith(t, Options{Dir: dir, SegmentSize: small, OnFatal: func(error) { fatal++ }}, quick(boot1))
			seg, k := l.segs[0], 0
			for k+1 < len(seg.offsets) && int(seg.offsets[k+1]) <= i {
				k++
			}
			bad := append([]byte(nil), good...)
			bad[i] ^= 1 << (i % 8)
			writeFile(t, path, bad)
			var err error
			if sequential {
				l.forward.next = 1
				for index := uint64(1); index <= uint64(k)+1; index++ {
					if err != nil {
						t.Fatalf("byte %d: found at index %d, want %d: %v", i, index-1, k+1, err)
					}
					err = l.GetLog(index, new(raft.Log))
				}
			} else {
				err = l.GetLog(uint64(k)+1, new(raft.Log))
			}
			var d *DamageError
			if !errors.As(err, &d) || !errors.Is(err, ErrPoisoned) || d.File != path || d.Offset != int64(seg.offsets[k]) || d.Index != uint64(k)+1 {
				t.Fatalf("sequential %v, byte %d: want damage of index %d, got %v", sequential, i, k+1, err)
			}
			if err := l.StoreLog(entry(13, 1, 1)); !errors.Is(err, ErrDamaged) || fatal != 1 {
				t.Fatalf("want a poisoned log and one call of OnFatal, got %v, %d", err, fatal)
			}
			writeFile(t, path, good)
		}
	}
}

// A segment file that is removed under a running log is an error, not a missing entry.
func TestRemovedFileIsFoundAtRead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := mustOpen(t, dir)
	mustStore(t, l, entries(1, 30, 1))
	path := segmentFiles(t, dir)[1]
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	err := l.GetLog(l.segs[1].base, new(raft.Log))
	if !errors.Is(err, os.ErrNotExist) || !errors.Is(err, ErrPoisoned) || !strings.Contains(err.Error(), path) {
		t.Fatalf("want an error naming %s, got %v", path, err)
	}
}

// If tidwall puts a record elsewhere than we expect, nothing is acknowledged.
func TestSizeIsComparedAfterEveryWrite(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ops := realOps()
	l := mustOpenWith(t, Options{Dir: dir, SegmentSize: small}, ops)
	mustStore(t, l, entries(1, 10, 1))
	ops.write = func(w *wal.Log, b *wal.Batch) error {
		// A write that is lost without an error.
		return nil
	}
	if err := l.StoreLog(entry(11, 1, 10)); !errors.Is(err, ErrPoisoned) || !strings.Contains(err.Error(), "bytes after the write, found") {
		t.Fatalf("want the size to be found wrong, got %v", err)
	}
	wantLog(t, mustOpen(t, dir), entries(1, 10, 1))
}

// limitEnv makes the test binary the process of TestDiskFull.
const limitEnv = "TIDEMARK_TAIL_TEST_FULL_DIR"

// A full disk cuts a write short. The process's file size limit does the same without one:
// the kernel writes what fits and then refuses.
func TestDiskFull(t *testing.T) {
	if dir := os.Getenv(limitEnv); dir != "" {
		fillUp(t, dir)
		return
	}
	t.Parallel()
	dir := t.TempDir()
	cmd := exec.Command(os.Args[0], "-test.run=^TestDiskFull$", "-test.v")
	cmd.Env = append(os.Environ(), limitEnv+"="+dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	_, after, ok := strings.Cut(string(out), "acknowledged ")
	n, err := strconv.ParseUint(strings.Fields(after + " x")[0], 10, 64)
	if !ok || err != nil || n == 0 {
		t.Fatalf("want the number of acknowledged entries, got %s", out)
	}
	logger, logs := observed()
	l := mustOpenWith(t, Options{Dir: dir, Logger: logger}, realOps())
	wantLog(t, l, entries(1, n, 1))
	if logs.Len() != 1 || logs.All()[0].ContextMap()["file"] != filepath.Join(logDir(t, dir), segmentName(1)) {
		t.Fatalf("want the torn write to be cut, got %v", logs.All())
	}
	mustStore(t, l, entries(n+1, n+5, 1))
	wantLog(t, l, entries(1, n+5, 1))
}

func fillUp(t *testing.T, dir string) {
	signal.Ignore(syscall.SIGXFSZ)
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: 16<<10 + 5, Max: 16<<10 + 5}); err != nil {
		t.Fatal(err)
	}
	l, err := Open(Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); ; i++ {
		if err := l.StoreLogs(entries(i, i, 1)); err != nil {
			if !errors.Is(err, syscall.EFBIG) || !errors.Is(err, ErrPoisoned) || !strings.Contains(err.Error(), dir) {
				t.Fatalf("want EFBIG naming the directory, got %v", err)
			}
			t.Logf("acknowledged %d ", i-1)
			return
		}
	}
}
