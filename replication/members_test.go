package replication

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tidemark-db/tidemark/api"
	peerpb "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/record"
)

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// suffrages are the members as the leader has them.
func (c *cluster) suffrages() map[string]raft.ServerSuffrage {
	out := make(map[string]raft.ServerSuffrage)
	for _, m := range c.leader().raftGroup().members() {
		out[m.nodeID] = m.Suffrage
	}
	return out
}

func TestNodeIsAddedPromotedAndRemoved(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	for i := range 10 {
		c.write("1", uint64(i+1))
	}
	o := c.options("n4")
	c.start("n4")
	c.until("n4 to wait to be added", func() bool { return strings.Contains(c.nodes["n4"].Status().Waiting, "tidemark cluster add n4") })

	leader := c.leader()
	ctx := within(t, 20*time.Second)
	for range 2 { // adding twice is adding once
		if err := leader.AddNode(ctx, "n4", o.RaftAddress, o.AdvertiseAddress); err != nil {
			t.Fatal(err)
		}
	}
	c.until("n4 to catch up", func() bool { return c.nodes["n4"].applied() == leader.applied() })
	if got := c.suffrages(); got["n4"] != raft.Nonvoter || len(got) != 4 {
		t.Fatalf("after adding: %v", got)
	}
	if err := leader.PromoteNode(ctx, "n4"); err != nil {
		t.Fatal(err)
	}
	if got := c.suffrages(); got["n4"] != raft.Voter || len(got) != 4 {
		t.Fatalf("after promoting: %v", got)
	}
	removed := c.followers()[0]
	if err := leader.RemoveNode(ctx, removed); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-c.nodes[removed].Fatal():
		if !errors.Is(err, ErrRemoved) {
			t.Fatalf("the removed node ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the removed node goes on")
	}
	c.write("1", 11)
	// It says so again whenever it is started.
	c.kill(removed)
	c.start(removed)
	select {
	case err := <-c.nodes[removed].Fatal():
		if !errors.Is(err, ErrRemoved) {
			t.Fatalf("the removed node ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the removed node serves again")
	}
	c.kill(removed)
	delete(c.nodes, removed)
	c.converged()
}

func TestMembersAreOnlyChangedAsAsked(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	leader := c.leader()
	followers := c.followers()
	ctx := within(t, 20*time.Second)
	o := c.options("n4")

	other := newCluster(t, 1)
	other.start("n1")
	other.formed()
	foreign := other.nodes["n1"]

	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"nobody there", leader.AddNode(within(t, time.Second), "n4", "127.0.0.1:1", ""), "does not answer"},
		{"another node there", leader.AddNode(ctx, "n5", c.nodes[followers[0]].opts.RaftAddress, ""), "expected node n5 at"},
		{"another cluster's node", leader.AddNode(ctx, "n1", foreign.opts.RaftAddress, ""), foreign.identity().ClusterID},
		{"no such node", leader.PromoteNode(ctx, "n9"), `found "n9"`},
		{"no such node to remove", leader.RemoveNode(ctx, "n9"), `found "n9"`},
	} {
		if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", tc.name, tc.err, tc.want)
		}
		if api.CodeOf(tc.err) != pb.ErrorCode_ERROR_CODE_INVALID_REQUEST {
			t.Errorf("%s: error %v, want 2016", tc.name, tc.err)
		}
	}
	_ = o
	// A follower sends whoever asks to the leader.
	wantCode(t, c.nodes[followers[0]].AddNode(ctx, "n4", o.RaftAddress, ""), pb.ErrorCode_ERROR_CODE_NOT_LEADER)
	// Without a majority that is left and alive, a node is not removed.
	c.kill(followers[1])
	err := leader.RemoveNode(ctx, followers[0])
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_INVALID_REQUEST)
	if got := c.suffrages(); len(got) != 3 {
		t.Fatalf("members %v", got)
	}
}

