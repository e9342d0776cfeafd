package replication

import (
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
)

// serversOf are the servers of one node in the leader's configuration, oldest first.
func (c *cluster) serversOf(id string) []server {
	return named(c.leader().raftGroup().members(), id)
}

// A node was wiped again when its new directory had become a voter and the lost one still was
// one. With two voters that were lost for ever, the two nodes that were left were no majority
// of four, and never served again.
func TestNodeWipedAgainAsItBecomesAVoterDoesNotWedgeTheCluster(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	c.converged()
	wiped := c.followers()[0]
	for round := range 2 {
		c.kill(wiped)
		c.wipe(wiped)
		c.start(wiped)
		c.until("the new directory to become a voter", func() bool {
			voters := 0
			same := c.serversOf(wiped)
			for _, m := range same {
				if m.Suffrage == raft.Voter {
					voters++
				}
			}
			if voters > 1 {
				t.Fatalf("%s has %d votes: %v", wiped, voters, same)
			}
			return len(same) > 1 && same[len(same)-1].Suffrage == raft.Voter
		})
		c.write("1", uint64(round+2))
	}
	c.kill(wiped)
	c.wipe(wiped)
	c.write("1", 4) // by the two that are left
	c.start(wiped)
	c.until("one server for each node", func() bool {
		members := c.leader().raftGroup().members()
		return len(members) == 3 && c.suffrages()[wiped] == raft.Voter
	})
	c.write("1", 5)
	c.converged()
}

// What never had a vote does not get one by being wiped, however often.
func TestNonVoterThatIsWipedStaysOne(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	o := c.options("n4")
	c.start("n4")
	ctx := within(t, 30*time.Second)
	c.until("n4 to be added", func() bool { return c.leader().AddNode(ctx, "n4", o.RaftAddress, o.AdvertiseAddress) == nil })
	for range 2 {
		c.write("1", 1)
		c.converged()
		before := c.serversOf("n4")[0].ID
		c.kill("n4")
		c.wipe("n4")
		c.start("n4")
		c.until("n4 to come back", func() bool {
			same := c.serversOf("n4")
			return len(same) == 1 && same[0].ID != before
		})
	}
	c.converged()
	c.leader().tendAsLeader(ctx, c.leader().raftGroup(), zap.NewNop())
	if got := c.suffrages(); len(got) != 4 || got["n4"] != raft.Nonvoter {
		t.Fatalf("the members are %v, expected n4 as a non-voter", got)
	}
}
