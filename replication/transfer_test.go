package replication

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/hashicorp/raft"
)

// memoryFiles are the files that a receiver makes, and what became of them.
type memoryFiles struct {
	content map[string]*memoryFile
}

type memoryFile struct {
	bytes.Buffer
	synced, closed bool
}

func (f *memoryFile) Sync() error  { f.synced = true; return nil }
func (f *memoryFile) Close() error { f.closed = true; return nil }

func (m *memoryFiles) create(name string) (durableFile, error) {
	if m.content[name] != nil {
		return nil, os.ErrExist
	}
	f := &memoryFile{}
	m.content[name] = f
	return f, nil
}

// received feeds a stream to a receiver in pieces of a size.
func received(stream []byte, piece int, accept func(*transferInfo, int64) error) (map[string]string, error) {
	files := &memoryFiles{content: make(map[string]*memoryFile)}
	r := newReceiver(accept, files.create)
	var err error
	for at := 0; at < len(stream) && err == nil; at += piece {
		_, err = r.Write(stream[at:min(at+piece, len(stream))])
	}
	if finished := r.finish(); err == nil {
		err = finished
	} else if finished == nil {
		err = fmt.Errorf("finish returned nil after %w", err)
	}
	out := make(map[string]string)
	for name, f := range files.content {
		out[name] = f.String()
		if err == nil && !f.synced {
			return out, fmt.Errorf("%s was not flushed", name)
		}
		if !f.closed {
			return out, fmt.Errorf("%s was not closed (%w)", name, err)
		}
	}
	return out, err
}

func acceptAll(*transferInfo, int64) error { return nil }

var sampleFiles = map[string]string{"MANIFEST-000001": "a manifest", "000004.sst": strings.Repeat("table", 200), "000005.blob": "", "marker.manifest.000001.MANIFEST-000001": "\x00"}

var sampleInfo = transferInfo{ClusterID: testCluster, Timeline: testTimeline, Index: 12, Term: 3, AppliedIndex: 10, CheckpointIndex: 15}

// sampleStream makes the stream of files in a directory, and its announced size.
func sampleStream(t testing.TB, content map[string]string) ([]byte, int64) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range content {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	files, err := checkpointFiles(dir)
	if err != nil {
		t.Fatal(err)
	}
	header, err := streamHeader(&sampleInfo, files)
	if err != nil {
		t.Fatal(err)
	}
	r := &snapshotStream{meter: newMeter(), meta: &snapshotMeta{}, dir: dir, files: files, pending: header, onClose: func() {}}
	size := streamSize(header, files)
	b, err := io.ReadAll(iotest.OneByteReader(r))
	if err := errors.Join(err, r.Close(), r.Close()); err != nil {
		t.Fatal(err)
	}
	return b, size
}

func TestStreamCarriesTheFiles(t *testing.T) {
	for _, content := range []map[string]string{sampleFiles, {}, {"CURRENT": ""}} {
		stream, size := sampleStream(t, content)
		if int64(len(stream)) != size {
			t.Fatalf("the stream has %d bytes, %d were announced", len(stream), size)
		}
		for _, piece := range []int{1, 7, len(stream)} {
			var info transferInfo
			var bytes, want int64
			got, err := received(stream, piece, func(i *transferInfo, n int64) error { info, bytes = *i, n; return nil })
			if err != nil {
				t.Fatal(err)
			}
			for _, text := range content {
				want += int64(len(text))
			}
			if fmt.Sprint(got) != fmt.Sprint(content) || info != sampleInfo || bytes != want {
				t.Fatalf("received %q, %+v, %d bytes\nwant %q, %+v, %d", got, info, bytes, content, sampleInfo, want)
			}
		}
	}
}

