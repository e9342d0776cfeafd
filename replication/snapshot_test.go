package replication

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"go.uber.org/zap/zaptest"
)

const (
	testCluster  = "0123456789abcdef0123456789abcdef"
	testTimeline = "fedcba9876543210fedcba9876543210"
)

// takeSnapshot makes a snapshot of one file.
func takeSnapshot(t *testing.T, s *snapshotStore, index uint64, content string) error {
	t.Helper()
	sink, err := s.Create(raft.SnapshotVersionMax, index, 1, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	fillSink(t, sink, content)
	return sink.Close()
}

// fillSink does what fsmSnapshot.Persist does.
func fillSink(t *testing.T, sink raft.SnapshotSink, content string) {
	t.Helper()
	dir := sink.(*snapshotSink).history()
	if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "table"), []byte(content), 0o644)); err != nil {
		t.Fatal(err)
	}
}

func openSnapshotsAt(t *testing.T, dir string) *snapshotStore {
	t.Helper()
	id := &identity{ClusterID: testCluster, Timeline: testTimeline}
	s, err := openSnapshots(dir, snapshotOptions{log: zaptest.NewLogger(t), identity: func() *identity { return id }, room: func() int64 { return -1 }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// wantSnapshot wants exactly one snapshot, of this index and content.
func wantSnapshot(t *testing.T, s *snapshotStore, index uint64, content string) {
	t.Helper()
	all, err := s.List()
	if err != nil || len(all) != 1 || all[0].Index != index {
		t.Fatalf("snapshots %v, %v; want one of index %d", all, err, index)
	}
	b, err := os.ReadFile(filepath.Join(s.dir, all[0].ID, "history", "table"))
	if err != nil || string(b) != content {
		t.Fatalf("snapshot %d holds %q, %v; want %q", index, b, err, content)
	}
	entries, err := os.ReadDir(s.dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v; want nothing beside the snapshot", entries, err)
	}
}

// An old snapshot used to keep its name while it was removed: a crash half way left one
// without its meta.json, and the node refused to start.
func TestCrashWhileAnOldSnapshotIsRemoved(t *testing.T) {
	s := openSnapshotsAt(t, t.TempDir())
	if err := takeSnapshot(t, s, 10, "old"); err != nil {
		t.Fatal(err)
	}
	crash := errors.New("crash")
	s.removeAll = func(path string) error {
		return errors.Join(os.Remove(filepath.Join(path, snapshotMetaFile)), crash)
	}
	if err := takeSnapshot(t, s, 20, "new"); !errors.Is(err, crash) {
		t.Fatalf("the second snapshot: %v, want the crash", err)
	}
	wantSnapshot(t, openSnapshotsAt(t, s.dir), 20, "new")
}

// A second snapshot of one index used to remove the first before it took its place: a crash
// in between left none behind a log that no longer reaches back.
func TestSecondSnapshotOfOneIndexLeavesTheFirst(t *testing.T) {
	s := openSnapshotsAt(t, t.TempDir())
	for _, content := range []string{"first", "second"} {
		if err := takeSnapshot(t, s, 10, content); err != nil {
			t.Fatal(err)
		}
		wantSnapshot(t, s, 10, "first")
	}
}

// After a fatal error nothing is applied, but raft counts it as applied: a snapshot taken
// then would stand for entries that it does not hold, and let the log drop them.
func TestNoSnapshotAfterAFatalError(t *testing.T) {
	s := openShard(t, Options{Dir: t.TempDir()})
	mustAppend(t, s, appendOf("a", "1", seqs(1)))
	s.fatal(errors.New("a disk that fails in a test"))
	if err := s.snapshot(); err == nil {
		t.Error("a snapshot was taken after a fatal error")
	}
	if all, err := s.snaps.List(); err != nil || len(all) != 0 {
		t.Errorf("snapshots %v, %v; want none", all, err)
	}
	if err := s.Abandon(); err != nil {
		t.Fatal(err)
	}
}

// A history that gives way to a snapshot's used to be removed in place: a crash half way
// left one that did not open. Now the new one is made beside it, and every moment in between
// opens.
func TestCrashWhileTheHistoryGivesWayToASnapshot(t *testing.T) {
	for name, crash := range map[string]func(history string) error{
		"before the new one is whole": func(h string) error {
			return errors.Join(os.Mkdir(filepath.Join(h, "0000000002.new"), 0o755),
				os.WriteFile(filepath.Join(h, "0000000002.new", "000007.sst"), []byte("the beginning of it"), 0o644))
		},
		"after the new one has its name": func(h string) error {
			return errors.Join(os.Rename(filepath.Join(h, "0000000001"), filepath.Join(h, "0000000002")),
				os.Mkdir(filepath.Join(h, "0000000001"), 0o755),
				os.WriteFile(filepath.Join(h, "0000000001", "000007.sst"), []byte("what is left of it"), 0o644))
		},
	} {
		t.Run(name, func(t *testing.T) {
			o, st := filled(t, 120, true)
			h := filepath.Join(o.Dir, "history")
			if err := crash(h); err != nil {
				t.Fatal(err)
			}
			sameState(t, o, st, 120)
			entries, err := os.ReadDir(h)
			if err != nil || len(entries) != 1 {
				t.Errorf("%v, %v; want one history", entries, err)
			}
		})
	}
}
