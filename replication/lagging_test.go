package replication

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	"github.com/tidemark-db/tidemark/replication/peer"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// wholeTransport is what raft looks for in a transport.
type wholeTransport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

var errCut = errors.New("cut off in a test")

// cutLine is a node's transport; what goes to or from a node that is cut off is lost.
type cutLine struct {
	wholeTransport
	self string
	net  *cutNetwork
}

type cutNetwork struct {
	mu  sync.Mutex
	off map[string]bool // node ids
}

func (n *cutNetwork) cut(id string, off bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.off[id] = off
}

func (l cutLine) err(to raft.ServerID) error {
	l.net.mu.Lock()
	defer l.net.mu.Unlock()
	if l.net.off[l.self] || l.net.off[peer.NodeID(to)] {
		return errCut
	}
	return nil
}

func (l cutLine) AppendEntries(id raft.ServerID, at raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if err := l.err(id); err != nil {
		return err
	}
	return l.wholeTransport.AppendEntries(id, at, args, resp)
}

func (l cutLine) RequestVote(id raft.ServerID, at raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	if err := l.err(id); err != nil {
		return err
	}
	return l.wholeTransport.RequestVote(id, at, args, resp)
}

func (l cutLine) RequestPreVote(id raft.ServerID, at raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	if err := l.err(id); err != nil {
		return err
	}
	return l.wholeTransport.RequestPreVote(id, at, args, resp)
}

func (l cutLine) InstallSnapshot(id raft.ServerID, at raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	if err := l.err(id); err != nil {
		return err
	}
	return l.wholeTransport.InstallSnapshot(id, at, args, resp, data)
}

// cuttable lets the nodes of a cluster that did not start yet be cut off.
func (c *cluster) cuttable() *cutNetwork {
	net := &cutNetwork{off: make(map[string]bool)}
	for id, n := range c.nodes {
		n.opts.Hooks.Transport = func(t raft.Transport) raft.Transport {
			return cutLine{t.(wholeTransport), id, net}
		}
	}
	return net
}

