package replication

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

const (
	// enqueueTimeout is how long an entry waits for raft's main loop before it is given
	// back; the loop is busy for as long as a flush takes.
	enqueueTimeout = 10 * time.Second
	// barrierTimeout is how long a barrier waits for raft's main loop.
	barrierTimeout = 10 * time.Second
)

// startRaft founds the one-voter cluster if the log is empty, and starts raft.
func (s *Shard) startRaft() error {
	conf := raft.DefaultConfig()
	conf.LocalID = raft.ServerID(s.opts.NodeID)
	conf.Logger = newRaftLogger(s.log.Named("raft"))
	conf.HeartbeatTimeout = s.opts.HeartbeatTimeout
	conf.ElectionTimeout = s.opts.ElectionTimeout
	conf.LeaderLeaseTimeout = s.opts.HeartbeatTimeout
	conf.BatchApplyCh = true
	conf.MaxAppendEntries = 64
	conf.NoSnapshotRestoreOnStart = true
	conf.NoLegacyTelemetry = true
	// Snapshots are taken by compact, which counts bytes.
	conf.SnapshotThreshold = ^uint64(0)
	conf.SnapshotInterval = 24 * time.Hour
	notify := make(chan bool, 16)
	conf.NotifyCh = notify

	// One voter has no peers; until there are some, no port is opened for them.
	addr, trans := raft.NewInmemTransport(raft.ServerAddress(s.opts.NodeID))
	if err := s.bootstrap(addr); err != nil {
		return err
	}
	r, err := raft.NewRaft(conf, &fsm{s}, s.tail, s.stable, s.snaps, trans)
	if err != nil {
		return fmt.Errorf("start raft: %w", err)
	}
	s.raft = r
	s.group.set(&raftGroup{raft: r, hook: s.opts.Hooks.Propose})
	s.wg.Add(1)
	go s.watchLeadership(notify)
	return nil
}

// bootstrap writes the first configuration into an empty log. Raft's own BootstrapCluster
// sets the term first and refuses to go on after a crash in between; here the entry comes
// first, and doing it again is harmless.
func (s *Shard) bootstrap(addr raft.ServerAddress) error {
	last, err := s.tail.LastIndex()
	if err != nil {
		return err
	}
	newest, err := s.snaps.newest()
	if err != nil || last > 0 || newest != nil {
		return err
	}
	conf := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: raft.ServerID(s.opts.NodeID), Address: addr}}}
	return s.tail.StoreLog(&raft.Log{Index: 1, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(conf)})
}

// watchLeadership follows raft's leadership until the shard stops. It must keep reading:
// raft's main loop waits for it.
func (s *Shard) watchLeadership(notify <-chan bool) {
	defer s.wg.Done()
	for {
		select {
		case <-s.stopped:
			return
		case leads := <-notify:
			s.endTenure("leadership was lost")
			if leads {
				s.beginTenure()
			}
		}
	}
}

// beginTenure starts a tenure that admits nothing yet, and has it made ready by a goroutine
// that ends with the tenure or the shard.
func (s *Shard) beginTenure() {
	t := s.openTenure(s.group.get())
	if t == nil {
		return
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		s.makeReady(t)
	}()
}

// openTenure starts a tenure in the group's term; nil if the shard is stopping.
func (s *Shard) openTenure(g group) *tenure {
	t := newTenure(g.term(), g)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopping {
		return nil
	}
	s.tenure = t
	s.leadershipChanged()
	return t
}

