package replication

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/mark"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
	"github.com/tidemark-db/tidemark/wal/stable"
	"github.com/tidemark-db/tidemark/wal/tail"
)

// When a client should ask again.
const (
	retrySoon = 50 * time.Millisecond
	retryBusy = 100 * time.Millisecond
)

// Options are the settings of a Shard. Zero values mean the default.
type Options struct {
	// Dir is the shard's directory; it is created if it does not exist.
	Dir string
	// NodeID names this node in its cluster; default n1.
	NodeID string
	// AdvertiseAddress is what NotLeader tells clients about this node.
	AdvertiseAddress string
	// Shard is the shard's number; 0 today.
	Shard  uint32
	Logger *zap.Logger

	// MaxInFlightBytes bounds what is admitted and not decided; default 64 MiB. Above: 2012.
	MaxInFlightBytes int64
	// MaxOutstandingEntries is how many log entries are proposed at once; default 2.
	MaxOutstandingEntries int
	// HeadCacheBytes and MarkCacheBytes bound the two caches of heads and the two of marks
	// (admission's and Apply's), half each; negative = off. Default 64 and 32 MiB.
	HeadCacheBytes, MarkCacheBytes int64
	// BlockCacheBytes and MemTableBytes are the history's; default 256 and 64 MiB.
	BlockCacheBytes, MemTableBytes int64
	// SegmentBytes is the size of the tail's files; default 4 MiB.
	SegmentBytes int
	// SnapshotLogBytes is how much log may stand behind the newest snapshot before the next
	// one is taken; default 256 MiB. TrailingLogBytes is how much stays after it; default 64 MiB.
	SnapshotLogBytes, TrailingLogBytes int64
	// MinFreeDiskBytes is the reserve below which writes are refused with 2018; default
	// 256 MiB, negative = none.
	MinFreeDiskBytes int64
	// HeartbeatTimeout and ElectionTimeout are raft's; default 50 ms with one voter, which
	// has nobody to wait for.
	HeartbeatTimeout, ElectionTimeout time.Duration

	// Clock stamps committed_at; default time.Now. Nothing is ordered by it.
	Clock func() time.Time
	// FreeDisk returns the bytes free for this process where Dir is; default statfs.
	FreeDisk func(dir string) (int64, error)
	// OnSync is called after each flush of the tail.
	OnSync func(d time.Duration, bytes int)
	// Hooks are fault points for tests.
	Hooks Hooks
}

// Hooks are fault points. Nil functions do nothing.
type Hooks struct {
	// BeforePropose runs in the batcher before it hands an entry to raft; while it blocks,
	// everything admitted stays in flight.
	BeforePropose func()
	// Propose, if set, stands between the batcher and raft: it runs in the batcher, may call
	// next, which hands the entry to raft, and returns what waits for the entry's fate,
	// next's own answer or another.
	Propose func(next func() (wait func() error)) (wait func() error)
}