// A node that was cut off keeps running, with heads and marks in its caches, a read in a view
// of its history, and a snapshot of its own half taken, when another node's snapshot replaces
// all of that. Nothing that it says or decides afterwards is from before.
func TestSnapshotReplacesTheStateOfALivingNode(t *testing.T) {
	c := smallLogs(t, 3)
	net := c.cuttable()
	arrived, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	for id := range c.nodes {
		c.nodes[id].opts.Hooks.Restoring = func(step string) error {
			if step == "received" {
				once.Do(func() { close(arrived) })
				<-goOn
			}
			return nil
		}
	}
	c.start(c.ids()...)
	c.writes(1, 40)
	c.converged()
	id := c.followers()[0]
	n := c.nodes[id]
	net.cut(id, true)
	c.writes(41, 40)
	for other, o := range c.nodes {
		if other == id {
			continue
		}
		if err := o.snapshot(); err != nil {
			t.Fatal(err)
		}
	}
	c.writes(81, 2) // most aggregates changed for the last time before the snapshot

	g := n.raftGroup().raft
	sink, err := n.snaps.Create(raft.SnapshotVersionMax, g.AppliedIndex(), g.CurrentTerm(), g.GetConfiguration().Configuration(), 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	before := n.currentView()
	net.cut(id, false)
	<-arrived
	own, err := (&fsm{n.Shard}).Snapshot() // Apply's goroutine waits in the hook
	if err != nil {
		t.Fatal(err)
	}
	if before.Applied() != n.proc.applied {
		t.Fatalf("the node applied up to %+v while it was cut off", n.proc.applied)
	}
	close(goOn)
	m := c.restored(id)
	before.Release()
	c.sameStates()
	// The snapshot of its own history can still be written, and is of no use.
	if err := own.Persist(sink); err != nil {
		t.Errorf("persist: %v", err)
	}
	own.Release()
	if err := sink.Close(); !errors.Is(err, errOlderSnapshot) {
		t.Errorf("close of the snapshot of its own history: %v, want errOlderSnapshot", err)
	}
	if now := n.snaps.newest(); now.ID != m.ID {
		t.Errorf("the newest snapshot is %s, want %s", now.ID, m.ID)
	}
	c.until("the old history to be removed", func() bool {
		entries, err := os.ReadDir(n.hist.dir)
		return err == nil && len(entries) == 1
	})
	// It decides over writes from what it knows now, as the leader and in Apply.
	leader := c.leader()
	if err := leader.raftGroup().raft.LeadershipTransferToServer(n.identity().serverID(), n.address(n.identity())).Error(); err != nil {
		t.Fatal(err)
	}
	c.until("the node to lead", func() bool { ready, _ := n.Leading(); return ready })
	for i := range 7 {
		k := fmt.Sprint("w", i)
		v := n.currentView()
		head, ok, err := v.Head(record.MakeKey("acme", "orders", k))
		v.Release()
		if err != nil || !ok {
			t.Fatalf("head of %s: %v, %v", k, ok, err)
		}
		mustAppend(t, n.Shard, appendOf("a", k, seqs(uint64(1000+i)), expect(head.Version)))
	}
	c.sameStates()
}

// takeAhead takes a snapshot while writes go on: its checkpoint is ahead of its index.
func takeAhead(t *testing.T, n *Shard, meanwhile func()) *snapshotMeta {
	t.Helper()
	g := n.raftGroup().raft
	// Everything in the log is applied; raft itself notes that a little later than it answers.
	index, err := n.tail.LastIndex()
	if err != nil {
		t.Fatal(err)
	}
	_, _, term, err := n.logs.at(index)
	if err != nil {
		t.Fatal(err)
	}
	conf := g.GetConfiguration().Configuration() // raft does not say its index; it never changed
	snap, err := (&fsm{n}).Snapshot()            // nothing is being applied
	if err != nil {
		t.Fatal(err)
	}
	meanwhile()
	sink, err := n.snaps.Create(raft.SnapshotVersionMax, index, term, conf, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := snap.Persist(sink); err != nil {
		t.Fatal(err)
	}
	snap.Release()
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	m := n.snaps.newest()
	if m.Index != index || m.AppliedIndex > index || m.CheckpointIndex <= index {
		t.Fatalf("the snapshot is %+v, want one of entry %d whose checkpoint is ahead", m, index)
	}
	return m
}

// The checkpoint of a snapshot may be ahead of its index, because Apply goes on while it is
// written: what it has already is not applied again.
func TestCheckpointAheadOfItsSnapshotIsNotAppliedTwice(t *testing.T) {
	o := Options{Dir: t.TempDir()}
	s := openShard(t, o)
	for i := range 20 {
		mustAppend(t, s, appendOf("a", fmt.Sprint(i%3), seqs(uint64(i+1))))
	}
	takeAhead(t, s, func() {
		for i := range 20 {
			mustAppend(t, s, appendOf("a", fmt.Sprint(i%3), seqs(uint64(i+21))))
		}
	})
	mustAppend(t, s, appendOf("a", "1", seqs(100)))
	want, digest := stateOf(t, s), s.proc.applied.Digest
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(o.Dir, "history")); err != nil {
		t.Fatal(err)
	}
	s = openShard(t, o)
	if got := stateOf(t, s); got != want || s.proc.applied.Digest != digest {
		t.Errorf("after the history came back from the snapshot:\n%s\nwant\n%s", got, want)
	}
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// The same for a node that is sent such a snapshot and stops before its log has come as far as
// its history: nothing is missing from the log.
func TestNodeStartsWithAHistoryAheadOfItsLog(t *testing.T) {
	c := smallLogs(t, 1)
	c.start("n1")
	c.writes(1, 30)
	c.snapshots()
	c.writes(31, 5)
	takeAhead(t, c.nodes["n1"].Shard, func() { c.writes(36, 15) })
	o := c.options("n2")
	crashed := c.crashAt("n2", "settled")
	c.start("n2")
	n := c.nodes["n2"]
	if err := c.nodes["n1"].AddNode(within(t, 20*time.Second), "n2", o.RaftAddress, ""); err != nil {
		t.Fatal(err)
	}
	if err := <-n.Fatal(); !crashed.Load() {
		t.Fatal(err)
	}
	c.kill("n1", "n2")
	c.start("n2")
	last, err := n.tail.LastIndex()
	if applied := n.store.Applied().Index; err != nil || applied <= last {
		t.Fatalf("its history ends at %d and its log at %d (%v); want a history that is ahead", applied, last, err)
	}
	c.start("n1")
	c.writes(51, 10)
	c.sameStates()
}

// Raft can be shut down when a snapshot is received and not restored yet. What starts then
// must not go on from the snapshot's index with the state of before.
func TestRestartOfRaftFinishesARestore(t *testing.T) {
	c := smallLogs(t, 3)
	net := c.cuttable()
	c.start(c.ids()...)
	c.writes(1, 20)
	away := c.followers()[0]
	c.kill(away)
	c.writes(21, 40)
	c.snapshots()
	arrived := make(chan struct{})
	var once sync.Once
	c.nodes[away].opts.Hooks.Restoring = func(step string) (err error) {
		once.Do(func() {
			net.cut(away, true) // or the leader would send it again
			close(arrived)
			err = errStopping
		})
		return err
	}
	c.start(away)
	n := c.nodes[away]
	<-arrived
	n.restartRaft("a test")
	c.restored(away)
	net.cut(away, false)
	c.writes(61, 10)
	c.sameStates()
	if n.failed() {
		t.Error("the node has failed")
	}
}

// While raft remembers entries that are gone, it must not get at the log.
func TestLogIsSealedUntilRaftForgetsWhatIsGone(t *testing.T) {
	for _, c := range []struct {
		index uint64 // of the snapshot, before the log's end
		stale bool
	}{{3, true}, {0, true}, {^uint64(0), false}} {
		t.Run(fmt.Sprint(int64(c.index)), func(t *testing.T) {
			s := openShard(t, Options{Dir: t.TempDir()})
			for i := range 20 {
				mustAppend(t, s, appendOf("a", "1", seqs(uint64(i+1))))
			}
			if err := s.snapshot(); err != nil {
				t.Fatal(err)
			}
			last, err := s.tail.LastIndex()
			if err != nil {
				t.Fatal(err)
			}
			m := *s.snaps.newest()
			m.Index, m.Term, m.Pending = last-c.index, 99, true
			stale, err := s.adopt(&m)
			if err != nil || stale != c.stale {
				t.Fatalf("stale is %v (%v), want %v", stale, err, c.stale)
			}
			if err := s.logs.usable(); errors.Is(err, errSealed) != c.stale {
				t.Errorf("the log is used: %v", err)
			}
			if err := s.adoptNewest(); err != nil {
				t.Fatal(err)
			}
			if err := s.logs.usable(); err != nil {
				t.Errorf("after raft was started again: %v", err)
			}
			if first, last, term, err := s.logs.at(m.Index); err != nil || first != m.Index || last != m.Index || term != 99 {
				t.Errorf("the log holds %d to %d, of term %d there (%v), want the snapshot's entry", first, last, term, err)
			}
			if err := s.Abandon(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// Histories that gave way are bounded: the next one waits until somebody has read to the end,
// or the shard stops.
func TestRetiredHistoriesAreBounded(t *testing.T) {
	s := openShard(t, Options{Dir: t.TempDir()})
	mustAppend(t, s, appendOf("a", "1", seqs(1)))
	if err := s.snapshot(); err != nil {
		t.Fatal(err)
	}
	m := s.snaps.newest()
	want := stateOf(t, s)
	var held []*history.View
	for range maxRetired {
		held = append(held, s.currentView())
		if err := s.replaceHistory(m); err != nil {
			t.Fatal(err)
		}
	}
	if st := s.Stats(); st.RetiredHistories != maxRetired || st.MaxRetiredHistories != maxRetired {
		t.Errorf("%d of %d retired", st.RetiredHistories, st.MaxRetiredHistories)
	}
	replace := func() chan error {
		done := make(chan error, 1)
		go func() { done <- s.replaceHistory(m) }()
		return done
	}
	third := replace()
	for _, v := range held {
		if _, _, err := v.Head(record.MakeKey("acme", "orders", "1")); err != nil {
			t.Fatal(err)
		}
	}
	select {
	case err := <-third:
		t.Fatalf("one more was replaced (%v) while %d are read", err, maxRetired)
	default:
	}
	held[1].Release()
	if err := <-third; err != nil {
		t.Fatal(err)
	}
	if got := stateOf(t, s); got != want {
		t.Errorf("after it all the state is\n%s\nwant\n%s", got, want)
	}
	last := s.currentView()
	if err := s.replaceHistory(m); err != nil { // the third gave way to nobody's reading
		t.Fatal(err)
	}
	waits := replace()
	stopped := make(chan error, 1)
	go func() { stopped <- s.Abandon() }()
	if err := <-waits; !errors.Is(err, errStopping) {
		t.Errorf("the one that waits: %v", err)
	}
	if err := <-stopped; !errors.Is(err, history.ErrViewsHeld) {
		t.Errorf("stopped with views held: %v", err)
	}
	held[0].Release()
	last.Release()
	if err := s.hist.close(); err != nil {
		t.Fatal(err)
	}
}
