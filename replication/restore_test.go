package replication

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/stable"
	"github.com/tidemark-db/tidemark/wal/tail"
)

// smallLogs makes a cluster whose logs keep next to nothing behind a snapshot.
func smallLogs(t *testing.T, n int) *cluster {
	c := newCluster(t, n)
	for _, node := range c.nodes {
		node.opts.SegmentBytes, node.opts.TrailingLogBytes = 4096, 1
	}
	return c
}

// ids are the names of all nodes.
func (c *cluster) ids() []string {
	var ids []string
	for id := range c.nodes {
		ids = append(ids, id)
	}
	return ids
}

// writes appends n batches to as many aggregates and to one that all share.
func (c *cluster) writes(from, n int) {
	c.t.Helper()
	for i := from; i < from+n; i++ {
		c.write(fmt.Sprint("w", i%7), uint64(i))
	}
}

// snapshots makes every running node take one, after which their logs are short.
func (c *cluster) snapshots() {
	c.t.Helper()
	for id, n := range c.nodes {
		if n.Shard == nil {
			continue
		}
		if err := n.snapshot(); err != nil {
			c.t.Fatalf("snapshot of %s: %v", id, err)
		}
		if m := n.snaps.newest(); m == nil {
			c.t.Fatalf("%s has no snapshot", id)
		}
	}
}

// restored waits until a node has restored a snapshot that another sent it.
func (c *cluster) restored(id string) *snapshotMeta {
	c.t.Helper()
	n := c.nodes[id]
	var m *snapshotMeta
	c.until(id+" to restore a snapshot", func() bool {
		m = n.snaps.newest()
		return m != nil && m.Received && !m.Pending
	})
	return m
}

// sameStates compares everything that the running nodes' histories hold.
func (c *cluster) sameStates() {
	c.t.Helper()
	c.converged()
	var want, of string
	for id, n := range c.nodes {
		if n.Shard == nil {
			continue
		}
		got := stateOf(c.t, n.Shard)
		if want == "" {
			want, of = got, id
		} else if got != want {
			c.t.Fatalf("%s holds\n%s\n%s holds\n%s", id, got, of, want)
		}
	}
}

func stateOf(t *testing.T, s *Shard) string {
	t.Helper()
	v := s.currentView()
	defer v.Release()
	text, err := dumpView(v)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// A node that was away while the others truncated their logs catches up from a snapshot, while
// writes go on; so does one whose directory was lost.
func TestNodeBehindTruncationCatchesUpUnderWrites(t *testing.T) {
	for _, wiped := range []bool{false, true} {
		t.Run(fmt.Sprint("wiped ", wiped), func(t *testing.T) {
			c := smallLogs(t, 3)
			c.start(c.ids()...)
			c.writes(1, 20)
			away := c.followers()[0]
			c.kill(away)
			c.writes(21, 60)
			c.snapshots()
			c.writes(81, 40)
			c.snapshots()
			if wiped {
				c.wipe(away)
			}
			c.start(away)
			// Everything is written by this goroutine, until the node is back.
			next := 121
			c.until("the node to restore a snapshot", func() bool {
				c.writes(next, 1)
				next++
				n := c.nodes[away]
				m := n.snaps.newest()
				return m != nil && m.Received && !m.Pending
			})
			c.writes(next, 20)
			c.sameStates()

			// It is as good as any: it can be stopped, come back, take a snapshot and lead.
			c.kill(away)
			c.start(away)
			c.sameStates()
			c.snapshots()
			c.writes(next+20, 20)
			c.sameStates()
			if m := c.nodes[away].snaps.newest(); m.Received {
				t.Errorf("the newest snapshot is still the received one, %+v", m)
			}
		})
	}
}

// What was read in a view before the history was replaced under it is read to the end, and a
// view taken afterwards is of the new one. Then nothing is left of the old.
func TestViewsOutliveTheHistoryTheyAreOf(t *testing.T) {
	c := smallLogs(t, 3)
	c.start(c.ids()...)
	c.writes(1, 30)
	c.converged()
	away := c.followers()[0]
	c.kill(away)
	c.writes(31, 60)
	c.snapshots()
	arrived, goOn := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	c.nodes[away].opts.Hooks.Restoring = func(step string) error {
		if step == "received" && once.CompareAndSwap(false, true) {
			close(arrived)
			<-goOn
		}
		return nil
	}
	c.start(away)
	n := c.nodes[away]
	select {
	case <-arrived:
	case <-time.After(20 * time.Second):
		t.Fatal("no snapshot arrived")
	}
	held := n.currentView()
	before, err := dumpView(held)
	if err != nil {
		t.Fatal(err)
	}
	old := n.hist.path(n.hist.n)
	waited := make(chan error, 1)
	go func() {
		waited <- n.awaitPosition(context.Background(), held.Applied().Position+1)
	}()
	close(goOn)
	c.restored(away)
	if err := <-waited; err != nil {
		t.Errorf("a read that waited for a position of the snapshot: %v", err)
	}
	c.sameStates()
	if after, err := dumpView(held); err != nil || after != before {
		t.Fatalf("the view of before reads\n%s\n%v, want\n%s", after, err, before)
	}
	if now := stateOf(t, n.Shard); now == before {
		t.Fatal("the state is what it was before the snapshot")
	}
	if _, err := os.Stat(old); err != nil {
		t.Fatalf("the directory of a history that is read is gone: %v", err)
	}
	if err := n.Stop(context.Background()); !errors.Is(err, history.ErrViewsHeld) {
		t.Errorf("stop with a view of the old history held: %v, want ErrViewsHeld", err)
	}
	held.Release()
	if err := n.hist.close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("the old history is still there: %v", err)
	}
	n.Shard = nil
}

