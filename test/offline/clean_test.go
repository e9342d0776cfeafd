package offline

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"testing"

	"github.com/tidemark-db/tidemark/internal/inspect"
)

// sound fails the test if anything is found in a directory that nothing is wrong with.
func sound(t *testing.T, dir string) inspect.Report {
	t.Helper()
	findings, r := verify(t, dir)
	for _, f := range findings {
		t.Errorf("found in a sound directory: %s", f)
	}
	return r
}

func TestSoundDirectories(t *testing.T) {
	t.Run("fresh", func(t *testing.T) {
		dir := t.TempDir()
		end(t, open(t, small(dir)), true)
		if r := sound(t, dir); r.Entries == 0 {
			t.Errorf("checked %+v, expected the entries of a new cluster", r)
		}
	})
	for _, stop := range []bool{true, false} {
		t.Run(fmt.Sprintf("with a snapshot, stopped %t", stop), func(t *testing.T) {
			dir := full(t, stop)
			r := sound(t, dir)
			if r.Entries == 0 || r.Blocks == 0 || r.Heads == 0 || r.Batches == 0 || r.Rows <= r.Batches || r.Positions == 0 || r.Applied == 0 && stop {
				t.Errorf("checked %+v, expected some of everything", r)
			}
			// Once more, after a second start.
			s := open(t, small(dir))
			w := newWriter()
			w.n = 1 << 20
			w.untilSnapshot(t, s, dir)
			end(t, s, stop)
			if again := sound(t, dir); again.Heads < r.Heads || again.Applied == 0 && stop {
				t.Errorf("checked %+v, expected no less than %+v", again, r)
			}
		})
	}
}

func TestNothingIsChanged(t *testing.T) {
	for _, stop := range []bool{true, false} {
		dir := full(t, stop)
		before := picture(t, dir)
		sound(t, dir)
		d, err := inspect.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := d.Raft(); err != nil {
			t.Error(err)
		}
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		Read(t, dir)
		if after := picture(t, dir); !maps.Equal(before, after) {
			t.Errorf("stopped %t: the directory was\n%v\nand is\n%v", stop, before, after)
		}
	}
}

func TestDirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	s := open(t, small(dir))
	if _, err := inspect.Open(dir); !errors.Is(err, inspect.ErrInUse) {
		t.Errorf("opened while the node runs: %v, expected %v", err, inspect.ErrInUse)
	}
	end(t, s, true)
	d, err := inspect.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	other, err := inspect.Open(dir)
	if err != nil {
		t.Errorf("opened by two that only read: %v", err)
	} else if err := other.Close(); err != nil {
		t.Error(err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
	if _, err := inspect.Open(filepath.Join(dir, "none")); !errors.Is(err, inspect.ErrNoData) {
		t.Errorf("opened what is not there: %v, expected %v", err, inspect.ErrNoData)
	}
	if err := os.Mkdir(filepath.Join(dir, "empty"), 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := inspect.Open(filepath.Join(dir, "empty")); !errors.Is(err, inspect.ErrNoData) {
		t.Errorf("opened an empty directory: %v, expected %v", err, inspect.ErrNoData)
	}
}
