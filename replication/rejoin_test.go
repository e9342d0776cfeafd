package replication

import (
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	peerpb "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
	"github.com/tidemark-db/tidemark/replication/peer"
)

// A directory that was replaced while it was away is a member no more, also while the one
// that has its place is down for a moment.
func TestReplacedDirectoryDoesNotTakeItsPlaceBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	which := c.followers()[0]
	n := c.nodes[which]
	old, lost := n.opts.Dir, n.identity().serverID()
	c.kill(which)
	n.opts.Dir = t.TempDir()
	c.start(which)
	replacement := n.identity().serverID()
	replaced := func() bool {
		same := named(c.leader().raftGroup().members(), which)
		return len(same) == 1 && same[0].ID == replacement && same[0].Suffrage == raft.Voter
	}
	c.until("the new directory to have the place", replaced)
	c.kill(which)

	fresh := n.opts.Dir
	n.opts.Dir = old
	c.start(which)
	select {
	case err := <-n.Fatal():
		if !errors.Is(err, ErrRemoved) {
			t.Fatalf("the replaced node %s ended with %v", lost, err)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("the replaced node %s goes on; the members are %v", lost, c.leader().raftGroup().members())
	}
	c.kill(which)
	if !replaced() {
		t.Fatalf("the members are %v", c.leader().raftGroup().members())
	}
	n.opts.Dir = fresh
	c.start(which)
	c.write("1", 2)
	c.converged()
}

// A node that took itself for a member on the word of an entry that never commits would be
// told that it was removed.
func TestNobodyJoinsByAnEntryThatIsNotCommitted(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	for _, n := range c.nodes {
		n.opts.HeartbeatTimeout = 2 * time.Second
	}
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	leader := c.leader()
	c.kill(c.followers()...)
	req := &peerpb.JoinRequest{NodeId: "n4", Generation: "01234567", RaftAddress: "127.0.0.1:1"}
	id := serverID(req.GetNodeId(), req.GetGeneration())
	g := leader.raftGroup()
	added := g.raft.AddNonvoter(id, peer.Address(id, req.GetRaftAddress()), 0, changeTimeout)
	c.until("the change to be in the log", func() bool { _, known := withID(g.members(), id); return known })
	if err := leader.admitMember(within(t, 20*time.Second), req); err == nil {
		t.Error("it was taken in")
	}
	if err := added.Error(); err == nil {
		t.Fatal("the change was committed without a majority")
	}
}
