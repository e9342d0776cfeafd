package replication

import (
	"context"
	"fmt"
	"testing"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
)

// Every node takes snapshots for itself when its log has grown by so many bytes, and keeps so
// many bytes of it: a node that was away for less than that needs no snapshot.
func TestEveryNodeTruncatesItsLogByBytes(t *testing.T) {
	c := newCluster(t, 3)
	for _, n := range c.nodes {
		n.opts.SegmentBytes, n.opts.SnapshotLogBytes, n.opts.TrailingLogBytes = 2048, 16<<10, 8<<10
	}
	c.start(c.ids()...)
	seq := 0
	c.until("snapshots on all nodes", func() bool {
		seq++
		c.writes(seq, 1)
		for _, n := range c.nodes {
			if n.snaps.newest() == nil {
				return false
			}
		}
		return true
	})
	c.converged()
	for id, n := range c.nodes {
		m := n.snaps.newest()
		first, _ := n.tail.FirstIndex()
		size := n.tail.SizeFrom(m.Index + 1)
		if m.Received || first < 2 || first > m.Index {
			t.Errorf("%s: the log begins at %d behind snapshot %+v", id, first, m)
		}
		// It is looked at every second.
		if kept := n.tail.SizeFrom(0) - size; kept > 8<<10 && first < m.Index {
			t.Errorf("%s keeps %d bytes before its snapshot, %d behind it", id, kept, size)
		}
	}
	away := c.followers()[0]
	c.kill(away)
	c.writes(seq+1, 10) // less than is kept
	for id, n := range c.nodes {
		if n.Shard != nil {
			if err := n.snapshot(); err != nil {
				t.Fatalf("%s: %v", id, err)
			}
		}
	}
	c.start(away)
	c.sameStates()
	if m := c.nodes[away].snaps.newest(); m.Received {
		t.Errorf("the node was sent snapshot %+v, although the others' logs reached back", m)
	}
}

// The index of a snapshot can be ahead of the last command by entries of raft's own. A history
// that has all commands is not taken from it again.
func TestStartCopiesNoCheckpointThatTheHistoryHas(t *testing.T) {
	dir := t.TempDir()
	s := openShard(t, Options{Dir: dir})
	for i := range 30 {
		mustAppend(t, s, appendOf("a", fmt.Sprint(i%3), seqs(uint64(i+1))))
	}
	if err := s.raftGroup().barrier(); err != nil {
		t.Fatal(err)
	}
	if err := s.snapshot(); err != nil {
		t.Fatal(err)
	}
	m := s.snaps.newest()
	if m.AppliedIndex >= m.Index || m.AppliedIndex != s.proc.applied.Index {
		t.Fatalf("the snapshot is %+v, want one whose index is ahead of %d", m, s.proc.applied.Index)
	}
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.WarnLevel)
	s = openShard(t, Options{Dir: dir, Logger: zap.New(core)})
	if n := logs.FilterMessageSnippet("taken from it").Len(); n != 0 || s.hist.n != 1 {
		t.Errorf("the history was taken from the snapshot: %v", logs.All())
	}
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
}
