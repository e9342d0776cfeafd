package peer

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	peerv1 "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
)

// service answers with what its functions say.
type service struct {
	peerv1.UnimplementedPeerServiceServer
	hello func(ctx context.Context) *peerv1.HelloResponse
	join  func(*peerv1.JoinRequest) *peerv1.JoinResponse
}

func (s *service) Hello(ctx context.Context, _ *peerv1.HelloRequest) (*peerv1.HelloResponse, error) {
	return s.hello(ctx), nil
}

func (s *service) Join(_ context.Context, r *peerv1.JoinRequest) (*peerv1.JoinResponse, error) {
	return s.join(r), nil
}

// tellCaller answers with who asks.
func tellCaller(ctx context.Context) *peerv1.HelloResponse {
	i, ok := Caller(ctx)
	if !ok {
		return nil
	}
	return &peerv1.HelloResponse{ClusterId: i.ClusterID, Timeline: i.Timeline, LeaderId: string(i.ServerID()),
		Node: &peerv1.Node{NodeId: i.NodeID, Generation: i.Generation, RaftAddress: i.RaftAddress, ClientAddress: i.ClientAddress, Version: i.Version}}
}

func hello(t *testing.T, c peerv1.PeerServiceClient) (*peerv1.HelloResponse, error) {
	t.Helper()
	ctx, done := context.WithTimeout(t.Context(), patience)
	defer done()
	return c.Hello(ctx, &peerv1.HelloRequest{})
}

// introduced checks that b was called by a as it is now.
func introduced(t *testing.T, a *node, r *peerv1.HelloResponse, err error) {
	t.Helper()
	i := a.identity()
	want := &peerv1.HelloResponse{ClusterId: i.ClusterID, Timeline: i.Timeline, LeaderId: string(i.ServerID()),
		Node: &peerv1.Node{NodeId: i.NodeID, Generation: i.Generation, RaftAddress: i.RaftAddress, ClientAddress: i.ClientAddress, Version: i.Version}}
	if err != nil || !proto.Equal(r, want) {
		t.Errorf("%v (%v)\nwant %v", r, err, want)
	}
}

func TestCallerIsKnownToTheHandler(t *testing.T) {
	noLeaks(t)
	a := newNode(t, Identity{NodeID: "n1", Generation: "11111111", Version: "1.2.3"})
	b := newNode(t, Identity{NodeID: "n2"}, registerService(&service{hello: tellCaller}))
	r, err := hello(t, a.Client(b.addr))
	introduced(t, a, r, err)
	// It comes into a cluster, and calls as what it is now.
	a.become(func(i *Identity) { i.ClusterID, i.Timeline = clusterA, timelineA })
	r, err = hello(t, a.Client(b.addr))
	introduced(t, a, r, err)
	if s := a.Stats(); s.Clients != 1 {
		t.Errorf("%d clients, want one: that of what it was is of no use", s.Clients)
	}
	// And over the one connection again.
	for range 3 {
		r, err = hello(t, a.ClientOf("", b.addr))
		introduced(t, a, r, err)
	}
	eventually(t, "one connection", func() (string, bool) { s := b.Stats(); return fmt.Sprintf("%+v", s), s.Peer == 1 })
	if _, ok := Caller(t.Context()); ok {
		t.Error("there is a caller without a call")
	}
}

// TestConnectionOutlivesItsHandshakesDeadline, on both ends.
func TestConnectionOutlivesItsHandshakesDeadline(t *testing.T) {
	noLeaks(t)
	w := defaultWaits()
	w.handshake = time.Second
	var dials atomic.Int32
	a := newNodeThatWaits(t, w, member("n1", "1"), func(_ *node, o *Options) {
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) {
			dials.Add(1)
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		}
	})
	b := newNodeThatWaits(t, w, member("n2", "2"), registerService(&service{hello: tellCaller}))
	p := &pair{a: a, b: b, from: a.transport(patience), to: b.transport(patience), addr: raft.ServerAddress(b.addr)}
	beat := func() {
		t.Helper()
		call := p.beat()
		rpc := next(t, p.to)
		rpc.Respond(&raft.AppendEntriesResponse{}, nil)
		if err := ends(t, call); err != nil {
			t.Error(err)
		}
	}
	beat()
	r, err := hello(t, a.Client(b.addr))
	introduced(t, a, r, err)
	later := time.NewTimer(w.handshake * 5 / 4)
	defer later.Stop()
	<-later.C
	r, err = hello(t, a.Client(b.addr))
	introduced(t, a, r, err)
	beat()
	if n := dials.Load(); n != 2 {
		t.Errorf("connected %d times, want once for calls and once for raft", n)
	}
}

func TestCallsEndWhenTheClustersTurnOutToDiffer(t *testing.T) {
	noLeaks(t)
	a := newNode(t, member("n1", "1"))
	b := newNode(t, Identity{NodeID: "n2"}, registerService(&service{hello: tellCaller}))
	c := a.Client(b.addr)
	r, err := hello(t, c)
	introduced(t, a, r, err)
	b.become(func(i *Identity) { i.ClusterID, i.Timeline = clusterB, timelineB })
	want := fmt.Sprintf("expected cluster %s, that of node n2 at %s, found %s, that of node n1 at %s: these nodes belong to different clusters", clusterB, b.addr, clusterA, a.addr)
	if r, err := hello(t, c); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), want) {
		t.Errorf("%v (%v), want %s", r, err, want)
	}
}