// Wherever a stream ends early, whichever of its bits is another one, and whatever follows it,
// it is refused.
func TestNoDamagedStreamIsTaken(t *testing.T) {
	stream, _ := sampleStream(t, sampleFiles)
	for n := range stream {
		if got, err := received(stream[:n], n+1, acceptAll); !errors.Is(err, errBadStream) {
			t.Fatalf("cut to %d bytes of %d: %v, %q", n, len(stream), err, got)
		}
	}
	for at := range stream {
		for bit := range 8 {
			damaged := bytes.Clone(stream)
			damaged[at] ^= 1 << bit
			if _, err := received(damaged, 64, acceptAll); !errors.Is(err, errBadStream) {
				t.Fatalf("bit %d of byte %d flipped: %v", bit, at, err)
			}
		}
	}
	if _, err := received(append(bytes.Clone(stream), 0), 64, acceptAll); !errors.Is(err, errBadStream) {
		t.Fatalf("with a byte more: %v", err)
	}
}

// forged makes a stream whose checksums are right and whose parts are as asked.
func forged(files uint32, total uint64, infoText string, parts ...[]byte) []byte {
	b := append([]byte(nil), streamMagic...)
	b = binary.BigEndian.AppendUint32(b, files)
	b = binary.BigEndian.AppendUint64(b, total)
	b = binary.BigEndian.AppendUint32(b, uint32(len(infoText)))
	b = appendChecksum(b, 0)
	at := len(b)
	b = appendChecksum(append(b, infoText...), at)
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

func forgedFile(name string, size uint64, content string) []byte {
	b := binary.BigEndian.AppendUint16(nil, uint16(len(name)))
	b = binary.BigEndian.AppendUint64(b, size)
	b = appendChecksum(append(b, name...), 0)
	at := len(b)
	return appendChecksum(append(b, content...), at)
}

// A stream whose checksums are right may still be none of ours.
func TestNoForgedStreamIsTaken(t *testing.T) {
	for name, c := range map[string]struct {
		stream []byte
		want   string
	}{
		"path upwards":       {forged(1, 1, "{}", forgedFile("../identity.json", 1, "x")), "a file name of letters"},
		"path downwards":     {forged(1, 1, "{}", forgedFile("a/b", 1, "x")), "a file name of letters"},
		"hidden file":        {forged(1, 1, "{}", forgedFile("..", 1, "x")), "a file name of letters"},
		"no name":            {forged(1, 1, "{}", forgedFile("", 1, "x")), "a file name of letters"},
		"zero byte":          {forged(1, 1, "{}", forgedFile("a\x00b", 1, "x")), "a file name of letters"},
		"long name":          {forged(1, 1, "{}", forgedFile(strings.Repeat("a", maxFileName+1), 1, "x")), "a file name of at most"},
		"more than is there": {forged(1, 1, "{}", forgedFile("a", 2, "xx")), "a file of at most 1"},
		"less than is there": {forged(1, 2, "{}", forgedFile("a", 1, "x"), append([]byte(streamEndMagic), appendChecksum(appendChecksum([]byte("x"), 0)[1:], 0)[4:]...)), "1 bytes less"},
		"twice the same":     {forged(2, 2, "{}", forgedFile("a", 1, "x"), forgedFile("a", 1, "x")), os.ErrExist.Error()},
		"too many files":     {forged(maxTransferFiles+1, 1, "{}"), "at most"},
		"too many bytes":     {forged(1, 1<<63, "{}"), "at most"},
		"long description":   {forged(1, 1, strings.Repeat(" ", maxTransferInfo+1)), "at most"},
		"no description":     {forged(1, 1, "what"), "a description in JSON"},
	} {
		got, err := received(c.stream, 5, acceptAll)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want one with %q; received %q", name, err, c.want, got)
		}
	}
}

// A receiver takes any bytes without harm, and what it accepts is a stream that says what it
// accepted.
func FuzzReceiver(f *testing.F) {
	stream, _ := sampleStream(f, sampleFiles)
	f.Add(stream, 3)
	f.Add(forged(1, 1, "{}", forgedFile("a", 1, "x")), 1)
	f.Fuzz(func(t *testing.T, b []byte, piece int) {
		var total int64
		files, err := received(b, 1+piece&0xff, func(_ *transferInfo, n int64) error {
			total = n
			return nil
		})
		for name, content := range files {
			if !validFileName(name) || len(content) > len(b) {
				t.Fatalf("made a file %q of %d bytes", name, len(content))
			}
			total -= int64(len(content))
		}
		if err == nil && total != 0 {
			t.Fatalf("accepted a stream that announces %d bytes more than it has", total)
		}
	})
}

