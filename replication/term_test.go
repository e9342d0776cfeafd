package replication

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/tidemark-db/tidemark/wal/stable"
	"github.com/tidemark-db/tidemark/wal/tail"
)

// onDisk is the last entry of a directory's log, and the term in its raft.db; 0 = there is none.
func onDisk(t *testing.T, dir string) (last raft.Log, term uint64) {
	t.Helper()
	log, err := tail.Open(tail.Options{Dir: filepath.Join(dir, "tail"), SegmentSize: 4096})
	if err != nil {
		t.Fatal(err)
	}
	index, err := log.LastIndex()
	if err == nil && index > 0 {
		err = log.GetLog(index, &last)
	}
	if err := errors.Join(err, log.Close()); err != nil {
		t.Fatal(err)
	}
	store, err := stable.Open(stable.Options{Path: filepath.Join(dir, "raft.db")})
	if err != nil {
		t.Fatal(err)
	}
	term, err = store.GetUint64([]byte("CurrentTerm"))
	if err != nil && err.Error() != "not found" {
		t.Fatal(err)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	return last, term
}

// A crash between a founder's first entry and its first vote leaves a log with one entry of
// term 1 and no term. Nothing was promised yet: the node goes on from there.
func TestALogWithoutATermIsTakenUp(t *testing.T) {
	crash := errors.New("crash")
	o := Options{Dir: t.TempDir(), SegmentBytes: 4096, MinFreeDiskBytes: -1}
	founding := o
	founding.Hooks.Forming = func(step string) error {
		if step == "bootstrapped" {
			return crash
		}
		return nil
	}
	if s, err := Open(founding); !errors.Is(err, crash) {
		if err == nil {
			_ = s.Stop(context.Background())
		}
		t.Fatalf("opened with %v, want the crash", err)
	}
	if last, term := onDisk(t, o.Dir); last.Index != 1 || last.Term != 1 || last.Type != raft.LogConfiguration || term != 0 {
		t.Fatalf("the crash left entry %d of term %d, type %v, and the term %d; want one configuration and no term", last.Index, last.Term, last.Type, term)
	}
	s := openShard(t, o)
	mustAppend(t, s, appendOf("a", "1", seqs(1)))
	want := s.Status()
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if last, term := onDisk(t, o.Dir); term < 1 || last.Term != term {
		t.Errorf("after an election the log ends with term %d, and the term is %d", last.Term, term)
	}
	s = openShard(t, o)
	if got := s.Status(); got.ClusterID != want.ClusterID || got.LastPosition != want.LastPosition {
		t.Errorf("opened again as %+v, want %+v", got, want)
	}
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// With one entry more somebody was elected, so the term and the vote were there: a node that
// has lost them could vote twice in one term.
func TestALogThatHasLostItsTermIsRefused(t *testing.T) {
	o := Options{Dir: t.TempDir(), SegmentBytes: 4096, MinFreeDiskBytes: -1}
	s := openShard(t, o)
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	// An election makes an entry of its own, the second.
	last, term := onDisk(t, o.Dir)
	if last.Index < 2 || term == 0 {
		t.Fatalf("the log ends at entry %d, term %d", last.Index, term)
	}
	path := filepath.Join(o.Dir, "raft.db")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	empty, err := stable.Open(stable.Options{Path: path})
	if err != nil {
		t.Fatal(err)
	}
	if err := empty.Close(); err != nil {
		t.Fatal(err)
	}
	s, err = Open(o)
	if err == nil {
		_ = s.Stop(context.Background())
		t.Fatal("opened")
	}
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), path+" says that the current term is 0, but ") || !strings.Contains(err.Error(), "the term and vote were lost") {
		t.Error(err)
	}
}