func TestCallOfAServerThatIsGone(t *testing.T) {
	noLeaks(t)
	a := newNode(t, member("n1", "1"))
	b := newNode(t, member("n2", "22222222"), registerService(&service{hello: tellCaller}))
	r, err := hello(t, a.ClientOf("n2#22222222", b.addr))
	introduced(t, a, r, err)
	want := fmt.Sprintf("expected server n2#11111111 at %s, found n2#22222222: it was wiped since", b.addr)
	if r, err := hello(t, a.ClientOf("n2#11111111", b.addr)); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), want) {
		t.Errorf("%v (%v), want Unavailable: %s", r, err, want)
	}
}

func TestCallThroughARestart(t *testing.T) {
	noLeaks(t)
	a := newNode(t, member("n1", "1"))
	b := newNode(t, member("n2", "2"), registerService(&service{hello: tellCaller}))
	c := a.Client(b.addr)
	r, err := hello(t, c)
	introduced(t, a, r, err)
	b.close()
	eventually(t, "to be told that nobody is there", func() (string, bool) {
		_, err := hello(t, c)
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%v, want Unavailable", err)
		}
		return fmt.Sprint(err), err != nil && strings.Contains(err.Error(), "connect to "+b.addr+": ")
	})
	newNode(t, member("n2", "2"), registerService(&service{hello: tellCaller}), func(n *node, o *Options) {
		_ = o.Listener.Close()
		if o.Listener, err = net.Listen("tcp", b.addr); err != nil {
			t.Fatal(err)
		}
	})
	eventually(t, "the call to get through", func() (string, bool) {
		r, err = hello(t, c)
		return fmt.Sprint(err), err == nil
	})
	introduced(t, a, r, err)
}

func TestCallsAreBounded(t *testing.T) {
	noLeaks(t)
	let, running := make(chan struct{}), make(chan struct{}, maxClients)
	b := newNode(t, member("n2", "2"), registerService(&service{
		hello: func(ctx context.Context) *peerv1.HelloResponse {
			running <- struct{}{}
			<-let
			return tellCaller(ctx)
		},
		join: func(r *peerv1.JoinRequest) *peerv1.JoinResponse {
			return &peerv1.JoinResponse{ClusterId: r.GetNodeId()}
		},
	}))
	a := newNode(t, member("n1", "1"), func(_ *node, o *Options) {
		o.Dial = func(ctx context.Context, _ string) (net.Conn, error) { // all of them are b
			return new(net.Dialer).DialContext(ctx, "tcp", b.addr)
		}
	})
	addr := func(i int) string { return fmt.Sprintf("n%d.example:7441", i) }
	var calls sync.WaitGroup
	for i := range maxClients {
		calls.Go(func() {
			r, err := hello(t, a.Client(addr(i)))
			introduced(t, a, r, err)
		})
	}
	for range maxClients {
		<-running
	}
	if _, err := hello(t, a.Client(addr(maxClients))); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v, want it refused while %d others are called", err, maxClients)
	}
	close(let)
	calls.Wait()
	if _, err := hello(t, a.Client(addr(maxClients))); err != nil {
		t.Errorf("%v, want it to take the place of one that is not used", err)
	}
	if s := a.Stats(); s.Clients != maxClients {
		t.Errorf("%d clients, want %d", s.Clients, maxClients)
	}

	join := func(size int) (*peerv1.JoinResponse, error) {
		return a.Client(addr(0)).Join(t.Context(), &peerv1.JoinRequest{NodeId: strings.Repeat("x", size)})
	}
	if r, err := join(maxCall - 100); err != nil || len(r.GetClusterId()) != maxCall-100 {
		t.Errorf("%d bytes (%v), want all of it", len(r.GetClusterId()), err)
	}
	if _, err := join(maxCall + 1); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v, want it refused: it is too large", err)
	}
}

func TestCloseEndsCalls(t *testing.T) {
	noLeaks(t)
	running := make(chan struct{}, 1)
	b := newNode(t, member("n2", "2"), registerService(&service{hello: func(ctx context.Context) *peerv1.HelloResponse {
		running <- struct{}{}
		<-ctx.Done()
		return nil
	}}))
	for _, closed := range []string{"caller", "called"} {
		a := newNode(t, member("n1", "1"))
		ended := make(chan error, 1)
		go func() {
			_, err := a.Client(b.addr).Hello(context.Background(), &peerv1.HelloRequest{})
			ended <- err
		}()
		<-running
		n := a
		if closed == "called" {
			n = b
		}
		n.close()
		select {
		case err := <-ended:
			if err == nil {
				t.Errorf("%s closed: the call ended well", closed)
			}
		case <-time.After(patience):
			t.Fatalf("%s closed: the call goes on", closed)
		}
		if closed == "caller" {
			if _, err := hello(t, a.Client(b.addr)); status.Code(err) != codes.Unavailable {
				t.Errorf("%v, want Unavailable: the node is stopping", err)
			}
		}
	}
}