// crashAt makes a node end at a step of restoring, once.
func (c *cluster) crashAt(id, step string) (crashed *atomic.Bool) {
	crashed = new(atomic.Bool)
	c.nodes[id].opts.Hooks.Restoring = func(s string) error {
		if s == step && crashed.CompareAndSwap(false, true) {
			return errors.New("a crash at step " + step)
		}
		return nil
	}
	return crashed
}

// A node that is killed between receiving a snapshot and having restored it goes on at its
// next start, from whatever was done.
func TestCrashBetweenInstallingASnapshotAndRestoringIt(t *testing.T) {
	for _, step := range []string{"received", "history taken", "history published", "log emptied", "log follows", "settled"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			c := smallLogs(t, 3)
			c.start(c.ids()...)
			c.writes(1, 20)
			away := c.followers()[0]
			c.kill(away)
			c.writes(21, 40)
			c.snapshots()
			crashed := c.crashAt(away, step)
			c.start(away)
			n := c.nodes[away]
			select {
			case err := <-n.Fatal():
				if !crashed.Load() || !strings.Contains(err.Error(), step) {
					t.Fatalf("ended by %v", err)
				}
			case <-time.After(20 * time.Second):
				t.Fatalf("did not come to step %s", step)
			}
			c.kill(away)
			// The others are away: what it starts with is what it has on disk.
			rest := c.followers()[0]
			c.kill(rest)
			c.start(away)
			if m := c.nodes[away].snaps.newest(); m == nil || !m.Received || m.Pending {
				t.Fatalf("after the start the newest snapshot is %+v, want a restored one", m)
			} else if a := c.nodes[away].store.Applied(); a.Index < m.AppliedIndex {
				t.Fatalf("after the start it has applied up to entry %d, the snapshot has %d", a.Index, m.AppliedIndex)
			}
			c.writes(61, 20) // with the leader: a majority of three
			c.start(rest)
			c.sameStates()
		})
	}
}

// conflict gives a stopped node n entries of the last term it knows, behind its own, as if it
// had been the leader when the others lost it.
func (c *cluster) conflict(id string, n int) (first, last uint64) {
	c.t.Helper()
	dir := c.nodes[id].opts.Dir
	log, err := tail.Open(tail.Options{Dir: filepath.Join(dir, "tail"), SegmentSize: 4096})
	if err != nil {
		c.t.Fatal(err)
	}
	first, err = log.LastIndex()
	if err != nil {
		c.t.Fatal(err)
	}
	var newest raft.Log
	if err := log.GetLog(first, &newest); err != nil {
		c.t.Fatal(err)
	}
	// A term that the others skipped, in which it was elected and nobody else heard of it.
	st, err := stable.Open(stable.Options{Path: filepath.Join(dir, "raft.db")})
	if err != nil {
		c.t.Fatal(err)
	}
	term, err := st.GetUint64([]byte("CurrentTerm"))
	if err != nil {
		c.t.Fatal(err)
	}
	for range n {
		first++
		e := raft.Log{Index: first, Term: term, Type: raft.LogNoop}
		if err := log.StoreLog(&e); err != nil {
			c.t.Fatal(err)
		}
	}
	if err := errors.Join(log.Close(), st.Close()); err != nil {
		c.t.Fatal(err)
	}
	return first - uint64(n) + 1, first
}

