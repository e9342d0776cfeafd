package powerloss

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// script builds a trace: one call a line, with what stands in «» in hex, as strace -xx has it.
func script(t *testing.T, root string, lines ...string) *Disk {
	t.Helper()
	hex := func(s string) string {
		var b strings.Builder
		for i := range len(s) {
			fmt.Fprintf(&b, `\x%02x`, s[i])
		}
		return b.String()
	}
	var out strings.Builder
	for _, l := range lines {
		for strings.Contains(l, "«") {
			before, rest, _ := strings.Cut(l, "«")
			in, after, _ := strings.Cut(rest, "»")
			l = before + hex(strings.ReplaceAll(in, "ROOT", root)) + after
		}
		out.WriteString("100 " + l + "\n")
	}
	calls, err := ParseTrace(strings.NewReader(out.String()))
	if err != nil {
		t.Fatal(err)
	}
	return replay(t, calls, root)
}

// outcomesOf is what a crash after the last call may leave.
func outcomesOf(t *testing.T, d *Disk) []string {
	t.Helper()
	cr := newCursor(d).advance(never)
	var out []string
	for i := range cr.outcomes(1 << 16) {
		var parts []string
		for _, f := range cr.build(d.root, cr.nth(i)) {
			if f.dir {
				parts = append(parts, f.path+"/")
			} else {
				parts = append(parts, f.path+"="+strings.ReplaceAll(string(f.content.bytes()), "\x00", "0"))
			}
		}
		out = append(out, strings.Join(parts, " "))
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func TestWhatADiskCouldHaveKept(t *testing.T) {
	root := t.TempDir()
	const (
		create    = `openat(AT_FDCWD<«/»>, "«ROOT/a»", O_RDWR|O_CREAT, 0644) = 5<«ROOT/a»>`
		write     = `write(5<«ROOT/a»>, "«xy»", 2) = 2`
		syncFile  = `fsync(5<«ROOT/a»>) = 0`
		openDir   = `openat(AT_FDCWD<«/»>, "«ROOT»", O_RDONLY) = 6<«ROOT»>`
		syncDir   = `fsync(6<«ROOT»>) = 0`
		rename    = `renameat(AT_FDCWD<«/»>, "«ROOT/a»", AT_FDCWD<«/»>, "«ROOT/b»") = 0`
		unlink    = `unlinkat(AT_FDCWD<«/»>, "«ROOT/a»", 0) = 0`
		mkdir     = `mkdirat(AT_FDCWD<«/»>, "«ROOT/d»", 0755) = 0`
		createSub = `openat(AT_FDCWD<«/»>, "«ROOT/d/a»", O_RDWR|O_CREAT, 0644) = 7<«ROOT/d/a»>`
		create2   = `openat(AT_FDCWD<«/»>, "«ROOT/c»", O_RDWR|O_CREAT, 0644) = 8<«ROOT/c»>`
	)
	for _, tc := range []struct {
		name  string
		calls []string
		want  []string
	}{
		{"a name and data, nothing flushed", []string{create, write}, []string{"", "a=", "a=00", "a=xy"}},
		{"flushing the file does not keep its name", []string{create, write, syncFile}, []string{"", "a=xy"}},
		{"flushing the directory does not keep the data", []string{create, write, openDir, syncDir}, []string{"a=", "a=00", "a=xy"}},
		{"both flushed", []string{create, write, syncFile, openDir, syncDir}, []string{"a=xy"}},
		{"a failed flush keeps nothing", []string{create, write, openDir, syncDir, `fsync(5<«ROOT/a»>) = -1 EIO (Input/output error)`},
			[]string{"a=", "a=00", "a=xy"}},
		{"a write after the flush", []string{create, write, syncFile, openDir, syncDir, write}, []string{"a=xy", "a=xy00", "a=xyxy"}},
		{"an overwrite", []string{create, write, syncFile, openDir, syncDir, `pwrite64(5<«ROOT/a»>, "«Z»", 1, 1) = 1`}, []string{"a=xZ", "a=xy"}},
		{"a short write", []string{create, openDir, syncDir, `write(5<«ROOT/a»>, "«xy»", 2) = 1`, syncFile}, []string{"a=x"}},
		{"two buffers", []string{create, openDir, syncDir, `writev(5<«ROOT/a»>, [{iov_base="«x»", iov_len=1}, {iov_base="«yz»", iov_len=2}], 2) = 3`, syncFile},
			[]string{"a=xyz"}},
		{"a truncation", []string{create, write, syncFile, openDir, syncDir, `ftruncate(5<«ROOT/a»>, 1) = 0`}, []string{"a=x", "a=x0", "a=xy"}},
		{"a rename is whole or not at all", []string{create, write, syncFile, openDir, syncDir, rename}, []string{"a=xy", "b=xy"}},
		{"a removal", []string{create, write, syncFile, openDir, syncDir, unlink}, []string{"", "a=xy"}},
		{"a flushed removal", []string{create, write, syncFile, openDir, syncDir, unlink, syncDir}, []string{""}},
		{"without its directory a file is lost", []string{mkdir, createSub}, []string{"", "d/", "d/ d/a="}},
		{"names in any order", []string{create, create2}, []string{"", "a=", "a= c=", "c="}},
		{"appends follow the end", []string{`openat(AT_FDCWD<«/»>, "«ROOT/a»", O_WRONLY|O_CREAT|O_APPEND, 0644) = 5<«ROOT/a»>`, write, write, syncFile, openDir, syncDir},
			[]string{"a=xyxy"}},
		{"seeks move the next write", []string{create, `lseek(5<«ROOT/a»>, 2, SEEK_SET) = 2`, write, syncFile, openDir, syncDir}, []string{"a=00xy"}},
		{"two links of one file", []string{create, write, syncFile, `linkat(AT_FDCWD<«/»>, "«ROOT/a»", AT_FDCWD<«/»>, "«ROOT/b»", 0) = 0`, openDir, syncDir},
			[]string{"a=xy b=xy"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := outcomesOf(t, script(t, root, tc.calls...))
			if !slices.Equal(got, tc.want) {
				t.Errorf("a crash may leave %q, expected %q", got, tc.want)
			}
		})
	}
}

// A flush covers what had ended when it began, not what was under way.
func TestAFlushDoesNotCoverAConcurrentWrite(t *testing.T) {
	root := t.TempDir()
	trace := strings.ReplaceAll(`1 openat(AT_FDCWD</>, "ROOT/a", O_RDWR|O_CREAT, 0644) = 5<ROOT/a>
1 openat(AT_FDCWD</>, "ROOT", O_RDONLY) = 6<ROOT>
1 fsync(6<ROOT>) = 0
1 write(5<ROOT/a>, "x", 1 <unfinished ...>
2 fsync(5<ROOT/a> <unfinished ...>
1 <... write resumed>) = 1
2 <... fsync resumed>) = 0
`, "ROOT", root)
	calls, err := ParseTrace(strings.NewReader(trace))
	if err != nil {
		t.Fatal(err)
	}
	got := outcomesOf(t, replay(t, calls, root))
	if want := []string{"a=", "a=0", "a=x"}; !slices.Equal(got, want) {
		t.Errorf("a crash may leave %q, expected %q", got, want)
	}
}

func TestATornWriteLosesAnyOfItsPages(t *testing.T) {
	root := t.TempDir()
	data := strings.Repeat("x", pageSize) + strings.Repeat("y", 2)
	d := script(t, root, `openat(AT_FDCWD<«/»>, "«ROOT/a»", O_RDWR|O_CREAT, 0644) = 5<«ROOT/a»>`,
		`openat(AT_FDCWD<«/»>, "«ROOT»", O_RDONLY) = 6<«ROOT»>`, `fsync(6<«ROOT»>) = 0`,
		`write(5<«ROOT/a»>, "«`+data+`»", 4098) = 4098`)
	zeros := strings.Repeat("0", pageSize)
	want := []string{"a=", "a=" + zeros + "00", "a=" + zeros + "yy", "a=" + data[:pageSize] + "00", "a=" + data}
	slices.Sort(want)
	if got := outcomesOf(t, d); !slices.Equal(got, want) {
		t.Errorf("%d outcomes, expected the %d of two pages and a size", len(got), len(want))
	}
}

func TestTheModelRefusesWhatItCannotFollow(t *testing.T) {
	root := t.TempDir()
	const create = `1 openat(AT_FDCWD</>, "ROOT/a", O_RDWR|O_CREAT, 0644) = 5<ROOT/a>` + "\n"
	for name, tc := range map[string]struct{ trace, want string }{
		"memory":           {create + `1 mmap(NULL, 4096, PROT_READ|PROT_WRITE, MAP_SHARED, 5<ROOT/a>, 0) = 0x7f0000000000`, "through memory"},
		"a cut string":     {create + `1 write(5<ROOT/a>, "x"..., 9) = 9`, "raise -s"},
		"copy_file_range":  {create + `1 copy_file_range(5<ROOT/a>, NULL, 5<ROOT/a>, NULL, 9, 0) = 9`, "does not know copy_file_range"},
		"another file":     {create + `1 write(5<ROOT/b>, "x", 1) = 1`, "another file there"},
		"an unknown file":  {`1 openat(AT_FDCWD</>, "ROOT/a", O_RDWR) = 5<ROOT/a>`, "has nothing there"},
		"not a trace":      {"1 nonsense", "expected name(arguments)"},
		"resumed, unbegun": {"1 <... fsync resumed>) = 0", "has not begun"},
	} {
		t.Run(name, func(t *testing.T) {
			calls, err := ParseTrace(strings.NewReader(strings.ReplaceAll(tc.trace, "ROOT", root) + "\n"))
			if err == nil {
				_, err = Replay(calls, root)
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("found %v, expected an error that says %q", err, tc.want)
			}
		})
	}
}

// writeEverything does each kind of operation that the model knows, many times, from two
// threads.
func writeEverything(root string) error {
	errs := make(chan error, 2)
	for i := range 2 {
		go func() { errs <- writeKinds(filepath.Join(root, "part"+strconv.Itoa(i)), uint64(i)) }()
	}
	for range 2 {
		if err := <-errs; err != nil {
			return err
		}
	}
	return nil
}

func writeKinds(dir string, seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 7))
	if err := os.MkdirAll(filepath.Join(dir, "x", "y z"), 0o755); err != nil {
		return err
	}
	var files []string
	for i := range 60 {
		p := filepath.Join(dir, []string{"", "x", "x/y z"}[i%3], "f"+strconv.Itoa(i))
		f, err := os.OpenFile(p, []int{os.O_CREATE | os.O_RDWR, os.O_CREATE | os.O_WRONLY | os.O_APPEND}[i%2], 0o644)
		if err != nil {
			return err
		}
		data := make([]byte, 1+rng.IntN(3*pageSize))
		for j := range data {
			data[j] = byte(rng.Uint32())
		}
		_, err = f.Write(data)
		steps := []func() error{
			func() error { return err },
			f.Sync,
			func() error { _, err := f.Write(data[:len(data)/2]); return err },
			func() error { return f.Truncate(int64(rng.IntN(len(data)))) },
			func() error { _, err := f.Seek(0, 2); return err },
			func() error { _, err := f.Write(data); return err },
			func() error { return syscall.Fdatasync(int(f.Fd())) },
			func() error { return syscall.Fallocate(int(f.Fd()), 0, 0, 5*pageSize+3) },
			func() error { return syscall.Fallocate(int(f.Fd()), 1, 0, 9*pageSize) },
			func() error {
				if i%2 == 1 {
					return nil
				}
				_, err := f.WriteAt(data, int64(rng.IntN(4*pageSize)))
				return err
			},
			f.Close,
		}
		for _, step := range steps {
			if err := step(); err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
		}
		files = append(files, p)
		if err := rearrange(dir, &files, rng, i); err != nil {
			return err
		}
	}
	return os.RemoveAll(filepath.Join(dir, "x"))
}

