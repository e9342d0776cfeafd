package replication

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark-db/tidemark/wal/history"
)

// The advice on a damaged history depends on how far back the log reaches, and following it
// works: with the snapshot gone as well, which shares the damaged file.
func TestAdviceOnADamagedHistory(t *testing.T) {
	for name, c := range map[string]struct {
		snapshot bool
		removed  []string // what may be removed; empty = that is not said
	}{
		"log from its first entry": {false, []string{"history", "snapshots"}},
		"log cut by a snapshot":    {true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			o, st := filled(t, 120, c.snapshot)
			tables, err := filepath.Glob(filepath.Join(o.Dir, "history", "*", "*.sst"))
			if err != nil || len(tables) == 0 {
				t.Fatalf("no tables (%v)", err)
			}
			if err := os.Truncate(tables[0], 10); err != nil {
				t.Fatal(err)
			}
			s, err := Open(o)
			if err == nil {
				_ = s.Stop(context.Background())
				t.Fatal("opened")
			}
			advice := "; here the log still reaches back to its first entry: " + filepath.Join(o.Dir, "history") + " and " +
				filepath.Join(o.Dir, "snapshots") + " may be removed, and the next start makes them again"
			if !errors.Is(err, history.ErrDamaged) || !strings.Contains(err.Error(), tables[0]) || strings.HasSuffix(err.Error(), advice) != (len(c.removed) > 0) {
				t.Fatalf("error %q", err)
			}
			if len(c.removed) == 0 {
				return
			}
			for _, d := range c.removed {
				if err := os.RemoveAll(filepath.Join(o.Dir, d)); err != nil {
					t.Fatal(err)
				}
			}
			sameState(t, o, st, 120)
		})
	}
}

func TestAdviceIsForDamagedHistoriesOnly(t *testing.T) {
	s := openShard(t, Options{Dir: t.TempDir()})
	other := errors.New("no space left")
	if err := s.AdviseOn(other); err != other {
		t.Errorf("advised on %v", err)
	}
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
}
