package replication

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tidemark-db/tidemark/api"
	peerpb "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

var errKilled = errors.New("killed by the test")

// steps are the points at which a node is killed on its way into a new cluster.
var formingSteps = []string{"founding", "founding written", "member", "member written", "bootstrapped"}

// killAt has a node killed the first time that it comes to a step.
func (c *cluster) killAt(id, step string) (killed *atomic.Bool) {
	killed = new(atomic.Bool)
	c.nodes[id].opts.Hooks.Forming = func(s string) error {
		if s == step && killed.CompareAndSwap(false, true) {
			return errKilled
		}
		return nil
	}
	return killed
}

// restartKilled waits until a node has met its end, and starts it again.
func (c *cluster) restartKilled(id string) {
	c.t.Helper()
	select {
	case err := <-c.nodes[id].Fatal():
		if !errors.Is(err, errKilled) {
			c.t.Fatalf("%s ended with %v", id, err)
		}
	case <-time.After(20 * time.Second):
		c.t.Fatalf("%s never came to the step", id)
	}
	c.kill(id)
	c.start(id)
}

func TestClusterFormsWhicheverMemberIsKilledAtWhicheverStep(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"n1", "n3"} {
		for _, step := range formingSteps {
			t.Run(id+" "+step, func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, 3)
				c.killAt(id, step)
				c.start("n1", "n2", "n3")
				c.restartKilled(id)
				c.formed()
			})
		}
	}
}

func TestClusterFormsWhenAllMembersAreKilledAtAStep(t *testing.T) {
	t.Parallel()
	for _, step := range formingSteps {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3)
			ids := []string{"n1", "n2", "n3"}
			for _, id := range ids {
				c.killAt(id, step)
			}
			c.start(ids...)
			// The founder comes to every step, and the others as far as it brings them.
			c.restartKilled("n1")
			for _, id := range ids[1:] {
				c.until(id+" to be a member or dead", func() bool {
					return c.nodes[id].failed() || c.nodes[id].identity().State == stateMember && c.nodes[id].raftGroup() != nil
				})
				if c.nodes[id].failed() {
					c.restartKilled(id)
				}
			}
			c.formed()
		})
	}
}

// formed checks that all nodes are voters of one cluster that takes writes, each under the
// generation of its directory.
func (c *cluster) formed() {
	c.t.Helper()
	c.write("1", 1)
	c.converged()
	want := *c.leader().identity()
	var servers []string
	for _, m := range c.leader().raftGroup().members() {
		servers = append(servers, fmt.Sprint(m.ID, " ", m.Suffrage))
	}
	for id, n := range c.nodes {
		got := *n.identity()
		if got.ClusterID != want.ClusterID || got.Timeline != want.Timeline {
			c.t.Errorf("%s is of cluster %s, the leader of %s", id, got.ClusterID, want.ClusterID)
		}
		if s := fmt.Sprint(got.serverID(), " Voter"); !slices.Contains(servers, s) {
			c.t.Errorf("%s is not among %v", s, servers)
		}
	}
	if len(servers) != len(c.nodes) {
		c.t.Errorf("members %v of %d nodes", servers, len(c.nodes))
	}
}

func TestNobodyServesBeforeAllInitialPeersAreReached(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2")
	c.until("n1 to say what it waits for", func() bool { return strings.Contains(c.nodes["n1"].Status().Waiting, "n3 at ") })
	_, err := c.nodes["n1"].Append(context.Background(), appendOf("a", "1", seqs(1)))
	if e, ok := api.FromStatus(err); !ok || e.Code != pb.ErrorCode_ERROR_CODE_NOT_LEADER {
		t.Fatalf("a node of an unformed cluster answered %v", err)
	}
	c.start("n3")
	c.formed()
}

func TestDirectoryLostWhileFormingDoesNotWedgeTheOthers(t *testing.T) {
	t.Parallel()
	for _, id := range []string{"n1", "n2"} {
		for _, step := range []string{"founding written", "member", "member written", "bootstrapped"} {
			t.Run(id+" "+step, func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, 3)
				c.killAt(id, step)
				c.start("n1", "n2", "n3")
				<-c.nodes[id].Fatal()
				c.kill(id)
				c.wipe(id)
				c.start(id)
				c.until("all to be voters", func() bool {
					g := c.leader().raftGroup()
					voters := 0
					for _, m := range g.members() {
						if m.Suffrage.String() == "Voter" && m.ID == c.nodes[m.nodeID].identity().serverID() {
							voters++
						}
					}
					return voters == 3 && len(g.members()) == 3
				})
				c.formed()
			})
		}
	}
}

