package tail

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

func TestDeleteRange(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		lo, hi uint64
		want   []*raft.Log // nil with fails
		fails  bool
	}{
		"nothing: below":         {0, 4, entries(5, 60, 1), false},
		"nothing: above":         {61, 99, entries(5, 60, 1), false},
		"nothing: reversed":      {30, 20, entries(5, 60, 1), false},
		"front, one":             {5, 5, entries(6, 60, 1), false},
		"front, from below":      {1, 5, entries(6, 60, 1), false},
		"front, many segments":   {5, 50, entries(51, 60, 1), false},
		"front, all but one":     {5, 59, entries(60, 60, 1), false},
		"back, one":              {60, 60, entries(5, 59, 1), false},
		"back, to above":         {60, 99, entries(5, 59, 1), false},
		"back, many segments":    {12, 60, entries(5, 11, 1), false},
		"back, all but one":      {6, 60, entries(5, 5, 1), false},
		"all":                    {5, 60, nil, false},
		"all and more":           {0, 1 << 62, nil, false},
		"the middle is no range": {10, 20, entries(5, 60, 1), true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			l := mustOpen(t, dir)
			mustStore(t, l, entries(5, 60, 1)) // begins with a jump
			if err := l.DeleteRange(c.lo, c.hi); (err != nil) != c.fails || errors.Is(err, ErrPoisoned) {
				t.Fatalf("fails %v: %v", c.fails, err)
			}
			wantLog(t, l, c.want)
			wantLog(t, mustOpen(t, copyDir(t, dir)), c.want)
			if len(c.want) > 0 {
				next := c.want[len(c.want)-1].Index + 1
				mustStore(t, l, entries(next, next+30, 2))
				c.want = append(c.want, entries(next, next+30, 2)...)
			}
			wantLog(t, l, c.want)
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			wantLog(t, mustOpen(t, dir), c.want)
		})
	}
}

// Every index of a log of several segments can be the one that is cut at, on either side,
// among them each first and last record of a segment.
func TestDeleteRangeAtEveryIndex(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := mustOpen(t, dir)
	mustStore(t, l, entries(1, 24, 1))
	if n := len(segmentFiles(t, dir)); n < 4 {
		t.Fatalf("the test needs several segments, got %d", n)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	for i := uint64(1); i <= 24; i++ {
		front := mustOpen(t, copyDir(t, dir))
		if err := front.DeleteRange(1, i); err != nil {
			t.Fatal(err)
		}
		back := mustOpen(t, copyDir(t, dir))
		if err := back.DeleteRange(i, 24); err != nil {
			t.Fatal(err)
		}
		wantLog(t, front, entries(i+1, 24, 1))
		wantLog(t, back, entries(1, i-1, 1))
		mustStore(t, back, entries(i, i+9, 2))
		want := append(entries(1, i-1, 1), entries(i, i+9, 2)...)
		wantLog(t, back, want)
		wantLog(t, mustOpen(t, copyDir(t, back.o.Dir)), want)
		wantLog(t, mustOpen(t, copyDir(t, front.o.Dir)), entries(i+1, 24, 1))
	}
}

// A reader that had looked up a record before it was deleted finds that out, whatever it
// then reads: its file may be gone, or hold another record there.
func TestDeletionIsSeenByAReadThatBeganBefore(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*Log) error{
		"front": func(l *Log) error { return l.DeleteRange(1, 20) },
		"back":  func(l *Log) error { return l.DeleteRange(2, 30) },
		"all":   func(l *Log) error { return l.DeleteRange(1, 30) },
		"jump":  func(l *Log) error { return l.StoreLogs(entries(100, 101, 1)) },
	} {
		l := mustOpen(t, t.TempDir())
		mustStore(t, l, entries(1, 30, 1))
		p, err := l.find(2)
		if err := errors.Join(err, change(l)); err != nil {
			t.Fatal(err)
		}
		if p.gen == l.gen.Load() {
			t.Errorf("%s: a read of index 2 would take what it finds for the record", name)
		}
		if err := l.GetLog(2, new(raft.Log)); err != raft.ErrLogNotFound {
			t.Errorf("%s: want raft.ErrLogNotFound, got %v", name, err)
		}
	}
}

