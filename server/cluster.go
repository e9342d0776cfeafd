package server

import (
	"context"
	"net"
	"time"

	"go.uber.org/zap"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/config"
	"github.com/tidemark-db/tidemark/replication"
)

// Cluster is what the server needs to look at a cluster, to change it and to copy it. All but
// ClusterStatus and Backup are the leader's to do: other nodes answer 2011 with its address. An error
// that is not 2014 means that nothing was changed.
type Cluster interface {
	// ClusterStatus asks the other nodes, for a second at most.
	ClusterStatus(ctx context.Context) (*pb.GetStatusResponse, error)
	// AddNode takes a running, empty node in as a non-voter.
	AddNode(ctx context.Context, id, raftAddress, clientAddress string) error
	// PromoteNode waits, as long as ctx lasts, until the node has caught up.
	PromoteNode(ctx context.Context, id string) error
	// RemoveNode takes a node out; the leader hands leadership over first and answers 2011.
	RemoveNode(ctx context.Context, id string) error
	// Compact reclaims the space of what was trimmed and deleted on this node, leader or not.
	Compact(ctx context.Context) (*pb.CompactResponse, error)
	// TransferLeadership returns who leads then; to may be empty.
	TransferLeadership(ctx context.Context, to string) (leaderID string, err error)
	// Backup makes a checkpoint, which the caller ends. Every member does.
	Backup(ctx context.Context, o replication.BackupOptions) (*replication.Backup, error)
}

// clusterService implements pb.ClusterServiceServer.
type clusterService struct {
	pb.UnimplementedClusterServiceServer
	shard Shard
	log   *zap.Logger
	// stopping is closed when no more calls are taken; backups end then.
	stopping <-chan struct{}
	// backupStall is how long the receiver of a backup may take next to nothing.
	backupStall time.Duration
	// verifications are bounded and counted; each keeps to the pace.
	verifications *verifications
	verifyPace    pace
}

// longestChange bounds a change that waits for another node, if its caller does not.
const longestChange = 10 * time.Minute

// margin is what of a caller's deadline is left for the answer to travel, so that the caller
// learns what the change waited for, and not only that its time was up.
const margin = 200 * time.Millisecond

// GetStatus implements pb.ClusterServiceServer. Every node answers.
func (s *clusterService) GetStatus(ctx context.Context, _ *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	return s.shard.ClusterStatus(ctx)
}

// AddNode implements pb.ClusterServiceServer.
func (s *clusterService) AddNode(ctx context.Context, req *pb.AddNodeRequest) (*pb.AddNodeResponse, error) {
	e := checkNodeID("id", req.GetId())
	if e == nil {
		e = checkReachable("raft_address", req.GetRaftAddress())
	}
	if e == nil && req.GetClientAddress() != "" {
		e = checkReachable("client_address", req.GetClientAddress())
	}
	if e != nil {
		return nil, e
	}
	err := s.change(ctx, "add", req.GetId(), func(ctx context.Context) error {
		return s.shard.AddNode(ctx, req.GetId(), req.GetRaftAddress(), req.GetClientAddress())
	})
	if err != nil {
		return nil, err
	}
	return &pb.AddNodeResponse{}, nil
}

// PromoteNode implements pb.ClusterServiceServer.
func (s *clusterService) PromoteNode(ctx context.Context, req *pb.PromoteNodeRequest) (*pb.PromoteNodeResponse, error) {
	if e := checkNodeID("id", req.GetId()); e != nil {
		return nil, e
	}
	err := s.change(ctx, "promote", req.GetId(), func(ctx context.Context) error {
		return s.shard.PromoteNode(ctx, req.GetId())
	})
	if err != nil {
		return nil, err
	}
	return &pb.PromoteNodeResponse{}, nil
}

// RemoveNode implements pb.ClusterServiceServer.
func (s *clusterService) RemoveNode(ctx context.Context, req *pb.RemoveNodeRequest) (*pb.RemoveNodeResponse, error) {
	if e := checkNodeID("id", req.GetId()); e != nil {
		return nil, e
	}
	err := s.change(ctx, "remove", req.GetId(), func(ctx context.Context) error {
		return s.shard.RemoveNode(ctx, req.GetId())
	})
	if err != nil {
		return nil, err
	}
	return &pb.RemoveNodeResponse{}, nil
}

// TransferLeadership implements pb.ClusterServiceServer.
func (s *clusterService) TransferLeadership(ctx context.Context, req *pb.TransferLeadershipRequest) (*pb.TransferLeadershipResponse, error) {
	if req.GetToId() != "" {
		if e := checkNodeID("to_id", req.GetToId()); e != nil {
			return nil, e
		}
	}
	resp := &pb.TransferLeadershipResponse{}
	err := s.change(ctx, "transfer leadership", req.GetToId(), func(ctx context.Context) (err error) {
		resp.LeaderId, err = s.shard.TransferLeadership(ctx, req.GetToId())
		return err
	})
	if err != nil {
		return nil, err
	}
	if st := s.shard.Status(); st.LeaderID == resp.GetLeaderId() {
		resp.LeaderAddress = st.LeaderAddress
	}
	return resp, nil
}

// change makes one change of the cluster, in time for the answer to reach the caller, and
// logs it: who asked for what must be found out afterwards.
func (s *clusterService) change(ctx context.Context, what, node string, do func(context.Context) error) error {
	end := time.Now().Add(longestChange)
	if d, ok := ctx.Deadline(); ok {
		end = d.Add(-min(margin, time.Until(d)/4))
	}
	ctx, cancel := context.WithDeadline(ctx, end)
	defer cancel()
	err := do(ctx)
	s.log.Info("a change of the cluster was asked for", zap.String("change", what), zap.String("node", node), zap.Error(err))
	return err
}

func checkNodeID(field, id string) *api.Error {
	if !config.IsNodeID(id) {
		return api.Invalid(field, "is %q; expected a node's id, 1 to 64 characters from a-z A-Z 0-9 . _ -", clipped(id))
	}
	return nil
}

// checkReachable checks an address that others are to connect to.
func checkReachable(field, address string) *api.Error {
	host, port, _ := net.SplitHostPort(address)
	ip := net.ParseIP(host)
	if len(address) > maxAddress || !config.IsAddress(address) || host == "" || port == "0" || ip != nil && ip.IsUnspecified() {
		return api.Invalid(field, "is %q; expected host:port that others can connect to", clipped(address))
	}
	return nil
}

// maxAddress is longer than any host name with its port.
const maxAddress = 262

// clipped is a value as far as an answer repeats it.
func clipped(s string) string {
	if len(s) > maxAddress {
		return s[:maxAddress] + "..."
	}
	return s
}

// Compact implements pb.ClusterServiceServer. Every node does so for itself.
func (s *clusterService) Compact(ctx context.Context, _ *pb.CompactRequest) (*pb.CompactResponse, error) {
	return s.shard.Compact(ctx)
}