func TestLeadershipIsHandedOverOnRequestAndAtAStop(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	c.converged()
	to := c.followers()[0]
	began := time.Now()
	got, err := c.leader().TransferLeadership(within(t, 10*time.Second), to)
	if err != nil || got != to {
		t.Fatalf("transfer to %s: %q, %v", to, got, err)
	}
	c.until("the new leader to be ready", func() bool { ready, _ := c.nodes[to].Leading(); return ready })
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the transfer took %v", took)
	}
	c.write("1", 2)
	if err := c.nodes[to].Stop(within(t, 10*time.Second)); err != nil {
		t.Fatal(err)
	}
	c.nodes[to].Shard = nil
	for _, id := range c.followers() {
		for _, e := range c.nodes[id].logs.All() {
			if strings.Contains(e.Message, "heartbeat timeout reached") && e.Time.After(began.Add(time.Second)) {
				t.Errorf("%s had to find out that the leader had stopped", id)
			}
		}
	}
	c.write("1", 3)
}

func TestMemberMovesToAnotherAddress(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	for _, which := range []string{c.followers()[0], c.leader().opts.NodeID} {
		c.kill(which)
		n := c.nodes[which]
		c.options("spare")
		n.opts.Listener, n.opts.RaftAddress = c.nodes["spare"].opts.Listener, c.nodes["spare"].opts.RaftAddress
		delete(c.nodes, "spare")
		c.start(which)
		c.until("the new address to be known", func() bool {
			for _, m := range c.leader().raftGroup().members() {
				if m.nodeID == which {
					return m.raftAddress == n.opts.RaftAddress
				}
			}
			return false
		})
	}
	c.write("1", 2)
	c.converged()
}

func TestOneNodeGrowsToThree(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.start("n1")
	c.write("1", 1)
	for _, id := range []string{"n2", "n3"} {
		o := c.options(id)
		c.start(id)
		if err := c.leader().AddNode(within(t, 10*time.Second), id, o.RaftAddress, ""); err != nil {
			t.Fatal(err)
		}
		if err := c.leader().PromoteNode(within(t, 10*time.Second), id); err != nil {
			t.Fatal(err)
		}
	}
	c.kill("n1")
	c.write("1", 2)
	c.start("n1")
	c.converged()
}

// alter makes a node's data differ from the log, as a bug in Apply would.
func alter(n *clusterNode) {
	n.proc.applied.Digest[0] ^= 1
}