// Front deletion removes whole segment files; nothing is rewritten.
func TestDeleteFrontRemovesFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := mustOpen(t, dir)
	mustStore(t, l, entries(1, 60, 1))
	before := segmentFiles(t, dir)
	if err := l.DeleteRange(1, 30); err != nil {
		t.Fatal(err)
	}
	after := segmentFiles(t, dir)
	for i, name := range after {
		if name != before[len(before)-len(after)+i] {
			t.Fatalf("want the last %d of %v, got %v", len(after), before, after)
		}
	}
	if l.segs[0].base > 31 || l.segs[1].base <= 31 {
		t.Fatalf("want the first segment to hold index 31, got %v", after)
	}
}

// tidwall/wal reports first = last+1 for an empty log, raft wants 0 and 0.
func TestEmptyLogReportsZeroZero(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := mustOpen(t, dir)
	wantLog(t, l, nil)
	mustStore(t, l, entries(1, 20, 1))
	if err := l.DeleteRange(1, 20); err != nil {
		t.Fatal(err)
	}
	wantLog(t, l, nil)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = mustOpen(t, dir)
	wantLog(t, l, nil)
	// Either side of where it ended may follow: raft may have emptied it because all of it
	// conflicted.
	mustStore(t, l, entries(1, 5, 2))
	wantLog(t, l, entries(1, 5, 2))
}

// tidwall/wal refuses a jump of the index, raft makes one after it restored a snapshot.
func TestIndexJumpBeginsTheLogAnew(t *testing.T) {
	t.Parallel()
	for name, before := range map[string][]*raft.Log{"empty": nil, "not empty": entries(1, 40, 1)} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			logger, _ := observed()
			l := mustOpenWith(t, Options{Dir: dir, SegmentSize: small, Logger: logger}, realOps())
			if before != nil {
				mustStore(t, l, before)
			}
			mustStore(t, l, entries(1000, 1030, 3))
			wantLog(t, l, entries(1000, 1030, 3))
			wantLog(t, mustOpen(t, copyDir(t, dir)), entries(1000, 1030, 3))
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			l = mustOpen(t, dir)
			wantLog(t, l, entries(1000, 1030, 3))
			logDir(t, dir) // the old one is gone
		})
	}
}

// errCrash is returned by a step where a test lets the process die.
var errCrash = errors.New("crash")

// crashAt makes ops that die at the n-th step; name says which that was.
func crashAt(n int) (o *ops, name *string) {
	name = new(string)
	o = realOps()
	o.step = func(s string) error {
		if n--; n == 0 {
			*name = s
			return errCrash
		}
		return nil
	}
	return o, name
}

