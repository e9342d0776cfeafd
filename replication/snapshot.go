package replication

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/tidemark-db/tidemark/wal/history"
)

// snapshotStore keeps raft's snapshots: hard-linked checkpoints of the history, each in a
// directory of its own, complete once it has its final name:
//
//	snapshots/<index>-<term>/meta.json
//	snapshots/<index>-<term>/history/
//
// The checkpoint may be ahead of the snapshot's index, because Apply goes on while it is
// taken; Apply skips what the history already has. Only the newest one is kept.
type snapshotStore struct {
	dir string
	log *zap.Logger
	// removeAll is os.RemoveAll, but for tests that crash in it.
	removeAll func(path string) error
}

const (
	snapshotMetaFile = "meta.json"
	snapshotTmp      = ".tmp"
	historyOld       = ".old" // the history that gives way to a checkpoint
)

var _ raft.SnapshotStore = (*snapshotStore)(nil)

// errOneNode is the answer to what raft asks only of a cluster with more than one node.
var errOneNode = errors.New("snapshots are not sent between nodes: this cluster has one node")

// openSnapshots opens the store and removes what a crash left half done.
func openSnapshots(dir string, log *zap.Logger) (*snapshotStore, error) {
	if err := makeDir(dir); err != nil {
		return nil, fmt.Errorf("snapshots: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("snapshots: %w", err)
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), snapshotTmp) {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return nil, fmt.Errorf("snapshots: %w", err)
			}
		}
	}
	return &snapshotStore{dir: dir, log: log, removeAll: os.RemoveAll}, nil
}

// Create begins a snapshot; its files appear under their final name when the sink is closed.
func (s *snapshotStore) Create(version raft.SnapshotVersion, index, term uint64, conf raft.Configuration, confIndex uint64, _ raft.Transport) (raft.SnapshotSink, error) {
	id := fmt.Sprintf("%020d-%d", index, term)
	k := &snapshotSink{store: s, dir: filepath.Join(s.dir, id+snapshotTmp), meta: raft.SnapshotMeta{
		Version: version, ID: id, Index: index, Term: term, Configuration: conf, ConfigurationIndex: confIndex,
	}}
	if err := os.RemoveAll(k.dir); err != nil {
		return nil, err
	}
	return k, os.Mkdir(k.dir, 0o755)
}

// List returns the snapshots, newest first.
func (s *snapshotStore) List() ([]*raft.SnapshotMeta, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("snapshots: %w", err)
	}
	var out []*raft.SnapshotMeta
	for _, e := range entries {
		if !e.IsDir() || strings.HasSuffix(e.Name(), snapshotTmp) {
			continue
		}
		path := filepath.Join(s.dir, e.Name(), snapshotMetaFile)
		b, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("%w: snapshot %s: %w", ErrDamaged, e.Name(), err)
		}
		var m raft.SnapshotMeta
		if err := json.Unmarshal(b, &m); err != nil || m.ID != e.Name() {
			return nil, fmt.Errorf("%w: %s (names snapshot %q, error %v): move the directory away if the log still reaches back to the snapshot before it, else restore from a backup", ErrDamaged, path, m.ID, err)
		}
		out = append(out, &m)
	}
	sort.Slice(out, func(i, j int) bool { return out[i].Index > out[j].Index })
	return out, nil
}

func (s *snapshotStore) newest() (*raft.SnapshotMeta, error) {
	all, err := s.List()
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return all[0], nil
}

// Open would give a snapshot to another node.
func (s *snapshotStore) Open(string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	return nil, nil, errOneNode
}

// restoreHistory replaces the directory at dst by the checkpoint of a snapshot. A crash
// leaves the old one, none, or the new one, each of them whole, and perhaps directories
// that removeLeftovers removes.
func (s *snapshotStore) restoreHistory(m *raft.SnapshotMeta, dst string) error {
	src := filepath.Join(s.dir, m.ID, "history")
	tmp, old := dst+snapshotTmp, dst+historyOld
	if err := removeLeftovers(dst); err != nil {
		return err
	}
	if err := os.Mkdir(tmp, 0o755); err != nil {
		return err
	}
	err := filepath.WalkDir(src, func(path string, d fs.DirEntry, err error) error {
		if err != nil || path == src {
			return err
		}
		rel, err := filepath.Rel(src, path)
		if err != nil {
			return err
		}
		to := filepath.Join(tmp, rel)
		if d.IsDir() {
			return os.Mkdir(to, 0o755)
		}
		// Tables and blob files never change and are shared; the rest is written to.
		if ext := filepath.Ext(path); ext == ".sst" || ext == ".blob" {
			return os.Link(path, to)
		}
		return copyDurably(path, to)
	})
	if err != nil {
		return fmt.Errorf("take the history from snapshot %s: %w", m.ID, err)
	}
	if err := syncDir(tmp); err != nil {
		return err
	}
	if err := os.Rename(dst, old); err != nil {
		return err
	}
	if err := os.Rename(tmp, dst); err != nil {
		return err
	}
	if err := syncDir(filepath.Dir(dst)); err != nil {
		return err
	}
	return removeLeftovers(dst)
}

