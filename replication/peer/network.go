package peer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	peerv1 "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
)

const (
	// maxHandshaking bounds the connections that have not said yet what they are. More are
	// not accepted until one of these is done, which takes handshakeTimeout at most.
	maxHandshaking = 64
	// maxPeerConns and maxRaftConns bound what is open at once, accepted of other nodes. A
	// node has a handful of each kind to every other one.
	maxPeerConns = 128
	maxRaftConns = 128
)

// Options say what a Network is made of.
type Options struct {
	// Listener is where other nodes connect. The Network closes it.
	Listener net.Listener
	// Self is asked at every handshake and call, since it changes when the node comes into
	// a cluster.
	Self func() Identity
	// Register registers tidemark.peer.v1.PeerService. Its handlers may ask Caller.
	Register func(s *grpc.Server)
	// AcceptRaft may refuse a raft stream that is meant for this node: the error's text
	// goes to the node that dialed. nil takes all; without a Transport there are none.
	AcceptRaft func(remote Identity) error
	// Dial connects to another node; nil = a net.Dialer. Tests put faults here.
	Dial   func(ctx context.Context, addr string) (net.Conn, error)
	Logger *zap.Logger
}

// Network is a node's port for other nodes.
type Network struct {
	o        Options
	grpc     *grpc.Server
	feed     *feed // connections for grpc
	known    acquaintances
	refusals complaints
	clients  clients
	slots    chan struct{} // one for each connection in handshaking
	waits    waits

	handshaking connSet
	peers       connSet // accepted for calls
	dialed      connSet // for calls

	ctx  context.Context // ends with Close
	stop context.CancelFunc
	wg   sync.WaitGroup // the goroutines below

	mu    sync.Mutex
	layer *layer // of the newest Transport; nil = raft is not running
}

// Listen takes the port into use. Two goroutines, and one for each handshake, run until
// Close.
func Listen(o Options) (*Network, error) { return listen(o, defaultWaits()) }

