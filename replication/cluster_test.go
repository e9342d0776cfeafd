package replication

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// cluster is some nodes in this process, on loopback sockets.
type cluster struct {
	t     *testing.T
	nodes map[string]*clusterNode
	peers []Peer
}

type clusterNode struct {
	*Shard
	opts Options
	logs *observer.ObservedLogs
}

// newCluster prepares nodes n1 to nN without starting them.
func newCluster(t *testing.T, n int) *cluster {
	t.Helper()
	c := &cluster{t: t, nodes: make(map[string]*clusterNode)}
	for i := 1; i <= n; i++ {
		id := fmt.Sprint("n", i)
		o := c.options(id)
		c.peers = append(c.peers, Peer{ID: id, Address: o.RaftAddress})
	}
	return c
}

// options makes the options of a node, with a port of its own.
func (c *cluster) options(id string) Options {
	c.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	o := Options{
		Dir: c.t.TempDir(), NodeID: id, Listener: l, RaftAddress: l.Addr().String(), AdvertiseAddress: id + ".example:7440",
		MinFreeDiskBytes: -1, BlockCacheBytes: 1 << 20, MemTableBytes: 1 << 20, HeartbeatTimeout: 200 * time.Millisecond,
	}
	c.nodes[id] = &clusterNode{opts: o}
	c.t.Cleanup(func() {
		_ = l.Close()
		if n := c.nodes[id]; n != nil && n.Shard != nil {
			_ = n.Abandon()
		}
	})
	return o
}

// start starts nodes, those that never ran and those that were stopped.
func (c *cluster) start(ids ...string) {
	c.t.Helper()
	for _, id := range ids {
		n := c.nodes[id]
		if n.Shard != nil {
			c.t.Fatalf("%s runs already", id)
		}
		o := n.opts
		if len(o.Peers) == 0 {
			o.Peers = c.peers
		}
		if o.Listener == nil {
			l, err := net.Listen("tcp", o.RaftAddress)
			if err != nil {
				c.t.Fatal(err)
			}
			o.Listener = l
		}
		core, logs := observer.New(zap.DebugLevel)
		o.Logger, n.logs = zap.New(core), logs
		s, err := Open(o)
		if err != nil {
			c.t.Fatalf("open %s: %v", id, err)
		}
		n.Shard, n.opts.Listener = s, nil
	}
}

// kill ends nodes as a crash would.
func (c *cluster) kill(ids ...string) {
	c.t.Helper()
	for _, id := range ids {
		if err := c.nodes[id].Abandon(); err != nil {
			c.t.Fatalf("abandon %s: %v", id, err)
		}
		c.nodes[id].Shard = nil
	}
}

// wipe empties the directory of a node that does not run.
func (c *cluster) wipe(id string) {
	c.t.Helper()
	if err := os.RemoveAll(c.nodes[id].opts.Dir); err != nil {
		c.t.Fatal(err)
	}
}

// until waits for a condition.
func (c *cluster) until(what string, ok func() bool) {
	c.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			for id, n := range c.nodes {
				if n.Shard != nil {
					c.t.Logf("%s: %+v", id, n.Status())
					for _, e := range n.logs.FilterLevelExact(zap.WarnLevel).All() {
						c.t.Logf("%s %s: %s %v", id, e.Time.Format("05.000"), e.Message, e.ContextMap())
					}
				}
			}
			c.t.Fatalf("waited 30 s for %s", what)
		}
		<-ticker.C
	}
}

// leader waits for a node that takes writes.
func (c *cluster) leader() *clusterNode {
	c.t.Helper()
	var leader *clusterNode
	c.until("a leader", func() bool {
		for _, n := range c.nodes {
			if n.Shard != nil {
				if ready, _ := n.Leading(); ready {
					leader = n
					return true
				}
			}
		}
		return false
	})
	return leader
}

// followers are the running nodes that do not lead.
func (c *cluster) followers() []string {
	c.t.Helper()
	leader := c.leader()
	var ids []string
	for id, n := range c.nodes {
		if n != leader && n.Shard != nil {
			ids = append(ids, id)
		}
	}
	return ids
}

// write appends on whoever leads, as a client with all of the recipe would, and returns the
// position.
func (c *cluster) write(id string, seq uint64) uint64 {
	c.t.Helper()
	req := appendOf("a", id, seqs(seq), confirmRequest)
	var position uint64
	c.until("a write", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		resp, err := c.leader().Append(ctx, req)
		if err == nil {
			position = resp.GetResults()[0].GetPosition()
			return true
		}
		if e, ok := api.FromStatus(err); ok && e.Code != pb.ErrorCode_ERROR_CODE_NOT_LEADER && e.Code != pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY &&
			e.Code != pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN && e.Code != pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE {
			c.t.Fatalf("write %s %d: %v", id, seq, err)
		}
		return false
	})
	return position
}

