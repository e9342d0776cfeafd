package offline

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-db/tidemark/internal/archive"
	"github.com/tidemark-db/tidemark/internal/inspect"
)

// stoppedHistory is the history of a node that was stopped, and what a backup says of it.
type stoppedHistory struct {
	dir      string
	manifest archive.Manifest
}

func historyOf(t *testing.T, dir string) stoppedHistory {
	t.Helper()
	d, err := inspect.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	r, err := d.Raft()
	if err := errors.Join(err, d.Close()); err != nil {
		t.Fatal(err)
	}
	at := time.Unix(0, r.Applied.CommittedAt).UTC()
	return stoppedHistory{d.History, archive.Manifest{
		ID: strings.Repeat("ab", 16), CreatedAt: at, ClusterID: d.Identity.ClusterID, Timeline: d.Identity.Timeline, NodeID: d.Identity.NodeID,
		AppliedIndex: r.Applied.Index, AppliedTerm: r.Applied.Term, LastPosition: r.Applied.Position, CommittedAt: &at,
	}}
}

// backup makes a backup of the files as they are.
func (h stoppedHistory) backup(t *testing.T) []byte {
	t.Helper()
	m := &h.manifest
	entries, err := os.ReadDir(h.dir)
	if err != nil {
		t.Fatal(err)
	}
	var files [][]byte
	for _, e := range entries {
		if e.Name() == "LOCK" || strings.HasSuffix(e.Name(), ".log") {
			continue
		}
		b, err := os.ReadFile(filepath.Join(h.dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, b)
		m.Files = append(m.Files, archive.File{Name: archive.Directory + e.Name(), Size: int64(len(b))})
	}
	var out bytes.Buffer
	w, err := archive.NewWriter(&out, m)
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range files {
		if err := w.File(bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

// verifyBackup returns what is found in a backup, and fails the test if anything of it stays
// unpacked.
func verifyBackup(t *testing.T, b []byte, unpack bool) ([]inspect.Finding, inspect.Report) {
	t.Helper()
	var findings []inspect.Finding
	o := inspect.BackupOptions{VerifyOptions: inspect.VerifyOptions{Found: func(f inspect.Finding) { findings = append(findings, f) }}, Name: "the backup"}
	if unpack {
		o.Unpack = t.TempDir()
	}
	r, err := inspect.VerifyBackup(t.Context(), bytes.NewReader(b), o)
	if err != nil {
		t.Fatal(err)
	}
	if unpack {
		left, err := os.ReadDir(o.Unpack)
		if err != nil || len(left) > 0 {
			t.Errorf("left behind in the temporary directory: %v, %v", left, err)
		}
	}
	return findings, r
}

func TestBackups(t *testing.T) {
	h := historyOf(t, full(t, true))
	b := h.backup(t)

	t.Run("sound", func(t *testing.T) {
		findings, r := verifyBackup(t, b, true)
		if len(findings) > 0 || r.Damage > 0 || r.Batches == 0 || r.Rows == 0 || r.Blocks == 0 || r.Positions == 0 {
			t.Errorf("found %v in a sound backup, checked %+v", findings, r)
		}
		if findings, r := verifyBackup(t, b, false); len(findings) > 0 || r.Batches != 0 {
			t.Errorf("found %v by its checksums, checked %+v", findings, r)
		}
	})
	t.Run("flipped", func(t *testing.T) {
		rng := random(t)
		for range *flagFlips {
			at, by := rng.IntN(len(b)), byte(1+rng.IntN(255))
			b[at] ^= by
			findings, r := verifyBackup(t, b, true)
			b[at] ^= by
			if r.Damage == 0 || len(findings) == 0 || findings[0].Offset > int64(at) || findings[0].File != "the backup" {
				t.Errorf("byte %d flipped by %02x: found %v", at, by, findings)
			}
		}
	})
	t.Run("another manifest", func(t *testing.T) {
		other := h
		other.manifest.LastPosition++
		if findings, _ := verifyBackup(t, other.backup(t), true); len(findings) != 1 || !strings.Contains(findings[0].Text, "expected what its manifest says") {
			t.Errorf("found %v, expected the manifest to differ", findings)
		}
	})
	// A backup of what was damaged already has all its checksums.
	t.Run("of a damaged history", func(t *testing.T) {
		tables, err := filepath.Glob(filepath.Join(h.dir, "*.sst"))
		if err != nil || len(tables) == 0 {
			t.Fatal(err, tables)
		}
		var damaged []byte
		last := tables[len(tables)-1]
		flipped(t, last, 100, 1, func() { damaged = h.backup(t) })
		findings, r := verifyBackup(t, damaged, true)
		if want := "the backup/history/" + filepath.Base(last); r.Damage != 1 || findings[0].File != want || findings[0].Offset < 0 || findings[0].Offset > 100 {
			t.Errorf("found %v, expected damage of %s at offset 100", findings, want)
		}
		if findings, _ := verifyBackup(t, damaged, false); len(findings) > 0 {
			t.Errorf("found %v by its checksums, which are right", findings)
		}
	})
	t.Run("something else", func(t *testing.T) {
		_, err := inspect.VerifyBackup(t.Context(), strings.NewReader("not a backup at all, and long enough for the head of one"), inspect.BackupOptions{})
		if !errors.Is(err, inspect.ErrNotBackup) {
			t.Errorf("got %v, expected %v", err, inspect.ErrNotBackup)
		}
	})
}
