package replication

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tidemark-db/tidemark/replication/peer"
)

var errNotLeading = errors.New("it does not lead")

// group is what a shard asks of its raft group. raftGroup is the one that nodes run; the
// simulation has its own.
type group interface {
	// term is the newest term this node has seen.
	term() uint64
	// leads says whether this node leads in term, as far as it knows.
	leads(term uint64) bool
	// leader is the leader's id, as far as this node knows; "" = unknown.
	leader() raft.ServerID
	// committed is the index of the newest entry with requests that this node knows to be
	// committed; 0 if the history holds all that there are.
	committed() uint64
	// barrier returns nil once everything that this leader inherited is applied.
	barrier() error
	// propose hands an entry over to be replicated. wait returns its fate: nil once it is
	// applied here; see resolved for the errors. wait may never return.
	propose(entry []byte) (wait func() error)
	// confirm returns nil once a majority of voters, all asked after the call began, has
	// confirmed that term is their newest one. An error means that this is not known.
	confirm(ctx context.Context, term uint64) error
}

// groupBox holds the group that a shard runs now: none while its cluster is formed, and
// another one after raft was restarted.
type groupBox struct{ p atomic.Pointer[group] }

func (b *groupBox) get() group {
	if g := b.p.Load(); g != nil {
		return *g
	}
	return nil
}

func (b *groupBox) set(g group) { b.p.Store(&g) }

// raftGroup is a group on hashicorp/raft: one life of it, from startRaft to shutdown.
type raftGroup struct {
	raft    *raft.Raft
	logs    raft.LogStore
	rounds  *termRounds
	hook    func(next func() (wait func() error)) (wait func() error) // Hooks.Propose
	changes chan bool                                                 // raft's NotifyCh
	leaders chan raft.Observation                                     // of leaders that this node follows
	done    chan struct{}                                             // closed by shutdown
	watched chan struct{}                                             // closed when watchLeadership has ended
	end     func() error                                              // ends the calls to other nodes

	// configured is an index in the log that no change of the members lies behind, of those
	// that this node has asked for, or has found when it began to lead. Raft does not say it.
	configured atomic.Uint64
}

// noted waits for a change of the members, and notes where in the log it is: at the end at
// most, if that is unknown.
func (g *raftGroup) noted(f raft.IndexFuture) raft.IndexFuture {
	if f.Error() == nil {
		g.knownTo(f.Index())
	} else {
		g.knownTo(g.raft.LastIndex())
	}
	return f
}

func (g *raftGroup) knownTo(index uint64) {
	for {
		was := g.configured.Load()
		if index <= was || g.configured.CompareAndSwap(was, index) {
			return
		}
	}
}

// Raft's own timings. See architecture, "Pinned hazards", for what is off and why.
const (
	// enqueueTimeout is how long an entry waits for raft's main loop before it is given
	// back; the loop is busy for as long as a flush takes.
	enqueueTimeout = 10 * time.Second
	// barrierTimeout is how long a barrier waits for raft's main loop.
	barrierTimeout = 10 * time.Second
	// rpcTimeout is how long one raft RPC may take: a follower's flush of 64 large entries
	// included.
	rpcTimeout = 10 * time.Second
)

func (s *Shard) raftConfig() *raft.Config {
	conf := raft.DefaultConfig()
	conf.LocalID = s.identity().serverID()
	conf.Logger = newRaftLogger(s.log.Named("raft"))
	conf.HeartbeatTimeout = s.opts.HeartbeatTimeout
	conf.ElectionTimeout = s.opts.ElectionTimeout
	conf.LeaderLeaseTimeout = s.opts.HeartbeatTimeout
	conf.BatchApplyCh = true
	conf.MaxAppendEntries = 64
	conf.NoSnapshotRestoreOnStart = true
	conf.NoLegacyTelemetry = true
	// A node that was removed ends by itself, see watchMembership.
	conf.ShutdownOnRemove = false
	// Snapshots are taken by compact, which counts bytes.
	conf.SnapshotThreshold = ^uint64(0)
	conf.SnapshotInterval = 24 * time.Hour
	return conf
}

// startRaft writes the cluster's first entry if the log is empty, and starts raft: when the
// node becomes a member of its cluster, when it starts as one, and after restartRaft.
func (s *Shard) startRaft() error {
	id := s.identity()
	if err := s.adoptNewest(); err != nil {
		return err
	}
	if err := s.bootstrap(id); err != nil {
		return err
	}
	g := &raftGroup{
		logs: s.logs, hook: s.opts.Hooks.Propose, changes: make(chan bool, 16), leaders: make(chan raft.Observation, 16),
		done: make(chan struct{}), watched: make(chan struct{}),
	}
	conf := s.raftConfig()
	conf.NotifyCh = g.changes
	var trans raft.Transport
	if s.net != nil {
		t := s.net.Transport(rpcTimeout, conf.Logger)
		trans, g.end = t, t.Close
	} else {
		// A node without peers opens no port for them.
		_, t := raft.NewInmemTransport(s.address(id))
		trans, g.end = t, t.Close
	}
	if wrap := s.opts.Hooks.Transport; wrap != nil {
		trans = wrap(trans)
	}
	var err error
	if g.raft, err = raft.NewRaft(conf, &fsm{s}, s.logs, s.stable, s.snaps, trans); err != nil {
		return fmt.Errorf("start raft: %w", err)
	}
	if n := len(g.servers()); s.net == nil && n > 1 {
		return errors.Join(fmt.Errorf("this node is one of %d of cluster %s, but was started without --peers and has no port for the others: start it with the --peers that it had before", n, id.ClusterID),
			g.raft.Shutdown().Error())
	}
	g.raft.RegisterObserver(raft.NewObserver(g.leaders, false, func(o *raft.Observation) bool {
		_, ok := o.Data.(raft.LeaderObservation)
		return ok
	}))
	g.raft.RegisterObserver(raft.NewObserver(nil, false, s.meter.observe))
	g.rounds = newTermRounds(s.meter.timed(func(ctx context.Context, term uint64) error { return s.askTerm(ctx, g, term) }))
	s.mu.Lock()
	s.raft = g
	s.mu.Unlock()
	s.group.set(g)
	s.wg.Add(1)
	go s.watchLeadership(g)
	return nil
}

