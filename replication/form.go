package replication

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/status"

	peerpb "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
)

// This file brings a node with an empty directory into a cluster.
//
// A cluster is formed once, by its initial peers. The one with the lowest id, the founder,
// waits until it has reached all of them and none is a member of a cluster, then names the
// cluster and has every one of them write that down with the list of all founders
// (stateFounding). Whoever sees that every founder has done so becomes a member, writes the
// first configuration as entry 1 of its log and starts raft (stateMember). So:
//
//   - Nobody votes before all founders hold the cluster's name on disk. Whichever are killed
//     on the way, those that come back go on from what they wrote.
//   - A directory that is not a member's never voted. One whose generation is among the
//     founders of a cluster that others are members of already may therefore become a member
//     at any time.
//   - A directory that was lost has a new generation, which is among nobody's founders. It
//     joins as a non-voter (see join) and is never taken for the node it was.
//   - A founder may replace the name while not all hold it, because one of them lost its
//     directory. Found compares and sets, so that a delayed call changes nothing.

const (
	helloTimeout = time.Second
	// formEvery is how often the peers are asked while a cluster is formed.
	formEvery = 200 * time.Millisecond
	// formLogEvery is how often a node that waits says what for.
	formLogEvery = 10 * time.Second
)

// formOrJoin runs until this node is a member of a cluster; false if the shard stops first.
func (s *Shard) formOrJoin() bool {
	ctx, cancel := s.untilStopped()
	defer cancel()
	var logged time.Time
	var last string
	for s.identity().State != stateMember {
		waiting := s.form(ctx)
		if ctx.Err() != nil {
			return false
		}
		if waiting == nil {
			continue
		}
		s.setWaiting(waiting.Error())
		if waiting.Error() != last || time.Since(logged) >= formLogEvery {
			last, logged = waiting.Error(), time.Now()
			s.log.Info("not a member of a cluster yet", zap.String("waiting_for", last))
		}
		select {
		case <-ctx.Done():
			return false
		case <-s.formWake:
		case <-time.After(formEvery):
		}
	}
	s.setWaiting("")
	return true
}

