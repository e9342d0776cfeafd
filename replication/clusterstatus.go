package replication

import (
	"context"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"

	"go.uber.org/zap"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hashicorp/raft"

	peerpb "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// ClusterStatus describes the cluster as this node sees it: itself, and what every other
// member says of itself within helloTimeout. Any node answers, also one that is not a member
// yet. It has no errors: what cannot be found out is in the nodes' problems.
func (s *Shard) ClusterStatus(ctx context.Context) (*pb.GetStatusResponse, error) {
	st := s.Status()
	out := &pb.GetStatusResponse{
		ClusterId: st.ClusterID, Timeline: st.Timeline, NodeId: st.NodeID,
		LeaderId: st.LeaderID, LeaderAddress: st.LeaderAddress, Role: st.Role, Term: st.Term,
		AppliedIndex: st.AppliedIndex, CommitIndex: st.CommitIndex, LastPosition: st.LastPosition,
		Version: s.opts.Version, Insecure: true, WaitingFor: st.Waiting,
	}
	g := s.raftGroup()
	if g == nil {
		out.Nodes = s.initialNodes(ctx)
		return out, nil
	}
	members := g.members()
	out.Nodes = make([]*pb.Node, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() { out.Nodes[i] = s.nodeStatus(ctx, m) })
	}
	wg.Wait()
	noteShared(out.Nodes)
	sort.SliceStable(out.Nodes, func(i, j int) bool { return out.Nodes[i].GetId() < out.Nodes[j].GetId() })
	return out, nil
}

// nodeStatus asks one member.
func (s *Shard) nodeStatus(ctx context.Context, m server) *pb.Node {
	_, generation, _ := strings.Cut(string(m.ID), "#")
	n := &pb.Node{Id: m.nodeID, Generation: generation, RaftAddress: m.raftAddress, Voter: m.Suffrage == raft.Voter}
	if m.ID == s.identity().serverID() {
		if n.RaftAddress = s.opts.RaftAddress; s.net == nil {
			n.RaftAddress = "" // it has no such port
		}
		fillNode(n, s.nodeStatusNow(), s.identity().ClusterID)
		return n
	}
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	resp, err := s.clientOf(m.Server).GetNodeStatus(ctx, &peerpb.GetNodeStatusRequest{})
	if err != nil {
		n.Role, n.Problems = "unreachable", []string{status.Convert(err).Message()}
		n.ClientAddress = s.clientAddress(m.ID)
		return n
	}
	fillNode(n, resp, s.identity().ClusterID)
	return n
}

// noteShared adds to the problems of nodes that say that clients reach them at one address:
// whoever is sent to one of them may come to another.
func noteShared(nodes []*pb.Node) {
	for _, n := range nodes {
		for _, other := range nodes {
			if n.GetId() != other.GetId() && n.GetClientAddress() != "" && n.GetClientAddress() == other.GetClientAddress() {
				n.Healthy = false
				n.Problems = append(n.Problems, sharedAddress(n.GetClientAddress(), other.GetId()))
			}
		}
	}
}

// sharedAddress is what is wrong with a node whose client address another one has, too.
func sharedAddress(address, other string) string {
	return fmt.Sprintf("it says that clients reach it at %s, and so does %s: give each node an --advertise of its own", address, other)
}

// warnShared warns of other members that say that clients reach them where they reach this one.
func (s *Shard) warnShared(g *raftGroup, log *zap.Logger) {
	for _, m := range s.clusterPeers(g) {
		if n, _, ok := s.net.Known(m.ID); ok && m.nodeID != s.opts.NodeID && n.ClientAddress == s.opts.AdvertiseAddress && n.ClientAddress != "" {
			log.Warn("this node shares its client address: " + sharedAddress(n.ClientAddress, m.nodeID))
		}
	}
}

func fillNode(n *pb.Node, st *peerpb.GetNodeStatusResponse, cluster string) {
	n.ClientAddress, n.Version = st.GetHello().GetNode().GetClientAddress(), st.GetHello().GetNode().GetVersion()
	n.Role, n.AppliedIndex = st.GetRole(), proto.Uint64(st.GetAppliedIndex())
	n.Problems = slices.Clone(st.GetProblems())
	if id := st.GetHello().GetClusterId(); id != cluster && id != "" {
		n.Problems = append(n.Problems, fmt.Sprintf("it is of cluster %s", id))
	}
	n.Healthy = len(n.Problems) == 0
}

// initialNodes are the initial peers while the cluster is formed.
func (s *Shard) initialNodes(ctx context.Context) []*pb.Node {
	id := s.identity()
	nodes := []*pb.Node{{
		Id: id.NodeID, Generation: id.Generation, RaftAddress: s.opts.RaftAddress, ClientAddress: s.opts.AdvertiseAddress,
		Role: "joining", AppliedIndex: proto.Uint64(0), Version: s.opts.Version, Problems: []string{"not a member of a cluster yet"},
	}}
	for _, h := range s.helloAll(ctx) {
		n := &pb.Node{Id: h.peer.ID, RaftAddress: h.peer.Address, Role: "joining"}
		if h.err != nil {
			n.Role, n.Problems = "unreachable", []string{h.err.Error()}
		} else {
			n.Generation, n.ClientAddress, n.Version = h.resp.GetNode().GetGeneration(), h.resp.GetNode().GetClientAddress(), h.resp.GetNode().GetVersion()
			if h.resp.GetState() == peerpb.State_STATE_MEMBER {
				n.Role = "member"
			} else {
				n.Problems = []string{"not a member of a cluster yet"}
			}
		}
		nodes = append(nodes, n)
	}
	sort.SliceStable(nodes, func(i, j int) bool { return nodes[i].GetId() < nodes[j].GetId() })
	return nodes
}
