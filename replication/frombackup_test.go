package replication

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
)

// backedUp is a closed shard's backup: its files, what it held, and the answers to its writes.
type backedUp struct {
	files   map[string][]byte
	applied history.Applied
	state   string
	old     Status
	results []*pb.WriteResult
}

func backUp(t *testing.T, writes int) *backedUp {
	t.Helper()
	s := openShard(t, Options{Dir: t.TempDir()})
	u := &backedUp{files: map[string][]byte{}}
	for i := 1; i <= writes; i++ {
		u.results = append(u.results, mustAppend(t, s, writeNumber(i)).GetResults()[0])
	}
	b := mustBackup(t, s, BackupOptions{})
	for _, f := range b.Files {
		content, err := os.ReadFile(filepath.Join(b.dir, f.Name))
		if err != nil {
			t.Fatal(err)
		}
		u.files[f.Name] = content
	}
	u.applied, u.state, u.old = b.Applied, stateOf(t, s), s.Status()
	b.End(nil)
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	return u
}

// writeNumber is the i-th write, each to one of five aggregates.
func writeNumber(i int, mods ...mod) *pb.AppendRequest {
	return appendOf("a", fmt.Sprint(i%5), seqs(uint64(i)), mods...)
}

func (u *backedUp) fill(dir string) (history.Applied, error) {
	for name, content := range u.files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return u.applied, err
		}
	}
	return u.applied, nil
}

// check opens a restored directory and compares everything with what was backed up.
func (u *backedUp) check(t *testing.T, dir string, made Restored) {
	t.Helper()
	s := openShard(t, Options{Dir: dir, NodeID: made.NodeID})
	if got := stateOf(t, s); got != u.state {
		t.Fatalf("expected the state that was backed up, found\n%s\n%s", got, u.state)
	}
	st := s.Status()
	if st.ClusterID != made.ClusterID || st.Timeline != made.Timeline || st.ClusterID == u.old.ClusterID || st.Timeline == u.old.Timeline {
		t.Fatalf("expected cluster %s on timeline %s, neither of them %s and %s, found %+v", made.ClusterID, made.Timeline, u.old.ClusterID, u.old.Timeline, st)
	}
	if st.LastPosition != u.old.LastPosition || made.Applied.Timeline != made.Timeline || made.Applied.Position != st.LastPosition {
		t.Fatalf("expected position %d, found %+v and %+v", u.old.LastPosition, st, made)
	}
	for i, want := range u.results {
		_, err := s.Append(context.Background(), writeNumber(i+1))
		wantCode(t, err, pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION)
		confirmed := proto.Clone(want).(*pb.WriteResult)
		confirmed.AlreadyCommitted = true
		if got := mustAppend(t, s, writeNumber(i+1, confirmRequest)).GetResults()[0]; !proto.Equal(got, confirmed) {
			t.Fatalf("write %d: expected the original result\n%v, found\n%v", i+1, confirmed, got)
		}
	}
	_, err := s.Read(context.Background(), ReadOptions{Consistency: pb.Consistency_CONSISTENCY_ANY, MinPosition: 1, Timeline: u.old.Timeline})
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_TIMELINE_MISMATCH)
	next := mustAppend(t, s, writeNumber(len(u.results)+1)).GetResults()[0]
	if next.GetPosition() != u.old.LastPosition+1 {
		t.Fatalf("expected position %d next, found %v", u.old.LastPosition+1, next)
	}
	// What it has of its own must come back, too, and so must a snapshot of its own.
	for range 2 {
		if err := s.Abandon(); err != nil {
			t.Fatal(err)
		}
		s = openShard(t, Options{Dir: dir, NodeID: made.NodeID})
		if got := s.Status(); got.LastPosition != u.old.LastPosition+1 || got.Timeline != made.Timeline {
			t.Fatalf("expected position %d after a restart, found %+v", u.old.LastPosition+1, got)
		}
		if err := s.snapshot(); err != nil && !strings.Contains(err.Error(), "nothing new") {
			t.Fatal(err)
		}
	}
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
}

func TestRestoredClusterGoesOnOnANewTimeline(t *testing.T) {
	for _, writes := range []int{0, 1, 60} {
		t.Run(fmt.Sprint(writes), func(t *testing.T) {
			t.Parallel()
			u := backUp(t, writes)
			dir := filepath.Join(t.TempDir(), "new", "data")
			made, err := RestoreBackup(RestoreOptions{Dir: dir, NodeID: "r1"}, u.fill)
			if err != nil {
				t.Fatal(err)
			}
			u.check(t, dir, made)
		})
	}
}