// untilStopped returns a context that ends when the shard stops.
func (s *Shard) untilStopped() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // ends with ctx
		select {
		case <-s.stopped:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// hello is what an initial peer answered.
type hello struct {
	peer Peer
	resp *peerpb.HelloResponse
	err  error
}

// form takes one step on the way into a cluster and says what it waits for; nil = it made
// progress.
func (s *Shard) form(ctx context.Context) error {
	id := s.identity()
	if len(s.opts.Peers) == 0 {
		f := founder{NodeID: id.NodeID, Generation: id.Generation, ClientAddress: s.opts.AdvertiseAddress}
		return s.become(id, &identity{State: stateMember, ClusterID: newHexID(16), Timeline: newHexID(16), Founders: []founder{f}})
	}
	hellos := s.helloAll(ctx)
	if waiting, member := s.formed(ctx, id, hellos); member {
		return waiting
	}
	if !slices.ContainsFunc(s.opts.Peers, func(p Peer) bool { return p.ID == id.NodeID }) {
		return fmt.Errorf("%s to be added: it is not one of --peers, and none of them is a member of a cluster yet", id.NodeID)
	}
	founders := []founder{s.self(id)}
	var problems []string
	for _, h := range hellos {
		n := h.resp.GetNode()
		switch {
		case h.err != nil:
			problems = append(problems, fmt.Sprintf("%s at %s (%v)", h.peer.ID, h.peer.Address, h.err))
		case n.GetNodeId() != h.peer.ID:
			problems = append(problems, fmt.Sprintf("%s at %s (the node there is %s: compare --peers with its --node-id)", h.peer.ID, h.peer.Address, n.GetNodeId()))
		default:
			founders = append(founders, founder{NodeID: n.GetNodeId(), Generation: n.GetGeneration(), RaftAddress: h.peer.Address, ClientAddress: n.GetClientAddress()})
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("all initial peers to be reachable; not yet: %s", strings.Join(problems, ", "))
	}
	sort.Slice(founders, func(i, j int) bool { return founders[i].NodeID < founders[j].NodeID })
	if founders[0].NodeID != id.NodeID {
		if s.allHold(id, hellos) {
			return s.become(id, &identity{State: stateMember, ClusterID: id.ClusterID, Timeline: id.Timeline, Founders: id.Founders})
		}
		return fmt.Errorf("%s, which has the lowest id, to found the cluster", founders[0].NodeID)
	}
	return s.found(ctx, id, founders, hellos)
}

// self is this node as a founder.
func (s *Shard) self(id *identity) founder {
	return founder{NodeID: id.NodeID, Generation: id.Generation, RaftAddress: s.opts.RaftAddress, ClientAddress: s.opts.AdvertiseAddress}
}

// helloAll asks all other initial peers at once.
func (s *Shard) helloAll(ctx context.Context) []hello {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	var hellos []hello
	for _, p := range s.opts.Peers {
		if p.ID != s.opts.NodeID {
			hellos = append(hellos, hello{peer: p})
		}
	}
	var wg sync.WaitGroup
	for i := range hellos {
		wg.Go(func() {
			h := &hellos[i]
			h.resp, h.err = s.hello(ctx, h.peer.Address)
		})
	}
	wg.Wait()
	return hellos
}

// hello asks the node at a raft address who it is.
func (s *Shard) hello(ctx context.Context, address string) (*peerpb.HelloResponse, error) {
	return sayHello(ctx, s.net.Client(address))
}

func sayHello(ctx context.Context, c peerpb.PeerServiceClient) (*peerpb.HelloResponse, error) {
	resp, err := c.Hello(ctx, &peerpb.HelloRequest{})
	if err != nil {
		return nil, errors.New(status.Convert(err).Message())
	}
	return resp, nil
}

// formed handles peers that are members of a cluster already; member says whether there are
// any.
func (s *Shard) formed(ctx context.Context, id *identity, hellos []hello) (waiting error, member bool) {
	var clusters []string
	for _, h := range hellos {
		if h.err != nil || h.resp.GetState() != peerpb.State_STATE_MEMBER {
			continue
		}
		if !slices.Contains(clusters, h.resp.GetClusterId()) {
			clusters = append(clusters, h.resp.GetClusterId())
		}
	}
	if len(clusters) > 1 {
		return fmt.Errorf("--peers to name one cluster: they are members of %s; correct --peers, or empty the directory of the node that is of another cluster", strings.Join(clusters, " and ")), true
	}
	for _, h := range hellos {
		if h.err != nil || h.resp.GetState() != peerpb.State_STATE_MEMBER {
			continue
		}
		f := foundingOf(h.resp.GetFounding())
		if f != nil && slices.ContainsFunc(f.Founders, func(f founder) bool { return f.serverID() == id.serverID() }) {
			// This very directory is a founder, and never voted.
			f.State = stateMember
			return s.become(id, f), true
		}
	}
	for _, h := range hellos {
		if h.err == nil && h.resp.GetState() == peerpb.State_STATE_MEMBER {
			member = true
			if waiting = s.join(ctx, h.resp, h.peer.Address); waiting == nil {
				return nil, true
			}
		}
	}
	return waiting, member
}

// join asks the leader of a living cluster to take this node in. from answered at address.
func (s *Shard) join(ctx context.Context, from *peerpb.HelloResponse, address string) error {
	id := s.identity()
	to := from.GetLeaderRaftAddress()
	if to == "" {
		return fmt.Errorf("a leader of cluster %s: this directory is empty and never votes, so it has to be taken in; %s knows no leader", from.GetClusterId(), from.GetNode().GetNodeId())
	}
	if from.GetLeaderId() == from.GetNode().GetNodeId() {
		to = address
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	resp, err := s.askJoin(ctx, id, to)
	if err != nil {
		return fmt.Errorf("the leader of cluster %s (%s) to take this node in, whose directory is empty: %s", from.GetClusterId(), to, status.Convert(err).Message())
	}
	s.log.Info("joined a living cluster as a non-voter", zap.String("cluster_id", resp.GetClusterId()), zap.String("leader", to))
	return s.become(id, &identity{State: stateMember, ClusterID: resp.GetClusterId(), Timeline: resp.GetTimeline()})
}

func (s *Shard) askJoin(ctx context.Context, id *identity, leader string) (*peerpb.JoinResponse, error) {
	return s.net.Client(leader).Join(ctx, &peerpb.JoinRequest{
		NodeId: id.NodeID, Generation: id.Generation, RaftAddress: s.opts.RaftAddress, ClientAddress: s.opts.AdvertiseAddress,
		Member: id.State == stateMember,
	})
}

// found is the founder's step: all initial peers are reachable, and none is a member.
func (s *Shard) found(ctx context.Context, id *identity, founders []founder, hellos []hello) error {
	record := &identity{State: stateFounding, ClusterID: id.ClusterID, Timeline: id.Timeline, Founders: id.Founders}
	if !slices.Equal(record.Founders, founders) {
		record = nil
		for _, h := range hellos {
			if f := foundingOf(h.resp.GetFounding()); f != nil && slices.Equal(f.Founders, founders) {
				record = f
			}
		}
		if record == nil {
			record = &identity{ClusterID: newHexID(16), Timeline: newHexID(16), Founders: founders}
		}
		record.State = stateFounding
		if err := s.become(id, record); err != nil {
			return err
		}
		id = s.identity()
	}
	for i := range hellos {
		h := &hellos[i]
		if h.resp.GetState() == peerpb.State_STATE_FOUNDING && h.resp.GetClusterId() == id.ClusterID {
			continue
		}
		call, cancel := context.WithTimeout(ctx, changeTimeout)
		resp, err := s.net.Client(h.peer.Address).Found(call, &peerpb.FoundRequest{ReplacesClusterId: h.resp.GetClusterId(), Founding: id.founding()})
		cancel()
		if err != nil {
			return fmt.Errorf("%s to write the cluster's name down: %s", h.peer.ID, status.Convert(err).Message())
		}
		h.resp = resp.GetNow()
	}
	if !s.allHold(id, hellos) {
		return errors.New("all initial peers to write the cluster's name down")
	}
	s.log.Info("the cluster is formed", zap.String("cluster_id", id.ClusterID), zap.Int("founders", len(founders)))
	return s.become(id, &identity{State: stateMember, ClusterID: id.ClusterID, Timeline: id.Timeline, Founders: id.Founders})
}

// allHold says whether every founder has this node's founding record on disk.
func (s *Shard) allHold(id *identity, hellos []hello) bool {
	if id.State != stateFounding || len(hellos) != len(id.Founders)-1 {
		return false
	}
	for _, h := range hellos {
		f := foundingOf(h.resp.GetFounding())
		if f == nil || f.ClusterID != id.ClusterID || !slices.Equal(f.Founders, id.Founders) {
			return false
		}
		if !slices.ContainsFunc(id.Founders, func(f founder) bool {
			return f.NodeID == h.resp.GetNode().GetNodeId() && f.Generation == h.resp.GetNode().GetGeneration()
		}) {
			return false
		}
	}
	return true
}

// founding is an identity's founding record on the wire; nil if it has none.
func (id *identity) founding() *peerpb.Founding {
	if id.State == stateEmpty || len(id.Founders) == 0 {
		return nil
	}
	f := &peerpb.Founding{ClusterId: id.ClusterID, Timeline: id.Timeline}
	for _, m := range id.Founders {
		f.Members = append(f.Members, &peerpb.Member{NodeId: m.NodeID, Generation: m.Generation, RaftAddress: m.RaftAddress, ClientAddress: m.ClientAddress})
	}
	return f
}

// foundingOf reads a founding record off the wire.
func foundingOf(f *peerpb.Founding) *identity {
	if f == nil || !isHex(f.GetClusterId(), 16) || !isHex(f.GetTimeline(), 16) {
		return nil
	}
	id := &identity{ClusterID: f.GetClusterId(), Timeline: f.GetTimeline()}
	for _, m := range f.GetMembers() {
		id.Founders = append(id.Founders, founder{NodeID: m.GetNodeId(), Generation: m.GetGeneration(), RaftAddress: m.GetRaftAddress(), ClientAddress: m.GetClientAddress()})
	}
	return id
}

// become makes a change of this directory's identity durable and takes it on, unless it is
// not what it was any more, from: then nothing changes, and the caller looks again.
func (s *Shard) become(from, next *identity) error {
	s.idMu.Lock()
	defer s.idMu.Unlock()
	if s.identity() != from || from.State == stateMember {
		return nil
	}
	next.Format, next.NodeID, next.Generation = identityFormat, from.NodeID, from.Generation
	err := s.formingStep(string(next.State))
	if err == nil {
		err = next.write(s.opts.Dir)
	}
	if err == nil {
		err = s.formingStep(string(next.State) + " written")
	}
	if err != nil {
		err = fmt.Errorf("write %s: %w", s.path(identityFile), err)
		s.fatal(err)
		return err
	}
	s.ident.Store(next)
	return nil
}

// noteLogBegun makes it durable that a member's log is not empty, once it is not.
func (s *Shard) noteLogBegun() error {
	if s.identity().LogBegun {
		return nil
	}
	last, err := s.tail.LastIndex()
	if err != nil || last == 0 {
		return err
	}
	s.idMu.Lock()
	defer s.idMu.Unlock()
	next := *s.identity()
	next.LogBegun = true
	if err := next.write(s.opts.Dir); err != nil {
		return fmt.Errorf("write %s: %w", s.path(identityFile), err)
	}
	s.ident.Store(&next)
	return nil
}

func (s *Shard) formingStep(name string) error {
	if hook := s.opts.Hooks.Forming; hook != nil {
		return hook(name)
	}
	return nil
}

// identity returns the directory's identity now; it is not to be changed.
func (s *Shard) identity() *identity { return s.ident.Load() }
