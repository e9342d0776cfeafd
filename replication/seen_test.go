package replication

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication/peer"
)

// peerOf is what a node shows of another.
func peerOf(n *clusterNode, id string) (PeerStats, bool) {
	for _, p := range n.Stats().Peers {
		if p.NodeID == id {
			return p, true
		}
	}
	return PeerStats{}, false
}

// A follower that gets no entries lags by exactly those, and by nothing once it has them. One
// that is down keeps what it had; one that is added is there, and gone when it is removed.
func TestPeersAreSeen(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	net := c.cuttable()
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	c.converged()
	leader := c.leader()
	behind, other := c.followers()[0], c.followers()[1]
	c.until("nobody to lag", func() bool {
		for _, id := range []string{behind, other} {
			p, ok := peerOf(leader, id)
			if !ok || !p.Up || !p.Voter || p.Lag != 0 || p.AppliedIndex < leader.Status().AppliedIndex || p.CommitIndex == 0 || time.Since(p.Answered) > time.Minute {
				return false
			}
		}
		return len(leader.Stats().Peers) == 2 && leader.Stats().Voters == 3
	})

	before, _ := peerOf(leader, behind)
	net.cut(behind, true)
	for seq := uint64(2); seq < 12; seq++ {
		c.write("1", seq)
	}
	c.until("the one that is cut off to lag", func() bool {
		p, _ := peerOf(leader, behind)
		ok, _ := peerOf(leader, other)
		return p.Up && p.Lag >= 10 && p.AppliedIndex >= before.AppliedIndex && p.AppliedIndex < ok.AppliedIndex && ok.Lag == 0 && ok.AppliedIndex >= before.AppliedIndex+10
	})
	net.cut(behind, false)
	c.until("it to catch up", func() bool {
		p, _ := peerOf(c.leader(), behind)
		return c.leader().opts.NodeID == behind || p.Lag == 0 && p.Up
	})

	leader = c.leader()
	down := c.followers()[0]
	was, _ := peerOf(leader, down)
	c.kill(down)
	c.until("the one that is down to be seen so", func() bool {
		p, ok := peerOf(leader, down)
		return ok && !p.Up && p.AppliedIndex >= was.AppliedIndex && !p.Answered.IsZero()
	})

	g := leader.raftGroup()
	id := raft.ServerID("n9#01234567")
	if err := g.raft.AddNonvoter(id, peer.Address(id, "127.0.0.1:1"), 0, 10*time.Second).Error(); err != nil {
		t.Fatal(err)
	}
	c.until("the new one to be seen", func() bool {
		p, ok := peerOf(leader, "n9")
		return ok && !p.Up && !p.Voter && p.Answered.IsZero() && leader.Stats().Nonvoters == 1
	})
	if err := g.raft.RemoveServer(id, 0, 10*time.Second).Error(); err != nil {
		t.Fatal(err)
	}
	if p, ok := peerOf(leader, "n9"); ok || leader.Stats().Nonvoters != 0 {
		t.Errorf("a node that was removed is shown: %+v", p)
	}
}

// A node that waits for others says so, and has no figures of a cluster.
func TestANodeThatJoinsIsSeen(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1")
	st := c.nodes["n1"].Stats()
	if st.Status.Role != "joining" || st.Well || len(st.Peers) != 0 || st.Voters != 0 || st.Connections == nil || len(st.Histograms) == 0 {
		t.Errorf("it shows %+v", st)
	}
	c.until("figures of the history", func() bool { return c.nodes["n1"].Stats().History != nil })
}

// Refusals and reads that wait for a majority are shown while they wait, and the round that they
// wait for is counted.
func TestWhatWaitsForAMajorityIsShown(t *testing.T) {
	s := openShard(t, Options{Dir: t.TempDir()})
	defer func() { _ = s.Abandon() }()
	mustAppend(t, s, appendOf("a", "1", seqs(1)))
	goOn := make(chan struct{})
	s.raftGroup().rounds.ask = s.meter.timed(func(context.Context, uint64) error {
		<-goOn
		return errors.New("as the test wants it")
	})
	ctx := within(t, 20*time.Second)
	answers := make(chan error, 2)
	go func() { // ends with goOn
		_, err := s.Append(ctx, appendOf("b", "1", seqs(1), expect(7)))
		answers <- err
	}()
	go func() { // ends with goOn
		_, err := s.Read(ctx, ReadOptions{Consistency: pb.Consistency_CONSISTENCY_LINEARIZABLE})
		answers <- err
	}()
	for st := s.Stats(); st.RefusalsWaiting != 1 || st.ReadsWaiting != 1; st = s.Stats() {
		if err := ctx.Err(); err != nil {
			t.Fatalf("%d refusals and %d reads wait, expected one of each", st.RefusalsWaiting, st.ReadsWaiting)
		}
	}
	close(goOn)
	for range 2 {
		wantCode(t, <-answers, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
	}
	if st := s.Stats(); st.RefusalsWaiting != 0 || st.ReadsWaiting != 0 || st.RoundsFailed == 0 || st.RoundsConfirmed != 0 {
		t.Errorf("afterwards it shows %d and %d that wait, %d rounds that failed, %d that confirmed", st.RefusalsWaiting, st.ReadsWaiting, st.RoundsFailed, st.RoundsConfirmed)
	}
}

// A snapshot of another node that does not arrive whole is counted as such.
func TestSnapshotsThatFailToArriveAreCounted(t *testing.T) {
	s := openSnapshotsAt(t, t.TempDir())
	begin := func() raft.SnapshotSink {
		sink, err := s.Create(raft.SnapshotVersionMax, 7, 1, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		return sink
	}
	cut, wrong := begin(), begin()
	if _, err := cut.Write([]byte(streamMagic)); err != nil {
		t.Fatal(err)
	}
	if _, err := wrong.Write([]byte("something else, and long enough to be looked at")); err == nil {
		t.Error("what is no snapshot was taken")
	}
	if err := cut.Close(); err == nil {
		t.Error("a part of a snapshot was taken for all of it")
	}
	if err := wrong.Cancel(); err != nil {
		t.Fatal(err)
	}
	m := s.opts.meter
	if failed, whole := m.receivesFailed.Load(), m.snapshotsReceived.Load(); failed != 2 || whole != 0 {
		t.Errorf("counted %d that failed and %d whole ones, expected 2 and 0", failed, whole)
	}
	if err := takeSnapshot(t, s, 8, "own"); err != nil {
		t.Fatal(err)
	}
	if failed, whole := m.receivesFailed.Load(), m.snapshotsReceived.Load(); failed != 2 || whole != 0 {
		t.Errorf("a snapshot of this node's own was counted: %d and %d", failed, whole)
	}
	if newest, at := s.age(); newest.Index != 8 || time.Since(at) > time.Minute {
		t.Errorf("the newest is %+v of %v", newest, at)
	}
	if newest, at := openSnapshotsAt(t, s.dir).age(); newest.Index != 8 || time.Since(at) > time.Minute {
		t.Errorf("opened again, the newest is %+v of %v", newest, at)
	}
}
