package replication

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
	"go.uber.org/zap/zaptest"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
)

// filled makes a directory with n writes, and snapshots if asked to.
func filled(t *testing.T, n int, snapshot bool) (Options, Status) {
	t.Helper()
	o := Options{Dir: t.TempDir(), SegmentBytes: 4096, TrailingLogBytes: 4096}
	s := openShard(t, o)
	for i := 1; i <= n; i++ {
		mustAppend(t, s, appendOf("a", fmt.Sprint(i%10), seqs(uint64(i))))
		if snapshot && i == n/2 {
			if err := s.snapshot(); err != nil {
				t.Fatal(err)
			}
		}
	}
	st := s.Status()
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	return o, st
}

// sameState opens the shard again and compares what it holds with st and the marks.
func sameState(t *testing.T, o Options, st Status, n int) {
	t.Helper()
	s := openShard(t, o)
	defer func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if got := s.Status(); got.LastPosition != st.LastPosition || got.Timeline != st.Timeline || got.ClusterID != st.ClusterID {
		t.Fatalf("reopened at %+v, want %+v", got, st)
	}
	for i := n - 9; i <= n; i++ {
		_, err := s.Append(context.Background(), appendOf("a", fmt.Sprint(i%10), seqs(uint64(i))))
		wantCode(t, err, pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION)
	}
}

func TestHistoryComesBackFromTheTail(t *testing.T) {
	o, st := filled(t, 40, false)
	if err := os.RemoveAll(filepath.Join(o.Dir, "history")); err != nil {
		t.Fatal(err)
	}
	sameState(t, o, st, 40)
}

func TestHistoryComesBackFromASnapshotAndTheTail(t *testing.T) {
	o, st := filled(t, 120, true)
	if err := os.RemoveAll(filepath.Join(o.Dir, "history")); err != nil {
		t.Fatal(err)
	}
	sameState(t, o, st, 120)
	sameState(t, o, st, 120) // and the checkpoint's files are not shared with what is written to
}

func TestSnapshotTruncatesTheTail(t *testing.T) {
	o, st := filled(t, 120, true)
	s := openShard(t, o)
	first, err := s.tail.FirstIndex()
	if err != nil {
		t.Fatal(err)
	}
	if first < 2 {
		t.Fatalf("the tail still begins at entry %d", first)
	}
	all, err := s.snaps.List()
	if err != nil || len(all) != 1 || all[0].Index < first-1 {
		t.Fatalf("snapshots %v, %v; the tail begins at %d", all, err, first)
	}
	if err := s.snapshot(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
		t.Fatal(err)
	}
	mustAppend(t, s, appendOf("b", "1", seqs(1)))
	if err := s.snapshot(); err != nil {
		t.Fatal(err)
	}
	newer, err := s.snaps.List()
	if err != nil || len(newer) != 1 || newer[0].Index <= all[0].Index {
		t.Fatalf("snapshots %v, %v; want one newer than %d", newer, err, all[0].Index)
	}
	st.LastPosition++
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	sameState(t, o, st, 120)
}

// A crash while a snapshot is taken leaves its directory under a temporary name.
func TestHalfASnapshotIsRemoved(t *testing.T) {
	o, st := filled(t, 40, false)
	half := filepath.Join(o.Dir, "snapshots", "00000000000000000099-1"+snapshotTmp, "history")
	if err := os.MkdirAll(half, 0o755); err != nil {
		t.Fatal(err)
	}
	sameState(t, o, st, 40)
	if _, err := os.Stat(filepath.Dir(half)); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the half snapshot is still there: %v", err)
	}
}

