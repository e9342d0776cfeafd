package peer

import (
	"bytes"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// machine is the state of a raft node: what was applied.
type machine struct {
	mu      sync.Mutex
	applied []string
}

func (m *machine) Apply(l *raft.Log) any {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.applied = append(m.applied, string(l.Data))
	return nil
}

func (m *machine) Snapshot() (raft.FSMSnapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b bytes.Buffer
	for _, a := range m.applied {
		fmt.Fprintln(&b, a)
	}
	return &image{b.Bytes()}, nil
}

func (m *machine) Restore(r io.ReadCloser) error {
	b, err := io.ReadAll(r)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.applied = nil
	for line := range bytes.Lines(b) {
		m.applied = append(m.applied, string(bytes.TrimSpace(line)))
	}
	return nil
}

func (m *machine) has() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return fmt.Sprint(m.applied)
}

type image struct{ b []byte }

func (i *image) Persist(sink raft.SnapshotSink) error {
	if _, err := sink.Write(i.b); err != nil {
		return err
	}
	return sink.Close()
}

func (i *image) Release() {}

// raftNode is a node that runs raft. Its stores outlive a restart of raft.
type raftNode struct {
	*node
	store     *raft.InmemStore
	snapshots *raft.InmemSnapshotStore
	machine   *machine
	raft      *raft.Raft
	transport *Transport
}

func newRaftNode(t *testing.T, id string) *raftNode {
	return &raftNode{node: newNode(t, member(id, id+"gen")), store: raft.NewInmemStore(), snapshots: raft.NewInmemSnapshotStore(), machine: new(machine)}
}

func (n *raftNode) server() raft.Server {
	return raft.Server{ID: n.identity().ServerID(), Address: raft.ServerAddress(n.addr)}
}

// run starts raft.
func (n *raftNode) run() {
	n.t.Helper()
	c := raft.DefaultConfig()
	c.LocalID = n.server().ID
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout, c.CommitTimeout = 400*time.Millisecond, 400*time.Millisecond, 400*time.Millisecond, 5*time.Millisecond
	c.LogOutput = io.Discard
	n.transport = n.Transport(patience, nil)
	var err error
	if n.raft, err = raft.NewRaft(c, n.machine, n.store, n.store, n.snapshots, n.transport); err != nil {
		n.t.Fatal(err)
	}
}

// halt stops raft, in the order that Network.Transport recommends.
func (n *raftNode) halt() {
	n.t.Helper()
	down := n.raft.Shutdown()
	if err := n.transport.Close(); err != nil {
		n.t.Error(err)
	}
	if err := down.Error(); err != nil {
		n.t.Error(err)
	}
}

// newCluster runs nodes of one cluster until the end of the test.
func newCluster(t *testing.T, size int) []*raftNode {
	t.Helper()
	noLeaks(t)
	var nodes []*raftNode
	var c raft.Configuration
	for i := range size {
		n := newRaftNode(t, fmt.Sprint("n", i+1))
		nodes, c.Servers = append(nodes, n), append(c.Servers, n.server())
	}
	for _, n := range nodes {
		n.run()
		t.Cleanup(n.halt)
		if err := n.raft.BootstrapCluster(c).Error(); err != nil {
			t.Fatal(err)
		}
	}
	return nodes
}

// leader waits until the nodes follow one of them, and know it by its id and address.
func leader(t *testing.T, nodes []*raftNode) *raftNode {
	t.Helper()
	var found *raftNode
	eventually(t, "a leader that all follow", func() (string, bool) {
		found = nil
		said := ""
		for _, n := range nodes {
			if n.raft.State() == raft.Leader {
				found = n
			}
		}
		for _, n := range nodes {
			addr, id := n.raft.LeaderWithID()
			said += fmt.Sprintf("%s: %s at %s; ", n.server().ID, id, addr)
			if found == nil || id != found.server().ID || addr != found.server().Address {
				return said, false
			}
		}
		return said, true
	})
	return found
}

// replicate has the leader write, and waits until all nodes have it all.
func replicate(t *testing.T, nodes []*raftNode, entries ...string) {
	t.Helper()
	l := leader(t, nodes)
	for _, e := range entries {
		if err := l.raft.Apply([]byte(e), patience).Error(); err != nil {
			t.Fatal(err)
		}
	}
	want := l.machine.has()
	for _, n := range nodes {
		eventually(t, string(n.server().ID)+" to have "+want, func() (string, bool) { return n.machine.has(), n.machine.has() == want })
	}
}

