package replication

import (
	"strings"
	"testing"
	"time"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// Nodes that were all left with the same client address went unnoticed, and a follower sent
// clients back to itself.
func TestNodesThatShareAClientAddressAreFoundOut(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	const shared = "127.0.0.1:7440"
	for _, id := range []string{"n1", "n2"} {
		c.nodes[id].opts.AdvertiseAddress = shared
	}
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	if _, err := c.leader().TransferLeadership(within(t, 20*time.Second), "n1"); err != nil && c.leader() != c.nodes["n1"] {
		t.Fatal(err)
	}
	n2 := c.nodes["n2"]
	c.until("n2 to follow n1", func() bool { return n2.Status().LeaderID == "n1" })
	_, err := n2.Append(t.Context(), appendOf("a", "1", seqs(2)))
	e, _ := api.FromStatus(err)
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
	if d, _ := e.Details[0].(*pb.NotLeader); d.GetLeaderId() != "n1" || d.GetLeaderAddress() != "" {
		t.Errorf("n2 names %v", d)
	}
	c.well()
	st, err := c.nodes["n3"].ClusterStatus(within(t, 10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{sharedAddress(shared, "n2"), sharedAddress(shared, "n1"), ""} {
		if got := strings.Join(st.GetNodes()[i].GetProblems(), "; "); got != want || st.GetNodes()[i].GetHealthy() != (want == "") {
			t.Errorf("%v, want the problem %q", st.GetNodes()[i], want)
		}
	}
	c.until("both to warn", func() bool {
		return c.nodes["n1"].logs.FilterMessage("this node shares its client address: "+sharedAddress(shared, "n2")).Len() > 0 &&
			n2.logs.FilterMessage("this node shares its client address: "+sharedAddress(shared, "n1")).Len() > 0
	})
	if n := c.nodes["n3"].logs.FilterMessageSnippet("shares its client address").Len(); n > 0 {
		t.Errorf("n3 warns %d times", n)
	}
}

func TestStatusIsTrueOfNodesThatAreAloneOrWait(t *testing.T) {
	t.Parallel()
	alone := openShard(t, Options{Dir: t.TempDir(), RaftAddress: "127.0.0.1:7441"})
	st, err := alone.ClusterStatus(t.Context())
	if stopErr := alone.Stop(within(t, 20*time.Second)); stopErr != nil {
		t.Error(stopErr)
	}
	if err != nil || st.GetNodes()[0].GetRaftAddress() != "" || st.GetCommitIndex() < st.GetAppliedIndex() {
		t.Errorf("a node without a port for others: %v, %v", st, err)
	}
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	o := c.options("n4")
	c.nodes["n4"].opts.Peers = []Peer{{ID: "n9", Address: "127.0.0.1:1"}} // it never joins
	c.start("n4")
	if err := c.leader().AddNode(within(t, 20*time.Second), "n4", o.RaftAddress, ""); err != nil {
		t.Fatal(err)
	}
	st, err = c.leader().ClusterStatus(within(t, 10*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	const want = "not a member of a cluster yet; it waits for n4 to be added: it is not one of --peers, and none of them is a member of a cluster yet"
	if n := st.GetNodes()[3]; len(n.GetProblems()) != 1 || n.GetProblems()[0] != want {
		t.Errorf("problems %q, want %q", n.GetProblems(), want)
	}
	// A follower that has just started does not know yet what is committed.
	c.until("n3 to have applied all", func() bool { return c.nodes["n3"].applied() == c.leader().applied() })
	c.kill("n1", "n2")
	if err := c.nodes["n3"].Stop(within(t, 20*time.Second)); err != nil {
		t.Fatal(err)
	}
	c.nodes["n3"].Shard = nil
	c.start("n3")
	if st := c.nodes["n3"].Status(); st.AppliedIndex == 0 || st.CommitIndex < st.AppliedIndex {
		t.Errorf("applied %d of %d", st.AppliedIndex, st.CommitIndex)
	}
}
