package replication

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/tidemark-db/tidemark/api"
	peerpb "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/mark"
	"github.com/tidemark-db/tidemark/replication/peer"
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

// Shard is one replicated log with its history, marks and raft group. Everything that a
// node holds of one shard belongs to its Shard; nothing is global.
type Shard struct {
	opts  Options
	log   *zap.Logger
	meter *meter

	// ident is replaced, not changed, under idMu.
	ident    atomic.Pointer[identity]
	idMu     sync.Mutex
	formWake chan struct{} // one token: the directory's identity changed
	net      *peer.Network // nil: this node is alone

	lock    *dirLock
	tail    *tail.Log
	stable  *stable.Store
	store   *history.Store
	hist    histories
	snaps   *snapshotStore
	backups backups
	logs    *logStore
	disk    *diskWatch
	feed    *Feed
	group   groupBox
	digests digestRing
	// mismatches counts the times that nodes were found to hold different data.
	mismatches atomic.Uint64
	// leaderCommit is the newest commit index that a leader has told of; 0 = none yet.
	leaderCommit atomic.Uint64

	// passed is what appliedThrough found last, seen what the watchers for /metrics did.
	passed atomic.Pointer[passedOver]
	seen   seen

	validators *validators

	// park, if not nil, stands in for the waiting of calls, and for what runs beside a call
	// that holds no lock (done is nil): the simulation steers it.
	park func(ctx context.Context, done <-chan struct{}) bool

	// Used by Apply's goroutine alone.
	proc     *processor
	results  []entryResult
	finished []*pending

	mu sync.Mutex
	// raft is the group that runs now, nil until this node is a member of a cluster.
	raft *raftGroup
	// waiting says what a node that is not a member yet waits for.
	waiting string
	// diverged is the newest comparison of digests.
	diverged digestVerdict
	// view is the published state: what admission judges against and reads see.
	view *history.View
	// cache is what admission knows of view.
	cache *mark.Cache
	// streams is about the AppendStream calls.
	streams streamTotals
	// revisions says how many schemas each org and type has in view.
	revisions map[string]uint64
	// tenure is nil unless this node leads.
	tenure *tenure
	// lastStamp makes committed_at non-decreasing.
	lastStamp int64
	// lastTicket numbers proposals over all tenures: raft's notices of leadership can come so
	// late that two tenures are of one term, and the second must not take the first's entries
	// for its own.
	lastTicket uint64
	stopping   bool
	compacting bool // Compact runs
	closed     bool // the files are closed; view is no longer held
	// progressWait, if not nil, is closed when a step is published or something in flight
	// ends without one.
	progressWait chan struct{}
	// leaderWait is closed at the next change of leadership or readiness.
	leaderWait chan struct{}

	failure  atomic.Bool
	fatalErr chan error
	restarts chan string   // reasons to start raft again
	stopErr  error         // of raft's shutdown; written by supervise
	stopped  chan struct{} // closed by Stop
	stopOnce sync.Once
	handOver sync.Once
	wg       sync.WaitGroup
}