// receive sends a stored snapshot to another store.
func receive(t *testing.T, from, to *snapshotStore, index, term uint64) error {
	t.Helper()
	list, err := from.List()
	if err != nil || len(list) != 1 {
		t.Fatalf("list: %v, %v", list, err)
	}
	meta, r, err := from.Open(list[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}()
	sink, err := to.Create(raft.SnapshotVersionMax, index, term, raft.Configuration{}, 1, nil)
	if err != nil {
		return err
	}
	n, err := io.Copy(sink, r)
	if err != nil {
		return errors.Join(err, sink.Cancel())
	}
	if n != meta.Size || n != list[0].Size {
		t.Fatalf("%d bytes were sent, the list says %d, the snapshot %d", n, list[0].Size, meta.Size)
	}
	return sink.Close()
}

func TestSnapshotIsReceivedAndSentOn(t *testing.T) {
	a, b, c := openSnapshotsAt(t, t.TempDir()), openSnapshotsAt(t, t.TempDir()), openSnapshotsAt(t, t.TempDir())
	if err := takeSnapshot(t, a, 10, "content"); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, a, b, 10, 1); err != nil {
		t.Fatal(err)
	}
	wantSnapshot(t, b, 10, "content")
	b = openSnapshotsAt(t, b.dir)
	wantSnapshot(t, b, 10, "content")
	if err := receive(t, b, c, 10, 1); err != nil {
		t.Fatal(err)
	}
	wantSnapshot(t, c, 10, "content")
	want := *a.newest()
	want.Received, want.Pending = true, true
	if got := *c.newest(); fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("it arrived as\n%+v\nwant\n%+v", got, want)
	}
	if err := c.settle(c.newest()); err != nil {
		t.Fatal(err)
	}
	if m := openSnapshotsAt(t, c.dir).newest(); !m.Received || m.Pending {
		t.Errorf("settled as %+v", m)
	}
}

// A snapshot that is not this cluster's, or not the one that raft announced, or too large for
// the disk, is refused before a file is made.
func TestForeignSnapshotsAreRefused(t *testing.T) {
	a := openSnapshotsAt(t, t.TempDir())
	if err := takeSnapshot(t, a, 10, "content"); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change      func(*snapshotStore)
		index, term uint64
		want        string
	}{
		"another cluster": {func(s *snapshotStore) {
			s.opts.identity = func() *identity { return &identity{ClusterID: strings.Repeat("1", 32), Timeline: testTimeline} }
		}, 10, 1, "expected cluster 1111"},
		"another timeline": {func(s *snapshotStore) {
			s.opts.identity = func() *identity { return &identity{ClusterID: testCluster, Timeline: strings.Repeat("2", 32)} }
		}, 10, 1, "on timeline 2222"},
		"another index": {func(*snapshotStore) {}, 11, 1, "expected a snapshot of entry 11 of term 1"},
		"another term":  {func(*snapshotStore) {}, 10, 2, "expected a snapshot of entry 10 of term 2"},
		"no room":       {func(s *snapshotStore) { s.opts.room = func() int64 { return 6 } }, 10, 1, "refused a snapshot of 7 bytes: the disk has room for 6"},
	} {
		t.Run(name, func(t *testing.T) {
			b := openSnapshotsAt(t, t.TempDir())
			c.change(b)
			if err := receive(t, a, b, c.index, c.term); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
			if entries, err := os.ReadDir(b.dir); err != nil || len(entries) != 0 {
				t.Errorf("%v, %v; want nothing left", entries, err)
			}
		})
	}
}