// A crash at any step of a change leaves what was before or what was to be.
func TestCrashDuringDeletion(t *testing.T) {
	t.Parallel()
	before := entries(1, 40, 1)
	for name, c := range map[string]struct {
		change func(*Log) error
		ok     func(first, last uint64) bool
		want   func(first, last uint64) []*raft.Log
		steps  int
	}{
		"jump after a snapshot": {
			change: func(l *Log) error { return l.StoreLogs(entries(1000, 1003, 2)) },
			ok:     func(first, last uint64) bool { return first == 1 && last == 40 || first == 0 && last == 0 },
			steps:  5,
		},
		"empty": {
			change: func(l *Log) error { return l.DeleteRange(1, 40) },
			ok:     func(first, last uint64) bool { return first == 1 && last == 40 || first == 0 && last == 0 },
			steps:  5,
		},
		"front": {
			change: func(l *Log) error { return l.DeleteRange(1, 30) },
			ok:     func(first, last uint64) bool { return first == 31 && last == 40 },
			steps:  4,
		},
		"rewrite": {
			change: func(l *Log) error {
				if err := l.DeleteRange(1, 30); err != nil {
					return err
				}
				return l.Rewrite()
			},
			ok:    func(first, last uint64) bool { return first == 31 && last == 40 },
			steps: 9,
		},
		"back": {
			change: func(l *Log) error { return l.DeleteRange(12, 40) },
			ok:     func(first, last uint64) bool { return first == 1 && last == 11 },
			steps:  4,
		},
	} {
		t.Run(name, func(t *testing.T) {
			points := 0
			for n := 1; ; n++ {
				dir := t.TempDir()
				l := mustOpen(t, dir)
				mustStore(t, l, before)
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				var died *string
				ops, died := crashAt(n)
				l = mustOpenWith(t, Options{Dir: dir, SegmentSize: small}, ops)
				err := c.change(l)
				if *died == "" {
					if err != nil {
						t.Fatal(err)
					}
					break
				}
				points++
				if !errors.Is(err, errCrash) || !errors.Is(err, ErrPoisoned) {
					t.Fatalf("%s: want the crash, got %v", *died, err)
				}
				// What the dead process left is opened twice: the first repair is complete.
				for range 2 {
					l = mustOpen(t, dir)
					first, _ := l.FirstIndex()
					last, _ := l.LastIndex()
					if !c.ok(first, last) {
						t.Fatalf("%s: got %d..%d", *died, first, last)
					}
					want := before
					if first == 0 {
						want = nil
					} else {
						want = want[first-1 : last]
					}
					wantLog(t, l, want)
					if err := l.Close(); err != nil {
						t.Fatal(err)
					}
				}
				logDir(t, dir)
				l = mustOpen(t, dir)
				if err := c.change(l); err != nil {
					t.Fatalf("%s: again: %v", *died, err)
				}
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if points < c.steps {
				t.Fatalf("want at least %d places to crash at, got %d", c.steps, points)
			}
		})
	}
}

// A crash may leave any of the files that a front deletion was removing: a power loss keeps
// whichever removals reached the disk.
func TestAnySubsetOfRemovedFilesMayComeBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := mustOpen(t, dir)
	mustStore(t, l, entries(1, 30, 1))
	before := segmentFiles(t, dir)
	whole := copyDir(t, dir)
	if err := l.DeleteRange(1, 24); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	gone := len(before) - len(segmentFiles(t, dir))
	if gone < 3 || gone > 5 {
		t.Fatalf("the test needs some removed files, got %d", gone)
	}
	for set := range 1 << gone {
		at := copyDir(t, dir)
		for i := range gone {
			if set&(1<<i) != 0 {
				name := filepath.Base(before[i])
				writeFile(t, filepath.Join(logDir(t, at), name), readFile(t, filepath.Join(logDir(t, whole), name)))
			}
		}
		wantLog(t, mustOpen(t, at), entries(25, 30, 1))
		if n := len(segmentFiles(t, at)); n != len(before)-gone {
			t.Fatalf("set %b: want %d files, got %d", set, len(before)-gone, n)
		}
	}
}

