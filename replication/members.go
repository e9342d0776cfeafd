package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	peerpb "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication/peer"
)

const (
	// changeTimeout bounds one change of the cluster's members: a round through the log.
	changeTimeout = 10 * time.Second
	// caughtUp is how many entries a node may lag behind the leader's commit index when it is
	// promoted; at most that many are then missing from the majority that it is part of.
	caughtUp = 64
	// caughtUpEvery is how often a node that is catching up is asked how far it is.
	caughtUpEvery = 100 * time.Millisecond
)

// server is one server of raft's configuration.
type server struct {
	raft.Server
	nodeID      string
	raftAddress string // host:port
}

// members is the configuration that this node has in its log.
func (g *raftGroup) members() []server {
	var out []server
	for _, s := range g.servers() {
		_, address := peer.SplitAddress(s.Address)
		out = append(out, server{Server: s, nodeID: peer.NodeID(s.ID), raftAddress: address})
	}
	return out
}

// named returns the servers of a node: one, or two while a lost directory is replaced, the
// lost one first, because raft appends.
func named(members []server, nodeID string) []server {
	var out []server
	for _, m := range members {
		if m.nodeID == nodeID {
			out = append(out, m)
		}
	}
	return out
}

// withID returns the server with an id.
func withID(members []server, id raft.ServerID) (server, bool) {
	for _, m := range members {
		if m.ID == id {
			return m, true
		}
	}
	return server{}, false
}

// leadingGroup returns the raft group if this node leads and is ready, else 2011 or 2015.
func (s *Shard) leadingGroup() (*raftGroup, *tenure, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.leading(); err != nil {
		return nil, nil, err
	}
	return s.raft, s.tenure, nil
}

// admitMember answers Join. It is idempotent. A node that is a member gets its address
// brought up to date; one whose directory is new gets the place of the one that had its name
// before, as a non-voter until it has caught up (see tendMembers); any other is refused, with
// NOT_FOUND if this leader has proved that it speaks for the cluster.
func (s *Shard) admitMember(ctx context.Context, req *peerpb.JoinRequest) error {
	g, t, err := s.leadingGroup()
	if err != nil {
		return status.Errorf(codes.Unavailable, "%v", err)
	}
	id := serverID(req.GetNodeId(), req.GetGeneration())
	address := peer.Address(id, req.GetRaftAddress())
	members := g.members()
	same := named(members, req.GetNodeId())
	m, known := withID(members, id)
	switch {
	case known && m.Address != address && s.answersElsewhere(ctx, m, req.GetRaftAddress()):
		// A copy of a directory is not another node: two of them would answer as one voter.
		return status.Errorf(codes.AlreadyExists, "%s (generation %s) runs at %s already: %s uses a copy of its data directory; stop one of them, and never start a copy",
			req.GetNodeId(), req.GetGeneration(), m.raftAddress, req.GetRaftAddress())
	case known && m.Address != address && m.Suffrage == raft.Voter:
		return changed(g.noted(g.raft.AddVoter(id, address, 0, changeTimeout)))
	case known && m.Address != address:
		return changed(g.noted(g.raft.AddNonvoter(id, address, 0, changeTimeout)))
	case known && req.GetMember():
		return nil
	case known || req.GetMember():
		// An empty node becomes a member when it hears that it is one, and a member ends when
		// it hears that it is none. What this node knows may come of an entry that never
		// commits, or be less than was committed before it led.
		if err := settle(ctx, t); err != nil {
			return err
		}
		if _, still := withID(g.members(), id); still != known {
			return status.Errorf(codes.Unavailable, "the members have just changed; ask again")
		}
		if known {
			return nil
		}
	}
	if req.GetMember() && len(same) > 0 {
		// However quiet that one is now: what was removed does not take its place back.
		return status.Errorf(codes.NotFound, "%s (generation %s) is not a member of cluster %s any more: another data directory, of server %s, has its place",
			req.GetNodeId(), req.GetGeneration(), s.identity().ClusterID, same[len(same)-1].ID)
	}
	if len(same) == 0 { // an empty node asks again
		first := ""
		if req.GetMember() {
			first = "to have it back, empty its data directory, start it again, and then "
		}
		return status.Errorf(codes.NotFound, "%s (generation %s) is not a member of cluster %s; %son any node run: tidemark cluster add %s --raft-address %s",
			req.GetNodeId(), req.GetGeneration(), s.identity().ClusterID, first, req.GetNodeId(), req.GetRaftAddress())
	}
	for _, m := range same {
		if s.answers(ctx, m) {
			return status.Errorf(codes.AlreadyExists, "a living node at %s has the name %s: give this one another --node-id, or stop that one", m.raftAddress, m.nodeID)
		}
	}
	if len(same) == 1 && same[0].Suffrage != raft.Voter {
		// It never was a voter and is not to become one: two servers of a node without a vote
		// would say that (see tendAsLeader).
		if err := changed(g.noted(g.raft.RemoveServer(same[0].ID, 0, changeTimeout))); err != nil {
			return err
		}
	}
	s.log.Warn("a member comes back with an empty directory; it joins as a non-voter and takes its old place once it has caught up",
		zap.String("node", req.GetNodeId()), zap.String("generation", req.GetGeneration()))
	return changed(g.noted(g.raft.AddNonvoter(id, address, 0, changeTimeout)))
}

