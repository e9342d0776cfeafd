package tail

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

// quick makes ops that flush nothing, for tests that open a log thousands of times and whose
// files only a process looks at.
func quick(boot [16]byte) *ops {
	o := realOps()
	o.flush = func(*os.File) error { return nil }
	o.syncDir = func(string) error { return nil }
	o.boot = func() [16]byte { return boot }
	return o
}

var (
	boot1 = [16]byte{1}
	boot2 = [16]byte{2}
)

// image is a log's directory in memory: the content of each file by name.
type image map[string][]byte

func takeImage(t testing.TB, dir string) image {
	t.Helper()
	im := image{}
	for _, f := range append(segmentFiles(t, dir), filepath.Join(logDir(t, dir), stateName)) {
		im[filepath.Base(f)] = readFile(t, f)
	}
	return im
}

// with returns the image with one file replaced, or without it if b is nil.
func (im image) with(name string, b []byte) image {
	out := image{}
	for n, c := range im {
		out[n] = c
	}
	if out[name] = b; b == nil {
		delete(out, name)
	}
	return out
}

func (im image) last() string {
	var last string
	for n := range im {
		if n != stateName && n > last {
			last = n
		}
	}
	return last
}

// put writes the image as the log in dir, in place of what is there; files that are right
// already are left.
func (im image) put(t testing.TB, dir string) {
	t.Helper()
	at := filepath.Join(dir, logDirName(1))
	if err := os.MkdirAll(at, 0o750); err != nil {
		t.Fatal(err)
	}
	there, err := os.ReadDir(at)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range there {
		if im[e.Name()] == nil {
			if err := os.Remove(filepath.Join(at, e.Name())); err != nil {
				t.Fatal(err)
			}
		}
	}
	for n, b := range im {
		name := filepath.Join(at, n)
		if old, err := os.ReadFile(name); err != nil || !bytes.Equal(old, b) {
			writeFile(t, name, b)
		}
	}
}

// lastBatch makes a log whose last batch, the entries lo..hi, was written but not
// acknowledged: its state is from before it. offset is where the batch begins in the last
// segment. The batch does not begin a segment, and does not end one.
func lastBatch(t testing.TB, sizes ...int) (im image, offset int, lo uint64, batch []*raft.Log) {
	t.Helper()
	dir := t.TempDir()
	l := mustOpenWith(t, Options{Dir: dir, SegmentSize: 4 * small}, quick(boot1))
	mustStore(t, l, entries(1, 40, 1))
	mustStore(t, l, []*raft.Log{entry(41, 1, 100)})
	state := readFile(t, filepath.Join(logDir(t, dir), stateName))
	offset = int(l.segs[len(l.segs)-1].size)
	segs := len(l.segs)
	for i, size := range sizes {
		batch = append(batch, entry(42+uint64(i), 2, size))
	}
	mustStore(t, l, batch)
	if len(l.segs) != segs || segs < 2 || offset == 0 {
		t.Fatalf("want the batch within the last of several segments, got %d then %d segments, offset %d", segs, len(l.segs), offset)
	}
	return takeImage(t, dir).with(stateName, state), offset, 42, batch
}

// acked is what lastBatch's log holds before its last batch.
func acked() []*raft.Log { return append(entries(1, 40, 1), entry(41, 1, 100)) }