// rearrange renames, links, truncates or removes one of the files. It stays below dir: two
// threads that rename to one name at a time leave no trace of who was first.
func rearrange(dir string, files *[]string, rng *rand.Rand, i int) error {
	at := rng.IntN(len(*files))
	p := (*files)[at]
	to := filepath.Join(dir, "moved"+strconv.Itoa(i%5))
	switch i % 4 {
	case 0:
		*files = slices.Delete(*files, at, at+1)
		return os.Rename(p, to)
	case 1:
		return os.Link(p, p+"-link"+strconv.Itoa(i))
	case 2:
		return os.Truncate(p, int64(rng.IntN(6*pageSize)))
	}
	*files = slices.Delete(*files, at, at+1)
	return os.Remove(p)
}

func TestTheModelEndsWhereTheRealDirectoryEnds(t *testing.T) {
	calls, root := recorded(t, "everything")
	d := replay(t, calls, root)
	if len(d.moments) < 2*2*60*8 || len(tree(t, root)) < 40 {
		t.Errorf("%d moments and %d files: the program has not done what it is for", len(d.moments), len(tree(t, root)))
	}
}

// writeJournal is the smallest honest store: records of a checksum, a length and a number.
func writeJournal(root string) error {
	f, err := os.OpenFile(filepath.Join(root, "journal"), os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	dir, err := os.Open(root)
	if err != nil {
		return err
	}
	if err := dir.Sync(); err != nil {
		return err
	}
	for i := range 40 {
		rec := make([]byte, 8+200*i)
		binary.BigEndian.PutUint32(rec[4:], uint32(len(rec)))
		for j := 8; j < len(rec); j++ {
			rec[j] = byte(i)
		}
		binary.BigEndian.PutUint32(rec, crc32.ChecksumIEEE(rec[4:]))
		if _, err := f.Write(rec); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
		fmt.Println("ack", i)
	}
	return nil
}

// checkJournal counts whole records and compares with what was acknowledged.
func checkJournal(c Crash) error {
	b, err := os.ReadFile(filepath.Join(c.Dir, "journal"))
	if err != nil && len(c.Lines) > 0 {
		return err
	}
	n := 0
	for len(b) >= 8 {
		size := binary.BigEndian.Uint32(b[4:])
		if size < 8 || int(size) > len(b) || crc32.ChecksumIEEE(b[4:size]) != binary.BigEndian.Uint32(b) {
			break
		}
		n, b = n+1, b[size:]
	}
	if n < len(c.Lines) {
		return fmt.Errorf("%d records, %d acknowledged", n, len(c.Lines))
	}
	return nil
}

func explore(t *testing.T, d *Disk, o Options, check func(Crash) error) (Stats, error) {
	t.Helper()
	o.Scratch = t.TempDir()
	stats, err := Explore(context.WithoutCancel(t.Context()), d, o, check)
	t.Log(stats)
	return stats, err
}

func TestAnHonestJournalPasses(t *testing.T) {
	calls, root := recorded(t, "journal")
	stats, err := explore(t, replay(t, calls, root), Options{Seed: 1}, checkJournal)
	if err != nil {
		t.Error(err)
	}
	if stats.Tried < 200 || stats.FlushOnly < 40 {
		t.Errorf("%v: too few to mean anything", stats)
	}
}

func TestAJournalThatDoesNotFlushIsFound(t *testing.T) {
	calls, root := recorded(t, "journal")
	for name, match := range map[string]func(string) bool{"file": Under("/journal"), "directory": func(p string) bool { return !Under("/journal")(p) }} {
		edited, removed := WithoutFlushes(calls, match)
		if removed == 0 {
			t.Fatalf("%s: no flush to take out", name)
		}
		_, err := explore(t, replay(t, edited, root), Options{Seed: 1}, checkJournal)
		if err == nil || !strings.Contains(err.Error(), "after a power loss") {
			t.Errorf("%s: the flushes are gone, and what was found is: %v", name, err)
		}
	}
}

func TestAJournalThatAnswersFirstIsFound(t *testing.T) {
	calls, root := recorded(t, "journal")
	edited, moved := AnswersFirst(calls, "ack")
	if moved != 40 {
		t.Fatalf("%d of 40 answers moved", moved)
	}
	_, err := explore(t, replay(t, edited, root), Options{Seed: 1}, checkJournal)
	if err == nil || !strings.Contains(err.Error(), "acknowledged") {
		t.Errorf("every answer came before its flush, and what was found is: %v", err)
	}
}

func TestStraceMissingIsAFailureThatSaysWhatToDo(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := Record(t.Context(), "journal", t.TempDir(), t.TempDir())
	if err == nil || !strings.Contains(err.Error(), "apt-get install strace") {
		t.Errorf("found %v, expected to be told to install strace", err)
	}
}
