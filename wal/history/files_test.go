package history

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2"
	pebblerecord "github.com/cockroachdb/pebble/v2/record"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-db/tidemark/wal/record"
)

// template makes a closed store with tables and blob files and returns its files. Its MANIFEST
// tells of flushes, each of which added to the state, and of a compaction, after which the
// tables from before it are gone.
func template(t *testing.T) (files map[string][]byte, w *workload) {
	t.Helper()
	dir := t.TempDir()
	// Only the one compaction below: another one may or may not be the last thing that the
	// MANIFEST tells of.
	s, err := Open(Options{Dir: dir, MemTableBytes: MinMemTableBytes, tune: func(p *pebble.Options) { p.DisableAutomaticCompactions = true }})
	if err != nil {
		t.Fatal(err)
	}
	w = newWorkload(1)
	b := s.NewBatch()
	for range 20 {
		w.commit(t, s, b, 3)
	}
	if err := s.db.Compact(t.Context(), []byte("a"), []byte("z"), false); err != nil {
		t.Fatal(err)
	}
	for range 40 {
		w.commit(t, s, b, 3)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string][]byte{}
	for _, e := range entries {
		if files[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return files, w
}

// newest is the last file of a kind, which is given by how its name begins or ends.
func newest(t *testing.T, files map[string][]byte, kind string) string {
	t.Helper()
	name := ""
	for n := range files {
		if strings.HasPrefix(n, kind) || strings.HasSuffix(n, kind) {
			name = max(name, n)
		}
	}
	if name == "" {
		t.Fatalf("no %s among %v", kind, slices.Sorted(maps.Keys(files)))
	}
	return name
}

// readAll opens a store of these files, compares all of it with the model, and returns what
// it is at.
func readAll(t *testing.T, files map[string][]byte, w *workload) (Applied, error) {
	t.Helper()
	fs := vfs.NewMem()
	if err := fs.MkdirAll("history", 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		f, err := fs.Create(path.Join("history", name), vfs.WriteCategoryUnspecified)
		if err == nil {
			_, err = f.Write(bytes.Clone(content)) // with the race detector, it spoils what it is given
			err = errors.Join(err, f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	s, err := Open(Options{Dir: "history", FS: fs, MemTableBytes: MinMemTableBytes, OnBackgroundError: func(error) {}})
	if err != nil {
		return Applied{}, err
	}
	v := s.View()
	err = s.storageError("read", w.check(v))
	v.Release()
	// After damage, Close may fail as well.
	return v.Applied(), errors.Join(err, s.Close())
}

// with is files with one of them changed; nil removes it.
func with(files map[string][]byte, name string, content []byte) map[string][]byte {
	files = maps.Clone(files)
	if files[name] = content; content == nil {
		delete(files, name)
	}
	return files
}

// whatToDo is what every refusal of damaged files says.
const whatToDo = "move history/ away"

// TestDamage: whatever happens to a file, opening or reading says so, names it, and no state
// but one that was committed is ever read.
func TestDamage(t *testing.T) {
	files, w := template(t)
	damages := map[string]func([]byte) []byte{
		"removed":    func([]byte) []byte { return nil },
		"cut by one": func(b []byte) []byte { return b[:len(b)-1] },
		"cut":        func(b []byte) []byte { return b[:len(b)*9/10] },
		"halved":     func(b []byte) []byte { return b[:len(b)/2] },
		"emptied":    func(b []byte) []byte { return b[:0] },
		"grown":      func(b []byte) []byte { return append(b, "junk, and more of it"...) },
		"zeroed":     func(b []byte) []byte { clear(b[len(b)/2:]); return b },
		"flipped":    func(b []byte) []byte { b[len(b)/4] ^= 0x10; return b }, // in the middle of a table may be its filter
	}
	for _, kind := range []string{"MANIFEST-", "OPTIONS-", ".sst", blobExt, "marker.manifest.", "marker.format-version."} {
		victim := newest(t, files, kind)
		for how, damage := range damages {
			content := files[victim]
			if len(content) == 0 && how != "removed" && how != "grown" {
				continue // markers are empty files: what they say is in their name
			}
			t.Run(kind+" "+how, func(t *testing.T) {
				applied, err := readAll(t, with(files, victim, damage(bytes.Clone(content))), w)
				if err == nil {
					checkHarmless(t, kind+" "+how, applied, w.applied)
					return
				}
				text := err.Error()
				named := victim
				if strings.HasPrefix(victim, "marker.") {
					named = kind + "*"
				}
				if !errors.Is(err, record.ErrCorrupt) || !errors.Is(err, ErrDamaged) || !strings.Contains(text, named) || !strings.Contains(text, whatToDo) {
					t.Errorf("expected damage in %s and what to do, got %v", victim, err)
				}
			})
		}
	}
}

// checkHarmless: Pebble needs little of what is in its options and nothing of what is in a
// marker, and a MANIFEST that ends early looks like one whose last record a power loss took: if
// all tables of the state before that are still there, that is the state, and the log is
// applied from it.
func checkHarmless(t *testing.T, damage string, applied, want Applied) {
	t.Helper()
	switch damage {
	case "OPTIONS- removed", "OPTIONS- cut by one", "OPTIONS- cut", "OPTIONS- emptied", "OPTIONS- flipped",
		"marker.manifest. grown", "marker.format-version. grown", "MANIFEST- grown":
		if applied != want {
			t.Errorf("opened at %v, want %v", applied, want)
		}
	case "MANIFEST- cut by one", "MANIFEST- cut", "MANIFEST- halved", "MANIFEST- zeroed":
		if applied.Index >= want.Index {
			t.Errorf("opened at %v without the last record of the MANIFEST, which led to %v", applied, want)
		}
	default:
		t.Errorf("opened and read at %v, want it refused", applied)
	}
}

// TestFlippedBitInTheManifest: Pebble takes the first record that it cannot read for the end.
// With a record behind it, it had been whole, so that is damage.
func TestFlippedBitInTheManifest(t *testing.T) {
	files, w := template(t)
	name := newest(t, files, "MANIFEST-")
	earlier := 0
	for at := 0; at < len(files[name]); at += 29 {
		content := bytes.Clone(files[name])
		content[at] ^= 1
		applied, err := readAll(t, with(files, name, content), w)
		switch {
		case err == nil && applied.Index < w.applied.Index && at > len(content)*2/3:
			earlier++
		case err == nil:
			t.Errorf("byte %d of %d: opened at %v", at, len(content), applied)
		case !errors.Is(err, record.ErrCorrupt) || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), whatToDo):
			t.Errorf("byte %d of %d: %v", at, len(content), err)
		}
	}
	if earlier == 0 {
		t.Error("a flip in the last record was refused, which a power loss may have left like that")
	}
}

// TestFlippedBit: damage in a table or a blob file is found by whoever reads the block that it
// is in, as an error and never as another value or a panic.
func TestFlippedBit(t *testing.T) {
	files, w := template(t)
	for _, kind := range []string{".sst", blobExt} {
		name := newest(t, files, kind)
		content := files[name]
		const flips = 6
		found := 0
		for i := range flips {
			at := (2*i + 1) * len(content) / (2 * flips)
			flipped := bytes.Clone(content)
			flipped[at] ^= 1 << i
			applied, err := readAll(t, with(files, name, flipped), w)
			if err == nil {
				if applied != w.applied {
					t.Errorf("%s, byte %d: opened at %v", name, at, applied)
				}
				continue // in what nothing is read from, such as statistics
			}
			found++
			if !errors.Is(err, record.ErrCorrupt) || !strings.Contains(err.Error(), path.Join("history", name)) || !strings.Contains(err.Error(), whatToDo) {
				t.Errorf("%s, byte %d: %v", name, at, err)
			}
		}
		if found == 0 {
			t.Errorf("no flip in %s was found", name)
		}
	}
}

// TestWalkManifest: a whole record behind one that is not is the only proof of damage.
func TestWalkManifest(t *testing.T) {
	files, _ := template(t)
	whole := files[newest(t, files, "MANIFEST-")]
	var ends []int // of the records
	for at := 0; at < len(whole); {
		kind, size := chunk(whole[at:])
		if kind != chunkFull {
			t.Fatalf("a chunk of kind %d at offset %d; this test is made for one block of whole records", kind, at)
		}
		at += size
		ends = append(ends, at)
	}
	if len(ends) < 4 {
		t.Fatalf("%d records", len(ends))
	}
	last := ends[len(ends)-2] // where the last one begins
	block := append(bytes.Clone(whole), make([]byte, manifestBlock-len(whole))...)
	for name, c := range map[string]struct {
		b          []byte
		torn, next int64
	}{
		"empty":                        {nil, -1, -1},
		"whole":                        {whole, -1, -1},
		"cut between records":          {whole[:last], -1, -1},
		"cut in the last record":       {whole[:last+9], int64(last), -1},
		"cut in the last header":       {whole[:last+3], int64(last), -1},
		"zeros behind":                 {append(bytes.Clone(whole), make([]byte, 500)...), int64(len(whole)), -1},
		"junk behind":                  {append(bytes.Clone(whole), "junk"...), int64(len(whole)), -1},
		"a record missing in between":  {append(append(bytes.Clone(whole[:ends[0]]), make([]byte, ends[1]-ends[0])...), whole[ends[1]:]...), int64(ends[0]), int64(ends[1])},
		"a record in the block behind": {append(bytes.Clone(block), whole...), int64(len(whole)), manifestBlock},
	} {
		torn, next, err := walkManifest(bytes.NewReader(c.b))
		if err != nil || torn != c.torn || next != c.next {
			t.Errorf("%s: torn at %d, next record at %d, %v; want %d and %d", name, torn, next, err, c.torn, c.next)
		}
	}
	// Records that go over blocks are split into chunks.
	long, more := records(t, 5*manifestBlock), records(t, 5*manifestBlock, 10)
	lost := func(b []byte) []byte {
		clear(b[manifestBlock : 2*manifestBlock])
		return b
	}
	for name, c := range map[string]struct {
		b          []byte
		torn, next int64
	}{
		"long":                    {long, -1, -1},
		"long, and another":       {more, -1, -1},
		"long, cut":               {long[:2*manifestBlock+5], 0, -1},
		"long, cut between":       {long[:2*manifestBlock], 0, -1},
		"long, a block lost":      {lost(bytes.Clone(long)), 0, -1},
		"long, lost, and another": {lost(bytes.Clone(more)), 0, int64(len(long))},
		"zeros at a block's end":  {records(t, manifestBlock-chunkHeader-chunkHeader+1, 10), -1, -1},
		"cut at a block's end":    {records(t, manifestBlock-chunkHeader-3, 10)[:manifestBlock], -1, -1},
	} {
		torn, next, err := walkManifest(bytes.NewReader(c.b))
		if err != nil || torn != c.torn || next != c.next {
			t.Errorf("%s: torn at %d, next record at %d, %v; want %d and %d", name, torn, next, err, c.torn, c.next)
		}
	}
}

// TestDamageNamesTheDirectory: if nobody knows which file it is in.
func TestDamageNamesTheDirectory(t *testing.T) {
	s := open(t, Options{})
	commit(t, s, func(*Batch) {})
	if err := s.db.Set(appendHeadKey(nil, key("1")), []byte("nonsense"), pebble.NoSync); err != nil {
		t.Fatal(err)
	}
	commit(t, s, func(*Batch) {})
	v := s.View()
	defer v.Release()
	_, _, err := v.Head(key("1"))
	want := fmt.Sprintf("history: read %q: damage in history: corrupt record: head of format 110, this version reads 1; %s", appendHeadKey(nil, key("1")), repair)
	if !errors.Is(err, record.ErrCorrupt) || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

// records are records of these sizes, as Pebble writes them.
func records(t *testing.T, sizes ...int) []byte {
	t.Helper()
	var out bytes.Buffer
	w := pebblerecord.NewWriter(&out)
	for _, size := range sizes {
		if _, err := w.WriteRecord(bytes.Repeat([]byte("x"), size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}
