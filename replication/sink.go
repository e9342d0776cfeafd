package replication

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
)

// snapshotSink is a snapshot that is being taken here, into its directory by fsmSnapshot, or
// received from another node, through Write.
type snapshotSink struct {
	store *snapshotStore
	dir   string
	meta  snapshotMeta
	recv  *receiver // nil until the first Write
	began time.Time // of that
	// there: this snapshot is there already; what comes is dropped.
	there bool
	ended bool
}

// errOlderSnapshot refuses a snapshot that would take the node back.
var errOlderSnapshot = errors.New("this node has a newer snapshot")

// Create begins a snapshot; it appears under its final name when the sink is closed. One that
// is older than the newest is refused: the log of this node need not reach back that far.
func (s *snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := fmt.Sprintf("%020d-%d", index, term)
	if err := s.older(index, id); err != nil {
		return nil, err
	}
	s.sinks++
	k := &snapshotSink{store: s, dir: filepath.Join(s.dir, fmt.Sprintf("%s.%d%s", id, s.sinks, snapshotTmp)), meta: snapshotMeta{
		SnapshotMeta: raft.SnapshotMeta{
			Version: version, ID: id, Index: index, Term: term, Configuration: conf, ConfigurationIndex: confIndex,
		},
		Format: snapshotFormat, ClusterID: s.opts.identity().ClusterID, Timeline: s.opts.identity().Timeline,
	}}
	k.there = s.newestMeta != nil && s.newestMeta.ID == id
	return k, os.Mkdir(k.dir, 0o755)
}

// older refuses a snapshot of an index that the newest one covers, unless it is the same one.
// mu is held.
func (s *snapshotStore) older(index uint64, id string) error {
	if m := s.newestMeta; m != nil && m.ID != id && m.Index >= index {
		return fmt.Errorf("%w: expected one later than %s, found %s", errOlderSnapshot, m.ID, id)
	}
	return nil
}

// ID names the snapshot.
func (k *snapshotSink) ID() string { return k.meta.ID }

// Write takes the next piece of the stream of another node's snapshot.
func (k *snapshotSink) Write(p []byte) (int, error) {
	if k.there {
		return len(p), nil
	}
	if k.recv == nil {
		if err := os.Mkdir(k.history(), 0o755); err != nil {
			return 0, err
		}
		k.began = time.Now()
		k.meta.Received, k.meta.Pending = true, true
		k.recv = newReceiver(k.accept, func(name string) (durableFile, error) {
			return os.OpenFile(filepath.Join(k.history(), name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
		})
	}
	return k.recv.Write(p)
}

// history is the directory of the checkpoint.
func (k *snapshotSink) history() string { return filepath.Join(k.dir, "history") }

// accept looks at what another node says of its snapshot.
func (k *snapshotSink) accept(info *transferInfo, bytes int64) error {
	m := &k.meta
	if info.ClusterID != m.ClusterID || info.Timeline != m.Timeline {
		return fmt.Errorf("refused a snapshot of another cluster: expected cluster %s on timeline %s, found cluster %s on timeline %s", m.ClusterID, m.Timeline, info.ClusterID, info.Timeline)
	}
	if info.Index != m.Index || info.Term != m.Term || info.AppliedIndex > info.CheckpointIndex {
		return fmt.Errorf("%w: expected a snapshot of entry %d of term %d, found one of entry %d of term %d whose checkpoint ends between entries %d and %d",
			errBadStream, m.Index, m.Term, info.Index, info.Term, info.AppliedIndex, info.CheckpointIndex)
	}
	if room := k.store.opts.room(); room >= 0 && bytes > room {
		return fmt.Errorf("refused a snapshot of %d bytes: the disk has room for %d above the reserve; free some, and it will be sent again", bytes, room)
	}
	m.AppliedIndex, m.CheckpointIndex = info.AppliedIndex, info.CheckpointIndex
	return nil
}

// Cancel removes what was written.
func (k *snapshotSink) Cancel() error {
	if k.ended {
		return nil
	}
	k.ended = true
	if k.recv != nil {
		_ = k.recv.finish()
		k.store.opts.meter.received(k.began, false)
	}
	return os.RemoveAll(k.dir)
}

// Close makes the snapshot durable under its name, and then removes the older ones. If it is
// not whole, nothing is left of it.
func (k *snapshotSink) Close() error {
	if k.ended {
		return nil
	}
	if err := k.complete(); err != nil {
		return errors.Join(err, k.Cancel())
	}
	k.ended = true
	if k.recv != nil {
		k.store.opts.meter.received(k.began, true)
	}
	return nil
}

func (k *snapshotSink) complete() error {
	if k.there {
		// The log may rest on it already: it stays.
		return os.RemoveAll(k.dir)
	}
	if k.recv != nil {
		if err := k.recv.finish(); err != nil {
			return err
		}
		if err := syncDir(k.history()); err != nil {
			return err
		}
	}
	files, err := checkpointFiles(k.history())
	if err != nil {
		return err
	}
	header, err := streamHeader(k.meta.transferInfo(), files)
	if err != nil {
		return err
	}
	k.meta.Size = streamSize(header, files)
	if err := k.store.writeMeta(k.dir, &k.meta); err != nil {
		return err
	}
	gone, err := k.rename()
	if err != nil || gone == "" {
		return err
	}
	return k.store.remove(gone)
}

// rename gives the snapshot its final name. It returns the id of one to remove.
func (k *snapshotSink) rename() (gone string, err error) {
	s := k.store
	s.mu.Lock()
	defer s.mu.Unlock()
	// Another one may have come in between: raft takes snapshots while it receives one.
	if err := s.older(k.meta.Index, k.meta.ID); err != nil {
		return "", err
	}
	if s.newestMeta != nil && s.newestMeta.ID == k.meta.ID {
		return "", os.RemoveAll(k.dir)
	}
	if err := os.Rename(k.dir, filepath.Join(s.dir, k.meta.ID)); err != nil {
		return "", err
	}
	if err := syncDir(s.dir); err != nil {
		return "", err
	}
	m := k.meta
	return s.supersede(&m), nil
}
