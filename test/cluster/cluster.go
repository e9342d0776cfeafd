package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/disk"
	"github.com/tidemark-db/tidemark/test/network"
)

// Patience bounds every wait.
const Patience = 60 * time.Second

// Options say which cluster to run.
type Options struct {
	// Nodes is how many form the cluster, Spare how many more there is place for.
	Nodes, Spare int
	// Args are further flags of serve, for every node.
	Args []string
	// DiskBytes is the size of each node's own disk; 0 = they share the machine's.
	DiskBytes int64
}

// Cluster is a number of nodes, n1 and so on. One goroutine uses it.
type Cluster struct {
	// Dir holds the logs and the disks.
	Dir     string
	Network network.Network
	// Nodes are all of them, running or not, members or not.
	Nodes []*Node

	tb      testing.TB
	options Options
	peers   string
}

// Start makes a cluster and waits until it is well.
func Start(tb testing.TB, o Options) *Cluster {
	tb.Helper()
	dir, err := os.MkdirTemp("", "tidemark-cluster-")
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("the logs of all nodes are in %s", dir)
			return
		}
		if err := os.RemoveAll(dir); err != nil {
			tb.Error(err)
		}
	})
	c := &Cluster{Dir: dir, tb: tb, options: o, Network: network.New(tb, o.Nodes+o.Spare)}
	var peers []string
	for i := 1; i <= o.Nodes+o.Spare; i++ {
		n := &Node{ID: fmt.Sprint("n", i), Number: i, cluster: c, data: filepath.Join(dir, fmt.Sprint("n", i), "data")}
		if o.DiskBytes > 0 {
			n.Disk = disk.New(tb, dir, n.ID, o.DiskBytes)
		}
		n.conn = c.connect(c.Network.Host(i) + ":7440")
		c.Nodes = append(c.Nodes, n)
		if i <= o.Nodes {
			n.Member = true
			peers = append(peers, n.ID+"="+c.Network.RaftAddress(i))
		}
	}
	c.peers = strings.Join(peers, ",")
	for _, n := range c.Members() {
		n.Launch()
	}
	c.Settle()
	return c
}

// connect makes a connection that comes back quickly after the node does.
func (c *Cluster) connect(address string) *grpc.ClientConn {
	conn, err := grpc.NewClient("passthrough:///"+address,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry(), grpc.WithContextDialer(c.Network.Dial),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 20 * time.Millisecond, Multiplier: 1.5, Jitter: 0.2, MaxDelay: 200 * time.Millisecond},
			MinConnectTimeout: 2 * time.Second,
		}))
	if err != nil {
		c.tb.Fatal(err)
	}
	c.tb.Cleanup(func() { _ = conn.Close() }) // only ever "already closed"
	return conn
}

// Members are the nodes that should be in the cluster.
func (c *Cluster) Members() []*Node {
	var out []*Node
	for _, n := range c.Nodes {
		if n.Member {
			out = append(out, n)
		}
	}
	return out
}

// Others are the members but some.
func (c *Cluster) Others(some ...*Node) []*Node {
	var out []*Node
next:
	for _, n := range c.Members() {
		for _, s := range some {
			if n == s {
				continue next
			}
		}
		out = append(out, n)
	}
	return out
}

// ByAddress is the node that clients reach at an address; nil = none of them.
func (c *Cluster) ByAddress(address string) *Node {
	for _, n := range c.Nodes {
		if c.Network.Host(n.Number)+":7440" == address {
			return n
		}
	}
	return nil
}

// Until waits for a condition. It fails the test if a node has ended by itself meanwhile.
func (c *Cluster) Until(what string, ok func() bool) {
	c.tb.Helper()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(Patience); !ok(); <-ticker.C {
		c.CheckAlive()
		if time.Now().After(deadline) {
			c.tb.Fatalf("waited %v for %s\n%s", Patience, what, c.describe())
		}
	}
}

// CheckAlive fails the test if a node has ended that should run.
func (c *Cluster) CheckAlive() {
	c.tb.Helper()
	for _, n := range c.Nodes {
		if n.process == nil || n.mayEnd {
			continue
		}
		select {
		case <-n.process.Exited():
			exit := n.process.Wait(c.tb, time.Second)
			n.process = nil
			c.tb.Fatalf("%s ended by itself with %+v; its log is %s", n.ID, exit, n.logFile())
		default:
		}
	}
}

// describe is what every node says of itself.
func (c *Cluster) describe() string {
	var s strings.Builder
	for _, n := range c.Nodes {
		status, err := n.Status()
		fmt.Fprintf(&s, "%s (process %t): %v %v\n", n.ID, n.process != nil, status, err)
	}
	return s.String()
}

// Leader waits until a member takes writes, and returns it. If some are given it is one of
// them.
func (c *Cluster) Leader(among ...*Node) *Node {
	c.tb.Helper()
	if len(among) == 0 {
		among = c.Members()
	}
	var leader *Node
	c.Until("a leader", func() bool {
		term := uint64(0)
		leader = nil
		for _, n := range among {
			// A deposed leader may not know; the newest term is right.
			if s, err := n.Status(); err == nil && s.GetRole() == "leader" && s.GetTerm() > term && n.leads() {
				leader, term = n, s.GetTerm()
			}
		}
		return leader != nil
	})
	return leader
}

// Settle waits until every member runs, is a healthy voter, and has applied what the leader had
// when this was called; and until nobody else is a member.
func (c *Cluster) Settle() {
	c.tb.Helper()
	least := uint64(0)
	c.Until("a cluster that is well", func() bool {
		leader := c.Leader()
		s, err := leader.Status()
		if err != nil || len(s.GetNodes()) != len(c.Members()) {
			return false
		}
		if least == 0 {
			least = s.GetAppliedIndex()
		}
		for _, m := range s.GetNodes() {
			if !m.GetVoter() || !m.GetHealthy() || m.GetAppliedIndex() < least || !c.isMember(m) {
				return false
			}
		}
		return true
	})
}

// Logged counts how often a text is in the logs of all nodes, over all their restarts.
func (c *Cluster) Logged(text string) int {
	c.tb.Helper()
	count := 0
	for _, n := range c.Nodes {
		log, err := os.ReadFile(n.logFile())
		if err != nil && !os.IsNotExist(err) {
			c.tb.Fatal(err)
		}
		count += strings.Count(string(log), text)
	}
	return count
}

func (c *Cluster) isMember(m *pb.Node) bool {
	for _, n := range c.Members() {
		if n.ID == m.GetId() {
			return true
		}
	}
	return false
}
