package replication

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// wantInvalid checks a 2016, its field and all of its text.
func wantInvalid(t *testing.T, err error, field, text string) {
	t.Helper()
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_INVALID_REQUEST)
	if e, ok := api.FromStatus(err); ok && e.Message != field+": "+text {
		t.Errorf("found %q, want %q", e.Message, field+": "+text)
	}
}

// otherName is another address of a loopback port.
func otherName(t *testing.T, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort("localhost", port)
}

// A node that was added under an address that it does not give itself could never join, and was
// said to use a copy of its directory.
func TestNodeIsAddedOnlyUnderTheAddressThatItAdvertises(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	o := c.options("n4")
	advertised := otherName(t, o.RaftAddress)
	c.nodes["n4"].opts.RaftAddress = advertised
	c.start("n4")
	ctx := within(t, 20*time.Second)
	wantInvalid(t, c.leader().AddNode(ctx, "n4", o.RaftAddress, ""), "raft_address",
		fmt.Sprintf("node n4 says that other nodes reach it at %s (--raft-advertise), not at %s", advertised, o.RaftAddress))
	if got := c.suffrages(); len(got) != 3 {
		t.Errorf("members %v", got)
	}
	if err := c.leader().AddNode(ctx, "n4", advertised, ""); err != nil {
		t.Fatal(err)
	}
	c.converged()
}

// A member whose address changes, and which is still reached at the old one, was taken for a
// copy of itself.
func TestMemberThatIsReachedAtBothAddressesMoves(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	which := c.followers()[0]
	c.kill(which)
	moved := otherName(t, c.nodes[which].opts.RaftAddress)
	c.nodes[which].opts.RaftAddress = moved
	c.start(which)
	c.until("the leader to have its new address", func() bool {
		same := named(c.leader().raftGroup().members(), which)
		return len(same) == 1 && same[0].raftAddress == moved && same[0].Suffrage == raft.Voter
	})
}

// Adding a member again changes nothing, which was so only while it was up.
func TestMemberThatIsDownIsAddedAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	which := c.followers()[0]
	o := c.nodes[which].opts
	c.kill(which)
	ctx := within(t, 20*time.Second)
	leader := c.leader()
	for _, client := range []string{"", o.AdvertiseAddress} {
		if err := leader.AddNode(ctx, which, o.RaftAddress, client); err != nil {
			t.Errorf("at the same addresses (client %q): %v", client, err)
		}
	}
	wantCode(t, leader.AddNode(ctx, which, o.RaftAddress, "elsewhere:1"), pb.ErrorCode_ERROR_CODE_INVALID_REQUEST)
	wantCode(t, leader.AddNode(ctx, "n9", o.RaftAddress, ""), pb.ErrorCode_ERROR_CODE_INVALID_REQUEST)
	wantCode(t, leader.AddNode(ctx, which, otherName(t, o.RaftAddress), ""), pb.ErrorCode_ERROR_CODE_INVALID_REQUEST)
	if got := c.suffrages(); len(got) != 3 || got[which] != raft.Voter {
		t.Errorf("members %v", got)
	}
}

// What waited for a node to catch up did not notice that it was removed, and said in the end
// that it stays a non-voter. Nor did it, or a failed transfer, have a code.
func TestPromotionOfANodeThatIsRemovedEnds(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	o := c.options("n4")
	c.start("n4")
	ctx := within(t, 30*time.Second)
	leader := c.leader()
	if err := leader.AddNode(ctx, "n4", o.RaftAddress, ""); err != nil {
		t.Fatal(err)
	}
	c.kill("n4")
	err := leader.PromoteNode(within(t, 100*time.Millisecond), "n4")
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_INVALID_REQUEST)
	if e, _ := api.FromStatus(err); !strings.HasPrefix(e.Message, "id: node n4 has not caught up and stays a non-voter: ") {
		t.Errorf("of a node that is down: %v", err)
	}
	l, err := net.Listen("tcp", o.RaftAddress) // to see that the node is asked
	if err != nil {
		t.Fatal(err)
	}
	promoted := make(chan error, 1)
	go func() { promoted <- leader.PromoteNode(ctx, "n4") }() // ends with ctx
	asked, err := l.Accept()
	if err := errors.Join(err, l.Close()); err != nil {
		t.Fatal(err)
	}
	_ = asked.Close()
	if err := leader.RemoveNode(ctx, "n4"); err != nil {
		t.Fatal(err)
	}
	wantInvalid(t, <-promoted, "id", "node n4 was removed from the cluster while it was waited for")
	if _, still := c.suffrages()["n4"]; still {
		t.Error("it is a member again")
	}
}

func TestLeadershipIsNotHandedToANodeThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	leader := c.leader()
	dead := c.followers()[0]
	c.kill(dead)
	_, err := leader.TransferLeadership(within(t, 20*time.Second), dead)
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_INVALID_REQUEST)
	if c.leader() != leader {
		t.Error("leadership moved")
	}
}

// A node that was a few entries behind became a voter. If the leader was lost before the new
// voter had the entries by which the others had become members, it had no vote for them
// ("not in configuration"), and no leader was elected until the lost one was back.
func TestNobodyIsPromotedWhoDoesNotKnowTheMembers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	o := c.options("n4")
	c.start("n4")
	ctx := within(t, 30*time.Second)
	leader := c.leader()
	g := leader.raftGroup()
	before := g.raft.LastIndex()
	if err := leader.AddNode(ctx, "n4", o.RaftAddress, ""); err != nil {
		t.Fatal(err)
	}
	added := g.configured.Load()
	if added <= before {
		t.Fatalf("n4 was added behind entry %d, and the newest change of members is said to be at %d", before, added)
	}
	c.until("n4 to catch up", func() bool {
		r := c.nodes["n4"].raftGroup()
		return r != nil && r.raft.CommitIndex() >= added
	})

	next := g.raft.LastIndex() + 1
	g.configured.Store(next) // as if the others knew of a change that n4 has not got
	err := leader.PromoteNode(within(t, 300*time.Millisecond), "n4")
	wantInvalid(t, err, "id", "node n4 has not caught up and stays a non-voter: it does not know the newest members yet; ask again later")
	c.write("1", 2)
	if err := leader.PromoteNode(ctx, "n4"); err != nil {
		t.Fatal(err)
	}
	if promoted := g.configured.Load(); promoted <= next {
		t.Errorf("n4 became a voter behind entry %d, and the newest change of members is said to be at %d", next, promoted)
	}

	// What a leader inherits is not before what it begins with.
	inherits := c.followers()[0]
	if _, err := leader.TransferLeadership(ctx, inherits); err != nil {
		t.Fatal(err)
	}
	c.until("the next leader to know of the members", func() bool {
		return c.nodes[inherits].raftGroup().configured.Load() > g.configured.Load()
	})
}