// settle returns nil once all that was in this leader's log when it was called is committed,
// the newest configuration included.
func settle(ctx context.Context, t *tenure) error {
	settled := make(chan error, 1)
	// Raft never resolves what it had not taken up when it was shut down; then this goroutine
	// is all that is left behind.
	go func() { settled <- t.group.barrier() }()
	var err error
	select {
	case err = <-settled:
	case <-t.done:
		err = errNotLeading
	case <-ctx.Done():
		err = ctx.Err()
	}
	if err != nil {
		return status.Errorf(codes.Unavailable, "who is a member is not certain now: %v; ask again", err)
	}
	return nil
}

// changed waits until a change of the configuration is committed.
func changed(f raft.IndexFuture) error {
	if err := f.Error(); err != nil {
		return status.Errorf(codes.Unavailable, "the change of the members failed and may still happen: %v; ask again", err)
	}
	return nil
}

// answers says whether the very directory that a server stands for is there and running.
func (s *Shard) answers(ctx context.Context, m server) bool {
	if m.ID == s.identity().serverID() {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	_, err := sayHello(ctx, s.clientOf(m.Server))
	return err == nil
}

// answersElsewhere says whether the directory that a server stands for runs where it is known,
// and not at address: a node that says that this is its address is reached at both.
func (s *Shard) answersElsewhere(ctx context.Context, m server, address string) bool {
	if m.ID == s.identity().serverID() {
		return s.opts.RaftAddress != address
	}
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	h, err := sayHello(ctx, s.clientOf(m.Server))
	return err == nil && h.GetNode().GetRaftAddress() != address
}

// unfit is a 2016 about a field, with a sentence of its own.
func unfit(field, format string, args ...any) *api.Error {
	text := fmt.Sprintf(format, args...)
	e := api.Invalid(field, "%s", text)
	e.Message = field + ": " + text
	return e
}

// AddNode takes an empty node that runs at raftAddress into the cluster, as a non-voter. It
// is idempotent. Errors: 2011, 2015, 2016 if the node there is another one or has data of
// its own, 2014 if the change was proposed and its outcome is not known.
func (s *Shard) AddNode(ctx context.Context, id, raftAddress, clientAddress string) error {
	g, _, err := s.leadingGroup()
	if err != nil {
		return err
	}
	if s.net == nil {
		return s.alone()
	}
	call, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	h, err := s.hello(call, raftAddress)
	if err != nil {
		for _, m := range named(g.members(), id) {
			if known := s.clientAddress(m.ID); m.raftAddress == raftAddress && (clientAddress == "" || known == "" || known == clientAddress) {
				return nil // it is a member there, and down
			}
		}
		return unfit("raft_address", "expected node %s at %s, which does not answer (%v): start it first, with an empty data directory and with --peers naming this cluster's nodes", id, raftAddress, err)
	}
	mine := s.identity()
	switch {
	case h.GetNode().GetNodeId() != id:
		return unfit("id", "expected node %s at %s, found node %s", id, raftAddress, h.GetNode().GetNodeId())
	case h.GetNode().GetRaftAddress() != raftAddress:
		// It could never join: the leader would have it at one address, and it asks for another.
		return unfit("raft_address", "node %s says that other nodes reach it at %s (--raft-advertise), not at %s", id, h.GetNode().GetRaftAddress(), raftAddress)
	case clientAddress != "" && h.GetNode().GetClientAddress() != clientAddress:
		return unfit("client_address", "node %s says that clients reach it at %s (--advertise), not at %s", id, h.GetNode().GetClientAddress(), clientAddress)
	case h.GetState() == peerpb.State_STATE_MEMBER && h.GetClusterId() != mine.ClusterID:
		return unfit("raft_address", "node %s at %s holds data of cluster %s, this is cluster %s: empty its data directory first, if that data is not needed", id, raftAddress, h.GetClusterId(), mine.ClusterID)
	}
	sid := serverID(id, h.GetNode().GetGeneration())
	same := named(g.members(), id)
	for _, m := range same {
		if m.ID == sid && m.raftAddress == raftAddress {
			return nil
		}
		if m.ID != sid && s.answers(ctx, m) {
			return unfit("id", "a living node at %s has the name %s already", m.raftAddress, id)
		}
	}
	if len(same) == 0 && h.GetState() == peerpb.State_STATE_MEMBER {
		return unfit("raft_address", "node %s at %s was removed from this cluster: empty its data directory and start it again, then add it", id, raftAddress)
	}
	return s.change(g.noted(g.raft.AddNonvoter(sid, peer.Address(sid, raftAddress), 0, changeTimeout)))
}

func (s *Shard) alone() error {
	return unfit("id", "this node was started without --peers and has no port for other nodes: restart it with --peers %s=HOST:PORT, its own raft address, then add nodes", s.opts.NodeID)
}

// change waits until a change of the configuration is committed.
func (s *Shard) change(f raft.IndexFuture) error {
	switch err := f.Error(); {
	case err == nil:
		return nil
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrEnqueueTimeout), errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return s.notLeader(fmt.Sprintf("the members were not changed (%v)", err))
	default:
		return api.Errorf(pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN, "the change of the members may or may not happen (%v): look at the status and ask again", err)
	}
}

