package failover

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/process"
)

// A longer run: make failover, or go test ./test/failover -args -kills 100.
var (
	flagKills   = flag.Int("kills", 5, "how often the leader is killed")
	flagTimeout = flag.Duration("heartbeat-timeout", 0, "heartbeat-timeout of the nodes, to try another one; 0 = the default")
)

const (
	writers   = 8
	transfers = 5
	patience  = time.Minute

	// What is promised with default settings, from the kill, or from the request to hand
	// leadership over, to the first write that is acknowledged by another node.
	medianAfterKill   = 1500 * time.Millisecond
	worstAfterKill    = 3 * time.Second
	worstAfterRequest = 300 * time.Millisecond
)

func TestMain(m *testing.M) { process.Main(m) }

// node is one of three. Its process and client change when it is restarted.
type node struct {
	id, host, dir, peers string
	process              *process.Node
	current              atomic.Pointer[pb.EventStoreServiceClient]
}

func (n *node) address() string { return n.host + ":7440" }

func (n *node) client() pb.EventStoreServiceClient { return *n.current.Load() }

func (n *node) start(t *testing.T) {
	t.Helper()
	args := []string{
		"--node-id", n.id, "--peers", n.peers,
		"--listen", n.address(), "--raft-listen", n.host + ":7441", "--http-listen", n.host + ":7442",
	}
	if *flagTimeout > 0 {
		args = append(args, "--heartbeat-timeout", flagTimeout.String())
	}
	n.process = process.Launch(t, process.Options{DataDir: n.dir, Args: args})
	client := pb.NewEventStoreServiceClient(n.process.Dial(t))
	n.current.Store(&client)
}

// load is a cluster with writers at work.
type load struct {
	nodes   []*node
	writers []*writer
	acks    chan ack
	stop    context.CancelFunc
	done    chan error
	last    ack // with the timeline
}

func start(t *testing.T) *load {
	t.Helper()
	l := &load{acks: make(chan ack, 1<<16), done: make(chan error, writers)}
	host, first := fmt.Sprintf("127.%d.%d.", 1+rand.IntN(250), rand.IntN(250)), 1+rand.IntN(250)
	var peers []string
	for i := range 3 {
		n := &node{id: fmt.Sprint("n", i+1), host: host + strconv.Itoa(first+i), dir: filepath.Join(t.TempDir(), "data")}
		l.nodes = append(l.nodes, n)
		peers = append(peers, n.id+"="+n.host+":7441")
	}
	for _, n := range l.nodes {
		n.peers = strings.Join(peers, ",")
		n.start(t)
	}
	ctx, stop := context.WithCancel(t.Context())
	l.stop = stop
	var leader atomic.Int64
	var all sync.WaitGroup
	for i := range writers {
		w := &writer{id: fmt.Sprint("w", i), nodes: l.nodes, leader: &leader, acks: l.acks}
		l.writers = append(l.writers, w)
		all.Go(func() { l.done <- w.run(ctx) }) // ends with ctx
	}
	t.Cleanup(func() { stop(); all.Wait() })
	l.await(t, time.Now(), -1)
	return l
}

// await returns the first acknowledgement after a moment by another node than one.
func (l *load) await(t *testing.T, after time.Time, not int) ack {
	t.Helper()
	timeout := time.After(patience)
	for {
		select {
		case a := <-l.acks:
			if a.timeline != "" {
				l.last = a
			}
			if a.at.After(after) && a.node != not {
				return a
			}
		case err := <-l.done:
			t.Fatal(err)
		case <-timeout:
			t.Fatalf("no write was acknowledged within %v", patience)
		}
	}
}

// caughtUp waits until a node has applied what was acknowledged by now.
func (l *load) caughtUp(t *testing.T, n *node) {
	t.Helper()
	l.await(t, time.Now(), -1)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := n.client().GetMark(ctx, &pb.GetMarkRequest{
		Aggregate: l.writers[0].key(), ClientId: l.writers[0].id,
		Consistency: pb.Consistency_CONSISTENCY_ANY, MinPosition: l.last.position, Timeline: l.last.timeline,
	})
	if err != nil {
		t.Fatalf("%s does not catch up: %v", n.id, err)
	}
}