// A wiped voter that voted with its lost memory could help a node that lags to become the
// leader, and with that undo what it had helped to commit itself.
func TestWipedVoterCannotUncommit(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	c.converged()
	first := c.leader().opts.NodeID
	others := c.followers()
	lags, wiped := others[0], others[1]
	c.kill(lags)
	c.write("1", 2) // on first and wiped
	c.kill(first, wiped)
	c.wipe(wiped)
	c.start(lags, wiped)
	// Nothing may be served: only the dead one has the write for certain.
	c.until("the wiped node to look for a leader", func() bool { return strings.Contains(c.nodes[wiped].Status().Waiting, "leader") })
	deadline := time.After(2 * time.Second)
	for done := false; !done; {
		select {
		case <-deadline:
			done = true
		case <-time.After(10 * time.Millisecond):
		}
		for _, id := range []string{lags, wiped} {
			if ready, _ := c.nodes[id].Leading(); ready {
				t.Fatalf("%s leads, without the write that was acknowledged", id)
			}
		}
	}
	c.start(first)
	c.until("the wiped node to be a voter again", func() bool {
		members := c.leader().raftGroup().members()
		return len(members) == 3 && slices.ContainsFunc(members, func(m server) bool {
			return m.ID == c.nodes[wiped].identity().serverID() && m.Suffrage.String() == "Voter"
		})
	})
	_, err := c.leader().Append(context.Background(), appendOf("a", "1", seqs(2)))
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION)
	c.converged()
}

func TestNodesOfTwoClustersAreKeptApart(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.formed()
	other := newCluster(t, 1)
	other.start("n1")
	other.formed()
	// The other cluster's node takes the place of n3.
	c.kill("n3")
	address := c.nodes["n3"].opts.RaftAddress
	other.kill("n1")
	o := &other.nodes["n1"].opts
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	o.Listener, o.RaftAddress = l, address
	o.Peers = []Peer{{"n1", address}}
	other.start("n1")
	other.formed()
	leader := c.leader()
	c.until("the leader to be told", func() bool {
		for _, e := range leader.logs.All() {
			if strings.Contains(fmt.Sprint(e.Message, e.ContextMap()), other.nodes["n1"].identity().ClusterID) {
				return true
			}
		}
		return false
	})
	c.write("1", 2)
}