// A node whose log has uncommitted entries beyond the snapshot that it is sent used to loop,
// or panic (hashicorp/raft issue 697): raft remembers the last of them.
func TestSnapshotThatConflictsWithALongerLog(t *testing.T) {
	c := smallLogs(t, 3)
	c.start(c.ids()...)
	c.writes(1, 20)
	c.converged()
	// Whoever led: all stop at one moment, and the others elect in a later term.
	away := c.followers()[0]
	all := c.ids()
	c.kill(all...)
	first, last := c.conflict(away, 200)
	for _, id := range all {
		if id != away {
			c.start(id)
		}
	}
	c.writes(21, 40)
	c.snapshots()
	c.start(away)
	m := c.restored(away)
	if m.Index < first || m.Index >= last {
		t.Fatalf("the snapshot is of entry %d, want one within the conflict, %d to %d", m.Index, first, last)
	}
	c.writes(61, 20)
	c.sameStates()
	if got := c.nodes[away].Shard.logs; got.sealed.Load() {
		t.Error("the log still refuses its calls")
	}
	if c.nodes[away].logged("raft is started again") == 0 {
		t.Error("raft was not started again")
	}
	c.kill(away)
	c.start(away)
	c.writes(81, 10)
	c.sameStates()
}

// logged counts the lines of a node's log with this message.
func (n *clusterNode) logged(message string) int { return n.logs.FilterMessage(message).Len() }

// badLine is a transport that damages the snapshots sent through it: each in the next way
// once the receiver has refused the one before.
type badLine struct {
	wholeTransport
	refused func() int
	ways    []func(io.Reader) io.Reader
}

func (l badLine) InstallSnapshot(id raft.ServerID, at raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	if n := l.refused(); n < len(l.ways) {
		data = l.ways[n](data)
	}
	return l.wholeTransport.InstallSnapshot(id, at, args, resp, data)
}

// altered changes the byte at an offset.
func altered(r io.Reader, at int64, change func(byte) byte) io.Reader {
	before := make([]byte, at+1)
	n, err := io.ReadFull(r, before)
	if err == nil {
		before[at] = change(before[at])
	}
	return io.MultiReader(bytes.NewReader(before[:n]), r)
}

// A snapshot that is damaged on its way is refused, with what was expected and what was
// found; nothing of it stays, and it is sent again.
func TestDamagedTransferIsRefusedAndRepeated(t *testing.T) {
	const refusal, brokenOff = "failed to copy snapshot", "failed to receive whole snapshot" // raft's
	c := smallLogs(t, 3)
	flip := func(at int64) func(io.Reader) io.Reader {
		return func(r io.Reader) io.Reader { return altered(r, at, func(b byte) byte { return b ^ 0x20 }) }
	}
	away := "n1"
	var current atomic.Pointer[observer.ObservedLogs]
	line := badLine{
		refused: func() int {
			if l := current.Load(); l != nil {
				return l.FilterMessage(refusal).Len() + l.FilterMessage(brokenOff).Len()
			}
			return 0
		},
		ways: []func(io.Reader) io.Reader{
			flip(0), flip(60), flip(4000),
			func(r io.Reader) io.Reader {
				return io.MultiReader(io.LimitReader(r, 5000), iotest.ErrReader(errors.New("a sender that fails")))
			},
		},
	}
	for _, n := range c.nodes {
		n.opts.Hooks.Transport = func(t raft.Transport) raft.Transport {
			l := line
			l.wholeTransport = t.(wholeTransport)
			return l
		}
	}
	c.start(c.ids()...)
	c.writes(1, 20)
	c.kill(away)
	c.wipe(away) // as a new server it is not waited for longer and longer, as raft does after failures
	c.writes(21, 40)
	c.snapshots()
	c.start(away)
	n := c.nodes[away]
	current.Store(n.logs)
	c.restored(away)
	c.sameStates()
	entries, err := os.ReadDir(n.snaps.dir)
	if err != nil || len(entries) != 1 {
		t.Fatalf("%v, %v; want the snapshot and nothing beside it", entries, err)
	}
	var refusals []string
	for _, e := range n.logs.FilterMessage(refusal).All() {
		refusals = append(refusals, fmt.Sprint(e.ContextMap()["error"]))
	}
	for i, want := range []string{`expected "TMX1"`, "of the description", "of file"} {
		if i >= len(refusals) || !strings.Contains(refusals[i], want) {
			t.Fatalf("refusals %q; want the one at %d to say %q", refusals, i, want)
		}
	}
	if n.logged(brokenOff) == 0 {
		t.Error("no transfer broke off")
	}
}