func (o *Options) setDefaults() {
	def := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	def(&o.MaxInFlightBytes, 64<<20)
	def(&o.HeadCacheBytes, 64<<20)
	def(&o.MarkCacheBytes, 32<<20)
	def(&o.BlockCacheBytes, 256<<20)
	def(&o.MemTableBytes, 64<<20)
	def(&o.SnapshotLogBytes, 256<<20)
	def(&o.TrailingLogBytes, 64<<20)
	def(&o.MinFreeDiskBytes, 256<<20)
	if o.NodeID == "" {
		o.NodeID = "n1"
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.MaxOutstandingEntries == 0 {
		o.MaxOutstandingEntries = 2
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 4 << 20
	}
	if o.HeartbeatTimeout == 0 {
		o.HeartbeatTimeout = 50 * time.Millisecond
	}
	if o.ElectionTimeout == 0 {
		o.ElectionTimeout = o.HeartbeatTimeout
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.FreeDisk == nil {
		o.FreeDisk = freeDisk
	}
}

// Shard is one replicated log with its history, marks and raft group. Everything that a
// node holds of one shard belongs to its Shard; nothing is global.
type Shard struct {
	opts Options
	log  *zap.Logger
	id   identity

	lock   *dirLock
	tail   *tail.Log
	stable *stable.Store
	store  *history.Store
	snaps  *snapshotStore
	raft   *raft.Raft
	disk   *diskWatch
	group  groupBox

	// park, if not nil, stands in for the waiting of calls: the simulation steers it.
	park func(ctx context.Context, done <-chan struct{}) bool

	// Used by Apply's goroutine alone.
	proc     *processor
	results  []entryResult
	finished []*pending

	mu sync.Mutex
	// view is the published state: what admission judges against and reads see.
	view *history.View
	// cache is what admission knows of view.
	cache *mark.Cache
	// tenure is nil unless this node leads.
	tenure *tenure
	// lastStamp makes committed_at non-decreasing.
	lastStamp int64
	// lastTicket numbers proposals over all tenures: raft's notices of leadership can come so
	// late that two tenures are of one term, and the second must not take the first's entries
	// for its own.
	lastTicket uint64
	stopping   bool
	closed     bool // the files are closed; view is no longer held
	// progressWait, if not nil, is closed when a step is published or something in flight
	// ends without one.
	progressWait chan struct{}
	// leaderWait is closed at the next change of leadership or readiness.
	leaderWait chan struct{}

	failure  atomic.Bool
	fatalErr chan error
	stopped  chan struct{} // closed by Stop
	stopOnce sync.Once
	wg       sync.WaitGroup
}

// Open opens the shard in o.Dir, or founds it, and starts its raft node. The shard takes
// writes once Leading says that it is ready. Errors name the file and what to do; after
// ErrStorage the process must end.
func Open(o Options) (*Shard, error) {
	o.setDefaults()
	s := &Shard{
		opts: o, log: o.Logger,
		cache:      mark.NewCache(o.HeadCacheBytes/2, o.MarkCacheBytes/2),
		leaderWait: make(chan struct{}),
		fatalErr:   make(chan error, 1),
		stopped:    make(chan struct{}),
	}
	// After a fatal error Pebble stops the goroutine that met it for good, inside its own Open
	// too: on a full disk that would be for ever. This goroutine ends with open, or with the
	// process, which has to end then.
	opened := make(chan error, 1)
	go func() { opened <- s.open() }()
	select {
	case err := <-opened:
		if err != nil {
			return nil, errors.Join(err, s.closeFiles(false))
		}
		return s, nil
	case err := <-s.fatalErr:
		return nil, fmt.Errorf("%w: %w", ErrStorage, err)
	}
}

// ErrStorage is returned by Open when the storage failed in such a way that files stay open:
// the process must end.
var ErrStorage = errors.New("the storage failed while the data directory was opened")

func (s *Shard) open() (err error) {
	o := s.opts
	if err := makeDir(o.Dir); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if s.lock, err = lockDir(o.Dir); err != nil {
		return err
	}
	if s.id, err = loadIdentity(o.Dir, o.NodeID); err != nil {
		return err
	}
	if s.tail, err = tail.Open(tail.Options{Dir: s.path("tail"), SegmentSize: o.SegmentBytes, OnFatal: s.fatal, OnSync: o.OnSync, Logger: o.Logger}); err != nil {
		return err
	}
	if s.stable, err = stable.Open(stable.Options{Path: s.path("raft.db"), OnFatal: s.fatal}); err != nil {
		return err
	}
	if err := s.checkTerm(); err != nil {
		return err
	}
	if s.snaps, err = openSnapshots(s.path("snapshots"), s.log); err != nil {
		return err
	}
	if err := s.openHistory(); err != nil {
		return err
	}
	s.view = s.store.View()
	s.proc = newProcessor(o.Shard, s.store, mark.NewCache(o.HeadCacheBytes-o.HeadCacheBytes/2, o.MarkCacheBytes-o.MarkCacheBytes/2))
	s.proc.applied.Timeline = s.id.Timeline
	s.lastStamp = s.proc.applied.CommittedAt
	if s.disk, err = watchDisk(o, s.stopped, &s.wg); err != nil {
		return err
	}
	if err := s.startRaft(); err != nil {
		return err
	}
	s.wg.Add(1)
	go s.compact()
	return nil
}

func (s *Shard) path(name string) string { return filepath.Join(s.opts.Dir, name) }

// openHistory opens the history, first taking it from the newest snapshot if it is behind
// that, and checks that the tail reaches back to where it ends.
func (s *Shard) openHistory() error {
	open := func() (err error) {
		s.store, err = history.Open(history.Options{
			Dir: s.path("history"), FS: vfs.Default, BlockCacheBytes: s.opts.BlockCacheBytes,
			MemTableBytes: s.opts.MemTableBytes, Logger: s.log, OnFatal: s.fatal,
		})
		return err
	}
	if err := removeLeftovers(s.path("history")); err != nil {
		return fmt.Errorf("history: %w", err)
	}
	if err := open(); err != nil {
		return err
	}
	newest, err := s.snaps.newest()
	if err != nil {
		return err
	}
	if newest != nil && s.store.Applied().Index < newest.Index {
		s.log.Warn("the history is behind the newest snapshot and is taken from it",
			zap.Uint64("applied_index", s.store.Applied().Index), zap.Uint64("snapshot_index", newest.Index))
		if err := s.store.Close(); err != nil {
			return err
		}
		s.store = nil
		if err := s.snaps.restoreHistory(newest, s.path("history")); err != nil {
			return err
		}
		if err := open(); err != nil {
			return err
		}
	}
	applied := s.store.Applied()
	if t := applied.Timeline; t != "" && t != s.id.Timeline {
		return fmt.Errorf("%w: %s holds timeline %s, %s says %s: the files are of different clusters; put back the ones that belong together", ErrDamaged, s.path("history"), t, s.path(identityFile), s.id.Timeline)
	}
	first, err := s.tail.FirstIndex()
	if err != nil {
		return err
	}
	last, err := s.tail.LastIndex()
	if err != nil {
		return err
	}
	var snapshot uint64
	if newest != nil {
		snapshot = newest.Index
	}
	switch {
	case first > max(applied.Index, snapshot)+1 || (first > 1 && snapshot+1 < first):
		return fmt.Errorf("%w: %s begins at entry %d, but the history ends at entry %d and the newest snapshot at %d: entries between them are missing; put the missing files back or restore from a backup", ErrDamaged, s.path("tail"), first, applied.Index, snapshot)
	case last < applied.Index, last == 0 && snapshot > 0:
		return fmt.Errorf("%w: %s ends at entry %d, but %s has applied entry %d: acknowledged entries are missing from the tail; put its files back or restore from a backup", ErrDamaged, s.path("tail"), last, s.path("history"), applied.Index)
	}
	return nil
}

// checkTerm refuses a term and vote older than the log's newest entry: leading in a term
// that was used before would make two entries of one term and index.
func (s *Shard) checkTerm() error {
	last, err := s.tail.LastIndex()
	if err != nil || last <= 1 {
		return err // at most the entry that bootstrap writes before there is a term
	}
	var l raft.Log
	if err := s.tail.GetLog(last, &l); err != nil {
		return err
	}
	term, err := s.stable.GetUint64([]byte("CurrentTerm"))
	if err != nil && err.Error() != "not found" {
		return err
	}
	if term < l.Term {
		return fmt.Errorf("%w: %s says that the current term is %d, but %s holds an entry of term %d: the term and vote were lost; put the file back, or restore from a backup", ErrDamaged, s.path("raft.db"), term, s.path("tail"), l.Term)
	}
	return nil
}

// currentView returns the published view, acquired; nil once the shard is closed.
func (s *Shard) currentView() *history.View {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.acquireView()
}

// acquireView is currentView with s.mu held.
func (s *Shard) acquireView() *history.View {
	if s.closed {
		return nil
	}
	s.view.Acquire()
	return s.view
}

// fatal reports an error after which the process must end. Only the first one counts.
func (s *Shard) fatal(err error) {
	if err == nil || !s.failure.CompareAndSwap(false, true) {
		return
	}
	s.log.Error("storage failed; the process must end", zap.Error(err))
	s.fatalErr <- err
}

func (s *Shard) failed() bool { return s.failure.Load() }

// Fatal delivers the first error that must end the process.
func (s *Shard) Fatal() <-chan error { return s.fatalErr }

// damaged is the answer to a call that met an error in the history.
func (s *Shard) damaged(err error) error {
	s.log.Error("a read of the history failed", zap.Error(err))
	if errors.Is(err, record.ErrCorrupt) {
		return api.Corruptf("%v", err)
	}
	return api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "%w", err)
}

// Stop stops admitting, waits until what is in flight is answered or ctx ends, and closes
// the shard with everything flushed, so that the next start replays nothing.
func (s *Shard) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	s.leadershipChanged()
	s.mu.Unlock()
	s.drain(ctx)
	return s.close(true)
}

