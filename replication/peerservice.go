package replication

import (
	"context"
	"slices"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	peerpb "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
	"github.com/tidemark-db/tidemark/replication/peer"
)

// peerService answers the other nodes of the cluster, and those that want to be.
type peerService struct {
	peerpb.UnimplementedPeerServiceServer
	s *Shard
}

// peerIdentity is what this node says of itself in every handshake.
func (s *Shard) peerIdentity() peer.Identity {
	id := s.identity()
	out := peer.Identity{
		NodeID: id.NodeID, Generation: id.Generation,
		RaftAddress: s.opts.RaftAddress, ClientAddress: s.opts.AdvertiseAddress, Version: s.opts.Version,
	}
	if id.State == stateMember {
		out.ClusterID, out.Timeline = id.ClusterID, id.Timeline
	}
	return out
}

// Hello says who this node is and how far it is on its way into a cluster.
func (p peerService) Hello(context.Context, *peerpb.HelloRequest) (*peerpb.HelloResponse, error) {
	return p.s.helloNow(), nil
}

func (s *Shard) helloNow() *peerpb.HelloResponse {
	id := s.identity()
	out := &peerpb.HelloResponse{
		Node: &peerpb.Node{
			NodeId: id.NodeID, Generation: id.Generation,
			RaftAddress: s.opts.RaftAddress, ClientAddress: s.opts.AdvertiseAddress, Version: s.opts.Version,
		},
		ClusterId: id.ClusterID, Timeline: id.Timeline, Founding: id.founding(),
	}
	switch id.State {
	case stateEmpty:
		out.State = peerpb.State_STATE_EMPTY
	case stateFounding:
		out.State = peerpb.State_STATE_FOUNDING
	case stateMember:
		out.State = peerpb.State_STATE_MEMBER
	}
	g := s.raftGroup()
	if g == nil {
		return out
	}
	out.RaftRunning, out.Term = true, g.term()
	if address, leader := g.raft.LeaderWithID(); leader != "" {
		out.LeaderId = peer.NodeID(leader)
		_, out.LeaderRaftAddress = peer.SplitAddress(address)
		out.LeaderClientAddress = s.clientAddress(leader)
	}
	return out
}

// clientAddress is where clients reach a node, as it said itself in its newest handshake
// with this one; "" = unknown. One that says this node's own address does not know better: a
// client that went there would come back to here.
func (s *Shard) clientAddress(id raft.ServerID) string {
	if id == s.identity().serverID() {
		return s.opts.AdvertiseAddress
	}
	if s.net != nil {
		if n, _, ok := s.net.Known(id); ok && n.ClientAddress != s.opts.AdvertiseAddress {
			return n.ClientAddress
		}
	}
	return ""
}

// Found writes the founder's record down, if this directory is not a member's and holds what
// the founder believes it holds.
func (p peerService) Found(_ context.Context, req *peerpb.FoundRequest) (*peerpb.FoundResponse, error) {
	s := p.s
	id := s.identity()
	record := foundingOf(req.GetFounding())
	if record == nil {
		return nil, status.Error(codes.InvalidArgument, "expected a founding record with a cluster id and a timeline of 32 hex digits")
	}
	record.State = stateFounding
	if id.State != stateMember && id.ClusterID == req.GetReplacesClusterId() {
		if err := s.checkFounders(id, record.Founders); err != nil {
			return nil, err
		}
		if err := s.become(id, record); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		s.wakeForming()
	}
	return &peerpb.FoundResponse{Now: s.helloNow()}, nil
}

// checkFounders compares the founder's list with this node's --peers.
func (s *Shard) checkFounders(id *identity, founders []founder) error {
	var theirs, ours []string
	listed := false
	for _, f := range founders {
		theirs = append(theirs, f.NodeID+"="+f.RaftAddress)
		listed = listed || f.serverID() == id.serverID()
	}
	for _, p := range s.opts.Peers {
		ours = append(ours, p.ID+"="+p.Address)
	}
	slices.Sort(theirs)
	slices.Sort(ours)
	switch {
	case !slices.Equal(theirs, ours):
		return status.Errorf(codes.FailedPrecondition, "--peers differ: node %s was started with %v, the founder with %v; give all nodes the same --peers", id.NodeID, ours, theirs)
	case !listed:
		return status.Errorf(codes.FailedPrecondition, "the record is about another directory of node %s: this one was made since (generation %s); ask again", id.NodeID, id.Generation)
	}
	return nil
}

// ConfirmTerm answers with the newest term this node has seen: whoever voted for a newer
// leader says so. It is read from disk, because while raft is started again the new one may
// vote before anyone here can ask it.
func (p peerService) ConfirmTerm(context.Context, *peerpb.ConfirmTermRequest) (*peerpb.ConfirmTermResponse, error) {
	if p.s.raftGroup() == nil {
		return nil, status.Error(codes.Unavailable, "raft does not run here yet")
	}
	term, err := p.s.currentTerm()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &peerpb.ConfirmTermResponse{Term: term}, nil
}

// GetDigests answers with the digests that this node has kept at the given indexes.
func (p peerService) GetDigests(_ context.Context, req *peerpb.GetDigestsRequest) (*peerpb.GetDigestsResponse, error) {
	if len(req.GetIndexes()) > maxDigestsAsked {
		return nil, status.Errorf(codes.InvalidArgument, "expected at most %d indexes, found %d", maxDigestsAsked, len(req.GetIndexes()))
	}
	out := &peerpb.GetDigestsResponse{}
	for _, i := range req.GetIndexes() {
		if d, ok := p.s.digests.at(i); ok {
			out.Digests = append(out.Digests, &peerpb.Digest{Index: i, Digest: d[:]})
		}
	}
	out.FirstKept, out.AppliedIndex = p.s.digests.bounds()
	return out, nil
}

// GetNodeStatus is this node's part of the cluster's status.
func (p peerService) GetNodeStatus(context.Context, *peerpb.GetNodeStatusRequest) (*peerpb.GetNodeStatusResponse, error) {
	return p.s.nodeStatusNow(), nil
}

func (s *Shard) nodeStatusNow() *peerpb.GetNodeStatusResponse {
	st := s.Status()
	out := &peerpb.GetNodeStatusResponse{
		Hello: s.helloNow(), Role: st.Role,
		AppliedIndex: st.AppliedIndex, CommitIndex: st.CommitIndex, LastPosition: st.LastPosition,
	}
	out.Problems = s.problems()
	out.Healthy = len(out.Problems) == 0
	return out
}

// Join is called by a node whose directory is new, and by a member that was moved or is not
// sure that it still is one; see admitMember.
func (p peerService) Join(ctx context.Context, req *peerpb.JoinRequest) (*peerpb.JoinResponse, error) {
	if err := p.s.admitMember(ctx, req); err != nil {
		return nil, err
	}
	id := p.s.identity()
	return &peerpb.JoinResponse{ClusterId: id.ClusterID, Timeline: id.Timeline}, nil
}
