package replication

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
)

// snapshotStore keeps raft's snapshots: hard-linked checkpoints of the history, each in a
// directory of its own, complete once it has its final name:
//
//	snapshots/<index>-<term>/meta.json
//	snapshots/<index>-<term>/history/
//
// The checkpoint may be ahead of the snapshot's index, because Apply goes on while it is
// taken; Apply skips what the history already has. Only the newest one is kept, and those
// that are being sent to another node until they are sent.
type snapshotStore struct {
	dir  string
	opts snapshotOptions
	// removeAll is os.RemoveAll, but for tests that crash in it.
	removeAll func(path string) error
	now       func() time.Time

	mu sync.Mutex
	// newestMeta is the newest complete snapshot; nil = there is none.
	newestMeta *snapshotMeta
	// newestAt is when that came to be complete.
	newestAt time.Time
	lentOut  map[string]*loan
	sinks    int // numbers temporary directories
}

// snapshotOptions are what a snapshotStore needs from its shard.
type snapshotOptions struct {
	log *zap.Logger
	// identity names this node's cluster and timeline.
	identity func() *identity
	// room is how many bytes a snapshot from another node may take; negative = any.
	room func() int64
	// meter counts snapshots; nil makes an own one.
	meter *meter
}

// snapshotMeta is what meta.json says.
type snapshotMeta struct {
	raft.SnapshotMeta
	Format    int    `json:"format"`
	ClusterID string `json:"cluster_id"`
	Timeline  string `json:"timeline"`
	// AppliedIndex is the last command that the snapshot stands for. Its own index may be
	// ahead of that by entries of raft's own.
	AppliedIndex uint64 `json:"applied_index"`
	// CheckpointIndex is how far the checkpoint may be ahead: its m/applied is from
	// AppliedIndex to this.
	CheckpointIndex uint64 `json:"checkpoint_index"`
	// Received: it was sent by another node, so that the log of this one does not
	// necessarily reach it. Pending: it is not restored yet, and the log does not follow on
	// it yet.
	Received bool `json:"received"`
	Pending  bool `json:"pending"`
}

const (
	snapshotMetaFile = "meta.json"
	snapshotTmp      = ".tmp"
	snapshotFormat   = 1
)

// loan is a snapshot that is being read, or was until recently.
type loan struct {
	meta    *snapshotMeta
	readers int
	// superseded: it is to be removed when the last reader closes.
	superseded bool
	until      time.Time // see lentAfter; set when the last reader has closed
}

// lentAfter is how long the log behind a snapshot is kept after it was sent, so that the node
// that has it can go on from there.
const lentAfter = time.Minute

// lentSnapshots bounds that log: it may grow until so many more snapshots have been taken.
const lentSnapshots = 4

var _ raft.SnapshotStore = (*snapshotStore)(nil)

// openSnapshots opens the store and removes what a crash left half done.
func openSnapshots(dir string, o snapshotOptions) (*snapshotStore, error) {
	if o.meter == nil {
		o.meter = newMeter()
	}
	if err := makeDir(dir); err != nil {
		return nil, fmt.Errorf("snapshots: %w", err)
	}
	s := &snapshotStore{dir: dir, opts: o, removeAll: os.RemoveAll, now: time.Now, lentOut: make(map[string]*loan)}
	if err := s.load(); err != nil {
		return nil, fmt.Errorf("snapshots: %w", err)
	}
	return s, nil
}

func (s *snapshotStore) load() error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	var all []*snapshotMeta
	for _, e := range entries {
		switch {
		case !e.IsDir():
		case strings.HasSuffix(e.Name(), snapshotTmp):
			if err := os.RemoveAll(filepath.Join(s.dir, e.Name())); err != nil {
				return err
			}
		default:
			m, err := s.readMeta(e.Name())
			if err != nil {
				return err
			}
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b *snapshotMeta) int { return compareIndex(b.Index, a.Index) })
	for i, m := range all {
		if i == 0 {
			info, err := os.Stat(filepath.Join(s.dir, m.ID, snapshotMetaFile))
			if err != nil {
				return err
			}
			s.newestMeta, s.newestAt = m, info.ModTime()
			continue
		}
		if err := s.remove(m.ID); err != nil {
			return err
		}
	}
	return nil
}