// bootstrap writes the first configuration into a founder's empty log. Raft's own
// BootstrapCluster sets the term first and refuses to go on after a crash in between; here
// the entry comes first, and doing it again is harmless.
func (s *Shard) bootstrap(id *identity) error {
	last, err := s.tail.LastIndex()
	if err != nil {
		return err
	}
	switch {
	case last > 0:
		return nil
	case id.LogBegun:
		return fmt.Errorf("%w: %s is empty, but %s says that it was not: what this node acknowledged is lost, and voting without it could undo writes; put the files back, or empty the whole directory and let the node join again",
			ErrDamaged, s.path("tail"), s.path(identityFile))
	case len(id.Founders) == 0 || s.snaps.newest() != nil:
		return nil // the leader sends what this node is to know
	}
	// The entry is durable before raft writes a term.
	term, err := s.currentTerm()
	if err != nil {
		return err
	}
	if term > 0 {
		return fmt.Errorf("%w: %s says that the current term is %d, but %s is empty: what this node acknowledged is lost, and voting without it could undo writes; put the files back, or empty the whole directory and let the node join again",
			ErrDamaged, s.path("raft.db"), term, s.path("tail"))
	}
	var conf raft.Configuration
	for _, f := range id.Founders {
		conf.Servers = append(conf.Servers, raft.Server{
			Suffrage: raft.Voter, ID: f.serverID(), Address: peer.Address(f.serverID(), f.RaftAddress),
		})
	}
	if err := s.tail.StoreLog(&raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(conf)}); err != nil {
		return err
	}
	return s.formingStep("bootstrapped")
}

// address is this node's in raft's configuration.
func (s *Shard) address(id *identity) raft.ServerAddress {
	return peer.Address(id.serverID(), s.opts.RaftAddress)
}

// raftGroup returns the raft that runs now, nil while the cluster is formed.
func (s *Shard) raftGroup() *raftGroup {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.raft
}

// shutdown ends raft and the goroutine that follows it. Raft waits for its calls to end, so
// those are cut: a node that does not answer would hold it up.
func (g *raftGroup) shutdown() error {
	f := g.raft.Shutdown()
	err := g.end()
	err = errors.Join(err, f.Error())
	close(g.done)
	<-g.watched
	return err
}

func (g *raftGroup) term() uint64 { return g.raft.CurrentTerm() }

func (g *raftGroup) leads(term uint64) bool {
	return g.raft.State() == raft.Leader && g.raft.CurrentTerm() == term
}

func (g *raftGroup) leader() raft.ServerID {
	_, id := g.raft.LeaderWithID()
	return id
}

func (g *raftGroup) committed() uint64 { return newestRequests(g.logs, g.raft.CommitIndex()) }

// newestRequests is the newest entry with requests up to an index. Raft's own entries are
// never applied to the history; there are at most a few between. What the log does not reach
// back to stands in a snapshot, and so in the history.
func newestRequests(logs raft.LogStore, index uint64) uint64 {
	for ; index > 0; index-- {
		var e raft.Log
		switch err := logs.GetLog(index, &e); {
		case errors.Is(err, raft.ErrLogNotFound):
			return 0
		case err != nil || e.Type == raft.LogCommand:
			return index
		}
	}
	return 0
}

func (g *raftGroup) barrier() error {
	err := g.raft.Barrier(barrierTimeout).Error()
	if err == nil {
		g.knownTo(g.raft.CommitIndex())
	}
	return err
}

func (g *raftGroup) propose(entry []byte) func() error {
	next := func() func() error { return g.raft.Apply(entry, enqueueTimeout).Error }
	if g.hook != nil {
		return g.hook(next)
	}
	return next()
}

func (g *raftGroup) confirm(ctx context.Context, term uint64) error {
	if !g.leads(term) {
		return errNotLeading
	}
	if err := g.rounds.confirm(ctx, term); err != nil {
		return err
	}
	if !g.leads(term) {
		return errNotLeading
	}
	return nil
}

// servers is the newest configuration that this node has in its log, committed or not, as
// raft uses it.
func (g *raftGroup) servers() []raft.Server { return g.raft.GetConfiguration().Configuration().Servers }