// makeReady waits until everything inherited is applied, and admits only if the term is
// still the one noted before.
func (s *Shard) makeReady(t *tenure) {
	for {
		applied := make(chan error, 1)
		go func() { applied <- t.group.barrier() }()
		var err error
		select {
		case err = <-applied:
		case <-t.done:
			// Raft never resolves what it had not taken up when it was shut down; then the
			// goroutine above is all that is left behind.
			return
		}
		if err == nil {
			break
		}
		s.log.Warn("barrier failed", zap.Uint64("term", t.term), zap.Error(err))
		select {
		case <-t.done:
			return
		case <-time.After(retrySoon):
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.admitsFrom(t) {
		return
	}
	s.wg.Add(1)
	go func() {
		defer s.wg.Done()
		s.batch(t)
	}()
	s.log.Info("leading", zap.Uint64("term", t.term), zap.Uint64("position", s.view.Applied().Position))
}

// admitsFrom makes a tenure ready if its term is still the one that this node leads in. s.mu
// is held.
func (s *Shard) admitsFrom(t *tenure) bool {
	if s.tenure != t || !t.group.leads(t.term) {
		return false
	}
	t.ready = true
	s.leadershipChanged()
	return true
}

// leadershipChanged wakes who waits for a change. s.mu is held.
func (s *Shard) leadershipChanged() {
	close(s.leaderWait)
	s.leaderWait = make(chan struct{})
}

// Leading says whether this node takes writes now; changed is closed when that may change.
func (s *Shard) Leading() (ready bool, changed <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tenure != nil && s.tenure.ready && !s.stopping, s.leaderWait
}

// confirmTerm returns nil once a majority of voters, asked after the call began, has
// confirmed the term of t, and this node still leads in it. Else 2011: the write that the
// call is about was not made by it.
func (s *Shard) confirmTerm(ctx context.Context, t *tenure) error {
	if err := t.group.confirm(ctx, t.term); err != nil {
		return s.notLeader(fmt.Sprintf("this node can not prove that it is the leader (%v)", err))
	}
	s.mu.Lock()
	still := s.tenure == t
	s.mu.Unlock()
	if !still {
		return s.notLeader("this node is not the leader any more")
	}
	return nil
}

// notLeader is the 2011 with what is known of the leader.
func (s *Shard) notLeader(text string) error {
	detail := &pb.NotLeader{}
	if g := s.group.get(); g != nil {
		detail.LeaderId = string(g.leader())
		if detail.LeaderId == s.opts.NodeID {
			detail.LeaderAddress = s.opts.AdvertiseAddress
		}
	}
	return api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "%s: nothing was written, ask the leader", text).With(detail)
}

// Status is a moment of the shard.
type Status struct {
	NodeID, ClusterID, Timeline string
	// Role is leader, follower, candidate or shutdown.
	Role                      string
	Term                      uint64
	AppliedIndex, CommitIndex uint64
	LastPosition              uint64
	LeaderID, LeaderAddress   string
	Ready                     bool
	InFlightRequests          int
	InFlightBytes             int64
	TailBytes, FreeDiskBytes  int64
	OverlayAggregates         int
}

// Status says where the shard is.
func (s *Shard) Status() Status {
	st := Status{
		NodeID: s.opts.NodeID, ClusterID: s.id.ClusterID, Timeline: s.id.Timeline,
		Term: s.raft.CurrentTerm(), CommitIndex: s.raft.CommitIndex(),
		TailBytes: s.tail.SizeBytes(), FreeDiskBytes: s.disk.free.Load(),
	}
	switch s.raft.State() {
	case raft.Leader:
		st.Role = "leader"
	case raft.Follower:
		st.Role = "follower"
	case raft.Candidate:
		st.Role = "candidate"
	default:
		st.Role = "shutdown"
	}
	_, id := s.raft.LeaderWithID()
	st.LeaderID = string(id)
	if st.LeaderID == s.opts.NodeID {
		st.LeaderAddress = s.opts.AdvertiseAddress
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.view.Applied()
	st.AppliedIndex, st.LastPosition = a.Index, a.Position
	if t := s.tenure; t != nil {
		st.Ready = t.ready && !s.stopping
		st.InFlightBytes = t.bytes
		st.OverlayAggregates = len(t.overlay.aggregates)
		st.InFlightRequests = len(t.queue)
		for _, g := range t.proposed {
			st.InFlightRequests += len(g.requests)
		}
	}
	return st
}