// Of a deletion at the back a power loss keeps any of the removals, and of the truncation the
// zeros without the size: a whole record may then follow what looks like a damaged one.
func TestAnyPartOfADeletionAtTheBackMayBeKept(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := mustOpen(t, dir)
	mustStore(t, l, entries(1, 30, 1))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ops, _ := crashAt(1)
	l = mustOpenWith(t, Options{Dir: dir, SegmentSize: small}, ops)
	cut := l.segs[1]
	index := cut.base + 1
	if err := l.DeleteRange(index, 30); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	im := takeImage(t, dir)
	name, at := segmentName(cut.base), int(cut.offsets[0])
	end := len(record(entry(cut.base, 1, int(cut.base*37%300)), 1))
	later := segmentFiles(t, dir)[2:]
	for set := range 1 << len(later) {
		for _, zeros := range [][2]int{{0, 0}, {at + end, at + end + 100}, {at + end + 3, len(im[name]) - 30}, {at + end, len(im[name])}} {
			torn := append([]byte(nil), im[name]...)
			clear(torn[zeros[0]:zeros[1]])
			now := im.with(name, torn)
			for i, f := range later {
				if set&(1<<i) != 0 {
					delete(now, filepath.Base(f))
				}
			}
			for _, boot := range [][16]byte{boot1, boot2} {
				now.put(t, dir)
				l := mustOpenWith(t, Options{Dir: dir, SegmentSize: small}, quick(boot))
				wantLog(t, l, entries(1, index-1, 1))
				mustStore(t, l, entries(index, index+1, 2))
				wantLog(t, l, append(entries(1, index-1, 1), entries(index, index+1, 2)...))
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// A crash while the first log is created leaves a directory that opens.
func TestCrashWhileTheFirstLogIsCreated(t *testing.T) {
	t.Parallel()
	for n := 1; ; n++ {
		dir := t.TempDir()
		ops, died := crashAt(n)
		l, err := open(Options{Dir: dir}, ops)
		if *died == "" {
			if err := errors.Join(err, l.Close()); err != nil || n < 3 {
				t.Fatalf("after %d steps: %v", n-1, err)
			}
			return
		}
		if !errors.Is(err, errCrash) {
			t.Fatalf("%s: %v", *died, err)
		}
		l = mustOpen(t, dir)
		wantLog(t, l, nil)
		mustStore(t, l, entries(1, 3, 1))
		wantLog(t, l, entries(1, 3, 1))
		if !strings.HasSuffix(logDir(t, dir), logDirName(1)) {
			t.Fatalf("%s: got %s", *died, logDir(t, dir))
		}
	}
}

// Appends go on while the files of a front deletion are removed.
func TestFrontDeletionDoesNotHoldUpAppends(t *testing.T) {
	t.Parallel()
	removing, release := make(chan struct{}), make(chan struct{})
	ops := realOps()
	armed := true
	ops.step = func(s string) error {
		if armed && strings.HasPrefix(s, "remove ") {
			armed = false
			close(removing)
			<-release
		}
		return nil
	}
	l := mustOpenWith(t, Options{Dir: t.TempDir(), SegmentSize: small}, ops)
	mustStore(t, l, entries(1, 40, 1))
	deleted := make(chan error)
	go func() { deleted <- l.DeleteRange(1, 30) }() // ends with release
	<-removing
	mustStore(t, l, entries(41, 80, 1))
	wantLog(t, l, entries(31, 80, 1))
	close(release)
	if err := <-deleted; err != nil {
		t.Fatal(err)
	}
	wantLog(t, l, entries(31, 80, 1))
}

// tidwall/wal, opened again after a deletion at the back, fails if a file goes while it lists
// the directory. So that waits for a deletion at the front to end.
func TestDeletionAtTheBackWaitsForOneAtTheFront(t *testing.T) {
	t.Parallel()
	removing, cut := make(chan struct{}), make(chan struct{})
	var once sync.Once
	ops := realOps()
	ops.step = func(s string) error {
		switch {
		case s == "cut segment":
			close(cut)
		case strings.HasPrefix(s, "remove "):
			once.Do(func() {
				close(removing)
				select {
				case <-cut:
					t.Error("the back was cut while files of the front were being removed")
				case <-time.After(100 * time.Millisecond): // long enough for it to happen
				}
			})
		}
		return nil
	}
	l := mustOpenWith(t, Options{Dir: t.TempDir(), SegmentSize: small}, ops)
	mustStore(t, l, entries(1, 40, 1))
	deleted := make(chan error)
	go func() { deleted <- l.DeleteRange(1, 20) }() // ends with the timer
	<-removing
	if err := errors.Join(l.DeleteRange(39, 40), <-deleted); err != nil {
		t.Fatal(err)
	}
	wantLog(t, l, entries(21, 38, 1))
}

func TestForeignFilesAreLeftAlone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := mustOpen(t, dir)
	mustStore(t, l, entries(1, 20, 1))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "note"), []byte("x"))
	writeFile(t, filepath.Join(logDir(t, dir), "note"), []byte("x"))
	if err := os.Mkdir(filepath.Join(dir, "log-old"), 0o750); err != nil {
		t.Fatal(err)
	}
	l = mustOpen(t, dir)
	first, err1 := l.FirstIndex()
	last, err2 := l.LastIndex()
	if err := errors.Join(err1, err2); err != nil || fmt.Sprint(first, last) != "1 20" {
		t.Fatalf("got %d..%d, %v", first, last, err)
	}
	for _, name := range []string{"note", filepath.Join(logDirName(1), "note"), "log-old"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	// tidwall/wal deletes segments when it sees one of these.
	for _, name := range []string{segmentName(5) + ".START", segmentName(5) + ".END"} {
		at := filepath.Join(dir, logDirName(1), name)
		writeFile(t, at, nil)
		if _, err := Open(Options{Dir: dir}); !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), at) {
			t.Fatalf("want damage naming %s, got %v", at, err)
		}
		if err := os.Remove(at); err != nil {
			t.Fatal(err)
		}
	}
}
