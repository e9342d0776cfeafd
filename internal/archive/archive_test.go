package archive

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"
)

// contents are the files of the archive that the tests are about: none, one and several
// blocks, and the sizes around a whole one.
func contents() map[string][]byte {
	rnd := rand.New(rand.NewPCG(1, 2))
	files := map[string][]byte{}
	for i, size := range []int{0, 1, blockSize - 1, blockSize, blockSize + 1, 0, 3*blockSize + 17, 100} {
		b := make([]byte, size)
		for j := range b {
			b[j] = byte(rnd.Uint32())
		}
		files[fmt.Sprintf("%s%06d.sst", Directory, i)] = b
	}
	return files
}

func manifestOf(files map[string][]byte) *Manifest {
	at := time.Date(2026, 2, 3, 4, 5, 6, 789, time.UTC)
	m := &Manifest{
		ID: strings.Repeat("0a", 16), CreatedAt: at, ClusterID: strings.Repeat("1b", 16), Timeline: strings.Repeat("2c", 16),
		NodeID: "n2", Version: "v0.1.0", AppliedIndex: 17, AppliedTerm: 3, LastPosition: 12, CommittedAt: &at, Confirmed: true,
	}
	for name, b := range files {
		m.Files = append(m.Files, File{Name: name, Size: int64(len(b))})
	}
	slices.SortFunc(m.Files, func(a, b File) int { return strings.Compare(a.Name, b.Name) })
	return m
}

func write(t testing.TB, m *Manifest, files map[string][]byte) (b []byte, digest string) {
	t.Helper()
	var buf bytes.Buffer
	w, err := NewWriter(&buf, m)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range m.Files {
		if err := w.File(bytes.NewReader(files[f.Name])); err != nil {
			t.Fatal(err)
		}
	}
	if digest, err = w.Close(); err != nil {
		t.Fatal(err)
	}
	if w.Size() != int64(buf.Len()) {
		t.Fatalf("expected an archive of %d bytes, as it was announced, found %d", w.Size(), buf.Len())
	}
	return buf.Bytes(), digest
}

type memory struct {
	bytes.Buffer
	closed bool
}

func (m *memory) Close() error { m.closed = true; return nil }

func TestWhatWasWrittenIsReadBack(t *testing.T) {
	files := contents()
	m := manifestOf(files)
	b, digest := write(t, m, files)
	for name, r := range map[string]io.Reader{"at once": bytes.NewReader(b), "byte by byte": iotest.OneByteReader(bytes.NewReader(b))} {
		got := map[string]*memory{}
		var done, total int64
		c, err := Extract(r, func(f File) (io.WriteCloser, error) {
			got[f.Name] = &memory{}
			return got[f.Name], nil
		}, func(d, t int64) { done, total = d, t })
		if err != nil || len(c.Findings) != 0 {
			t.Fatalf("%s: expected a whole archive, found %v, error %v", name, c.Findings, err)
		}
		if fmt.Sprint(c.Manifest) == "" || c.Digest != digest || c.Size != int64(len(b)) || done != c.Size || total != c.Size {
			t.Fatalf("%s: expected digest %s of %d bytes, all of them told, found %s of %d, told %d of %d", name, digest, len(b), c.Digest, c.Size, done, total)
		}
		if a, e := mustEncode(t, c.Manifest), mustEncode(t, m); a != e {
			t.Fatalf("%s: expected manifest %s, found %s", name, e, a)
		}
		if len(got) != len(files) {
			t.Fatalf("%s: expected %d files, found %d", name, len(files), len(got))
		}
		for file, want := range files {
			if f := got[file]; f == nil || !bytes.Equal(f.Bytes(), want) || !f.closed {
				t.Errorf("%s: %s is not what was written", name, file)
			}
		}
	}
	head, err := ReadManifest(bytes.NewReader(b))
	if err != nil || mustEncode(t, head) != mustEncode(t, m) {
		t.Fatalf("expected the manifest alone, found %+v, error %v", head, err)
	}
}

