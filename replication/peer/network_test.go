package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc"

	peerv1 "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
)

const (
	clusterA  = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	clusterB  = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
	timelineA = "a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0a0"
	timelineB = "b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0"
)

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// node is a Network with what it says of itself.
type node struct {
	*Network
	t    *testing.T
	self atomic.Pointer[Identity]
	addr string
	logs *observer.ObservedLogs
}

// member is a node of cluster A.
func member(id, generation string) Identity {
	return Identity{ClusterID: clusterA, Timeline: timelineA, NodeID: id, Generation: generation, Version: "1.2.3"}
}

// newNode starts a node on a port of its own. Its RaftAddress is the port, its
// ClientAddress made up of its id.
func newNode(t *testing.T, self Identity, change ...func(*node, *Options)) *node {
	return newNodeThatWaits(t, defaultWaits(), self, change...)
}

func newNodeThatWaits(t *testing.T, w waits, self Identity, change ...func(*node, *Options)) *node {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	core, logs := observer.New(zap.DebugLevel)
	n := &node{t: t, addr: l.Addr().String(), logs: logs}
	self.RaftAddress, self.ClientAddress = n.addr, self.NodeID+".example:7440"
	n.self.Store(&self)
	o := Options{Listener: l, Self: func() Identity { return *n.self.Load() }, Logger: zap.New(core)}
	for _, c := range change {
		c(n, &o)
	}
	if n.Network, err = listen(o, w); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.close() })
	return n
}

func (n *node) identity() Identity { return *n.self.Load() }

// become changes what the node says of itself.
func (n *node) become(change func(*Identity)) {
	i := n.identity()
	change(&i)
	n.self.Store(&i)
}

func (n *node) close() {
	n.t.Helper()
	if err := n.Close(); err != nil {
		n.t.Errorf("close: %v", err)
	}
}

// transport is a Transport that is closed with the test.
func (n *node) transport(timeout time.Duration) *Transport {
	tr := n.Transport(timeout, nil)
	n.t.Cleanup(func() { _ = tr.Close() })
	return tr
}

// logged are the log lines of a message, without those of debugging.
func (n *node) logged(msg string) []observer.LoggedEntry {
	return n.logs.FilterMessage(msg).Filter(func(e observer.LoggedEntry) bool { return e.Level > zap.DebugLevel }).All()
}

// noLeaks fails the test if goroutines of this package or of raft outlive everything else
// the test cleans up.
func noLeaks(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		eventually(t, "goroutines to end", func() (string, bool) {
			b := make([]byte, 1<<20)
			b = b[:runtime.Stack(b, true)]
			var left []string
			for i, g := range strings.Split(string(b), "\n\n") {
				ours := strings.Contains(g, "replication/peer.") || strings.Contains(g, "hashicorp/raft.") || strings.Contains(g, "google.golang.org/grpc")
				if i > 0 && ours && !strings.Contains(g, "testing.(*T).Run") {
					left = append(left, g)
				}
			}
			return strings.Join(left, "\n\n"), len(left) == 0
		})
	})
}

// eventually waits until done, which also says how things are.
func eventually(t *testing.T, what string, done func() (string, bool)) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(patience)
	for {
		now, ok := done()
		if ok {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %s for %s, found %s", patience, what, now)
		}
	}
}