// wantRepaired opens the image, and asserts what it then holds, what was cut off, that this
// was said, and that there is nothing left to repair.
func wantRepaired(t testing.TB, dir string, im image, boot [16]byte, want []*raft.Log, offset, cut int) {
	t.Helper()
	im.put(t, dir)
	logger, logs := observed()
	o := Options{Dir: dir, SegmentSize: 4 * small, Logger: logger}
	l, err := open(o, quick(boot))
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	wantLog(t, l, want)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, logDirName(1), im.last())
	if n := logs.Len(); (cut > 0) != (n == 1) {
		t.Fatalf("want one line about %d bytes, got %v", cut, logs.All())
	}
	if cut > 0 {
		got := logs.All()[0].ContextMap()
		reason := fmt.Sprint(got["reason"])
		delete(got, "reason")
		wantLine := map[string]any{"file": file, "offset": int64(offset), "bytes": int64(cut), "index": want[len(want)-1].Index + 1}
		if !reflect.DeepEqual(got, wantLine) || reason == "" {
			t.Fatalf("want %v, got %v, reason %q", wantLine, got, reason)
		}
	}
	if n := len(readFile(t, file)); n != offset {
		t.Fatalf("want the file cut to %d bytes, got %d", offset, n)
	}
	logs.TakeAll()
	l, err = open(o, quick(boot2))
	if err != nil || logs.Len() != 0 {
		t.Fatalf("open again: %v, %v", err, logs.All())
	}
	wantLog(t, l, want)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
}

// wantDamage opens the image, which must fail and change nothing.
func wantDamage(t testing.TB, dir string, im image, boot [16]byte, want DamageError) {
	t.Helper()
	im.put(t, dir)
	l, err := open(Options{Dir: dir, SegmentSize: 4 * small}, quick(boot))
	if err == nil {
		_ = l.Close()
		t.Fatalf("opened, want %+v", want)
	}
	var got *DamageError
	if !errors.As(err, &got) || !errors.Is(err, ErrDamaged) {
		t.Fatalf("want damage, got %v", err)
	}
	want.File = filepath.Join(dir, logDirName(1), want.File)
	if got.File != want.File || got.Offset != want.Offset || got.Index != want.Index || !strings.Contains(got.Reason, want.Reason) {
		t.Fatalf("want %+v, got %+v", want, *got)
	}
	for _, s := range []string{got.File, fmt.Sprint(got.Offset), got.Reason, "restore this node's data"} {
		if !strings.Contains(err.Error(), s) {
			t.Fatalf("want %q in the message, got %v", s, err)
		}
	}
	for n, b := range im {
		if !bytes.Equal(b, readFile(t, filepath.Join(dir, logDirName(1), n))) {
			t.Fatalf("%s was changed", n)
		}
	}
}

// ends returns where each record of a batch ends, given where it begins.
func ends(offset int, batch []*raft.Log) []int {
	var at []int
	for _, e := range batch {
		offset += len(record(e, 1))
		at = append(at, offset)
	}
	return at
}

// tidwall/wal: a torn tail makes Open fail. Wherever the last batch is torn, after a kill
// and after a power loss alike, its whole records stay and the rest is cut.
func TestTornAtEveryByteOfTheLastBatch(t *testing.T) {
	t.Parallel()
	im, offset, _, batch := lastBatch(t, 50, 0, 80)
	dir := t.TempDir()
	file := im[im.last()]
	for size := offset; size <= len(file); size++ {
		want, whole := acked(), offset
		for i, end := range ends(offset, batch) {
			if size >= end {
				want, whole = append(acked(), batch[:i+1]...), end
			}
		}
		for _, boot := range [][16]byte{boot1, boot2} {
			wantRepaired(t, dir, im.with(im.last(), file[:size:size]), boot, want, whole, size-whole)
		}
	}
}

// tidwall/wal: a zero-filled tail parses as many empty entries.
func TestZeroFilledTailIsNotEmptyEntries(t *testing.T) {
	t.Parallel()
	im, offset, _, batch := lastBatch(t, 90, 150)
	dir := t.TempDir()
	file := im[im.last()]
	for _, zeros := range []int{1, 2, 40, 41, 58, 59, 60, 511, 512, 4095, 4096, 4097, 1 << 20} {
		for _, boot := range [][16]byte{boot1, boot2} {
			// After whole records,
			filled := append(file[:len(file):len(file)], make([]byte, zeros)...)
			wantRepaired(t, dir, im.with(im.last(), filled), boot, append(acked(), batch...), len(file), zeros)
			// and in place of the rest of a torn one.
			filled = append(file[:offset+70:offset+70], make([]byte, zeros+80)...)
			wantRepaired(t, dir, im.with(im.last(), filled), boot, acked(), offset, 70+zeros+80)
		}
	}
}