// Wherever it is cut short, the directory cannot be started, or is whole; and it can be done
// again.
func TestCrashWhileRestoringABackup(t *testing.T) {
	u := backUp(t, 10)
	crash := errors.New("a crash")
	for _, step := range []string{"begun", "emptied", "unpacked", "history", "log", "term", "identity", "done"} {
		for _, again := range []bool{true, false} {
			t.Run(fmt.Sprint(step, " again ", again), func(t *testing.T) {
				t.Parallel()
				dir := filepath.Join(t.TempDir(), "data")
				at := func(s string) error {
					if s == step {
						return crash
					}
					return nil
				}
				_, err := RestoreBackup(RestoreOptions{Dir: dir, Step: at}, u.fill)
				if !errors.Is(err, crash) {
					t.Fatalf("expected the crash, found %v", err)
				}
				whole := step == "identity" || step == "done"
				if !again || step == "done" {
					s, err := Open(Options{Dir: dir, MinFreeDiskBytes: -1})
					if !whole {
						if !errors.Is(err, ErrUnfinishedRestore) {
							t.Fatalf("expected a directory that does not start, found %v", err)
						}
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					waitReady(t, s)
					id := s.identity()
					made := Restored{NodeID: "n1", ClusterID: id.ClusterID, Timeline: id.Timeline, Applied: s.store.Applied()}
					if err := s.Stop(context.Background()); err != nil {
						t.Fatal(err)
					}
					u.check(t, dir, made)
					return
				}
				made, err := RestoreBackup(RestoreOptions{Dir: dir}, u.fill)
				if err != nil {
					t.Fatal(err)
				}
				u.check(t, dir, made)
			})
		}
	}
}

// A backup that turns out to be damaged leaves nothing behind; one that is in the way stays.
func TestRestoreLeavesOtherDirectoriesAlone(t *testing.T) {
	u := backUp(t, 3)
	damaged := errors.New("damaged")
	dir := filepath.Join(t.TempDir(), "data")
	_, err := RestoreBackup(RestoreOptions{Dir: dir}, func(d string) (history.Applied, error) {
		if _, err := u.fill(d); err != nil {
			t.Fatal(err)
		}
		return u.applied, damaged
	})
	if !errors.Is(err, damaged) {
		t.Fatalf("expected the error of the backup, found %v", err)
	}
	if names := listing(t, dir); fmt.Sprint(names) != "[LOCK]" {
		t.Fatalf("expected an empty directory, found %v", names)
	}
	made, err := RestoreBackup(RestoreOptions{Dir: dir}, u.fill)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := RestoreBackup(RestoreOptions{Dir: dir}, u.fill); !errors.Is(err, ErrNotEmpty) {
		t.Fatalf("expected a node's directory to be refused, found %v", err)
	}
	u.check(t, dir, made)
	other := t.TempDir()
	if err := os.WriteFile(filepath.Join(other, "thesis.txt"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := RestoreBackup(RestoreOptions{Dir: other}, u.fill); !errors.Is(err, ErrNotEmpty) {
		t.Fatalf("expected somebody's directory to be refused, found %v", err)
	}
	if names := listing(t, other); fmt.Sprint(names) != "[thesis.txt]" {
		t.Fatalf("expected nothing to be added, found %v", names)
	}
	u.applied.Position++
	empty := filepath.Join(t.TempDir(), "data")
	if _, err := RestoreBackup(RestoreOptions{Dir: empty}, u.fill); !errors.Is(err, ErrDamaged) {
		t.Fatalf("expected files that are not what the manifest says to be refused, found %v", err)
	}
	if names := listing(t, empty); fmt.Sprint(names) != "[LOCK]" {
		t.Fatalf("expected an empty directory, found %v", names)
	}
}

// The restored node grows to a cluster of three, whose others are sent its snapshot. A node of
// the old cluster is not taken in.
func TestRestoredNodeGrowsToACluster(t *testing.T) {
	u := backUp(t, 30)
	c := newCluster(t, 3)
	n1 := c.nodes["n1"]
	made, err := RestoreBackup(RestoreOptions{Dir: n1.opts.Dir, NodeID: "n1", RaftAddress: "127.0.0.1:1"}, u.fill)
	if err != nil {
		t.Fatal(err)
	}
	// n3 was of another cluster, as a node of the old one would be.
	old, err := Open(Options{Dir: c.nodes["n3"].opts.Dir, NodeID: "n3", MinFreeDiskBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	waitReady(t, old)
	if err := old.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	c.start("n1", "n2", "n3")
	if id := c.leader().Status().ClusterID; c.nodes["n1"].Status().ClusterID != made.ClusterID || id == "" {
		t.Fatalf("expected n1 in cluster %s, found %+v", made.ClusterID, c.nodes["n1"].Status())
	}
	// An empty node does not choose between two clusters.
	c.until("n2 to wait", func() bool { return strings.Contains(c.nodes["n2"].Status().Waiting, "--peers to name one cluster") })
	n3 := c.nodes["n3"]
	if err := n1.AddNode(within(t, 10*time.Second), "n3", n3.opts.RaftAddress, ""); err == nil {
		t.Fatal("a node of another cluster was taken in")
	}
	if id := n3.Status().ClusterID; id == made.ClusterID {
		t.Fatalf("n3 has changed to cluster %s", id)
	}
	c.kill("n3")
	c.wipe("n3")
	c.start("n3")
	for _, id := range []string{"n2", "n3"} {
		c.until(id+" to be added", func() bool {
			return c.leader().AddNode(within(t, 10*time.Second), id, c.nodes[id].opts.RaftAddress, "") == nil
		})
		c.until(id+" to be a voter", func() bool { return c.leader().PromoteNode(within(t, 5*time.Second), id) == nil })
	}
	// A node votes for those in the configuration that it has.
	c.until("all to know of three voters", func() bool {
		for _, n := range c.nodes {
			if g := n.raftGroup(); g == nil || len(g.servers()) != 3 {
				return false
			}
		}
		return true
	})
	c.sameStates()
	if got := stateOf(t, n1.Shard); got != u.state {
		t.Fatalf("expected the state that was backed up, found\n%s\n%s", got, u.state)
	}
	for _, s := range n1.raftGroup().members() {
		if _, _, err := net.SplitHostPort(s.raftAddress); err != nil || s.raftAddress == "127.0.0.1:1" {
			t.Errorf("expected the address that %s has now, found %q", s.nodeID, s.raftAddress)
		}
	}
	c.kill("n1")
	c.write("later", 1)
	c.start("n1")
	c.sameStates()
}
