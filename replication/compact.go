package replication

import (
	"errors"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/tidemark-db/tidemark/wal/history"
)

// fsmSnapshot is a snapshot about to be taken; the work is done in Persist, so that Apply
// goes on meanwhile.
type fsmSnapshot struct {
	store *history.Store
	// pin keeps the store open, should another node's history take its place meanwhile.
	pin     *history.View
	applied uint64 // the last command applied
	log     *zap.Logger
}

// Snapshot is called by raft between two ApplyBatch calls. After a fatal error those apply
// nothing any more, which raft does not know: a snapshot would claim what it does not hold.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	if f.s.failed() {
		return nil, errors.New("no snapshot is taken after the storage failed")
	}
	return &fsmSnapshot{store: f.s.store, pin: f.s.store.View(), applied: f.s.proc.applied.Index, log: f.s.log}, nil
}

func (n *fsmSnapshot) Persist(sink raft.SnapshotSink) error {
	k := sink.(*snapshotSink)
	began := time.Now()
	if err := n.store.Checkpoint(filepath.Join(k.dir, "history")); err != nil {
		return err
	}
	k.meta.AppliedIndex, k.meta.CheckpointIndex = n.applied, n.store.Applied().Index
	n.log.Info("snapshot taken", zap.Uint64("index", k.meta.Index), zap.Uint64("term", k.meta.Term), zap.Duration("took", time.Since(began)))
	return nil
}

func (n *fsmSnapshot) Release() { n.pin.Release() }

// compactEvery is how often the size of the tail is looked at.
const compactEvery = time.Second

// compact takes a snapshot whenever the tail has grown by SnapshotLogBytes since the last
// one, and lets raft truncate all but TrailingLogBytes. Every node does so for itself. It
// ends with the shard.
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
		if s.failed() || s.logs.sinceSnapshot() < s.opts.SnapshotLogBytes {
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

// minTrailing is how many entries always stay, however large: a follower that is a little
// behind needs no snapshot.
const minTrailing = 16

// snapshot takes one now. Raft counts trailing entries; here they are bytes, so the count is
// set first.
func (s *Shard) snapshot() error {
	last, err := s.tail.LastIndex()
	if err != nil {
		return err
	}
	return s.snapshotKeeping(max(minTrailing, last+1-s.tail.Newest(s.opts.TrailingLogBytes)))
}