func TestZeroFilledEmptyLog(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	mustOpenWith(t, Options{Dir: dir, SegmentSize: 4 * small}, quick(boot1))
	at := filepath.Join(dir, logDirName(1), segmentName(1))
	writeFile(t, at, make([]byte, 4096))
	wantLog(t, mustOpenWith(t, Options{Dir: dir, SegmentSize: 4 * small}, quick(boot2)), nil)
}

// A power loss keeps any of a batch's sectors that it likes.
func TestAnySubsetOfSectorsOfTheLastBatchMayBeLost(t *testing.T) {
	t.Parallel()
	im, offset, _, batch := lastBatch(t, 700, 20, 30, 1200)
	dir := t.TempDir()
	file := im[im.last()]
	first, count := offset/sector, (len(file)-1)/sector-offset/sector+1
	if count < 4 || count > 7 {
		t.Fatalf("the test needs some sectors, got %d", count)
	}
	at := append([]int{offset}, ends(offset, batch)...)
	for set := range 1 << count {
		torn := bytes.Clone(file)
		for s := range count {
			if set&(1<<s) != 0 {
				clear(torn[max(offset, (first+s)*sector):min(len(torn), (first+s+1)*sector)])
			}
		}
		whole := 0
		for whole < len(batch) && bytes.Equal(torn[at[whole]:at[whole+1]], file[at[whole]:at[whole+1]]) {
			whole++
		}
		wantRepaired(t, dir, im.with(im.last(), torn), boot2, append(acked(), batch[:whole]...), at[whole], len(file)-at[whole])
	}
}

// Until the machine restarts, the state says exactly what was acknowledged: what follows it
// is cut whatever it is.
func TestGarbageAfterAKill(t *testing.T) {
	t.Parallel()
	im, offset, _, _ := lastBatch(t, 90)
	dir := t.TempDir()
	garbage := append(im[im.last()][:offset:offset], bytes.Repeat([]byte("garbage!"), 40)...)
	wantRepaired(t, dir, im.with(im.last(), garbage), boot1, acked(), offset, 320)
	wantDamage(t, dir, im.with(im.last(), garbage), boot2, DamageError{File: im.last(), Offset: int64(offset), Index: 42,
		Reason: "the record is complete and may have been acknowledged"})
}

// A complete record that is wrong was not torn. It is refused if it may have been
// acknowledged, which after a power loss the state does not exclude, and cut if it was not.
func TestFlipInTheLastRecord(t *testing.T) {
	t.Parallel()
	im, offset, _, _ := lastBatch(t, 120)
	dir := t.TempDir()
	file := im[im.last()]
	for i := offset; i < len(file); i++ {
		for _, by := range []byte{1 << (i % 8), 0xff, file[i]} { // the last one makes it zero
			if by == 0 {
				continue
			}
			flipped := bytes.Clone(file)
			flipped[i] ^= by
			wantDamage(t, dir, im.with(im.last(), flipped), boot2, DamageError{File: im.last(), Offset: int64(offset), Index: 42, Reason: "may have been acknowledged"})
			wantDamage(t, dir, im.with(im.last(), flipped), [16]byte{}, DamageError{File: im.last(), Offset: int64(offset), Index: 42, Reason: "may have been acknowledged"})
			wantRepaired(t, dir, im.with(im.last(), flipped), boot1, acked(), offset, len(file)-offset)
		}
	}
}

