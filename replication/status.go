package replication

import (
	"github.com/hashicorp/raft"

	"github.com/tidemark-db/tidemark/replication/peer"
)

// Status is a moment of the shard.
type Status struct {
	NodeID, Generation, ClusterID, Timeline string
	// Waiting says what a node that is not a member of a cluster yet waits for; "" = it is.
	Waiting string
	// Role is leader, follower, candidate, shutdown, or joining while Waiting is set.
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
func (s *Shard) Status() Status { return s.statusAs(s.logs.GetLog) }

// statusAs is Status, with what reads the log.
func (s *Shard) statusAs(read func(uint64, *raft.Log) error) Status {
	id := s.identity()
	st := Status{
		NodeID: s.opts.NodeID, Generation: id.Generation, ClusterID: id.ClusterID, Timeline: id.Timeline,
		Role: "joining", TailBytes: s.tail.SizeBytes(), FreeDiskBytes: s.disk.free.Load(),
	}
	if g := s.raftGroup(); g != nil {
		s.raftStatus(&st, g.raft)
	}

	s.mu.Lock()
	st.Waiting = s.waiting
	a := s.view.Applied()
	if t := s.tenure; t != nil {
		st.Ready = t.ready && !s.stopping
		st.InFlightBytes = t.bytes
		st.OverlayAggregates = len(t.overlay.aggregates)
		st.InFlightRequests = len(t.queue)
		for _, g := range t.proposed {
			st.InFlightRequests += len(g.requests)
		}
	}
	s.mu.Unlock()
	st.AppliedIndex, st.LastPosition = s.appliedThrough(a.Index, st.CommitIndex, read), a.Position
	// What is applied is committed, also before raft has heard that it is, after a restart.
	st.CommitIndex = max(st.CommitIndex, st.AppliedIndex)
	return st
}

// maxPassedOver bounds how many entries appliedThrough looks at.
const maxPassedOver = 64

// appliedThrough is the index up to which nothing is left to apply: entries of raft's own
// change nothing, and an idle node that has only those before it is up to date. What was found
// out once is remembered.
func (s *Shard) appliedThrough(applied, commit uint64, read func(uint64, *raft.Log) error) uint64 {
	through := applied
	if p := s.passed.Load(); p != nil && p.applied == applied {
		through = p.through
	}
	for range maxPassedOver {
		var e raft.Log
		if through >= commit || read(through+1, &e) != nil || e.Type == raft.LogCommand {
			break
		}
		through++
	}
	s.passed.Store(&passedOver{applied, through})
	return through
}

// passedOver remembers that the entries behind applied and up to through are raft's own.
type passedOver struct{ applied, through uint64 }

// raftStatus fills in what raft knows.
func (s *Shard) raftStatus(st *Status, r *raft.Raft) {
	st.Term, st.CommitIndex = r.CurrentTerm(), r.CommitIndex()
	switch r.State() {
	case raft.Leader:
		st.Role = "leader"
	case raft.Follower:
		st.Role = "follower"
	case raft.Candidate:
		st.Role = "candidate"
	default:
		st.Role = "shutdown"
	}
	_, id := r.LeaderWithID()
	st.LeaderID = peer.NodeID(id)
	st.LeaderAddress = s.clientAddress(id)
}
