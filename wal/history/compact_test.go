package history

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/tidemark-db/tidemark/wal/record"
)

// filesWith lists the files below dir that hold any of the markers.
func filesWith(t *testing.T, dir string, markers [][]byte) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		for i, m := range markers {
			if bytes.Contains(content, m) {
				found = append(found, fmt.Sprintf("%s: marker %d", filepath.Base(path), i))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// marker is what no compression makes shorter, and nothing else holds.
func marker(rng *rand.Rand) []byte {
	m := make([]byte, 24)
	for i := range m {
		m[i] = byte(rng.Uint32())
	}
	return m
}

// TestCompactLeavesNoByte: what was dropped is in no file of the store after Compact, however
// old the files are that held it, small values in tables and large ones in blob files; what
// shared those files is there as before.
func TestCompactLeavesNoByte(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "history")
	s := open(t, Options{Dir: dir})
	rng := rand.New(rand.NewPCG(5, 5))
	var dropped, kept [][]byte
	put := func(b *Batch, k record.Key, version uint64, drop bool, pad int) {
		m := marker(rng)
		h := record.BatchHeader{Key: k, Incarnation: 1, Version: version, Position: version, ClientID: "a"}
		b.PutBatch(&h, record.Hash{}, append(m, make([]byte, pad)...))
		if drop {
			dropped = append(dropped, m)
		} else {
			kept = append(kept, m)
		}
	}
	const n = 60
	for round := range 3 {
		commit(t, s, func(b *Batch) {
			for i := range n {
				k := key(fmt.Sprintf("%d-%03d", round, i))
				put(b, k, 1, i%3 == 0, 0)
				put(b, k, 2, i%3 == 0, 1000)
				put(b, k, 3, i%3 == 1, 300)
			}
		})
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
		if round == 1 { // so that some of it is at the bottom already
			if err := s.db.Compact(t.Context(), []byte("a"), []byte("z"), false); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Compression may cut a few markers in two.
	if got := filesWith(t, dir, dropped); len(got) < len(dropped)*8/10 {
		t.Fatalf("before anything is dropped, %d of %d markers are found: the test looks in the wrong way", len(got), len(dropped))
	}
	old := s.View()
	commit(t, s, func(b *Batch) {
		for round := range 3 {
			for i := range n {
				k := key(fmt.Sprintf("%d-%03d", round, i))
				switch i % 3 {
				case 0:
					b.DropBatches(k, 1, 1, 3)
				case 1:
					b.DropBatches(k, 1, 3, 4)
				}
			}
		}
	})
	// Tombstones come down to what they cover while a view keeps that.
	if err := s.db.Compact(t.Context(), []byte("a"), []byte("z"), false); err != nil {
		t.Fatal(err)
	}
	old.Release()
	left, err := s.Compact(t.Context())
	if err != nil || len(left) > 0 {
		t.Fatalf("left %q, %v; want nothing", left, err)
	}
	if got := filesWith(t, dir, dropped); len(got) > 0 {
		t.Errorf("dropped, and found in %d files: %q", len(got), got[:min(5, len(got))])
	}
	if got := filesWith(t, dir, kept); len(got) < len(kept)*8/10 {
		t.Errorf("of %d markers that were kept, %d are found", len(kept), len(got))
	}
}

// A store that is closed, or retired and replaced, is not compacted, and does not go while it is.
func TestCompactOfAClosedStore(t *testing.T) {
	s, err := Open(Options{Dir: filepath.Join(t.TempDir(), "history")})
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, func(b *Batch) { b.PutHead(key("1"), &Head{Version: 1}) })
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if left, err := s.Compact(t.Context()); !errors.Is(err, ErrClosed) || left != nil {
		t.Errorf("left %q, %v; want ErrClosed", left, err)
	}
}

// Views from before keep what was dropped: Compact says so once its patience, or the caller's, is
// over.
func TestCompactNamesViewsThatAreHeld(t *testing.T) {
	s := open(t, Options{})
	commit(t, s, func(b *Batch) { putVersions(b, key("1"), 1, 1, 3, 1) })
	old := s.View()
	defer old.Release()
	commit(t, s, func(b *Batch) { b.DropBatches(key("1"), 1, 1, 3) })
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if held := s.awaitViews(ctx, s.Applied().Index); held != 1 {
		t.Errorf("%d views held, want 1", held)
	}
	if _, err := s.Compact(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want the context's error", err)
	}
}
