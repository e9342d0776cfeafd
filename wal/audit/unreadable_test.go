package audit

import (
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// A damaged block is a finding about the aggregate that is in it, which names the file; the others
// are checked all the same.
func TestDamagedBlock(t *testing.T) {
	fs := vfs.NewMem()
	s, err := history.Open(history.Options{Dir: "history", FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	k := &books{t: t, store: s, heads: map[record.Key]*history.Head{}}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 3 {
		k.payload = make([]byte, 40_000) // a block of its own; Pebble looks for the bit in time that grows with the square
		for j := range k.payload {
			k.payload[j] = byte(rng.Uint32())
		}
		k.append(record.MakeKey("acme", "orders", fmt.Sprint(i)), 1)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := fs.List("history")
	if err != nil {
		t.Fatal(err)
	}
	damaged := ""
	for _, name := range names {
		if strings.HasSuffix(name, ".blob") {
			damaged = fs.PathJoin("history", name)
		}
	}
	flip(t, fs, damaged)
	if s, err = history.Open(history.Options{Dir: "history", FS: fs}); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}()
	a := New("")
	v := s.View()
	defer v.Release()
	found, done, err := a.Step(v, func() bool { return true })
	if err != nil || !done || len(found) != 1 {
		t.Fatalf("expected one finding, found %v, %t, %v", found, done, err)
	}
	if f := found[0]; f.Kind != pb.FindingKind_FINDING_KIND_UNREADABLE || f.Key != record.MakeKey("acme", "orders", "1") || !strings.Contains(f.Text, damaged) {
		t.Errorf("found %+v, expected the second aggregate's batch in %s", f, damaged)
	}
	if p := a.Progress(); p.Aggregates != 3 || p.Events != 2 {
		t.Errorf("found %+v, expected the other two aggregates to be checked", p)
	}
}

// flip changes the byte in the middle of a file.
func flip(t *testing.T, fs vfs.FS, path string) {
	t.Helper()
	f, err := fs.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	content, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	content[len(content)/2] ^= 1
	w, err := fs.Create(path, vfs.WriteCategoryUnspecified)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}