func TestNodesElectReplicateAndHandLeadershipOver(t *testing.T) {
	for _, size := range []int{2, 3} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			nodes := newCluster(t, size)
			replicate(t, nodes, "a", "b", "c")
			before := leader(t, nodes)
			var to *raftNode
			for _, n := range nodes {
				if n != before {
					to = n
				}
			}
			if err := before.raft.LeadershipTransferToServer(to.server().ID, to.server().Address).Error(); err != nil {
				t.Fatal(err)
			}
			replicate(t, nodes, "d")
			if got := to.machine.has(); got != "[a b c d]" {
				t.Errorf("applied %s, want [a b c d]", got)
			}
			// All have met, whoever dialed whom.
			for _, n := range nodes {
				i, _, ok := n.Known(leader(t, nodes).identity().ServerID())
				if l := leader(t, nodes); n != l && (!ok || i != l.identity()) {
					t.Errorf("%s knows %+v of its leader, want %+v", n.identity().NodeID, i, l.identity())
				}
			}
		})
	}
}

// TestRaftStartsAgainOnTheSameNetwork, with what it had, and with a snapshot to take in.
func TestRaftStartsAgainOnTheSameNetwork(t *testing.T) {
	nodes := newCluster(t, 3)
	replicate(t, nodes, "a", "b")
	l := leader(t, nodes)
	var others []*raftNode
	var n *raftNode
	for _, o := range nodes {
		if o == l || n != nil {
			others = append(others, o)
		} else {
			n = o
		}
	}
	for round := range 3 {
		n.halt()
		replicate(t, others, fmt.Sprint("while it was away ", round))
		n.machine = new(machine) // it comes back from the log, which raft applies again
		n.run()
		replicate(t, nodes, fmt.Sprint("since it is back ", round))
	}

	// What it misses now is in the log of no other node any more.
	n.halt()
	replicate(t, others, "c")
	for _, o := range others {
		if err := o.raft.ReloadConfig(func() raft.ReloadableConfig {
			c := o.raft.ReloadableConfig()
			c.TrailingLogs = 0
			return c
		}()); err != nil {
			t.Fatal(err)
		}
		if err := o.raft.Snapshot().Error(); err != nil {
			t.Fatal(err)
		}
	}
	replicate(t, others, "d")
	n.store, n.machine = raft.NewInmemStore(), new(machine)
	n.run()
	replicate(t, nodes, "e")
	if list, err := n.snapshots.List(); err != nil || len(list) != 1 {
		t.Errorf("%d snapshots (%v), want the one it was sent", len(list), err)
	}
}

// TestClusterGoesOnWithoutTheWipedNode: what is at its address now gets nothing that was
// meant for it, and has no say.
func TestClusterGoesOnWithoutTheWipedNode(t *testing.T) {
	nodes := newCluster(t, 3)
	replicate(t, nodes, "a")
	l := leader(t, nodes)
	var others []*raftNode
	var n *raftNode
	for _, o := range nodes {
		if o == l || n != nil {
			others = append(others, o)
		} else {
			n = o
		}
	}
	n.halt()
	n.become(func(i *Identity) { i.Generation = "wiped" })
	n.store, n.snapshots, n.machine = raft.NewInmemStore(), raft.NewInmemSnapshotStore(), new(machine)
	n.run()
	replicate(t, others, "b")
	l = leader(t, others)
	eventually(t, "the leader to be refused", func() (string, bool) {
		lines := l.logged("another node was not connected to")
		return fmt.Sprint(lines), len(lines) == 1
	})
	if got := n.machine.has(); got != "[]" || n.raft.CurrentTerm() != 0 || n.raft.LastIndex() != 0 {
		t.Errorf("it has %s, term %d, index %d; want nothing to have come through", got, n.raft.CurrentTerm(), n.raft.LastIndex())
	}
	// Added as what it is, it catches up.
	if err := l.raft.RemoveServer(raftID(n.identity().NodeID+"#"+n.identity().NodeID+"gen"), 0, patience).Error(); err != nil {
		t.Fatal(err)
	}
	if err := l.raft.AddVoter(n.server().ID, n.server().Address, 0, patience).Error(); err != nil {
		t.Fatal(err)
	}
	replicate(t, nodes, "c")
	if got := n.machine.has(); got != "[a b c]" {
		t.Errorf("it has %s, want [a b c]", got)
	}
}