// find returns the newest server of a node.
func (s *Shard) find(g *raftGroup, id string) (server, error) {
	same := named(g.members(), id)
	if len(same) == 0 {
		return server{}, unfit("id", "expected a node of this cluster, found %q; see the status for their ids", id)
	}
	return same[len(same)-1], nil
}

// PromoteNode makes a non-voter a voter once it has caught up, for which it waits until ctx
// ends. Errors: 2011, 2015, 2014, and 2016, also with how far the node is that has not.
func (s *Shard) PromoteNode(ctx context.Context, id string) error {
	g, t, err := s.leadingGroup()
	if err != nil {
		return err
	}
	m, err := s.find(g, id)
	if err != nil || m.Suffrage == raft.Voter {
		return err
	}
	var why error // as of the last question that was not cut short
	for {
		switch now, still := withID(g.members(), m.ID); {
		case !still:
			return unfit("id", "node %s was removed from the cluster while it was waited for", id)
		case now.Suffrage == raft.Voter:
			return nil
		default:
			m = now // it may have moved
		}
		err := s.mayVote(ctx, g, m)
		if err == nil {
			break
		}
		if why == nil || ctx.Err() == nil {
			why = err
		}
		select {
		case <-ctx.Done():
			return unfit("id", "node %s has not caught up and stays a non-voter: %v; ask again later", id, why)
		case <-t.done:
			return s.notLeader("leadership was lost before the node had caught up")
		case <-time.After(caughtUpEvery):
		}
	}
	return s.change(g.noted(g.raft.AddVoter(m.ID, m.Address, 0, changeTimeout)))
}

// lag asks a node how many entries it is behind this leader's commit index, and where its own
// is. It is an error if the node does not follow this leader: as a voter it would be missing
// at once.
func (s *Shard) lag(ctx context.Context, g *raftGroup, m server) (behind, at uint64, err error) {
	commit := g.raft.CommitIndex()
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	st, err := s.clientOf(m.Server).GetNodeStatus(ctx, &peerpb.GetNodeStatusRequest{})
	if err != nil {
		return 0, 0, errors.New(status.Convert(err).Message())
	}
	switch {
	case st.GetHello().GetLeaderId() != s.opts.NodeID || st.GetHello().GetTerm() != g.term():
		return 0, 0, errors.New("it does not follow this leader yet")
	case st.GetCommitIndex() >= commit:
		return 0, st.GetCommitIndex(), nil
	}
	return commit - st.GetCommitIndex(), st.GetCommitIndex(), nil
}

