package tail_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tidemark-db/tidemark/wal/stable"
	"github.com/tidemark-db/tidemark/wal/tail"
)

// counter is an FSM whose state is the list of numbers applied to it.
type counter struct {
	mu      sync.Mutex
	applied []byte
	changed chan struct{} // one token when something was applied
}

func newCounter() *counter { return &counter{changed: make(chan struct{}, 1)} }

func (c *counter) Apply(l *raft.Log) any {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applied = append(c.applied, l.Data...)
	c.note()
	return nil
}

func (c *counter) note() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

func (c *counter) Snapshot() (raft.FSMSnapshot, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return snapshot(bytes.Clone(c.applied)), nil
}

func (c *counter) Restore(r io.ReadCloser) error {
	b, err := io.ReadAll(r)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.applied = b
	c.note()
	return errors.Join(err, r.Close())
}

type snapshot []byte

func (s snapshot) Persist(sink raft.SnapshotSink) error {
	if _, err := sink.Write(s); err != nil {
		return errors.Join(err, sink.Cancel())
	}
	return sink.Close()
}

func (s snapshot) Release() {}

// wait returns when c has had n numbers applied, and checks that they are 1 to n.
func (c *counter) wait(t *testing.T, n int) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		c.mu.Lock()
		got := bytes.Clone(c.applied)
		c.mu.Unlock()
		if len(got) == 8*n {
			for i := range n {
				if v := binary.BigEndian.Uint64(got[8*i:]); v != uint64(i+1) {
					t.Fatalf("place %d: want %d, got %d", i, i+1, v)
				}
			}
			return
		}
		select {
		case <-c.changed:
		case <-deadline:
			t.Fatalf("want %d numbers applied, got %d", n, len(got)/8)
		}
	}
}

// node is a raft node on our two stores.
type node struct {
	*raft.Raft
	id     raft.ServerID
	fsm    *counter
	tail   *tail.Log
	stable *stable.Store
	trans  *raft.InmemTransport
	snaps  raft.SnapshotStore
}

func start(t *testing.T, id, dir string, snaps raft.SnapshotStore) *node {
	t.Helper()
	n := &node{id: raft.ServerID(id), fsm: newCounter(), snaps: snaps}
	fatal := func(err error) { t.Errorf("%s: fatal: %v", id, err) }
	var err1, err2, err3 error
	n.tail, err1 = tail.Open(tail.Options{Dir: filepath.Join(dir, "tail"), SegmentSize: 4 << 10, OnFatal: fatal})
	n.stable, err2 = stable.Open(stable.Options{Path: filepath.Join(dir, "raft.db"), OnFatal: fatal})
	_, n.trans = raft.NewInmemTransport(raft.ServerAddress(id))
	conf := raft.DefaultConfig()
	conf.LocalID = n.id
	conf.HeartbeatTimeout, conf.ElectionTimeout, conf.LeaderLeaseTimeout = 100*time.Millisecond, 100*time.Millisecond, 100*time.Millisecond
	conf.TrailingLogs = 10
	conf.SnapshotThreshold = 1 << 30 // only on demand
	conf.LogOutput = io.Discard
	n.Raft, err3 = raft.NewRaft(conf, n.fsm, n.tail, n.stable, n.snaps, n.trans)
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n *node) stop(t *testing.T) {
	t.Helper()
	if err := errors.Join(n.Shutdown().Error(), n.tail.Close(), n.stable.Close()); err != nil {
		t.Fatal(err)
	}
}

func (n *node) lead(t *testing.T) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for n.State() != raft.Leader {
		select {
		case <-n.LeaderCh():
		case <-deadline:
			t.Fatal("no leader")
		}
	}
}

func (n *node) apply(t *testing.T, from, to int) {
	t.Helper()
	var last raft.ApplyFuture
	for i := from; i <= to; i++ {
		last = n.Apply(binary.BigEndian.AppendUint64(nil, uint64(i)), 0)
	}
	if err := last.Error(); err != nil {
		t.Fatal(err)
	}
}