func listen(o Options, w waits) (*Network, error) {
	if o.Listener == nil || o.Self == nil {
		return nil, errors.New("expected a listener and an identity, found none: set Options.Listener and Options.Self")
	}
	if o.Dial == nil {
		d := &net.Dialer{KeepAliveConfig: keepAlive()}
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	n := &Network{
		o:     o,
		feed:  newFeed(o.Listener.Addr()),
		known: acquaintances{seen: make(map[raft.ServerID]acquaintance)},
		slots: make(chan struct{}, maxHandshaking),
		waits: w,
	}
	n.ctx, n.stop = context.WithCancel(context.Background())
	n.clients.n = n
	n.grpc = grpc.NewServer(n.serverOptions()...)
	if o.Register != nil {
		o.Register(n.grpc)
	}
	n.wg.Go(func() {
		if err := n.grpc.Serve(n.feed); err != nil && n.ctx.Err() == nil {
			n.o.Logger.Error("calls of other nodes are no longer served", zap.Error(err))
		}
	})
	n.wg.Go(n.accept)
	return n, nil
}

// Addr is where the Network listens.
func (n *Network) Addr() net.Addr { return n.o.Listener.Addr() }

// Known is the newest identity that a server gave in a handshake, whichever side began it,
// and when. A node of another cluster does not count.
func (n *Network) Known(id raft.ServerID) (Identity, time.Time, bool) { return n.known.known(id) }

// Stats are the sizes of what the Network bounds.
type Stats struct {
	Handshaking, MaxHandshaking int // connections that have not said yet what they are
	Peer, MaxPeer               int // accepted connections for calls
	Raft, MaxRaft               int // accepted connections of raft
	Clients, MaxClients         int // nodes called
	Known, MaxKnown             int // nodes remembered from handshakes
}

// Stats returns the sizes now.
func (n *Network) Stats() Stats {
	s := Stats{
		Handshaking: n.handshaking.len(), MaxHandshaking: maxHandshaking,
		Peer: n.peers.len(), MaxPeer: maxPeerConns, MaxRaft: maxRaftConns,
		Clients: n.clients.len(), MaxClients: maxClients,
		Known: n.known.len(), MaxKnown: maxKnown,
	}
	if l := n.current(); l != nil {
		s.Raft = l.accepted.len()
	}
	return s
}

// Close stops listening, closes all connections, waits for the handlers of calls, and
// returns when everything has ended that the Network started. Shut raft down first: after
// Close its calls fail.
func (n *Network) Close() error {
	n.stop()
	err := n.o.Listener.Close()
	n.handshaking.close()
	if l := n.current(); l != nil {
		l.cut()
	}
	n.clients.close()
	n.peers.close() // first, since grpc would wait for those that have not said a word to it
	n.grpc.Stop()
	n.dialed.close()
	n.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (n *Network) current() *layer {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.layer
}

// accept runs until the listener is closed.
func (n *Network) accept() {
	wait := time.Duration(0)
	for {
		select {
		case n.slots <- struct{}{}:
		case <-n.ctx.Done():
			return
		}
		raw, err := n.o.Listener.Accept()
		if err == nil {
			wait = 0
			n.wg.Go(func() {
				defer func() { <-n.slots }()
				n.welcome(raw)
			})
			continue
		}
		<-n.slots
		if n.ctx.Err() != nil {
			return
		}
		if errors.Is(err, net.ErrClosed) {
			n.o.Logger.Error("other nodes can no longer connect: the listener was closed", zap.Error(err))
			return
		}
		// The process is out of file descriptors, for instance; that passes.
		wait = min(max(2*wait, 5*time.Millisecond), time.Second)
		n.complain(zap.ErrorLevel, n.Addr().String(), "accept", "a connection of another node could not be accepted", zap.Error(err))
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-n.ctx.Done():
			t.Stop()
			return
		}
	}
}

// welcome is the handshake of the node that is dialed.
func (n *Network) welcome(raw net.Conn) {
	if !n.handshaking.add(raw, 0) {
		_ = raw.Close() // the Network is being closed
		return
	}
	defer n.handshaking.remove(raw)
	from := raw.RemoteAddr().String()
	host, _, err := net.SplitHostPort(from)
	if err != nil {
		host = from
	}
	c := secure(raw)
	deadline := time.Now().Add(n.waits.handshake)
	_ = c.SetDeadline(deadline) // fails only on a closed connection, and so will the read
	h, err := readHeader(c)
	self := n.o.Self()
	var refused *RefusedError
	if err != nil && !errors.As(err, &refused) {
		if n.ctx.Err() == nil {
			level := zap.WarnLevel
			if err == io.EOF {
				level = zap.DebugLevel // someone looked whether the port is open
			}
			n.complain(level, host, "no handshake",
				"a connection did not begin as one of a node does: this port is for the other nodes, clients have another one", zap.String("from", from), zap.Error(err))
		}
		_ = c.Close()
		return
	}
	if refused == nil {
		refused = judge(self, h)
	}
	if refused == nil {
		if refused = n.take(c, h, self, deadline); refused == nil {
			return
		}
	}
	refused.Remote = h.sender
	n.complainOfRefusal("a connection of another node was refused", host, refused)
	_ = answer(c, self, refused) // the other end learns nothing if it does not read
	_ = c.Close()
}

// take opens a connection that judge found good and hands it to whom it is for.
func (n *Network) take(raw net.Conn, h header, self Identity, deadline time.Time) *RefusedError {
	c := &conn{Conn: raw, header: h, remote: h.sender, waits: n.waits}
	var to *feed
	if h.kind == peerv1.Kind_KIND_PEER {
		c.set, to = &n.peers, n.feed
		if !c.set.add(c, maxPeerConns) {
			return refuse(peerv1.Refusal_REFUSAL_BUSY, "node %s at %s has %d connections for calls, which is the most: look for a node that connects again and again", self.NodeID, self.RaftAddress, maxPeerConns)
		}
	} else {
		l := n.current()
		if l == nil {
			return refuse(peerv1.Refusal_REFUSAL_RAFT_NOT_READY, "raft is not running on node %s at %s: try again", self.NodeID, self.RaftAddress)
		}
		if n.o.AcceptRaft != nil {
			if err := n.o.AcceptRaft(h.sender); err != nil {
				return refuse(peerv1.Refusal_REFUSAL_RAFT_NOT_READY, "node %s at %s: %v", self.NodeID, self.RaftAddress, err)
			}
		}
		c.set, to = &l.accepted, l.feed
		if !c.set.add(c, maxRaftConns) {
			return refuse(peerv1.Refusal_REFUSAL_BUSY, "node %s at %s has %d connections of raft, which is the most, or is stopping: try again", self.NodeID, self.RaftAddress, maxRaftConns)
		}
	}
	n.known.met(h.sender, time.Now())
	if err := answer(raw, self, nil); err != nil || raw.SetDeadline(time.Time{}) != nil || !to.put(c, deadline) {
		_ = c.Close()
	}
	return nil
}

// dial connects to a node and shakes hands with it. It ends when ctx does, and within
// handshakeTimeout of being connected.
func (n *Network) dial(ctx context.Context, kind peerv1.Kind, target raft.ServerID, addr string) (*conn, error) {
	h := header{kind: kind, sender: n.o.Self(), target: target}
	c, remote, err := n.reach(ctx, h, addr)
	var refused *RefusedError
	if errors.As(err, &refused) {
		n.complainOfRefusal("another node was not connected to", addr, refused)
	}
	if err != nil {
		return nil, &connectError{addr, err}
	}
	n.known.met(remote, time.Now())
	return &conn{Conn: c, header: h, remote: remote, waits: n.waits, dialed: true}, nil
}

// connectError is returned when there is no connection to a node.
type connectError struct {
	addr string
	err  error
}

func (e *connectError) Error() string { return fmt.Sprintf("connect to %s: %v", e.addr, e.err) }
func (e *connectError) Unwrap() error { return e.err }

func (n *Network) reach(ctx context.Context, h header, addr string) (net.Conn, Identity, error) {
	raw, err := n.o.Dial(ctx, addr)
	if err != nil {
		return nil, Identity{}, err
	}
	c := secure(raw)
	deadline := time.Now().Add(n.waits.handshake)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	// Closed in between, so that nobody who ends a dial waits for the other end.
	unwatch := context.AfterFunc(ctx, func() { _ = raw.Close() })
	remote, err := greet(c, h, deadline)
	if !unwatch() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = c.Close()
		return nil, remote, err
	}
	return c, remote, nil
}
