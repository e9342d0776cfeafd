package replication

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/tidemark-db/tidemark/api"
	peerpb "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication/peer"
)

// watchLeadership follows raft's leadership until that raft is shut down. It must keep
// reading: raft's main loop waits for it.
func (s *Shard) watchLeadership(g *raftGroup) {
	defer s.wg.Done()
	defer close(g.watched)
	for {
		select {
		case <-g.done:
			return
		case <-g.leaders:
			s.mu.Lock()
			s.leadershipChanged()
			s.mu.Unlock()
		case leads := <-g.changes:
			s.endTenure("leadership was lost")
			if leads {
				s.beginTenure(g)
			}
		}
	}
}

// beginTenure starts a tenure that admits nothing yet, and has it made ready by a goroutine
// that ends with the tenure or the shard.
func (s *Shard) beginTenure(g group) {
	t := s.openTenure(g)
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

// Leading says whether this node takes writes now; changed is closed when that, or the
// leader that this node knows, may have changed.
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

// handOverTimeout bounds how long a leader that stops tries to hand leadership over. Without
// that the others would have to find out.
const handOverTimeout = 2 * time.Second

// HandOver gives leadership to another voter before a stop, if this node leads and there is
// one that can take it, before ctx ends. It is tried once.
func (s *Shard) HandOver(ctx context.Context) {
	s.handOver.Do(func() {
		g := s.raftGroup()
		if g == nil || s.net == nil || g.raft.State() != raft.Leader || s.failed() {
			return
		}
		ctx, cancel := context.WithTimeout(ctx, handOverTimeout)
		defer cancel()
		to, ok := s.successor(ctx, g)
		if !ok {
			s.log.Info("there is no other voter to hand leadership over to")
			return
		}
		done := make(chan error, 1)
		go func() { // raft bounds it by its election timeout
			done <- g.raft.LeadershipTransferToServer(to.ID, to.Address).Error()
		}()
		select {
		case err := <-done:
			if err != nil {
				s.log.Warn("leadership could not be handed over before the stop", zap.String("to", to.nodeID), zap.Error(err))
			}
		case <-ctx.Done():
		}
	})
}

// successor returns the voter that is best fit to lead next: of those that answer and
// follow this leader, the one that has applied most.
func (s *Shard) successor(ctx context.Context, g *raftGroup) (server, bool) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	type answer struct {
		member  server
		applied uint64
		ok      bool
	}
	var voters []server
	for _, m := range s.clusterPeers(g) {
		if m.Suffrage == raft.Voter {
			voters = append(voters, m)
		}
	}
	answers := make(chan answer, len(voters))
	for _, m := range voters {
		go func() { // ends with the call, which ends with ctx
			st, err := s.clientOf(m.Server).GetNodeStatus(ctx, &peerpb.GetNodeStatusRequest{})
			answers <- answer{m, st.GetAppliedIndex(), err == nil && st.GetHello().GetLeaderId() == s.opts.NodeID}
		}()
	}
	var best answer
	for range voters {
		if a := <-answers; a.ok && (!best.ok || a.applied > best.applied) {
			best = a
		}
	}
	return best.member, best.ok
}

// notLeader is the 2011 with what is known of the leader. It never names this node, which
// raft may still take for the leader: a client would follow that back to here.
func (s *Shard) notLeader(text string) error {
	detail := &pb.NotLeader{}
	if g := s.group.get(); g != nil {
		if id := g.leader(); peer.NodeID(id) != s.opts.NodeID {
			detail.LeaderId, detail.LeaderAddress = peer.NodeID(id), s.clientAddress(id)
		}
	}
	what := "ask the leader"
	if detail.LeaderId == "" {
		what = "no leader is known here now, ask another node, or again"
	}
	return api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "%s: nothing was done, %s", text, what).With(detail)
}