// A crash between two steps of founding a cluster leaves an identity and no log yet, or a
// log whose term was not written.
func TestFoundingGoesOnAfterACrash(t *testing.T) {
	dir := t.TempDir()
	id, err := loadIdentity(dir, "n1")
	if err != nil {
		t.Fatal(err)
	}
	s := openShard(t, Options{Dir: dir})
	if now := s.identity(); now.State != stateMember || now.serverID() != id.serverID() {
		t.Fatalf("made as %+v, a member as %+v", id, *now)
	}
	mustAppend(t, s, appendOf("a", "1", seqs(1)))
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}

	// As it was before the first election: one configuration entry, no term.
	dir = t.TempDir()
	s = openShard(t, Options{Dir: dir})
	if err := s.Abandon(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"raft.db", "history"} {
		if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	s, err = Open(Options{Dir: dir, MinFreeDiskBytes: -1})
	if err == nil {
		last, _ := s.tail.LastIndex()
		_ = s.Stop(context.Background())
		t.Fatalf("opened with a log up to entry %d and no term", last)
	}
	if !strings.Contains(err.Error(), "raft.db is missing") {
		t.Fatal(err)
	}
}

func TestRefusesDirectoriesThatLackFiles(t *testing.T) {
	remove := func(names ...string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			for _, n := range names {
				if err := os.RemoveAll(filepath.Join(dir, n)); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	empty := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			remove(name)(t, dir)
			if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name     string
		snapshot bool
		damage   func(*testing.T, string)
		node     string
		want     string
	}{
		{"tail lost", false, remove("tail"), "", "tail is missing"},
		{"tail emptied", false, empty("tail"), "", "ends at entry 0"},
		{"tail emptied, snapshot there", true, empty("tail"), "", "ends at entry 0"},
		{"term lost", false, remove("raft.db"), "", "raft.db is missing"},
		{"snapshot lost after truncation", true, remove("snapshots"), "", "entries between them are missing"},
		{"snapshot and history lost", true, remove("snapshots", "history"), "", "entries between them are missing"},
		{"identity lost", false, remove("identity.json"), "", "identity.json is missing"},
		{"identity cut short", false, func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "identity.json"), []byte(`{"format":1`), 0o644); err != nil {
				t.Fatal(err)
			}
		}, "", "identity.json"},
		{"identity damaged", false, func(t *testing.T, dir string) {
			if err := os.WriteFile(filepath.Join(dir, "identity.json"), []byte(`{"format":2,"node_id":"n1","generation":"01234567","state":"member","cluster_id":"x"}`), 0o644); err != nil {
				t.Fatal(err)
			}
		}, "", "expected a cluster id"},
		{"another node's", false, func(*testing.T, string) {}, "n2", `belongs to node "n1"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, _ := filled(t, 120, c.snapshot)
			c.damage(t, o.Dir)
			o.NodeID = c.node
			o.Logger = zaptest.NewLogger(t)
			s, err := Open(o)
			if err == nil {
				_ = s.Stop(context.Background())
				t.Fatalf("opened; want an error with %q", c.want)
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %q, want one with %q", err, c.want)
			}
			if errors.Is(err, ErrDamaged) != (c.node == "") {
				t.Fatalf("error %q: ErrDamaged is %v", err, errors.Is(err, ErrDamaged))
			}
		})
	}
}

func TestOneProcessPerDirectory(t *testing.T) {
	dir := t.TempDir()
	s := openShard(t, Options{Dir: dir})
	if _, err := Open(Options{Dir: dir, MinFreeDiskBytes: -1}); !errors.Is(err, ErrInUse) {
		t.Fatalf("second open: %v, want ErrInUse", err)
	}
	mustAppend(t, s, appendOf("a", "1", seqs(1))) // the first is none the worse for it
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// Abandon used to flush the history like Stop: every test that crashed a node with it found
// nothing to replay.
func TestAbandonFlushesNothing(t *testing.T) {
	s := openShard(t, Options{Dir: t.TempDir()})
	mustAppend(t, s, appendOf("a", "1", seqs(1)))
	if err := s.Abandon(); err != nil {
		t.Fatal(err)
	}
	store, err := history.Open(history.Options{Dir: s.hist.path(s.hist.n)})
	if err != nil {
		t.Fatal(err)
	}
	if a := store.Applied(); a.Index != 0 {
		t.Errorf("the history was flushed up to entry %d", a.Index)
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
}