// The end mark of the last record, zeroed: in a sector with other bytes of the record that is
// damage, also of the shortest record. Alone in its sector, it may be that the sector was never
// written: that cannot be told, so that the record is cut off, and the log says so.
func TestLastRecordWithoutItsEndMark(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	alone := 0
	for size := range sector + 1 {
		if size > 2 && size%37 != 0 && alone > 0 {
			continue
		}
		im, offset, _, _ := lastBatch(t, size)
		file := bytes.Clone(im[im.last()])
		file[len(file)-1] = 0
		if (len(file)-1)%sector != 0 {
			wantDamage(t, dir, im.with(im.last(), file), boot2, DamageError{File: im.last(), Offset: int64(offset), Index: 42, Reason: "may have been acknowledged"})
			continue
		}
		alone++
		wantRepaired(t, dir, im.with(im.last(), file), boot2, acked(), offset, len(file)-offset)
	}
	if alone == 0 {
		t.Error("expected a record that ends at the beginning of a sector, had none")
	}
}

// The last record as a whole, or its end, as zeros, after a power loss: it may never have been
// written, so that it is cut off, and the log says so. If the state says that it had been
// flushed, TestNothingAcknowledgedIsCut expects damage.
func TestLastRecordZeroed(t *testing.T) {
	t.Parallel()
	im, offset, _, _ := lastBatch(t, 120)
	dir := t.TempDir()
	for from := offset; from < len(im[im.last()])-1; from += 13 {
		file := bytes.Clone(im[im.last()])
		clear(file[from:])
		for _, boot := range [][16]byte{boot1, boot2} {
			wantRepaired(t, dir, im.with(im.last(), file), boot, acked(), offset, len(file)-offset)
		}
	}
}

// An acknowledged record is never cut, whatever happened to it: the state says that it was.
func TestNothingAcknowledgedIsCut(t *testing.T) {
	t.Parallel()
	im, offset, _, _ := lastBatch(t, 120)
	dir := t.TempDir()
	file := im[im.last()]
	im.put(t, dir)
	l := mustOpenWith(t, Options{Dir: dir, SegmentSize: 4 * small}, quick(boot1))
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	im = takeImage(t, dir)
	zeroed := append(file[:offset:offset], make([]byte, len(file)-offset)...)
	for name, b := range map[string][]byte{
		"cut within":   file[: len(file)-7 : len(file)-7],
		"cut whole":    file[:offset:offset],
		"cut to zero":  {},
		"zeroed":       zeroed,
		"zeroed after": append(file[:offset+100:offset+100], zeroed[offset+100:]...),
	} {
		for _, boot := range [][16]byte{boot1, boot2} {
			t.Log(name)
			at, index := offset, uint64(42)
			if len(b) == 0 {
				at, index = 0, l.segs[len(l.segs)-1].base
			}
			wantDamage(t, dir, im.with(im.last(), b), boot, DamageError{File: im.last(), Offset: int64(at), Index: index, Reason: "had been flushed"})
		}
	}
	// The whole file gone: the one before it ends early.
	prev := im.with(im.last(), nil)
	n := len(prev[prev.last()])
	wantDamage(t, dir, prev, boot2, DamageError{File: prev.last(), Offset: int64(n), Index: l.segs[len(l.segs)-1].base,
		Reason: "expected entries up to index 42, which had been flushed, found the log's end"})
}

// tidwall/wal: a flipped payload bit is never noticed. Each byte of every segment, in turn,
// is found at Open, with the record it is in. That holds with a state that knows nothing: a
// later batch proves that a record had been flushed.
func TestFlipOfEveryByteIsFoundAtOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := mustOpenWith(t, Options{Dir: dir, SegmentSize: 400}, quick(boot1))
	mustStore(t, l, []*raft.Log{entry(1, 1, 40), entry(2, 1, 0)})
	stale := readFile(t, filepath.Join(logDir(t, dir), stateName))
	for i := uint64(3); i <= 13; i += 2 {
		mustStore(t, l, []*raft.Log{entry(i, 1, 40), entry(i+1, 1, 70)})
	}
	im := takeImage(t, dir)
	if len(im) < 4 {
		t.Fatalf("the test needs three segments, got %d files", len(im))
	}
	for _, s := range l.segs {
		name := filepath.Base(s.path)
		for i := range im[name] {
			k := 0
			for k+1 < len(s.offsets) && int(s.offsets[k+1]) <= i {
				k++
			}
			flipped := bytes.Clone(im[name])
			flipped[i] ^= 1 << (i % 8)
			want := DamageError{File: name, Offset: int64(s.offsets[k]), Index: s.base + uint64(k)}
			wantDamage(t, dir, im.with(name, flipped), boot1, want)
			wantDamage(t, dir, im.with(name, flipped).with(stateName, stale), boot2, want)
		}
	}
}

