package replication

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/tidemark-db/tidemark/replication/peer"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/stable"
	"github.com/tidemark-db/tidemark/wal/tail"
)

// This file makes the directory of a new cluster from a backup.
//
// The cluster has a name and a timeline of its own: nothing that knew the old one takes it for
// that. Its history is the backup's, with all positions, marks and writer rows. Its log begins
// behind a snapshot of that history, at the index and in the term where the backup ends, as
// that of a node which another one has sent a snapshot (see DESIGN.md); so other nodes that
// are added are sent that snapshot.
//
// While the directory is made it holds restoring.json. A node does not start in it, and
// restoring again begins anew, wherever it was cut short. The identity is written last: then
// the directory is a member's.

// restoringFile says that the directory is being made from a backup.
const restoringFile = "restoring.json"

// ErrNotEmpty is returned by RestoreBackup for a directory that holds anything. Nothing was
// changed.
var ErrNotEmpty = errors.New("the directory is not empty")

// ErrUnfinishedRestore is returned by Open for a directory that RestoreBackup did not finish.
var ErrUnfinishedRestore = errors.New("a backup was not restored to its end here")

// RestoreOptions say where RestoreBackup restores to.
type RestoreOptions struct {
	// Dir must not exist, or be empty, or hold what a restore that was cut short has left.
	Dir string
	// NodeID of the only node of the new cluster; default n1.
	NodeID string
	// RaftAddress is where other nodes reach it; it may be told later, by serve.
	RaftAddress string
	Logger      *zap.Logger
	// Step runs after each step; an error ends there, as a crash would. Nil does nothing.
	// Steps: begun, emptied, unpacked, history, log, term, identity, done.
	Step func(step string) error
}

// Restored is what RestoreBackup has made.
type Restored struct {
	NodeID, ClusterID, Timeline string
	Applied                     history.Applied
}

// errStep wraps what Step returned: nothing is cleared away after a crash.
type errStep struct{ err error }

func (e *errStep) Error() string { return e.err.Error() }
func (e *errStep) Unwrap() error { return e.err }

// RestoreBackup makes o.Dir the directory of a new cluster of one node. fill writes the files
// of the backup's history into a directory, durably, and returns what state they are to hold;
// it must have compared all checksums. After an error the directory is as it was, or a crash
// would have left it; ErrNotEmpty and ErrInUse have changed nothing.
func RestoreBackup(o RestoreOptions, fill func(dir string) (history.Applied, error)) (made Restored, err error) {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.NodeID == "" {
		o.NodeID = "n1"
	}
	if err := checkRestorable(o.Dir); err != nil {
		return made, err
	}
	if err := makeDir(o.Dir); err != nil {
		return made, fmt.Errorf("data directory: %w", err)
	}
	lock, err := lockDir(o.Dir)
	if err != nil {
		return made, err
	}
	defer func() { err = errors.Join(err, lock.release()) }()
	// Somebody may have started a node here meanwhile.
	if err := checkRestorable(o.Dir); err != nil {
		return made, err
	}
	b := &fromBackup{o: o, id: identity{
		Format: identityFormat, NodeID: o.NodeID, Generation: newHexID(4), State: stateMember, ClusterID: newHexID(16), Timeline: newHexID(16),
	}}
	b.id.Founders = []founder{{NodeID: o.NodeID, Generation: b.id.Generation, RaftAddress: o.RaftAddress}}
	if err := b.run(fill); err != nil {
		if !errors.As(err, new(*errStep)) {
			err = errors.Join(err, b.undo())
		}
		return made, err
	}
	return Restored{NodeID: b.id.NodeID, ClusterID: b.id.ClusterID, Timeline: b.id.Timeline, Applied: b.applied}, nil
}

// checkRestorable refuses a directory that holds anything but what a restore has left.
func checkRestorable(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	found := ""
	for _, e := range entries {
		switch e.Name() {
		case restoringFile:
			return nil
		case "LOCK", "lost+found", restoringFile + ".tmp":
		default:
			found = e.Name()
		}
	}
	if found == "" {
		return nil
	}
	return fmt.Errorf("%w: expected no directory at %s, or an empty one, found %s in it; restore into another one, or move what is there away", ErrNotEmpty, filepath.Clean(dir), found)
}

// checkUnfinishedRestore refuses a directory that a restore did not finish, and finishes one
// that lacks the last step alone.
func checkUnfinishedRestore(dir string) error {
	marker := filepath.Join(dir, restoringFile)
	if _, err := os.Stat(marker); errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if _, err := os.Stat(filepath.Join(dir, identityFile)); errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: %s is there and %s is not; run tidemark restore again with the same --data-dir, which begins anew, or empty the directory", ErrUnfinishedRestore, marker, identityFile)
	} else if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if err := os.Remove(marker); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	return syncDir(dir)
}

// fromBackup makes one directory.
type fromBackup struct {
	o       RestoreOptions
	id      identity
	applied history.Applied // what the backup ends with, on the new timeline once history is done
	snaps   *snapshotStore
}

func (b *fromBackup) path(name string) string { return filepath.Join(b.o.Dir, name) }

// run takes the steps, each of which is on disk when it ends.
func (b *fromBackup) run(fill func(dir string) (history.Applied, error)) error {
	for _, s := range []struct {
		name string
		do   func() error
	}{
		{"begun", b.begin},
		{"emptied", b.empty},
		{"unpacked", func() error { return b.unpack(fill) }},
		{"history", b.makeHistory},
		{"log", b.makeLog},
		{"term", b.makeTerm},
		{"identity", func() error { return b.id.write(b.o.Dir) }},
		{"done", b.finish},
	} {
		if err := s.do(); err != nil {
			return err
		}
		if hook := b.o.Step; hook != nil {
			if err := hook(s.name); err != nil {
				return &errStep{err}
			}
		}
	}
	return nil
}