// Abandon closes the shard as a crash would leave it: what waits is answered as unknown,
// and nothing is flushed.
func (s *Shard) Abandon() error { return s.close(false) }

func (s *Shard) drain(ctx context.Context) {
	for {
		s.mu.Lock()
		if t := s.tenure; t == nil || !t.awaited() {
			s.mu.Unlock()
			return
		}
		wait := s.progress()
		s.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return
		}
	}
}

// progress returns a channel that is closed at the next progress. s.mu is held.
func (s *Shard) progress() <-chan struct{} {
	if s.progressWait == nil {
		s.progressWait = make(chan struct{})
	}
	return s.progressWait
}

// progressed wakes who waits for progress. s.mu is held.
func (s *Shard) progressed() {
	if s.progressWait != nil {
		close(s.progressWait)
		s.progressWait = nil
	}
}

func (s *Shard) close(flush bool) (err error) {
	s.stopOnce.Do(func() {
		s.mu.Lock()
		s.stopping = true
		s.mu.Unlock()
		s.endTenure("the node is stopping")
		err = s.raft.Shutdown().Error()
		close(s.stopped)
		s.wg.Wait()
		err = errors.Join(err, s.closeFiles(flush && !s.failed()))
	})
	return err
}

// closeFiles closes what is open; also after a start that failed half way.
func (s *Shard) closeFiles(flush bool) error {
	var errs []error
	if s.raft == nil {
		select {
		case <-s.stopped:
		default:
			close(s.stopped)
		}
		s.wg.Wait()
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	if s.view != nil {
		s.view.Release()
	}
	switch {
	case s.store == nil:
	case flush:
		errs = append(errs, s.store.Close())
	default:
		errs = append(errs, s.store.Abandon())
	}
	if s.tail != nil {
		errs = append(errs, s.tail.Close())
	}
	if s.stable != nil {
		errs = append(errs, s.stable.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.release())
	}
	return errors.Join(errs...)
}