// check stops the writers and expects on every node what they were told: each sequence once,
// in order, and nothing else.
func (l *load) check(t *testing.T) {
	t.Helper()
	for _, n := range l.nodes {
		l.caughtUp(t, n)
	}
	l.stop()
	for range l.writers {
		if err := <-l.done; err != nil {
			t.Fatal(err)
		}
	}
	var last uint64
	for _, w := range l.writers {
		last += w.landed
	}
	for _, n := range l.nodes {
		for _, w := range l.writers {
			if err := w.check(t.Context(), n, last, l.last.timeline); err != nil {
				t.Error(err)
			}
		}
	}
}

func (w *writer) check(ctx context.Context, n *node, position uint64, timeline string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	stream, err := n.client().Read(ctx, &pb.ReadRequest{Aggregate: w.key(), Consistency: pb.Consistency_CONSISTENCY_ANY, MinPosition: position, Timeline: timeline})
	if err != nil {
		return err
	}
	var seen uint64
	for {
		m, err := stream.Recv()
		if err != nil {
			return fmt.Errorf("%s: read %s: %w", n.id, w.id, err)
		}
		for _, b := range m.GetBatches() {
			seen++
			if e := b.GetEvents(); b.GetVersion() != seen || len(e) != 1 || e[0].GetClientSeq() != seen || e[0].GetEventId() != w.event(seen) {
				return fmt.Errorf("%s: version %d of %s is %v, expected event %s", n.id, seen, w.id, b, w.event(seen))
			}
		}
		if m.GetEnd() == nil {
			continue
		}
		if seen != w.landed {
			return fmt.Errorf("%s has %d writes of %s, %d were acknowledged", n.id, seen, w.id, w.landed)
		}
		return nil
	}
}

// report logs times and returns their median and the worst.
func report(t *testing.T, what string, times []time.Duration) (median, worst time.Duration) {
	t.Helper()
	slices.Sort(times)
	median, worst = times[len(times)/2], times[len(times)-1]
	t.Logf("%s to the first acknowledged write elsewhere, %d times: median %v, worst %v; all: %v", what, len(times), median, worst, times)
	return median, worst
}

func TestLeaderIsKilled(t *testing.T) {
	l := start(t)
	var times []time.Duration
	for range *flagKills {
		at := l.await(t, time.Now(), -1).node
		began := time.Now()
		l.nodes[at].process.Kill(t)
		times = append(times, l.await(t, began, at).at.Sub(began).Round(time.Millisecond))
		l.nodes[at].start(t)
		l.caughtUp(t, l.nodes[at])
	}
	l.check(t)
	median, worst := report(t, "kill -9 of the leader", times)
	if median > medianAfterKill || worst > worstAfterKill {
		t.Errorf("expected a median of at most %v and %v at worst", medianAfterKill, worstAfterKill)
	}
}

func TestLeadershipIsHandedOver(t *testing.T) {
	l := start(t)
	var times []time.Duration
	for range transfers {
		at := l.await(t, time.Now(), -1).node
		admin := pb.NewClusterServiceClient(l.nodes[at].process.Dial(t))
		began := time.Now()
		handed := make(chan error, 1)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		go func() { // ends with its call
			_, err := admin.TransferLeadership(ctx, &pb.TransferLeadershipRequest{})
			handed <- err
		}()
		times = append(times, l.await(t, began, at).at.Sub(began).Round(time.Millisecond))
		if err := <-handed; err != nil {
			t.Fatal(err)
		}
		cancel()
	}
	l.check(t)
	if _, worst := report(t, "the request to hand leadership over", times); worst > worstAfterRequest {
		t.Errorf("expected %v at worst", worstAfterRequest)
	}
}