func TestNodeThatDiffersFromTheMajorityEnds(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	c.converged()
	odd := c.followers()[0]
	c.kill(odd)
	// Its digest changes between two entries, while nothing is applied.
	c.start(odd)
	alter(c.nodes[odd])
	c.write("1", 2)
	select {
	case err := <-c.nodes[odd].Fatal():
		if !errors.Is(err, ErrDiverged) {
			t.Fatalf("it ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("it goes on")
	}
	c.kill(odd)
	// It may have compared with that one alone, and stopped writes until it knows better.
	leader := c.leader()
	c.until("the others to agree", func() bool {
		leader.mu.Lock()
		defer leader.mu.Unlock()
		return !leader.diverged.undecided
	})
	c.write("1", 3)
	for id, n := range c.nodes {
		if n.Shard != nil && n.failed() {
			t.Errorf("%s ended, too", id)
		}
	}
}

func TestDigestsAreJudgedByTheMajorityOfVoters(t *testing.T) {
	t.Parallel()
	ids := []raft.ServerID{"a", "b", "c", "d"}
	servers := []raft.Server{{ID: "a"}, {ID: "b"}, {ID: "c"}, {ID: "d", Suffrage: raft.Nonvoter}}
	own := func(i uint64) (record.Hash, bool) { return record.Hash{1}, i == 5 || i == 7 }
	at := func(index uint64, first byte) []*peerpb.Digest {
		h := record.Hash{first}
		return []*peerpb.Digest{{Index: index, Digest: h[:]}}
	}
	for _, tc := range []struct {
		name    string
		answers map[raft.ServerID][]*peerpb.Digest
		want    digestVerdict
	}{
		{"all agree", map[raft.ServerID][]*peerpb.Digest{"b": at(5, 1), "c": at(7, 1)}, digestVerdict{}},
		{"nobody answers", nil, digestVerdict{}},
		{"an index this node has not kept", map[raft.ServerID][]*peerpb.Digest{"b": at(6, 2)}, digestVerdict{}},
		{"one other differs from a majority", map[raft.ServerID][]*peerpb.Digest{"b": at(5, 1), "c": at(5, 2)},
			digestVerdict{index: 5, differing: ids[2:3]}},
		{"outvoted", map[raft.ServerID][]*peerpb.Digest{"b": at(5, 2), "c": at(5, 2)},
			digestVerdict{index: 5, differing: ids[1:3], outvoted: true}},
		{"one against one", map[raft.ServerID][]*peerpb.Digest{"b": at(5, 2)},
			digestVerdict{index: 5, differing: ids[1:2], undecided: true}},
		{"three ways", map[raft.ServerID][]*peerpb.Digest{"b": at(5, 2), "c": at(5, 3)},
			digestVerdict{index: 5, differing: ids[1:3], undecided: true}},
		{"a non-voter has no vote", map[raft.ServerID][]*peerpb.Digest{"b": at(5, 2), "d": at(5, 2)},
			digestVerdict{index: 5, differing: []raft.ServerID{"b", "d"}, undecided: true}},
		{"a digest cut short", map[raft.ServerID][]*peerpb.Digest{"b": {{Index: 5, Digest: []byte{2}}}}, digestVerdict{}},
	} {
		got := judgeDigests("a", servers, own, tc.answers)
		if got.index != tc.want.index || got.outvoted != tc.want.outvoted || got.undecided != tc.want.undecided || len(got.differing) != len(tc.want.differing) {
			t.Errorf("%s: %+v, want %+v", tc.name, got, tc.want)
		}
	}
}

func TestDigestRingKeepsTheNewest(t *testing.T) {
	t.Parallel()
	var r digestRing
	if _, ok := r.at(0); ok {
		t.Error("an empty ring has a digest")
	}
	for i := uint64(1); i <= digestsKept+10; i++ {
		r.addAll([]entryResult{{index: i * 3, digest: record.Hash{byte(i), byte(i >> 8), 1}}})
	}
	first, last := r.bounds()
	if first != 11*3 || last != (digestsKept+10)*3 {
		t.Errorf("kept %d to %d", first, last)
	}
	for i := uint64(1); i <= digestsKept+10; i++ {
		d, ok := r.at(i * 3)
		if ok != (i > 10) || ok && d != (record.Hash{byte(i), byte(i >> 8), 1}) {
			t.Fatalf("index %d: %x %v", i*3, d, ok)
		}
		if _, ok := r.at(i*3 + 1); ok {
			t.Fatalf("index %d has none of its own", i*3+1)
		}
	}
}

func TestStatusSaysForEveryNodeWhoItIsAndHowFar(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2")
	st, err := c.nodes["n2"].ClusterStatus(within(t, 10*time.Second))
	if err != nil || st.GetRole() != "joining" || st.GetClusterId() != "" || len(st.GetNodes()) != 3 || st.GetNodes()[2].GetRole() != "unreachable" {
		t.Fatalf("while the cluster is formed: %v, %v", st, err)
	}
	c.start("n3")
	c.write("1", 1)
	c.converged()
	c.well()
	leader := c.leader()
	dead := c.followers()[0]
	c.kill(dead)
	for _, asked := range []string{leader.opts.NodeID, c.followers()[0]} {
		st, err := c.nodes[asked].ClusterStatus(within(t, 10*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		if st.GetNodeId() != asked || st.GetClusterId() != leader.identity().ClusterID || st.GetTimeline() != leader.identity().Timeline ||
			st.GetLeaderId() != leader.opts.NodeID || st.GetLeaderAddress() != leader.opts.AdvertiseAddress || !st.GetInsecure() ||
			st.GetAppliedIndex() != st.GetCommitIndex() || st.GetLastPosition() != 1 || st.GetTerm() == 0 || len(st.GetNodes()) != 3 {
			t.Fatalf("%s says %v", asked, st)
		}
		for _, n := range st.GetNodes() {
			o := c.nodes[n.GetId()].opts
			wantRole, healthy := "follower", true
			if n.GetId() == leader.opts.NodeID {
				wantRole = "leader"
			}
			if n.GetId() == dead {
				wantRole, healthy = "unreachable", false
			}
			if n.GetRole() != wantRole || n.GetHealthy() != healthy || !n.GetVoter() || n.GetRaftAddress() != o.RaftAddress ||
				n.GetClientAddress() != o.AdvertiseAddress && n.GetId() != dead || (n.AppliedIndex != nil) != healthy || (len(n.GetProblems()) == 0) != healthy || len(n.GetGeneration()) != 8 {
				t.Errorf("%s says of a node: %v", asked, n)
			}
		}
	}
}

// Two nodes that differ cannot know which of them is right, and one of them going away does
// not make the other right.
func TestWritesStopWhileNoMajorityAgreesOnTheData(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	c.converged()
	leader := c.leader()
	others := c.followers()
	c.kill(others[0])
	c.write("1", 2)
	c.until("both to have applied it", func() bool { return c.nodes[others[1]].applied() == leader.applied() })
	c.kill(others[1])
	c.start(others[1])
	alter(c.nodes[others[1]])
	undecided := func() bool {
		leader.mu.Lock()
		defer leader.mu.Unlock()
		return leader.diverged.undecided
	}
	for seq := uint64(3); !undecided(); seq++ {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, _ = leader.Append(ctx, appendOf("a", "1", seqs(seq))) // until one is refused
		cancel()
		if ready, _ := leader.Leading(); !ready {
			c.until("a leader", func() bool { ready, _ := leader.Leading(); return ready || leader.failed() })
		}
	}
	wantStopped := func() {
		t.Helper()
		_, err := leader.Append(within(t, 5*time.Second), appendOf("b", "1", seqs(1)))
		wantCode(t, err, pb.ErrorCode_ERROR_CODE_INTERNAL)
	}
	wantStopped()
	if st := leader.Stats(); !st.Diverged || st.DigestMismatches == 0 || st.DigestComparisons == 0 {
		t.Errorf("while nodes differ, it shows diverged: %t, %d mismatches of %d comparisons", st.Diverged, st.DigestMismatches, st.DigestComparisons)
	}
	leader.setDiverged(digestVerdict{}) // nobody answered
	if !undecided() {
		t.Error("writes go on because nobody was there to compare with")
	}
	leader.setDiverged(digestVerdict{compared: true})
	if undecided() {
		t.Error("writes do not go on although nodes agree again")
	}
	if leader.Stats().Diverged {
		t.Error("it shows that nodes differ although they agree again")
	}
}

// Whoever starts a copy of a voter's directory has two nodes that answer as one.
func TestCopyOfALivingDirectoryIsNotTakenForAMove(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	which := c.followers()[0]
	c.kill(which)
	n := c.nodes[which]
	copied := t.TempDir()
	if err := os.CopyFS(copied, os.DirFS(n.opts.Dir)); err != nil {
		t.Fatal(err)
	}
	c.start(which)
	c.write("1", 2)
	o := c.options("copy")
	c.nodes["copy"].opts.Dir, c.nodes["copy"].opts.NodeID, c.nodes["copy"].opts.AdvertiseAddress = copied, which, n.opts.AdvertiseAddress
	c.start("copy")
	c.until("the copy to be told", func() bool {
		for _, e := range c.nodes["copy"].logs.All() {
			if strings.Contains(fmt.Sprint(e.ContextMap()), "uses a copy of its data directory") {
				return true
			}
		}
		return false
	})
	for _, m := range c.leader().raftGroup().members() {
		if m.raftAddress == o.RaftAddress {
			t.Errorf("the copy's address is in the configuration: %v", m)
		}
	}
}