// converged waits until all running nodes have applied the same, and compares digests.
func (c *cluster) converged() {
	c.t.Helper()
	c.until("all nodes to have applied the same", func() bool {
		want := c.leader().applied()
		for _, n := range c.nodes {
			if n.Shard != nil && n.applied() != want {
				return false
			}
		}
		return true
	})
}

func (n *clusterNode) applied() string {
	v := n.currentView()
	if v == nil {
		return "closed"
	}
	defer v.Release()
	a := v.Applied()
	return fmt.Sprint(a.Index, " ", a.Position, " ", a.Digest)
}

func TestThreeNodesFormReplicateAndFailOver(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	for i := range 20 {
		c.write("1", uint64(i+1))
	}
	c.converged()
	first := c.leader()
	var ids []string
	for id, n := range c.nodes {
		if n == first {
			ids = append(ids, id)
		}
	}
	c.kill(ids...)
	for i := range 20 {
		c.write("2", uint64(i+1))
	}
	c.start(ids...)
	c.converged()
}

func TestFollowerNamesTheLeadersClientAddress(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	leader := c.leader().opts
	for _, id := range c.followers() {
		c.until("a follower to know the leader", func() bool { return c.nodes[id].Status().LeaderID == leader.NodeID })
		_, err := c.nodes[id].Append(context.Background(), appendOf("a", "1", seqs(2)))
		e, ok := api.FromStatus(err)
		if !ok || e.Code != pb.ErrorCode_ERROR_CODE_NOT_LEADER {
			t.Fatalf("follower %s answered %v", id, err)
		}
		detail, _ := e.Details[0].(*pb.NotLeader)
		if detail.GetLeaderId() != leader.NodeID || detail.GetLeaderAddress() != leader.AdvertiseAddress {
			t.Errorf("follower %s named %v, the leader is %s at %s", id, detail, leader.NodeID, leader.AdvertiseAddress)
		}
	}
}

func TestMemberOfManyDoesNotStartAlone(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.formed()
	c.kill("n2")
	o := c.nodes["n2"].opts
	o.Peers = nil
	s, err := Open(o)
	if err == nil {
		_ = s.Abandon()
		t.Fatal("it started without a port for the others")
	}
	if !strings.Contains(err.Error(), "--peers") {
		t.Fatal(err)
	}
	c.start("n2")
	c.formed()
}

// Whatever made raft start again, the node serves on, as what it is then.
func TestRaftStartsAgainInTheSameProcess(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	for i := range 6 {
		c.write("1", uint64(i+1))
		n := c.leader()
		if i%2 == 1 {
			n = c.nodes[c.followers()[0]]
		}
		before := n.raftGroup()
		n.restartRaft("the test wants it")
		c.until("another raft to run", func() bool { return n.raftGroup() != before })
	}
	c.write("1", 7)
	c.converged()
}

// The largest requests make entries that take long to send and to flush, and heartbeats wait
// behind them.
func TestRequestsAtTheLimitDoNotDisturbLeadership(t *testing.T) {
	c := newCluster(t, 3)
	for _, n := range c.nodes {
		n.opts.HeartbeatTimeout = 0 // the default
	}
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	leader := c.leader()
	term := leader.raftGroup().term()
	for i, size := range []int{4<<20 - 1000, 15 << 20, 4<<20 - 1000, 15 << 20} {
		req := appendOf("w", "large", seqs(uint64(i+1)))
		req.Writes[0].Events[0].Payload = make([]byte, size)
		if _, err := leader.Append(within(t, 20*time.Second), req); err != nil {
			t.Fatal(err)
		}
	}
	c.converged()
	if c.leader() != leader || leader.raftGroup().term() != term {
		t.Errorf("leadership moved: term %d, then %d", term, leader.raftGroup().term())
	}
}

func TestReadsBeforeTheFirstWriteNameTheTimeline(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.leader()
	for id, n := range c.nodes {
		c.until(id+" to be a member", func() bool { return n.raftGroup() != nil })
		v, err := n.Read(within(t, 10*time.Second), ReadOptions{Consistency: pb.Consistency_CONSISTENCY_ANY})
		if err != nil {
			t.Fatal(err)
		}
		if got, want := v.Applied().Timeline, n.identity().Timeline; got != want || want == "" {
			t.Errorf("%s answers timeline %q, it is on %q", id, got, want)
		}
		v.Release()
	}
}