// connect makes a connection as a Network's own dial does.
func (n *node) connect(kind peerv1.Kind, to *node, target string) (*conn, error) {
	ctx, done := context.WithTimeout(n.t.Context(), patience)
	defer done()
	c, err := n.dial(ctx, kind, raftID(target), to.addr)
	if c != nil {
		n.t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// raw connects without a word.
func raw(t *testing.T, to *node) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", to.addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(patience))
	return c
}

func TestNodeOfAnotherClusterIsRefused(t *testing.T) {
	noLeaks(t)
	a := newNode(t, member("n1", "11111111"))
	b := newNode(t, Identity{ClusterID: clusterB, Timeline: timelineB, NodeID: "n2", Generation: "22222222"})
	b.transport(time.Second)

	text := fmt.Sprintf("expected cluster %s, that of node n2 at %s, found %s, that of node n1 at %s: these nodes belong to different clusters; correct the addresses, or, if one's data is not needed, start that node with an empty directory",
		clusterB, b.addr, clusterA, a.addr)
	for _, kind := range []peerv1.Kind{peerv1.Kind_KIND_PEER, peerv1.Kind_KIND_RAFT, peerv1.Kind_KIND_SNAPSHOT} {
		for range 3 {
			_, err := a.connect(kind, b, "n2#22222222")
			var refused *RefusedError
			if !errors.As(err, &refused) || refused.Reason != peerv1.Refusal_REFUSAL_OTHER_CLUSTER || refused.Remote != b.identity() {
				t.Fatalf("%v: %#v (%v), want a refusal by n2 as of another cluster", kind, refused, err)
			}
			if want := "connect to " + b.addr + ": " + text; err.Error() != want {
				t.Errorf("%v: %q\nwant %q", kind, err, want)
			}
		}
	}
	// Each side says it once, however often it happens.
	for _, s := range []struct {
		n            *node
		msg, address string
		remote       Identity
	}{
		{a, "another node was not connected to", b.addr, b.identity()},
		{b, "a connection of another node was refused", "127.0.0.1", a.identity()},
	} {
		lines := s.n.logged(s.msg)
		if len(lines) != 1 || lines[0].Level != zap.WarnLevel {
			t.Fatalf("%q: %d lines %v, want one warning", s.msg, len(lines), lines)
		}
		want := map[string]any{"address": s.address, "remote_node_id": s.remote.NodeID, "remote_cluster_id": s.remote.ClusterID, "reason": text}
		if got := lines[0].ContextMap(); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Errorf("%q: %v\nwant %v", s.msg, got, want)
		}
	}
	for n, stranger := range map[*node]*node{a: b, b: a} {
		if i, _, ok := n.Known(stranger.identity().ServerID()); ok {
			t.Errorf("%s knows %+v of another cluster", n.identity().NodeID, i)
		}
	}
}

func TestNodesLearnEachOthersIdentity(t *testing.T) {
	noLeaks(t)
	a, b := newNode(t, member("n1", "11111111")), newNode(t, Identity{NodeID: "n2", Generation: "22222222"})
	before := time.Now()
	if _, err := a.connect(peerv1.Kind_KIND_PEER, b, ""); err != nil {
		t.Fatal(err)
	}
	check := func(n, of *node) {
		t.Helper()
		got, at, ok := n.Known(of.identity().ServerID())
		if !ok || got != of.identity() || at.Before(before) || at.After(time.Now()) {
			t.Errorf("%s knows %+v (%v, at %s), want %+v, now", n.identity().NodeID, got, ok, at, of.identity())
		}
	}
	check(a, b)
	check(b, a)
	// A wiped node, or one that moved, takes the place of what it was.
	a.become(func(i *Identity) { i.Generation, i.ClientAddress = "99999999", "elsewhere:1" })
	if _, err := b.connect(peerv1.Kind_KIND_PEER, a, ""); err != nil {
		t.Fatal(err)
	}
	check(a, b)
	check(b, a)
}

func TestKnownNodesAreBounded(t *testing.T) {
	a := acquaintances{seen: make(map[raft.ServerID]acquaintance)}
	start := time.Unix(1000, 0)
	for i := range maxKnown + 10 {
		a.met(Identity{NodeID: fmt.Sprint("n", i)}, start.Add(time.Duration(i)*time.Second))
	}
	if a.len() != maxKnown {
		t.Errorf("%d nodes known, want %d", a.len(), maxKnown)
	}
	if _, _, ok := a.known("n9"); ok {
		t.Error("n9 is known, want it forgotten: it was not seen for the longest time")
	}
	if _, at, ok := a.known("n10"); !ok || !at.Equal(start.Add(10*time.Second)) {
		t.Errorf("n10 known: %v at %s, want it still there", ok, at)
	}
}

