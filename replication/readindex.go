package replication

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	peerpb "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
)

// readIndex is how far a node must have applied to hold everything that was acknowledged
// before the call. This node must lead, which a majority of voters, asked after the call
// began, confirms. A leader publishes before it acknowledges, and is ready only when it has
// applied what earlier leaders committed, so what is applied here is enough; what is committed
// and not applied yet may have been read on another node.
func (s *Shard) readIndex(ctx context.Context) (uint64, error) {
	s.mu.Lock()
	err := s.leading()
	t := s.tenure
	index := s.view.Applied().Index
	s.mu.Unlock()
	if err != nil {
		return 0, err
	}
	index = max(index, t.group.committed())
	return index, s.confirmTerm(ctx, t)
}

// readIndexOf is readIndex on whichever node leads.
func (s *Shard) readIndexOf(ctx context.Context) (uint64, error) {
	index, err := s.readIndex(ctx)
	g := s.raftGroup()
	if err == nil || g == nil || s.net == nil || ctx.Err() != nil {
		return index, err
	}
	address, leader := g.raft.LeaderWithID()
	if leader == "" {
		return 0, errors.New("no leader is known")
	}
	if leader == s.identity().serverID() {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, roundTimeout)
	defer cancel()
	resp, err := s.clientOf(raft.Server{ID: leader, Address: address}).ReadIndex(ctx, &peerpb.ReadIndexRequest{ClusterId: s.identity().ClusterID})
	if err != nil {
		return 0, errors.New(status.Convert(err).Message())
	}
	return resp.GetIndex(), nil
}

// ReadIndex answers another node of the cluster, see readIndex.
func (p peerService) ReadIndex(ctx context.Context, req *peerpb.ReadIndexRequest) (*peerpb.ReadIndexResponse, error) {
	if id := p.s.identity().ClusterID; id == "" || id != req.GetClusterId() {
		return nil, status.Errorf(codes.FailedPrecondition, "expected a node of cluster %q, found one of %q", id, req.GetClusterId())
	}
	index, err := p.s.readIndex(ctx)
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	return &peerpb.ReadIndexResponse{Index: index}, nil
}

// readIndexEvery is how often a leader is asked again that did not answer, or is looked for.
const readIndexEvery = 200 * time.Millisecond

// awaitReadIndex asks for the read index until there is an answer or ctx ends, and then
// returns what was last in the way.
func (s *Shard) awaitReadIndex(ctx context.Context) (uint64, error) {
	for {
		index, err := s.readIndexOf(ctx)
		if err == nil {
			return index, nil
		}
		select {
		case <-time.After(readIndexEvery):
		case <-ctx.Done():
			return 0, err
		case <-s.stopped:
			return 0, s.notLeader("this node is stopping")
		}
	}
}