// mayVote returns nil if a non-voter can become a voter: it has caught up, and it knows all
// members. Raft lets nobody vote for a node that is not in the voter's own list, so that, were
// this leader lost, a voter that had not heard of the others would be of no use to them.
func (s *Shard) mayVote(ctx context.Context, g *raftGroup, m server) error {
	behind, at, err := s.lag(ctx, g, m)
	switch {
	case err != nil:
		return err
	case at < g.configured.Load():
		return errors.New("it does not know the newest members yet")
	case behind > caughtUp:
		return fmt.Errorf("it is %d entries behind", behind)
	}
	return nil
}

// RemoveNode takes a node out of the cluster. A leader that is asked to remove itself hands
// leadership over and answers 2011. Errors: 2011, 2015, 2016, 2014.
func (s *Shard) RemoveNode(ctx context.Context, id string) error {
	g, _, err := s.leadingGroup()
	if err != nil {
		return err
	}
	if _, err := s.find(g, id); err != nil {
		return err
	}
	members := g.members()
	left, alive := 0, 0
	for _, m := range members {
		if m.Suffrage == raft.Voter && m.nodeID != id {
			left++
			if s.answers(ctx, m) {
				alive++
			}
		}
	}
	if alive <= left/2 {
		return unfit("id", "without node %s the cluster has %d voters, of which %d answer: expected a majority; bring the others back, or promote another node, first", id, left, alive)
	}
	if id == s.opts.NodeID {
		if _, err := s.TransferLeadership(ctx, ""); err != nil {
			return err
		}
		return s.notLeader("leadership was handed over, so that this node can be removed")
	}
	for _, m := range named(members, id) {
		if err := s.change(g.noted(g.raft.RemoveServer(m.ID, 0, changeTimeout))); err != nil {
			return err
		}
	}
	return nil
}

// TransferLeadership hands leadership to a voter, to the most caught-up one that answers if to is
// empty, and returns its id once it leads. Errors: 2011, 2015, 2016, and 2014 if it is not known
// whether it failed.
func (s *Shard) TransferLeadership(ctx context.Context, to string) (string, error) {
	g, t, err := s.leadingGroup()
	if err != nil {
		return "", err
	}
	var m server
	if to == "" {
		var ok bool
		if m, ok = s.successor(ctx, g); !ok {
			return "", unfit("to_id", "no other voter answers and follows this leader: this node goes on leading")
		}
	} else {
		switch m, err = s.find(g, to); {
		case err != nil:
			return "", err
		case m.Suffrage != raft.Voter:
			return "", unfit("to_id", "node %s is not a voter: promote it first", to)
		case to == s.opts.NodeID:
			return to, nil
		}
		// Raft would try, and leave open what became of it.
		if _, _, err := s.lag(ctx, g, m); err != nil {
			return "", unfit("to_id", "node %s can not take over now (%v): this node goes on leading", to, err)
		}
	}
	f := g.raft.LeadershipTransferToServer(m.ID, m.Address)
	done := make(chan error, 1)
	go func() { done <- f.Error() }() // raft never resolves it if it is shut down first
	select {
	case err = <-done:
	case <-t.done: // lost, or handed over
	case <-ctx.Done():
		return "", status.FromContextError(ctx.Err()).Err()
	}
	switch {
	case errors.Is(err, raft.ErrLeadershipTransferInProgress):
		return "", unfit("to_id", "leadership is being handed over already; ask again")
	case err != nil:
		return "", api.Errorf(pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN, "leadership may or may not have been handed over (%v): look at the status and ask again", err)
	}
	select {
	case <-t.done:
	case <-ctx.Done():
		return "", status.FromContextError(ctx.Err()).Err()
	}
	return s.awaitLeader(ctx, g)
}

// awaitLeader waits until this node knows a leader.
func (s *Shard) awaitLeader(ctx context.Context, g *raftGroup) (string, error) {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		if id := g.leader(); id != "" {
			return peer.NodeID(id), nil
		}
		select {
		case <-ticker.C:
		case <-g.done:
			return "", s.notLeader("this node is stopping")
		case <-ctx.Done():
			return "", status.FromContextError(ctx.Err()).Err()
		}
	}
}
