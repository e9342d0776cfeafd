package replication

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// shown is what a probe would print of a node's checks.
func shown(checks []Check) string {
	var out []string
	for _, c := range checks {
		switch {
		case c.Err == nil:
			out = append(out, c.Name)
		case c.Tolerated:
			out = append(out, c.Name+"? "+c.Err.Error())
		default:
			out = append(out, c.Name+"! "+c.Err.Error())
		}
	}
	return strings.Join(out, "\n")
}

const allWell = "member\nleader\napplied\ndata\ndisk"

// well waits until all running nodes pass all their checks.
func (c *cluster) well() {
	c.t.Helper()
	c.until("all nodes to be well", func() bool {
		for _, n := range c.nodes {
			if n.Shard != nil && shown(n.Checks()) != allWell {
				return false
			}
		}
		return true
	})
}

func TestChecksSayWhatANodeIsNotWellIn(t *testing.T) {
	follower := Status{Role: "follower", Term: 4, LeaderID: "n2", AppliedIndex: 500, CommitIndex: 500}
	for _, c := range []struct {
		name string
		got  error
		want string
	}{
		{"a member", checkMember(&follower), "<nil>"},
		{"waiting", checkMember(&Status{Role: "joining", Waiting: "n3 at x:1"}), "not a member of a cluster yet; it waits for n3 at x:1"},
		{"starting", checkMember(&Status{Role: "joining"}), "not a member of a cluster yet"},
		{"a follower", checkLeader(&follower), "<nil>"},
		{"a leader", checkLeader(&Status{Role: "leader", Term: 4, Ready: true}), "<nil>"},
		{"a new leader", checkLeader(&Status{Role: "leader", Term: 4}), "it leads in term 4 and still applies what it inherited"},
		{"no leader", checkLeader(&Status{Role: "candidate", Term: 4}), "it knows no leader (candidate in term 4): is a majority of the voters up, and do they reach each other?"},
		{"just caught up", checkApplied(&follower, 500+behind), "<nil>"},
		{"lagging", checkApplied(&follower, 501+behind), "it has applied 500 of 1501 committed entries"},
		{"not told", checkApplied(&follower, 0), "it has not heard yet how far the leader is"},
		{"the leader lags nobody", checkApplied(&Status{Role: "leader"}, 0), "<nil>"},
		{"same data", checkData(digestVerdict{}), "<nil>"},
		{"in the majority", checkData(digestVerdict{index: 7}), "<nil>"},
		{"nobody in the majority", checkData(digestVerdict{index: 7, undecided: true}), "nodes hold different data at log entry 7, and no majority of voters agrees: no writes are taken"},
	} {
		if got := fmt.Sprint(c.got); got != c.want {
			t.Errorf("%s: found %q, want %q", c.name, got, c.want)
		}
	}
}

func TestChecksFollowANodesLife(t *testing.T) {
	c := newCluster(t, 3)
	c.start("n1", "n2")
	c.until("n2 to wait for n3", func() bool {
		return strings.Contains(shown(c.nodes["n2"].Checks()), "member! not a member of a cluster yet; it waits for all initial peers to be reachable; not yet: n3")
	})
	c.start("n3")
	c.well()

	// A wiped node that comes back is not taken for one that is caught up, although its own
	// log holds nothing that it has not applied.
	follower := c.followers()[0]
	n := c.nodes[follower]
	n.leaderCommit.Store(n.Status().AppliedIndex + behind + 1)
	if got := shown(n.Checks()); !strings.Contains(got, "\napplied! it has applied ") {
		t.Errorf("a follower that lags:\n%s", got)
	}
	if got := n.nodeStatusNow(); got.GetHealthy() || len(got.GetProblems()) != 1 {
		t.Errorf("its status: %v", got)
	}

	// Without a majority nobody is well, and says why.
	ids := slices.Collect(func(yield func(string) bool) {
		for id := range c.nodes {
			if id != follower && !yield(id) {
				return
			}
		}
	})
	c.kill(ids...)
	c.until("the last node to know no leader", func() bool {
		return strings.Contains(shown(n.Checks()), "\nleader! it knows no leader (")
	})
	if st := n.nodeStatusNow(); st.GetHealthy() {
		t.Errorf("its status: %v", st)
	}
}

func TestALowDiskIsToldAndTolerated(t *testing.T) {
	c := newCluster(t, 1)
	n := c.nodes["n1"]
	n.opts.MinFreeDiskBytes = 100
	n.opts.FreeDisk = func(string) (int64, error) { return 99, nil }
	c.start("n1")
	const want = "member\nleader\napplied\ndata\ndisk? 99 bytes are free, less than the reserve of 100 (min-free-disk-bytes): appends are refused with 2018"
	c.until("the node to lead", func() bool { ready, _ := n.Leading(); return ready })
	if got := shown(n.Checks()); got != want {
		t.Errorf("found\n%s\nwant\n%s", got, want)
	}
}

func TestTheLeadersCommitIsAskedFor(t *testing.T) {
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	c.well()
	n := c.nodes[c.followers()[0]]
	n.leaderCommit.Store(0)
	ctx := within(t, 10*time.Second)
	n.noteCommit(ctx, n.raftGroup())
	if got, want := n.leaderCommit.Load(), c.leader().Status().CommitIndex; got != want {
		t.Errorf("noted %d, the leader has committed %d", got, want)
	}
}