func TestWipedNodeIsNotTakenForItsFormerSelf(t *testing.T) {
	noLeaks(t)
	a, b := newNode(t, member("n1", "11111111")), newNode(t, member("n3", "aaaaaaaa"))
	b.transport(time.Second)
	for _, kind := range []peerv1.Kind{peerv1.Kind_KIND_PEER, peerv1.Kind_KIND_RAFT, peerv1.Kind_KIND_SNAPSHOT} {
		if _, err := a.connect(kind, b, "n3#aaaaaaaa"); err != nil {
			t.Fatalf("%v to the server that is there: %v", kind, err)
		}
	}
	b.become(func(i *Identity) { i.Generation, i.ClusterID, i.Timeline = "bbbbbbbb", "", "" })
	for _, kind := range []peerv1.Kind{peerv1.Kind_KIND_PEER, peerv1.Kind_KIND_RAFT, peerv1.Kind_KIND_SNAPSHOT} {
		_, err := a.connect(kind, b, "n3#aaaaaaaa")
		want := fmt.Sprintf("connect to %s: expected server n3#aaaaaaaa at %s, found n3#bbbbbbbb: it was wiped since and is not the server it was: it must join the cluster again", b.addr, b.addr)
		if err == nil || err.Error() != want {
			t.Errorf("%v: %v\nwant %s", kind, err, want)
		}
	}
}

func TestRaftIsRefusedUntilItRuns(t *testing.T) {
	noLeaks(t)
	var not atomic.Pointer[error]
	a := newNode(t, member("n1", "1"))
	b := newNode(t, member("n2", "2"), func(_ *node, o *Options) {
		o.AcceptRaft = func(remote Identity) error {
			if remote != a.identity() {
				t.Errorf("asked for %+v, want %+v", remote, a.identity())
			}
			if err := not.Load(); err != nil {
				return *err
			}
			return nil
		}
	})
	check := func(reason peerv1.Refusal, text string) {
		t.Helper()
		_, err := a.connect(peerv1.Kind_KIND_RAFT, b, "n2#2")
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Reason != reason || refused.Text != text {
			t.Errorf("%v, want %v: %s", err, reason, text)
		}
	}
	check(peerv1.Refusal_REFUSAL_RAFT_NOT_READY, "raft is not running on node n2 at "+b.addr+": try again")
	tr := b.transport(time.Second)
	removed := errors.New("this server was removed from its cluster")
	not.Store(&removed)
	check(peerv1.Refusal_REFUSAL_RAFT_NOT_READY, "node n2 at "+b.addr+": this server was removed from its cluster")
	not.Store(nil)
	if _, err := a.connect(peerv1.Kind_KIND_RAFT, b, "n2#2"); err != nil {
		t.Error(err)
	}
	_ = tr.Close()
	check(peerv1.Refusal_REFUSAL_RAFT_NOT_READY, "raft is not running on node n2 at "+b.addr+": try again")
	for _, n := range []*node{a, b} {
		for _, e := range n.logs.All() {
			if e.Level > zap.DebugLevel {
				t.Errorf("logged %v, want nothing: it is part of every start", e)
			}
		}
	}
}

func TestCloseEndsEverything(t *testing.T) {
	noLeaks(t)
	w := waits{handshake: time.Hour, send: time.Hour, receive: time.Hour, restore: time.Hour} // it waits for none of these
	a, b := newNodeThatWaits(t, w, member("n1", "1")), newNodeThatWaits(t, w, member("n2", "2"))
	b.transport(time.Second)
	var conns []*conn
	for _, kind := range []peerv1.Kind{peerv1.Kind_KIND_PEER, peerv1.Kind_KIND_RAFT, peerv1.Kind_KIND_SNAPSHOT} {
		c, err := a.connect(kind, b, "n2#2")
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, c)
	}
	silent := raw(t, b)
	eventually(t, "all to be there", func() (string, bool) {
		s := b.Stats()
		return fmt.Sprintf("%+v", s), s.Peer == 1 && s.Raft == 2 && s.Handshaking == 1
	})
	b.close()
	_, _ = io.Copy(io.Discard, silent) // ends when it is closed
	for _, c := range conns {
		_ = c.Conn.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, c.Conn); errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v is still open: %v", c.header.kind, err)
		}
	}
	if _, err := net.Dial("tcp", b.addr); err == nil {
		t.Error("the port still takes connections")
	}
	b.close() // again, which does nothing
	if s := b.Stats(); s.Peer+s.Raft+s.Handshaking != 0 {
		t.Errorf("left open: %+v", s)
	}
	// A transport that comes too late is of no use, and its raft can still be shut down.
	late := b.transport(time.Second)
	if err := late.RequestVote("n1#1", "127.0.0.1:1", nil, nil); err == nil {
		t.Error("called another node after Close")
	}
}