func compareIndex(a, b uint64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (s *snapshotStore) readMeta(id string) (*snapshotMeta, error) {
	path := filepath.Join(s.dir, id, snapshotMetaFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: snapshot %s: %w", ErrDamaged, id, err)
	}
	m := &snapshotMeta{}
	if err := json.Unmarshal(b, m); err != nil || m.ID != id {
		return nil, fmt.Errorf("%w: %s (names snapshot %q, error %v): move the directory away if the log still reaches back to the snapshot before it, else restore from a backup", ErrDamaged, path, m.ID, err)
	}
	if m.Format != snapshotFormat {
		return nil, fmt.Errorf("%s has format %d, this version reads %d: start the version that wrote it", path, m.Format, snapshotFormat)
	}
	return m, nil
}

func (s *snapshotStore) writeMeta(dir string, m *snapshotMeta) error {
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return writeFileDurably(filepath.Join(dir, snapshotMetaFile), append(b, '\n'))
}

// newest returns the newest complete snapshot, nil if there is none. It must not be changed.
func (s *snapshotStore) newest() *snapshotMeta {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newestMeta
}

// age returns the newest snapshot and when it was complete; nil if there is none.
func (s *snapshotStore) age() (*snapshotMeta, time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.newestMeta, s.newestAt
}

// List returns the newest snapshot, if there is one.
func (s *snapshotStore) List() ([]*raft.SnapshotMeta, error) {
	m := s.newest()
	if m == nil {
		return nil, nil
	}
	list := m.SnapshotMeta
	return []*raft.SnapshotMeta{&list}, nil
}

// historyDir is where a snapshot's checkpoint is.
func (s *snapshotStore) historyDir(id string) string { return filepath.Join(s.dir, id, "history") }

// Open begins to read the newest snapshot, which stays until the reader is closed.
func (s *snapshotStore) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	s.mu.Lock()
	m := s.newestMeta
	if m == nil || m.ID != id {
		s.mu.Unlock()
		return nil, nil, fmt.Errorf("snapshot %s is not the newest any more", id)
	}
	l := s.lentOut[id]
	if l == nil {
		l = &loan{meta: m}
		s.lentOut[id] = l
	}
	l.readers++
	s.mu.Unlock()
	r := &snapshotStream{meta: m, dir: s.historyDir(id), onClose: func() { s.giveBack(l) }, meter: s.opts.meter}
	var err error
	if r.files, err = checkpointFiles(r.dir); err == nil {
		r.pending, err = streamHeader(m.transferInfo(), r.files)
	}
	if size := streamSize(r.pending, r.files); err == nil && size != m.Size {
		err = fmt.Errorf("%w: snapshot %s: expected files that make %d bytes to send, found %d", ErrDamaged, id, m.Size, size)
	}
	if err != nil {
		return nil, nil, errors.Join(err, r.Close())
	}
	list := m.SnapshotMeta
	return &list, r, nil
}

// giveBack ends a reader, and removes the snapshot if it was kept for that alone.
func (s *snapshotStore) giveBack(l *loan) {
	s.mu.Lock()
	l.readers--
	l.until = s.now().Add(lentAfter)
	last := l.readers == 0 && l.superseded
	s.mu.Unlock()
	if last {
		if err := s.remove(l.meta.ID); err != nil {
			s.opts.log.Error("a snapshot that is not needed any more could not be removed", zap.String("id", l.meta.ID), zap.Error(err))
		}
	}
}

// lent returns the lowest index of a snapshot that another node has, or is getting, and
// whose log it will ask for next.
func (s *snapshotStore) lent() (index uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for id, l := range s.lentOut {
		if l.readers == 0 && now.After(l.until) {
			delete(s.lentOut, id)
			continue
		}
		if !ok || l.meta.Index < index {
			index, ok = l.meta.Index, true
		}
	}
	return index, ok
}

// lentCount is how many snapshots are being sent, or were until recently.
func (s *snapshotStore) lentCount() int {
	s.lent()
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.lentOut)
}

// supersede makes a complete snapshot the newest. It returns the id of the one before if
// nobody needs that now. mu is held.
func (s *snapshotStore) supersede(m *snapshotMeta) (gone string) {
	old := s.newestMeta
	s.newestMeta, s.newestAt = m, s.now()
	if old == nil {
		return ""
	}
	if l := s.lentOut[old.ID]; l != nil && l.readers > 0 {
		l.superseded = true
		return ""
	}
	return old.ID
}

// settle records that the newest snapshot is restored, and that the log follows on it.
func (s *snapshotStore) settle(m *snapshotMeta) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	settled := *m
	settled.Pending = false
	if err := s.writeMeta(filepath.Join(s.dir, m.ID), &settled); err != nil {
		return err
	}
	s.newestMeta = &settled
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

func (m *snapshotMeta) transferInfo() *transferInfo {
	return &transferInfo{
		ClusterID: m.ClusterID, Timeline: m.Timeline, Index: m.Index, Term: m.Term,
		AppliedIndex: m.AppliedIndex, CheckpointIndex: m.CheckpointIndex,
	}
}