// pair starts a, which has had 1 to 210 applied and whose log begins behind a snapshot of
// about 200, and b, which was sent that snapshot and the rest.
func pair(t *testing.T, dirA, dirB string, snapsA, snapsB raft.SnapshotStore) (a, b *node) {
	t.Helper()
	a = start(t, "a", dirA, snapsA)
	if err := a.BootstrapCluster(raft.Configuration{Servers: []raft.Server{{ID: "a", Address: "a"}}}).Error(); err != nil {
		t.Fatal(err)
	}
	a.lead(t)
	a.apply(t, 1, 200)
	a.fsm.wait(t, 200)
	if err := a.Snapshot().Error(); err != nil {
		t.Fatal(err)
	}
	a.apply(t, 201, 210)
	b = start(t, "b", dirB, snapsB)
	connect(a, b)
	if err := a.AddNonvoter("b", "b", 0, 0).Error(); err != nil {
		t.Fatal(err)
	}
	a.fsm.wait(t, 210)
	b.fsm.wait(t, 210)
	for _, n := range []*node{a, b} {
		if first, err := n.tail.FirstIndex(); err != nil || first < 150 {
			t.Fatalf("want the log of %s to begin behind the first entries, it begins at %d, %v", n.id, first, err)
		}
	}
	return a, b
}

func connect(a, b *node) {
	a.trans.Connect(b.trans.LocalAddr(), b.trans)
	b.trans.Connect(a.trans.LocalAddr(), a.trans)
}

// Raft itself runs on the two stores: what was committed is there after restarts, after the
// log was cut at the front, and on a follower that was sent a snapshot, whose log is begun
// anew behind it.
func TestRaftRunsOnTheStores(t *testing.T) {
	t.Parallel()
	dirA, dirB := t.TempDir(), t.TempDir()
	snapsA, snapsB := raft.NewInmemSnapshotStore(), raft.NewInmemSnapshotStore()
	a, b := pair(t, dirA, dirB, snapsA, snapsB)
	a.apply(t, 211, 220)
	b.fsm.wait(t, 220)
	b.stop(t)
	a.stop(t)

	// Both come back from their snapshots and their logs.
	b = start(t, "b", dirB, snapsB)
	last, err := b.tail.LastIndex()
	if err != nil || last == 0 || b.LastIndex() != last {
		t.Fatalf("want raft to find last index %d, it found %d, %v", last, b.LastIndex(), err)
	}
	a = start(t, "a", dirA, snapsA)
	connect(a, b)
	a.lead(t)
	a.apply(t, 221, 222)
	a.fsm.wait(t, 222)
	b.fsm.wait(t, 222)
	b.stop(t)
	a.stop(t)
}

// A leader that did not get the answer sends its snapshot again. By then the follower has
// acknowledged entries behind it. They stay: that is why the log does not call itself
// monotonic.
func TestASnapshotSentTwiceKeepsTheEntriesBehindIt(t *testing.T) {
	t.Parallel()
	snapsA, snapsB := raft.NewInmemSnapshotStore(), raft.NewInmemSnapshotStore()
	a, b := pair(t, t.TempDir(), t.TempDir(), snapsA, snapsB)
	list, err := snapsA.List()
	if err != nil || len(list) != 1 {
		t.Fatalf("want one snapshot, got %d, %v", len(list), err)
	}
	meta, r, err := snapsA.Open(list[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	lastBefore, err := b.tail.LastIndex()
	if err != nil || lastBefore <= meta.Index {
		t.Fatalf("want entries behind the snapshot of index %d, the last is %d, %v", meta.Index, lastBefore, err)
	}
	var resp raft.InstallSnapshotResponse
	err = a.trans.InstallSnapshot("b", "b", &raft.InstallSnapshotRequest{
		RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("a"), Addr: []byte("a")}, SnapshotVersion: meta.Version,
		Term: a.CurrentTerm(), Leader: []byte("a"), LastLogIndex: meta.Index, LastLogTerm: meta.Term,
		Configuration: raft.EncodeConfiguration(meta.Configuration), ConfigurationIndex: meta.ConfigurationIndex, Size: meta.Size,
	}, &resp, r)
	if err := errors.Join(err, r.Close()); err != nil || !resp.Success {
		t.Fatalf("install: %v, %+v", err, resp)
	}
	if last, err := b.tail.LastIndex(); err != nil || last < lastBefore {
		t.Fatalf("want the log to end at %d or later, it ends at %d, %v", lastBefore, last, err)
	}
	a.apply(t, 211, 220)
	b.fsm.wait(t, 220)
	b.stop(t)
	a.stop(t)
}