func TestNothingIsKeptOpenAcrossCloseWhileDialing(t *testing.T) {
	noLeaks(t)
	b := newNode(t, member("n2", "2"))
	mute, err := net.Listen("tcp", "127.0.0.1:0") // connects, and then says nothing
	if err != nil {
		t.Fatal(err)
	}
	defer mute.Close()
	for name, dial := range map[string]func(ctx context.Context, began chan<- struct{}) (net.Conn, error){
		"before it is connected": func(ctx context.Context, began chan<- struct{}) (net.Conn, error) {
			close(began)
			<-ctx.Done()
			return nil, ctx.Err()
		},
		"in the handshake": func(ctx context.Context, began chan<- struct{}) (net.Conn, error) {
			defer close(began)
			return new(net.Dialer).DialContext(ctx, "tcp", mute.Addr().String())
		},
		"by one who does not listen to the context": func(ctx context.Context, began chan<- struct{}) (net.Conn, error) {
			close(began)
			<-ctx.Done()
			return net.Dial("tcp", b.addr)
		},
	} {
		for _, byRaft := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, by raft %v", name, byRaft), func(t *testing.T) {
				began := make(chan struct{})
				a := newNodeThatWaits(t, waits{handshake: time.Hour}, member("n1", "1"), func(n *node, o *Options) {
					o.Dial = func(ctx context.Context, _ string) (net.Conn, error) { return dial(ctx, began) }
				})
				tr := a.transport(time.Hour)
				failed := make(chan error, 1)
				go func() { failed <- tr.RequestVote("n2#2", "nowhere:1", nil, nil) }()
				<-began
				if byRaft {
					_ = tr.Close()
				} else {
					a.close()
				}
				select {
				case err := <-failed:
					if err == nil {
						t.Error("the call went through")
					}
				case <-time.After(patience):
					t.Error("the call goes on")
				}
				if open := tr.layer.dialed.len(); open != 0 {
					t.Errorf("%d connections are open", open)
				}
			})
		}
	}
}

// flaky is a listener that fails a few times.
type flaky struct {
	net.Listener
	failures atomic.Int32
}

func (l *flaky) Accept() (net.Conn, error) {
	if l.failures.Add(-1) >= 0 {
		return nil, errors.New("too many open files")
	}
	return l.Listener.Accept()
}

func TestListenerThatFailsForAWhile(t *testing.T) {
	noLeaks(t)
	a := newNode(t, member("n1", "1"))
	b := newNode(t, member("n2", "2"), func(_ *node, o *Options) {
		l := &flaky{Listener: o.Listener}
		l.failures.Store(3)
		o.Listener = l
	})
	if _, err := a.connect(peerv1.Kind_KIND_PEER, b, ""); err != nil {
		t.Fatal(err)
	}
	if lines := b.logged("a connection of another node could not be accepted"); len(lines) != 1 {
		t.Errorf("%d lines, want one", len(lines))
	}
}

func TestOptionsThatAreMissing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, o := range []Options{{}, {Listener: l}, {Self: func() Identity { return Identity{} }}} {
		if _, err := Listen(o); err == nil || !strings.Contains(err.Error(), "Options.Listener and Options.Self") {
			t.Errorf("%v, want to be told what is missing", err)
		}
	}
}

// frame is a message of a version with its frame.
func frame(version byte, message []byte) []byte {
	return append(append([]byte(magic), version, 0, byte(len(message)>>8), byte(len(message))), message...)
}

func registerService(s peerv1.PeerServiceServer) func(*node, *Options) {
	return func(_ *node, o *Options) {
		o.Register = func(g *grpc.Server) { peerv1.RegisterPeerServiceServer(g, s) }
	}
}

func isClosed(c net.Conn) error {
	b, err := io.ReadAll(c)
	if len(b) > 0 {
		return fmt.Errorf("got an answer: %q", bytes.ToValidUTF8(b, nil))
	}
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return fmt.Errorf("it is still open after %s", patience)
	}
	return nil
}
