package replication

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/record"
	"github.com/tidemark-db/tidemark/wal/tail"
)

// What was trimmed or deleted is left in four places: the history's files, the checkpoint of the
// newest snapshot, which shares them, the log in front of that snapshot, and the log's segments,
// which hold deleted entries until all of a segment's are. Compact goes through them in this
// order, because each keeps the next one from going.

// Compact removes from this node's disk what was trimmed or deleted before the call, and says
// how many bytes its directory took before and after. What it could not remove, and why, is in
// the response. One runs at a time; another one is refused with 11000.
func (s *Shard) Compact(ctx context.Context) (*pb.CompactResponse, error) {
	ctx, end, err := s.beginCompact(ctx)
	if err != nil {
		return nil, err
	}
	defer end()
	before, err := dirBytes(s.opts.Dir)
	if err != nil {
		return nil, s.compactError(ctx, err)
	}
	s.log.Info("compacting on demand", zap.Uint64("bytes", before))
	began := time.Now()
	if err := s.logNothing(ctx); err != nil {
		return nil, s.compactError(ctx, err)
	}
	s.mu.Lock()
	store := s.store
	s.mu.Unlock()
	left, err := store.Compact(ctx)
	if err != nil {
		return nil, s.compactError(ctx, err)
	}
	more, err := s.compactLog()
	if err != nil {
		return nil, s.compactError(ctx, err)
	}
	left = append(left, more...)
	after, err := dirBytes(s.opts.Dir)
	if err != nil {
		return nil, s.compactError(ctx, err)
	}
	s.log.Info("compacted on demand", zap.Uint64("bytes_before", before), zap.Uint64("bytes_after", after),
		zap.Duration("took", time.Since(began)), zap.Strings("incomplete", left))
	return &pb.CompactResponse{NodeId: s.identity().NodeID, BytesBefore: before, BytesAfter: after, Incomplete: left}, nil
}

// beginCompact keeps the files open until end is called. The context ends with the shard.
func (s *Shard) beginCompact(ctx context.Context) (_ context.Context, end func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopping || s.raft == nil:
		// Not a 2011: no other node can do it in this one's place.
		return nil, nil, api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY, "this node is stopping, or not a member of a cluster yet: nothing was done").After(retryCompact)
	case s.compacting:
		return nil, nil, api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY, "a compaction is running already: nothing was done, ask again when it has ended").After(retryCompact)
	}
	s.compacting = true
	s.wg.Add(1)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { // ends with the compaction
		select {
		case <-s.stopped:
			cancel()
		case <-done:
		}
	}()
	return ctx, func() {
		close(done)
		cancel()
		s.mu.Lock()
		s.compacting = false
		s.mu.Unlock()
		s.wg.Done()
	}, nil
}

func (s *Shard) compactError(ctx context.Context, err error) error {
	if e := (*api.Error)(nil); errors.As(err, &e) {
		return err
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return s.damaged(fmt.Errorf("compact: %w", err))
}

// logNothing has the leader log an entry without requests. The newest snapshot may stand at the
// newest entry, and is only replaced by one of a later index.
func (s *Shard) logNothing(ctx context.Context) error {
	s.mu.Lock()
	t := s.tenure
	err := s.leading()
	s.mu.Unlock()
	if err != nil || t == nil {
		return nil // the leader does that
	}
	logged := make(chan error, 1)
	wait := t.group.propose(record.AppendEntryHeader(nil, t.term, 0, 0))
	go func() { logged <- wait() }() // ends with raft's future
	select {
	case err := <-logged:
		if err != nil {
			s.log.Warn("no entry could be logged for a new snapshot", zap.Error(err))
		}
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// compactLog takes a snapshot, of the compacted history, and drops the log in front of it.
func (s *Shard) compactLog() (left []string, err error) {
	group := s.raftGroup()
	if group == nil {
		return []string{"raft is being started again: the log and the snapshot are as they were"}, nil
	}
	was := s.snaps.newest()
	if was == nil || was.Index < group.raft.AppliedIndex() {
		// One entry, for a log that raft empties looks like one that it rolls back.
		if err := s.snapshotKeeping(1); err != nil {
			return nil, err
		}
	}
	now := s.snaps.newest()
	if now == nil || was != nil && now.ID == was.ID {
		left = append(left, "the newest snapshot stands at the newest log entry, and is replaced after the next one: compact the leader too, then this node again")
	}
	if index, lent := s.snaps.lent(); lent {
		left = append(left, fmt.Sprintf("a snapshot of log entry %d is being sent to another node, or was until a minute ago, and with it the log behind it is kept", index))
	}
	switch err := s.tail.Rewrite(); {
	case errors.Is(err, tail.ErrTooLong):
		left = append(left, err.Error()+": compact again once the next snapshot has shortened it")
	case errors.Is(err, tail.ErrNoRoom):
		left = append(left, err.Error()+": compact again once there is")
	case err != nil:
		return nil, err
	}
	if first, err := s.tail.FirstIndex(); err != nil {
		return nil, err
	} else if now != nil && first != now.Index {
		left = append(left, fmt.Sprintf("the log still holds entries %d to %d in front of the snapshot", first, now.Index-1))
	}
	return left, nil
}

// snapshotKeeping takes a snapshot now and leaves so many entries in front of it in the log.
func (s *Shard) snapshotKeeping(trailing uint64) error {
	r := s.raftGroup().raft
	conf := r.ReloadableConfig()
	conf.TrailingLogs = trailing
	if err := r.ReloadConfig(conf); err != nil {
		return err
	}
	began := time.Now()
	err := r.Snapshot().Error()
	s.meter.took(began, err)
	if errors.Is(err, raft.ErrNothingNewToSnapshot) {
		return nil
	}
	return err
}

// retryCompact is when somebody whose compaction was refused may ask again.
const retryCompact = 10 * time.Second

// dirBytes is what the files below a directory take, each counted once however many names it
// has: a snapshot shares its files with the history.
func dirBytes(dir string) (total uint64, err error) {
	seen := map[fileID]bool{}
	err = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var info fs.FileInfo
			if info, err = d.Info(); err == nil {
				if id, ok := idOf(info); !ok || !seen[id] {
					seen[id] = true
					total += uint64(info.Size())
				}
			}
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed meanwhile
		}
		return err
	})
	return total, err
}