// Open opens the shard in o.Dir, or founds it, and starts its raft node. The shard takes
// writes once Leading says that it is ready. Errors name the file and what to do; after
// ErrStorage the process must end.
func Open(o Options) (*Shard, error) {
	o.setDefaults()
	s := &Shard{
		opts: o, log: o.Logger, meter: newMeter(), validators: newValidators(),
		cache:      mark.NewCache(o.HeadCacheBytes/2, o.MarkCacheBytes/2),
		leaderWait: make(chan struct{}),
		formWake:   make(chan struct{}, 1),
		restarts:   make(chan string, 1),
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
	if err := checkForeign(o.Dir); err != nil {
		return err
	}
	if err := makeDir(o.Dir); err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	if s.lock, err = lockDir(o.Dir); err != nil {
		return err
	}
	if err := checkUnfinishedRestore(o.Dir); err != nil {
		return err
	}
	id, err := loadIdentity(o.Dir, o.NodeID)
	if err != nil {
		return err
	}
	s.ident.Store(&id)
	if s.tail, err = tail.Open(tail.Options{Dir: s.path("tail"), SegmentSize: o.SegmentBytes, OnFatal: s.fatal, OnSync: s.synced, Logger: o.Logger}); err != nil {
		return err
	}
	if s.stable, err = stable.Open(stable.Options{Path: s.path("raft.db"), OnFatal: s.fatal}); err != nil {
		return err
	}
	if err := s.checkTerm(); err != nil {
		return err
	}
	if s.snaps, err = openSnapshots(s.path("snapshots"), snapshotOptions{log: s.log, identity: s.identity, room: s.diskRoom, meter: s.meter}); err != nil {
		return err
	}
	if err := s.backups.open(s.path("backups")); err != nil {
		return fmt.Errorf("backups: %w", err)
	}
	s.logs = &logStore{
		tail: s.tail, snaps: s.snaps, log: s.log, maxLent: lentSnapshots * o.SnapshotLogBytes, cache: newEntryCache(o.LogCacheBytes),
		step: s.restoringStep,
	}
	if err := s.openHistory(); err != nil {
		return s.AdviseOn(err)
	}
	s.view = s.store.View()
	s.proc = newProcessor(o.Shard, s.store, mark.NewCache(o.HeadCacheBytes-o.HeadCacheBytes/2, o.MarkCacheBytes-o.MarkCacheBytes/2))
	s.proc.rebuilt = &s.meter.applyRebuilt
	if err := s.loadSchemas(); err != nil {
		return s.AdviseOn(err)
	}
	s.lastStamp = s.proc.applied.CommittedAt
	s.feed = s.newFeed()
	s.wg.Add(1)
	go func() { // ends with stopped
		defer s.wg.Done()
		s.feed.Run()
	}()
	if s.disk, err = watchDisk(o, s.stopped, &s.wg); err != nil {
		return err
	}
	if o.Listener != nil {
		s.net, err = peer.Listen(peer.Options{
			Listener: o.Listener, Self: s.peerIdentity, Logger: s.log.Named("peer"), AcceptRaft: s.acceptRaft,
			Register: func(g *grpc.Server) { peerpb.RegisterPeerServiceServer(g, peerService{s: s}) },
		})
		if err != nil {
			return err
		}
	}
	// A node that is alone, or a member already, is so when Open returns.
	if len(o.Peers) == 0 && s.identity().State != stateMember {
		if err := s.form(context.Background()); err != nil {
			return err
		}
	}
	member := s.identity().State == stateMember
	if member {
		if err := s.startMember(); err != nil {
			return err
		}
	}
	s.wg.Add(2)
	go s.supervise(member)
	go s.watchHistory()
	return nil
}

// synced is told of each flush of the tail.
func (s *Shard) synced(took time.Duration, bytes int) {
	s.meter.synced(took, bytes)
	if s.opts.OnSync != nil {
		s.opts.OnSync(took, bytes)
	}
}

func (s *Shard) path(name string) string { return filepath.Join(s.opts.Dir, name) }

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
	term, err := s.currentTerm()
	if err != nil {
		return err
	}
	if term < l.Term {
		return fmt.Errorf("%w: %s says that the current term is %d, but %s holds an entry of term %d: the term and vote were lost; put the file back, or restore from a backup", ErrDamaged, s.path("raft.db"), term, s.path("tail"), l.Term)
	}
	return nil
}

// currentTerm is the newest term on disk, 0 if there is none. Raft writes a term before it
// acts on it.
func (s *Shard) currentTerm() (uint64, error) {
	term, err := s.stable.GetUint64([]byte("CurrentTerm"))
	if err != nil && err.Error() != "not found" {
		return 0, err
	}
	return term, nil
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
	s.log.Error("the process must end", zap.Error(err))
	s.fatalErr <- err
}

func (s *Shard) failed() bool { return s.failure.Load() }

// Fatal delivers the first error that must end the process.
func (s *Shard) Fatal() <-chan error { return s.fatalErr }

// damaged is the answer to a call that met an error in the history.
func (s *Shard) damaged(err error) error {
	s.log.Error("a read of the history failed", zap.Error(err))
	if errors.Is(err, record.ErrCorrupt) {
		return api.Corruptf("%w", err)
	}
	return api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "%w", err)
}