// removeLeftovers removes what restoreHistory made on its way.
func removeLeftovers(dst string) error {
	return errors.Join(os.RemoveAll(dst+snapshotTmp), os.RemoveAll(dst+historyOld))
}

func copyDurably(from, to string) error {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = io.Copy(dst, src)
	return errors.Join(err, dst.Sync(), dst.Close())
}

// snapshotSink is a snapshot being taken.
type snapshotSink struct {
	store *snapshotStore
	dir   string
	meta  raft.SnapshotMeta
	ended bool
}

// ID names the snapshot.
func (k *snapshotSink) ID() string { return k.meta.ID }

// Write would take a snapshot from another node.
func (k *snapshotSink) Write([]byte) (int, error) { return 0, errOneNode }

// Cancel removes what was written.
func (k *snapshotSink) Cancel() error {
	if k.ended {
		return nil
	}
	k.ended = true
	return os.RemoveAll(k.dir)
}

// Close makes the snapshot durable under its name, and then removes the older ones.
func (k *snapshotSink) Close() error {
	if k.ended {
		return nil
	}
	k.ended = true
	b, err := json.MarshalIndent(&k.meta, "", "  ")
	if err != nil {
		return err
	}
	if err := writeFileDurably(filepath.Join(k.dir, snapshotMetaFile), append(b, '\n')); err != nil {
		return err
	}
	final := filepath.Join(k.store.dir, k.meta.ID)
	if _, err := os.Stat(final); err == nil {
		// Nothing was applied since that one, which the log may rest on already: it stays.
		return os.RemoveAll(k.dir)
	}
	if err := os.Rename(k.dir, final); err != nil {
		return err
	}
	if err := syncDir(k.store.dir); err != nil {
		return err
	}
	all, err := k.store.List()
	if err != nil {
		return err
	}
	for _, m := range all {
		if m.ID != k.meta.ID {
			if err := k.store.remove(m.ID); err != nil {
				return err
			}
		}
	}
	return nil
}

// remove removes a snapshot. It first loses its name, durably: under that, a crash half way
// would leave what looks like a damaged snapshot.
func (s *snapshotStore) remove(id string) error {
	dir := filepath.Join(s.dir, id)
	if err := os.Rename(dir, dir+snapshotTmp); err != nil {
		return err
	}
	if err := syncDir(s.dir); err != nil {
		return err
	}
	return s.removeAll(dir + snapshotTmp)
}

// fsmSnapshot is a snapshot about to be taken; the work is done in Persist, so that Apply
// goes on meanwhile.
type fsmSnapshot struct {
	store *history.Store
	log   *zap.Logger
}

// Snapshot is called by raft between two ApplyBatch calls. After a fatal error those apply
// nothing any more, which raft does not know: a snapshot would claim what it does not hold.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if f.s.failed() {
		return nil, errors.New("no snapshot is taken after the storage failed")
	}
	return &fsmSnapshot{store: f.s.store, log: f.s.log}, nil
}

// Restore would replace the history by another node's.
func (f *fsm) Restore(rc io.ReadCloser) error {
	return errors.Join(errOneNode, rc.Close())
}

func (n *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	k := sink.(*snapshotSink)
	began := time.Now()
	if err := n.store.Checkpoint(filepath.Join(k.dir, "history")); err != nil {
		return err
	}
	n.log.Info("snapshot taken", zap.Uint64("index", k.meta.Index), zap.Uint64("term", k.meta.Term), zap.Duration("took", time.Since(began)))
	return nil
}

func (n *fsmSnapshot) Release() {}

// compactEvery is how often the size of the tail is looked at.
const compactEvery = time.Second

// compact takes a snapshot whenever the tail has grown by SnapshotLogBytes since the last
// one, and lets raft truncate all but TrailingLogBytes. It ends with the shard.
func (s *Shard) compact() {
	defer s.wg.Done()
	ticker := time.NewTicker(compactEvery)
	defer ticker.Stop()
	for {
		select {
		case <-s.stopped:
			return
		case <-ticker.C:
		}
		if s.failed() || s.tail.SizeBytes() < s.opts.SnapshotLogBytes+s.opts.TrailingLogBytes {
			continue
		}
		if err := s.snapshot(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			select {
			case <-s.stopped:
			default:
				s.log.Error("snapshot failed; the log grows until one succeeds", zap.Error(err))
			}
		}
	}
}

// snapshot takes one now. Raft counts trailing entries; here they are bytes, so the count
// is set from the entries' mean size first.
func (s *Shard) snapshot() error {
	first, err := s.tail.FirstIndex()
	if err != nil {
		return err
	}
	last, err := s.tail.LastIndex()
	if err != nil {
		return err
	}
	r := s.raftGroup().raft
	conf := r.ReloadableConfig()
	conf.TrailingLogs = minTrailing
	if size := s.tail.SizeBytes(); size > 0 && last >= first {
		conf.TrailingLogs = max(minTrailing, uint64(float64(last-first+1)*float64(s.opts.TrailingLogBytes)/float64(size)))
	}
	if err := r.ReloadConfig(conf); err != nil {
		return err
	}
	return r.Snapshot().Error()
}

// minTrailing keeps the tail from ever being empty, which would look like a lost one.
const minTrailing = 16