// While not all founders hold the name, nobody may be a member: if those that do not hold it
// lost their directories, the rest would wait for ever for nodes that are no more.
func TestNobodyIsAMemberBeforeAllFoundersHoldTheName(t *testing.T) {
	founders := []founder{{NodeID: "n1", Generation: "00000001"}, {NodeID: "n2", Generation: "00000002"}, {NodeID: "n3", Generation: "00000003"}}
	record := &identity{NodeID: "n1", Generation: "00000001", State: stateFounding, ClusterID: strings.Repeat("ab", 16), Timeline: strings.Repeat("cd", 16), Founders: founders}
	answer := func(node, generation string, founding *peerpb.Founding) hello {
		return hello{peer: Peer{ID: node}, resp: &peerpb.HelloResponse{Node: &peerpb.Node{NodeId: node, Generation: generation}, Founding: founding}}
	}
	holds := func(node, generation string) hello { return answer(node, generation, record.founding()) }
	other := *record
	other.ClusterID = strings.Repeat("ef", 16)
	fewer := *record
	fewer.Founders = founders[:2]
	for _, c := range []struct {
		name   string
		id     *identity
		hellos []hello
		want   bool
	}{
		{"all hold it", record, []hello{holds("n2", "00000002"), holds("n3", "00000003")}, true},
		{"one does not answer", record, []hello{holds("n2", "00000002")}, false},
		{"one holds nothing", record, []hello{holds("n2", "00000002"), answer("n3", "00000003", nil)}, false},
		{"one holds another name", record, []hello{holds("n2", "00000002"), answer("n3", "00000003", other.founding())}, false},
		{"one has other founders", record, []hello{holds("n2", "00000002"), answer("n3", "00000003", fewer.founding())}, false},
		{"one lost its directory", record, []hello{holds("n2", "00000002"), holds("n3", "00000009")}, false},
		{"this one holds nothing", &identity{NodeID: "n1", Generation: "00000001", State: stateEmpty}, []hello{holds("n2", "00000002"), holds("n3", "00000003")}, false},
	} {
		if got := (&Shard{}).allHold(c.id, c.hellos); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

// Two calls may change a directory's identity at once; the later one must see the earlier.
func TestIdentityChangesOnlyFromWhatItWas(t *testing.T) {
	dir := t.TempDir()
	first, err := loadIdentity(dir, "n1")
	if err != nil {
		t.Fatal(err)
	}
	s := &Shard{opts: Options{Dir: dir, NodeID: "n1"}}
	s.ident.Store(&first)
	founding := func(b string) *identity {
		return &identity{State: stateFounding, ClusterID: strings.Repeat(b, 16), Timeline: strings.Repeat(b, 16), Founders: []founder{{NodeID: "n1", Generation: first.Generation}}}
	}
	if err := s.become(&first, founding("aa")); err != nil || s.identity().ClusterID != strings.Repeat("aa", 16) {
		t.Fatal(s.identity(), err)
	}
	late := founding("bb")
	late.State = stateMember
	if err := s.become(&first, late); err != nil || s.identity().ClusterID != strings.Repeat("aa", 16) {
		t.Fatalf("a change from what it no longer was: %+v, %v", s.identity(), err)
	}
	now := s.identity()
	member := founding("aa")
	member.State = stateMember
	if err := s.become(now, member); err != nil {
		t.Fatal(err)
	}
	if err := s.become(s.identity(), founding("cc")); err != nil || s.identity().State != stateMember || s.identity().ClusterID != strings.Repeat("aa", 16) {
		t.Fatalf("a member became %+v, %v", s.identity(), err)
	}
}

// Of a directory whose log is gone, but not its term, a founder would begin anew in its
// former self's name.
func TestFounderThatLostItsLogDoesNotBeginAnew(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	c.converged()
	which := c.followers()[0]
	c.kill(which)
	n := c.nodes[which]
	for _, name := range []string{"tail", "history", "snapshots"} {
		dir := filepath.Join(n.opts.Dir, name)
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	o := n.opts
	o.Peers = c.peers
	l, err := net.Listen("tcp", o.RaftAddress)
	if err != nil {
		t.Fatal(err)
	}
	o.Listener = l
	s, err := Open(o)
	if err == nil {
		_ = s.Abandon()
		t.Fatal("it votes without its log")
	}
	if !errors.Is(err, ErrDamaged) || !strings.Contains(err.Error(), "what this node acknowledged is lost") {
		t.Fatal(err)
	}
	c.wipe(which)
	c.start(which)
	c.write("1", 2)
	c.converged()
}

// What a node that joined later lost is as lost as what a founder lost.
func TestMemberThatLostItsLogDoesNotBeginAnew(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	o := c.options("n4")
	c.start("n4")
	if err := c.leader().AddNode(within(t, 20*time.Second), "n4", o.RaftAddress, ""); err != nil {
		t.Fatal(err)
	}
	c.write("1", 1)
	c.until("n4 to have noted that its log has begun", func() bool { return c.nodes["n4"].identity().LogBegun })
	c.kill("n4")
	for _, name := range []string{"tail", "history", "snapshots"} {
		dir := filepath.Join(c.nodes["n4"].opts.Dir, name)
		if err := errors.Join(os.RemoveAll(dir), os.Mkdir(dir, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	o = c.nodes["n4"].opts
	o.Peers = c.peers
	l, err := net.Listen("tcp", o.RaftAddress)
	if err != nil {
		t.Fatal(err)
	}
	o.Listener = l
	s, err := Open(o)
	if err == nil {
		_ = s.Abandon()
		t.Fatal("it started with an empty log")
	}
	if !errors.Is(err, ErrDamaged) {
		t.Fatal(err)
	}
}