func mustEncode(t testing.TB, m *Manifest) string {
	t.Helper()
	b, err := m.encode()
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// part is a range of an archive, as the format has it.
type part struct {
	name       string
	begin, end int64
}

// partsOf lays an archive out by the documented format, apart from the code that reads it.
func partsOf(m *Manifest, encoded int) []part {
	at := int64(28)
	parts := []part{{PartHead, 0, at}, {PartManifest, at, at + int64(encoded) + 4}}
	at += int64(encoded) + 4
	for _, f := range m.Files {
		for left := f.Size; left > 0; left -= min(left, 65536) {
			n := min(left, 65536) + 4
			parts = append(parts, part{f.Name, at, at + n})
			at += n
		}
	}
	return append(parts, part{PartEnd, at, at + 16 + 32 + 32*int64(len(m.Files)) + 8 + 4})
}

// Every structural place of the archive, and many others, with any of their bits.
func TestAnyChangedByteIsFoundAndNamed(t *testing.T) {
	files := contents()
	m := manifestOf(files)
	b, _ := write(t, m, files)
	parts := partsOf(m, len(mustEncode(t, m)))
	if end := parts[len(parts)-1].end; end != int64(len(b)) {
		t.Fatalf("expected the parts to make %d bytes, found %d", len(b), end)
	}
	for _, p := range parts {
		places := []int64{p.begin, p.begin + 1, (p.begin + p.end) / 2, p.end - 5, p.end - 4, p.end - 1}
		if p.end-p.begin < 1000 {
			places = places[:0]
			for at := p.begin; at < p.end; at++ {
				places = append(places, at)
			}
		}
		for _, at := range places {
			flip(t, b, m, p, at, byte(1)<<(at%8))
		}
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 300 {
		at := rnd.Int64N(int64(len(b)))
		i := slices.IndexFunc(parts, func(p part) bool { return at < p.end })
		flip(t, b, m, parts[i], at, byte(1+rnd.IntN(255)))
	}
}

// flip changes one byte and expects one finding, whose range is that of the block.
func flip(t *testing.T, b []byte, m *Manifest, p part, at int64, by byte) {
	t.Helper()
	b[at] ^= by
	defer func() { b[at] ^= by }()
	created := 0
	c, err := Extract(bytes.NewReader(b), func(File) (io.WriteCloser, error) {
		created++
		return &memory{}, nil
	}, nil)
	if err != nil {
		t.Fatalf("byte %d: %v", at, err)
	}
	if c.Digest != "" || len(c.Findings) != 1 {
		t.Fatalf("byte %d, in %s: expected one finding, found %v and digest %q", at, p.name, c.Findings, c.Digest)
	}
	f := c.Findings[0]
	if f.Part != p.name || f.Offset != p.begin || f.End != p.end {
		t.Fatalf("byte %d: expected %s, %d to %d, found %+v", at, p.name, p.begin, p.end, f)
	}
	if i := slices.IndexFunc(m.Files, func(f File) bool { return f.Name == p.name }); i >= 0 {
		if f.FileEnd-f.FileOffset != p.end-p.begin-4 || f.FileOffset%blockSize != 0 || created != i+1 {
			t.Fatalf("byte %d of file %d: expected its block, and no file after it, found %+v and %d files", at, i, f, created)
		}
	}
}

// Wherever the archive is cut, what is missing is named from there on.
func TestTruncationIsFoundAndNamed(t *testing.T) {
	files := contents()
	m := manifestOf(files)
	b, _ := write(t, m, files)
	parts := partsOf(m, len(mustEncode(t, m)))
	var cuts []int64
	for _, p := range parts {
		cuts = append(cuts, p.begin, p.begin+1, p.end-5, p.end-1)
	}
	for _, at := range cuts {
		if at <= 0 {
			continue
		}
		c, err := Verify(bytes.NewReader(b[:at]), nil)
		if err != nil || len(c.Findings) != 1 || c.Digest != "" {
			t.Fatalf("cut at %d: expected one finding, found %v, error %v", at, c.Findings, err)
		}
		p := parts[slices.IndexFunc(parts, func(p part) bool { return at < p.end })]
		if f := c.Findings[0]; f.Part != p.name || f.Offset != at || f.End < p.end {
			t.Fatalf("cut at %d: expected it to be named in %s from there, found %+v", at, p.name, f)
		}
	}
	if _, err := Verify(bytes.NewReader(nil), nil); !errors.Is(err, ErrNotArchive) {
		t.Fatalf("expected ErrNotArchive of no bytes at all, found %v", err)
	}
}

func TestAddedBytesAreFound(t *testing.T) {
	files := contents()
	b, _ := write(t, manifestOf(files), files)
	size := int64(len(b))
	for _, more := range []int64{1, 1000, size} {
		c, err := Verify(bytes.NewReader(append(b[:size:size], b[:more]...)), nil)
		want := Finding{Part: PartEnd, Offset: size, End: size + more, Problem: fmt.Sprintf("expected the backup to end here, found %d more bytes", more)}
		if err != nil || len(c.Findings) != 1 || c.Findings[0] != want || c.Digest != "" {
			t.Fatalf("expected %v, found %v, error %v", want, c.Findings, err)
		}
	}
}

// Damage in one block does not hide that in another, neighbours are one finding, and blocks
// that changed places are found although each is whole.
func TestDamageInSeveralPlaces(t *testing.T) {
	files := contents()
	m := manifestOf(files)
	b, _ := write(t, m, files)
	parts := partsOf(m, len(mustEncode(t, m)))
	damaged := bytes.Clone(b)
	for _, i := range []int{2, 7, 8, len(parts) - 1} {
		damaged[parts[i].begin+3*min(1, (parts[i].end-parts[i].begin)/8)] ^= 1
	}
	c, err := Verify(bytes.NewReader(damaged), nil)
	if err != nil || len(c.Findings) != 3 {
		t.Fatalf("expected three findings, found %v, error %v", c.Findings, err)
	}
	if f := c.Findings[1]; f.Part != parts[7].name || f.Offset != parts[7].begin || f.End != parts[8].end || f.FileOffset != 0 || f.FileEnd != 2*blockSize {
		t.Fatalf("expected the two neighbours as one, found %+v", f)
	}

	swapped := bytes.Clone(b)
	copy(swapped[parts[7].begin:], b[parts[8].begin:parts[8].end])
	copy(swapped[parts[8].begin:], b[parts[7].begin:parts[7].end])
	c, err = Verify(bytes.NewReader(swapped), nil)
	if err != nil || len(c.Findings) != 1 || c.Findings[0].Offset != parts[7].begin || c.Findings[0].End != parts[8].end {
		t.Fatalf("expected the two blocks that changed places, found %v, error %v", c.Findings, err)
	}
}

// The parts of two backups do not make one, even where all checksums of blocks match.
func TestPartsOfTwoBackups(t *testing.T) {
	files := contents()
	m := manifestOf(files)
	b, _ := write(t, m, files)
	other := contents()
	other[m.Files[3].Name] = bytes.Repeat([]byte("x"), blockSize)
	o, _ := write(t, m, other)
	parts := partsOf(m, len(mustEncode(t, m)))
	i := slices.IndexFunc(parts, func(p part) bool { return p.name == m.Files[3].Name })
	mixed := slices.Concat(b[:parts[i].begin], o[parts[i].begin:parts[i].end], b[parts[i].end:])
	c, err := Verify(bytes.NewReader(mixed), nil)
	if err != nil || len(c.Findings) != 1 || c.Findings[0].Part != m.Files[3].Name || c.Findings[0].Offset != parts[i].begin || c.Findings[0].End != parts[i].end {
		t.Fatalf("expected the file of the other backup, found %v, error %v", c.Findings, err)
	}

	n := *m
	n.NodeID = "n3" // as long, so that everything else is in its place
	o, _ = write(t, &n, files)
	mixed = slices.Concat(o[:parts[1].end], b[parts[1].end:])
	c, err = Verify(bytes.NewReader(mixed), nil)
	if err != nil || len(c.Findings) != 1 || c.Findings[0].Part != PartHead || c.Findings[0].Offset != 0 || c.Findings[0].End != parts[1].end {
		t.Fatalf("expected the head of the other backup, found %v, error %v", c.Findings, err)
	}
}

func TestWriterRefusesFilesThatChanged(t *testing.T) {
	m := manifestOf(map[string][]byte{Directory + "a": make([]byte, 10)})
	for _, size := range []int{0, 9, 11} {
		w, err := NewWriter(io.Discard, m)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.File(bytes.NewReader(make([]byte, size))); err == nil || !strings.Contains(err.Error(), "expected 10 bytes in history/a") {
			t.Errorf("expected a file of %d bytes to be refused, found %v", size, err)
		}
		if _, err := w.Close(); err == nil {
			t.Error("expected the end to be refused without its file")
		}
	}
}

func TestNamesThatLeadElsewhere(t *testing.T) {
	for _, name := range []string{"", "history/", "history/..", "history/a/b", "../history/a", "/history/a", "a", "history/.hidden", "history/a\x00", "history/" + strings.Repeat("a", maxName)} {
		m := &Manifest{Files: []File{{Name: name}}}
		if _, err := NewWriter(io.Discard, m); err == nil {
			t.Errorf("expected %q to be refused by the writer", name)
		}
	}
	twice := &Manifest{Files: []File{{Name: "history/a"}, {Name: "history/a"}}}
	if _, err := NewWriter(io.Discard, twice); err == nil {
		t.Error("expected a name that is there twice to be refused")
	}
}

func TestOtherFilesAndFormats(t *testing.T) {
	files := contents()
	b, _ := write(t, manifestOf(files), files)
	if _, err := Verify(strings.NewReader(strings.Repeat("something else ", 100)), nil); !errors.Is(err, ErrNotArchive) {
		t.Errorf("expected ErrNotArchive, found %v", err)
	}
	if _, err := Verify(strings.NewReader("short"), nil); !errors.Is(err, ErrNotArchive) {
		t.Errorf("expected ErrNotArchive of a short file, found %v", err)
	}
	newer := bytes.Clone(b)
	newer[magicSize+3] = 2
	sum := checksum(newer[:fixedSize-crcSize])
	newer[fixedSize-4], newer[fixedSize-3], newer[fixedSize-2], newer[fixedSize-1] = byte(sum>>24), byte(sum>>16), byte(sum>>8), byte(sum)
	if _, err := Verify(bytes.NewReader(newer), nil); !errors.Is(err, ErrFormat) {
		t.Errorf("expected ErrFormat, found %v", err)
	}
	broken := errors.New("the disk is gone")
	if _, err := Verify(io.MultiReader(bytes.NewReader(b[:70000]), iotest.ErrReader(broken)), nil); !errors.Is(err, broken) {
		t.Errorf("expected the reader's own error, found %v", err)
	}
}

// A thousand findings are listed, the rest is counted.
func TestDamageAllOver(t *testing.T) {
	size := int64(2*maxFindings+3) * blockSize
	m := &Manifest{Files: []File{{Name: "history/a", Size: size}}}
	pr, pw := io.Pipe()
	go func() { // ends with the reading
		w, err := NewWriter(&damager{w: pw}, m)
		if err == nil {
			err = w.File(io.LimitReader(zeros{}, size))
		}
		if err == nil {
			_, err = w.Close()
		}
		pw.CloseWithError(err)
	}()
	c, err := Verify(pr, nil)
	if err != nil || len(c.Findings) != maxFindings || c.Unlisted != 2 {
		t.Fatalf("expected %d findings and two more, found %d and %d, error %v", maxFindings, len(c.Findings), c.Unlisted, err)
	}
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// damager damages every second block.
type damager struct {
	w io.Writer
	n int
}

func (d *damager) Write(b []byte) (int, error) {
	if d.n++; len(b) == blockSize+crcSize && d.n%2 == 0 {
		b = bytes.Clone(b)
		b[0] ^= 1
	}
	return d.w.Write(b)
}

func FuzzVerify(f *testing.F) {
	files := map[string][]byte{"history/a": []byte("content"), "history/b": nil}
	b, _ := write(f, manifestOf(files), files)
	f.Add(b)
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Verify(bytes.NewReader(data), nil)
		if err == nil && len(c.Findings) == 0 && c.Manifest == nil {
			t.Fatal("expected a finding, an error or a manifest")
		}
	})
}
