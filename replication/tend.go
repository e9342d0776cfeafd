package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	peerpb "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
	"github.com/tidemark-db/tidemark/replication/peer"
)

// tendEvery is how often a member looks whether it, or the cluster's configuration, is as it
// should be.
const tendEvery = 500 * time.Millisecond

// tendMembers runs on every member until the shard stops. A leader completes replacements
// of lost directories that it or an earlier leader began. Everyone else makes sure that it
// is a member still, at the address that it has now.
func (s *Shard) tendMembers() {
	defer s.wg.Done()
	ctx, cancel := s.untilStopped()
	defer cancel()
	ticker := time.NewTicker(tendEvery)
	defer ticker.Stop()
	log := thinned(s.log)
	var alone time.Time // since when no leader is known
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if err := s.noteLogBegun(); err != nil {
			s.fatal(err)
			return
		}
		g := s.raftGroup()
		s.noteCommit(ctx, g)
		s.warnShared(g, log)
		if g.raft.State() == raft.Leader {
			alone = time.Time{}
			s.tendAsLeader(ctx, g, log)
			continue
		}
		if g.leader() != "" {
			alone = time.Time{}
		} else if alone.IsZero() {
			alone = time.Now()
		}
		if s.listed(g) && (alone.IsZero() || time.Since(alone) < 4*s.opts.ElectionTimeout) {
			continue
		}
		if err := s.stillMember(ctx, g, log); err != nil {
			s.fatal(err)
			return
		}
	}
}

// listed says whether this node's configuration has it, at its address.
func (s *Shard) listed(g *raftGroup) bool {
	id := s.identity()
	for _, m := range g.servers() {
		if m.ID == id.serverID() {
			return m.Address == s.address(id)
		}
	}
	return false
}

// ErrRemoved is delivered by Fatal when the cluster has removed this node: the process must
// end.
var ErrRemoved = errors.New("this node was removed from its cluster")

// stillMember asks whoever may lead whether this node is a member, and has its address
// brought up to date. Only a leader that has proved that it speaks for the cluster can say
// that it is not; nobody's silence can.
func (s *Shard) stillMember(ctx context.Context, g *raftGroup, log *zap.Logger) error {
	id := s.identity()
	asked := map[string]bool{s.opts.RaftAddress: true}
	ask := func(address string) error {
		if address == "" || asked[address] {
			return nil
		}
		asked[address] = true
		call, cancel := context.WithTimeout(ctx, helloTimeout)
		defer cancel()
		h, err := s.hello(call, address)
		if err != nil || h.GetClusterId() != id.ClusterID || h.GetLeaderRaftAddress() == "" {
			return nil
		}
		joining, cancelJoining := context.WithTimeout(ctx, changeTimeout)
		defer cancelJoining()
		_, err = s.askJoin(joining, id, h.GetLeaderRaftAddress())
		if status.Code(err) == codes.NotFound {
			return fmt.Errorf("%w: %s", ErrRemoved, status.Convert(err).Message())
		}
		if err != nil {
			log.Warn("the leader does not take this node for a member at its address", zap.Error(err))
		}
		return nil
	}
	for _, m := range g.members() {
		if err := ask(m.raftAddress); err != nil {
			return err
		}
	}
	for _, p := range s.opts.Peers {
		if err := ask(p.Address); err != nil {
			return err
		}
	}
	return nil
}

// tendAsLeader brings this node's own address up to date, and completes replacements: of
// several servers of one node, all but the newest have lost their directories. Once the newest
// has caught up, those of them that are voters become non-voters, then it becomes a voter, and
// then they are removed. A lost voter never counts beside its successor: if that one is lost
// too, before the end, the others are still a majority. That a lost server waits beside a
// successor that is no voter is what says that it is to become one (see admitMember). Each
// step is in the log, so that the next leader goes on from it.
func (s *Shard) tendAsLeader(ctx context.Context, g *raftGroup, log *zap.Logger) {
	id := s.identity()
	members := g.members()
	for _, m := range members {
		if m.ID == id.serverID() && m.Address != s.address(id) && m.Suffrage == raft.Voter {
			s.tended("this node's address", g.noted(g.raft.AddVoter(m.ID, s.address(id), 0, changeTimeout)))
			return
		}
		same := named(members, m.nodeID)
		if len(same) < 2 || m.ID != same[0].ID {
			continue
		}
		lost, next := same[:len(same)-1], same[len(same)-1]
		if there := slices.IndexFunc(lost, func(m server) bool { return s.answers(ctx, m) }); there >= 0 {
			// It is there after all, and the newest was let in while it could not be reached.
			// Which of them is to go is for the operator to say.
			log.Error("two data directories have the name of one node, and both are in use: stop the node whose directory is not wanted",
				zap.String("node", m.nodeID), zap.String("older", string(lost[there].ID)), zap.String("newer", string(next.ID)))
			continue
		}
		voter := slices.IndexFunc(lost, func(m server) bool { return m.Suffrage == raft.Voter })
		if voter < 0 && next.Suffrage == raft.Voter {
			s.tended("the removal of "+string(lost[0].ID)+", whose directory is lost", g.noted(g.raft.RemoveServer(lost[0].ID, 0, changeTimeout)))
			continue
		}
		if s.mayVote(ctx, g, next) != nil {
			continue
		}
		if voter >= 0 {
			s.tended("the vote of "+string(lost[voter].ID)+", whose directory is lost", g.noted(g.raft.DemoteVoter(lost[voter].ID, 0, changeTimeout)))
		} else {
			s.tended("the promotion of "+string(next.ID), g.noted(g.raft.AddVoter(next.ID, next.Address, 0, changeTimeout)))
		}
	}
}

func (s *Shard) tended(what string, f raft.IndexFuture) {
	if err := f.Error(); err != nil {
		s.log.Warn("a change of the members failed; it is tried again", zap.String("change", what), zap.Error(err))
		return
	}
	s.log.Info("the members changed", zap.String("change", what))
}

// clusterPeers are the other members' servers, for questions that go to all of them.
func (s *Shard) clusterPeers(g *raftGroup) []server {
	var out []server
	self := s.identity().serverID()
	for _, m := range g.members() {
		if m.ID != self {
			out = append(out, m)
		}
	}
	return out
}

// clientOf calls the very server that is meant, not whoever is at its address now.
func (s *Shard) clientOf(m raft.Server) peerpb.PeerServiceClient {
	_, address := peer.SplitAddress(m.Address)
	return s.net.ClientOf(m.ID, address)
}