// A zeroed sector looks like one that was never written. If a later batch follows, the record
// had been flushed, whatever the state knows.
func TestZeroedSectorBeforeALaterBatchIsDamage(t *testing.T) {
	t.Parallel()
	im, offset, _, _ := lastBatch(t, 1500)
	dir := t.TempDir()
	im.put(t, dir)
	l := mustOpenWith(t, Options{Dir: dir, SegmentSize: 8 * small}, quick(boot1))
	mustStore(t, l, []*raft.Log{entry(43, 2, 30), entry(44, 2, 30)})
	later := takeImage(t, dir).with(stateName, im[stateName])
	file := later[later.last()]
	for at := (offset + sector) / sector * sector; at < len(file)-250; at += sector {
		zeroed := bytes.Clone(file)
		clear(zeroed[at:min(at+sector, len(im[im.last()]))])
		wantDamage(t, dir, later.with(later.last(), zeroed), boot2, DamageError{File: later.last(), Offset: int64(offset), Index: 42, Reason: "a later batch begins at offset"})
		// Without the later batch it was torn.
		wantRepaired(t, dir, im.with(im.last(), zeroed[:len(im[im.last()])]), boot2, acked(), offset, len(im[im.last()])-offset)
	}
}

// tidwall/wal: a missing middle segment panics on read.
func TestMissingSegmentIsFoundAtOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := mustOpenWith(t, Options{Dir: dir, SegmentSize: small}, quick(boot1))
	mustStore(t, l, entries(1, 40, 1))
	if err := l.DeleteRange(1, 9); err != nil {
		t.Fatal(err)
	}
	im := takeImage(t, dir)
	n := len(l.segs)
	for i, s := range l.segs[:n-1] {
		name := filepath.Base(s.path)
		want := DamageError{File: "", Reason: fmt.Sprintf("expected a segment file that holds index 10, the log's first, found none before index %d", l.segs[1].base)}
		if i > 0 {
			prev := l.segs[i-1]
			want = DamageError{File: filepath.Base(prev.path), Offset: prev.size, Index: s.base, Reason: "a whole segment file is missing"}
		}
		wantDamage(t, dir, im.with(name, nil), boot1, want)
	}
	wantDamage(t, dir, image{stateName: im[stateName]}, boot1, DamageError{Reason: "expected at least one segment file, found none"})
	// One too many, and one that is empty.
	s := l.segs[1]
	wantDamage(t, dir, im.with(segmentName(s.base+1), []byte{}), boot1, DamageError{File: filepath.Base(s.path), Offset: s.size, Index: s.next(),
		Reason: fmt.Sprintf("expected the next segment file to begin with index %d, found %s", s.next(), segmentName(s.base+1))})
	wantDamage(t, dir, im.with(segmentName(s.base), []byte{}), boot1, DamageError{File: filepath.Base(s.path), Index: s.base,
		Reason: "expected the records up to index"})
}

// tidwall/wal: an old segment that lost its last entry panics on read.
func TestOldSegmentThatLostItsLastEntryIsFoundAtOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l := mustOpenWith(t, Options{Dir: dir, SegmentSize: small}, quick(boot1))
	mustStore(t, l, entries(1, 40, 1))
	im := takeImage(t, dir)
	for _, s := range l.segs[:len(l.segs)-1] {
		name, cut := filepath.Base(s.path), s.offsets[len(s.offsets)-1]
		for _, boot := range [][16]byte{boot1, boot2} {
			wantDamage(t, dir, im.with(name, im[name][:cut:cut]), boot, DamageError{File: name, Offset: int64(cut), Index: s.next() - 1})
			wantDamage(t, dir, im.with(name, im[name][:cut+9:cut+9]), boot, DamageError{File: name, Offset: int64(cut), Index: s.next() - 1})
			wantDamage(t, dir, im.with(name, append(im[name][:s.size:s.size], 0)), boot, DamageError{File: name, Offset: s.size, Index: s.next()})
		}
	}
}