// begin marks the directory.
func (b *fromBackup) begin() error {
	marker, err := json.MarshalIndent(struct {
		ClusterID string `json:"cluster_id"`
		Timeline  string `json:"timeline"`
	}{b.id.ClusterID, b.id.Timeline}, "", "  ")
	if err != nil {
		return err
	}
	return writeFileDurably(b.path(restoringFile), append(marker, '\n'))
}

// empty removes what a restore that was cut short has left, the identity first: without it
// nothing starts here.
func (b *fromBackup) empty() error {
	if err := os.Remove(b.path(identityFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := syncDir(b.o.Dir); err != nil {
		return err
	}
	for _, name := range []string{identityFile + ".tmp", "tail", "raft.db", "snapshots", "history"} {
		if err := os.RemoveAll(b.path(name)); err != nil {
			return err
		}
	}
	return syncDir(b.o.Dir)
}

// unpack has the files of the history written, and gives them their place once they are all
// there.
func (b *fromBackup) unpack(fill func(dir string) (history.Applied, error)) (err error) {
	h := histories{dir: b.path("history")}
	if err := makeDir(h.dir); err != nil {
		return err
	}
	tmp := h.path(1) + historyNew
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return err
	}
	if b.applied, err = fill(tmp); err != nil {
		return err
	}
	if err := syncDir(tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, h.path(1)); err != nil {
		return err
	}
	return syncDir(h.dir)
}

// makeHistory puts the history on the new timeline, and takes the snapshot of it that the log
// begins behind.
func (b *fromBackup) makeHistory() (err error) {
	store, err := history.Open(history.Options{
		Dir: (&histories{dir: b.path("history")}).path(1), FS: vfs.Default, BlockCacheBytes: restoreCache, MemTableBytes: restoreCache, Logger: b.o.Logger,
	})
	if err != nil {
		return fmt.Errorf("the history of the backup: %w", err)
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	found, want := store.Applied(), b.applied
	found.Digest, want.Digest = b.applied.Digest, b.applied.Digest // not in a manifest
	if found != want {
		return fmt.Errorf("%w: expected the history of the backup to end as its manifest says, with %+v, found %+v; the backup was not made by this program", ErrDamaged, want, found)
	}
	b.applied = store.Applied()
	b.applied.Timeline = b.id.Timeline
	batch := store.NewBatch()
	batch.SetApplied(b.applied)
	if err := store.Commit(batch); err != nil {
		return err
	}
	if b.snaps, err = openSnapshots(b.path("snapshots"), snapshotOptions{log: b.o.Logger, identity: func() *identity { return &b.id }, room: func() int64 { return -1 }}); err != nil {
		return err
	}
	if b.applied.Index == 0 {
		return store.Flush() // nothing was ever written: the log begins with its first entry
	}
	return b.takeSnapshot(store)
}

// restoreCache is what the history may keep in memory while it is restored.
const restoreCache = 8 << 20

// takeSnapshot makes the history a snapshot whose only member is this node.
func (b *fromBackup) takeSnapshot(store *history.Store) error {
	conf := raft.Configuration{Servers: []raft.Server{{
		Suffrage: raft.Voter, ID: b.id.serverID(), Address: peer.Address(b.id.serverID(), b.o.RaftAddress),
	}}}
	sink, err := b.snaps.Create(raft.SnapshotVersionMax, b.applied.Index, b.applied.Term, conf, b.applied.Index, nil)
	if err != nil {
		return err
	}
	k := sink.(*snapshotSink)
	if err := store.Checkpoint(k.history()); err != nil {
		return errors.Join(err, k.Cancel())
	}
	k.meta.AppliedIndex, k.meta.CheckpointIndex = b.applied.Index, b.applied.Index
	k.meta.Received = true // the log never held what it stands for
	return k.Close()
}

// makeLog begins the log behind the snapshot.
func (b *fromBackup) makeLog() (err error) {
	log, err := tail.Open(tail.Options{Dir: b.path("tail"), Logger: b.o.Logger})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, log.Close()) }()
	m := b.snaps.newest()
	if m == nil {
		return nil
	}
	logs := &logStore{tail: log, snaps: b.snaps, log: b.o.Logger, cache: newEntryCache(-1), step: func(string) error { return nil }}
	if _, err := logs.follow(m); err != nil {
		return err
	}
	b.id.LogBegun = true
	return nil
}

// makeTerm makes the term of the backup's end the newest one: the new cluster begins with the
// next, as if that one's leader had been lost.
func (b *fromBackup) makeTerm() (err error) {
	store, err := stable.Open(stable.Options{Path: b.path("raft.db")})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	if b.applied.Index == 0 {
		return nil
	}
	return store.SetUint64([]byte("CurrentTerm"), b.applied.Term)
}

// finish takes the mark away.
func (b *fromBackup) finish() error {
	if err := os.Remove(b.path(restoringFile)); err != nil {
		return err
	}
	return syncDir(b.o.Dir)
}

// undo leaves an empty directory behind a backup that could not be restored.
func (b *fromBackup) undo() error {
	if err := b.empty(); err != nil {
		return err
	}
	if err := os.Remove(b.path(restoringFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return syncDir(b.o.Dir)
}