// One slot of the state may be lost; the other is then the one from before the last deletion
// or opening, and says less.
func TestDamagedState(t *testing.T) {
	t.Parallel()
	im, offset, _, batch := lastBatch(t, 90)
	dir := t.TempDir()
	whole := append(acked(), batch...)
	st := im[stateName]
	for i := range slotSize {
		for bit := range 8 {
			b := bytes.Clone(st)
			b[i] ^= 1 << bit
			im.with(stateName, b).put(t, dir)
			logger, logs := observed()
			l := mustOpenWith(t, Options{Dir: dir, Logger: logger}, quick(boot1))
			if logs.Len() != 1 || logs.All()[0].ContextMap()["file"] != filepath.Join(dir, logDirName(1), stateName) {
				t.Fatalf("want one line naming the file, got %v", logs.All())
			}
			if bit == 0 {
				wantLog(t, l, whole)
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	// What slot 1 says is no upper bound, in the same boot either.
	b := bytes.Clone(st)
	b[20] ^= 1
	garbage := append(im[im.last()][:offset:offset], bytes.Repeat([]byte("garbage!"), 40)...)
	wantDamage(t, dir, im.with(stateName, b).with(im.last(), garbage), boot1, DamageError{File: im.last(), Offset: int64(offset), Index: 42})
	// Without either there is no telling.
	b[slotStride+20] ^= 1
	wantDamage(t, dir, im.with(stateName, b), boot1, DamageError{File: stateName, Reason: "expected one whole slot of two, found none"})
	wantDamage(t, dir, im.with(stateName, st[:10:10]), boot1, DamageError{File: stateName, Reason: "expected one whole slot of two, found none"})
	wantDamage(t, dir, im.with(stateName, nil), boot1, DamageError{File: stateName, Reason: "expected the log's state file, found none"})
	wantRepaired(t, dir, im.with(stateName, st[:slotStride:slotStride]), boot1, whole, len(im[im.last()]), 0)
}

// What a killed process had written and not flushed is taken for stored, so it is flushed
// first; and written again, because a flush that failed leaves pages that look clean.
func TestOpenFlushesWhatAKilledProcessLeft(t *testing.T) {
	t.Parallel()
	im, offset, _, batch := lastBatch(t, 90, 10)
	dir := t.TempDir()
	im.put(t, dir)
	var events []string
	ops := quick(boot1)
	ops.flush = func(f *os.File) error {
		events = append(events, "flush "+filepath.Base(f.Name()))
		return nil
	}
	ops.syncDir = func(path string) error {
		events = append(events, "flush "+filepath.Base(path))
		return nil
	}
	at := filepath.Join(dir, logDirName(1), im.last())
	before, err := os.Stat(at)
	if err != nil {
		t.Fatal(err)
	}
	l := mustOpenWith(t, Options{Dir: dir, SegmentSize: 4 * small}, ops)
	wantLog(t, l, append(acked(), batch...))
	want := []string{"flush " + filepath.Base(filepath.Dir(dir)), "flush " + filepath.Base(dir), "flush " + im.last(), "flush " + logDirName(1), "flush " + stateName}
	if !reflect.DeepEqual(events, want) {
		t.Fatalf("want %v, got %v", want, events)
	}
	mustEqual(t, "file", im[im.last()], readFile(t, at))
	if after, err := os.Stat(at); err != nil || !after.ModTime().After(before.ModTime()) {
		t.Fatalf("want the bytes from %d on written again, the file was last changed at %v and before at %v, %v", offset, after.ModTime(), before.ModTime(), err)
	}
}
