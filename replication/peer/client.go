package peer

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	peerv1 "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
)

const (
	// maxCall bounds a call's request and its response, in bytes: the digests of some
	// thousand indexes are the largest.
	maxCall = 1 << 20
	// maxClients bounds the nodes that are called: those of a cluster, and what they were
	// before a wipe or a move.
	maxClients = 64
	// clientIdle is how long a connection that nobody uses stays open.
	clientIdle = time.Minute
	// maxCallsAtOnce bounds the calls served on one connection.
	maxCallsAtOnce = 64
)

func (n *Network) serverOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxCall),
		grpc.MaxSendMsgSize(maxCall),
		grpc.MaxConcurrentStreams(maxCallsAtOnce),
		grpc.ConnectionTimeout(n.waits.handshake),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.WaitForHandlers(true),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			if err := n.stillWelcome(ctx); err != nil {
				return nil, err
			}
			return handle(ctx, req)
		}),
	}
}

// stillWelcome judges a call as its connection's handshake was: meanwhile this node may
// have come into a cluster.
func (n *Network) stillWelcome(ctx context.Context) error {
	h, ok := headerOf(ctx)
	if !ok {
		return status.Error(codes.Internal, "the call came over no connection of this port")
	}
	if refused := judge(n.o.Self(), h); refused != nil {
		return status.Error(codes.FailedPrecondition, refused.Text)
	}
	return nil
}

// headerOf is the header of the connection that a call came over.
func headerOf(ctx context.Context) (header, bool) {
	if p, ok := grpcpeer.FromContext(ctx); ok {
		if a, ok := p.Addr.(remoteAddr); ok {
			return a.header, true
		}
	}
	return header{}, false
}

// Caller is the node that makes the call a handler serves, as its connection's handshake
// said.
func Caller(ctx context.Context) (Identity, bool) {
	h, ok := headerOf(ctx)
	return h.sender, ok
}

// Client calls whatever node is at an address. It connects when it is used, keeps the
// connection while it is, and costs nothing else. Its calls fail at once with the code
// Unavailable while the node cannot be reached or refuses the connection, and the error
// says why. Give every call a deadline.
func (n *Network) Client(addr string) peerv1.PeerServiceClient { return n.ClientOf("", addr) }

// ClientOf is Client, but only for the server that is meant: not for another node at the
// address, nor for the same one after a wipe. What a node says as a voter must be asked
// for in this way.
func (n *Network) ClientOf(id raft.ServerID, addr string) peerv1.PeerServiceClient {
	return peerv1.NewPeerServiceClient(&caller{n, id, addr})
}

// caller takes a connection for each call.
type caller struct {
	n    *Network
	id   raft.ServerID
	addr string
}

func (c *caller) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	cl, err := c.n.clients.acquire(c.id, c.addr)
	if err != nil {
		return err
	}
	defer c.n.clients.release(cl)
	return cl.cc.Invoke(ctx, method, args, reply, opts...)
}

// NewStream is never called: no method of PeerService has a stream.
func (c *caller) NewStream(_ context.Context, _ *grpc.StreamDesc, method string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Errorf(codes.Unimplemented, "%s: calls between nodes have no streams", method)
}

// clients are the connections of calls, kept while they are used and bounded by
// maxClients.
type clients struct {
	n      *Network
	mu     sync.Mutex
	conns  map[clientKey]*client
	closed bool
}

// clientKey tells connections apart. This node's own identity is part of it: a connection
// is not used any more when it says something else of this node than is so now.
type clientKey struct {
	addr string
	id   raft.ServerID
	self Identity
}

type client struct {
	key   clientKey
	cc    *grpc.ClientConn
	calls int       // running; under clients.mu
	used  time.Time // when the last one ended; under clients.mu
}

func (s *clients) acquire(id raft.ServerID, addr string) (*client, error) {
	key := clientKey{addr, id, s.n.o.Self()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, status.Error(codes.Unavailable, "this node is stopping")
	}
	if c, ok := s.conns[key]; ok {
		c.calls++
		return c, nil
	}
	if !s.makeRoom(key.self) {
		return nil, status.Errorf(codes.ResourceExhausted, "calls to %d nodes are running, which is the most: wait for one to end", maxClients)
	}
	cc, err := grpc.NewClient("passthrough:///"+addr, s.n.clientOptions(id, addr)...)
	if err != nil {
		return nil, err
	}
	c := &client{key: key, cc: cc, calls: 1}
	if s.conns == nil {
		s.conns = make(map[clientKey]*client)
	}
	s.conns[key] = c
	return c, nil
}

// makeRoom drops what is of no more use, and what was not used for the longest time if
// there are too many. It reports whether there is room.
func (s *clients) makeRoom(self Identity) bool {
	var oldest *client
	for _, c := range s.conns {
		switch {
		case c.calls > 0:
		case c.key.self != self:
			s.drop(c)
		case oldest == nil || c.used.Before(oldest.used):
			oldest = c
		}
	}
	if len(s.conns) >= maxClients && oldest != nil {
		s.drop(oldest)
	}
	return len(s.conns) < maxClients
}

func (s *clients) drop(c *client) {
	delete(s.conns, c.key)
	_ = c.cc.Close() // nobody uses it
}

func (s *clients) release(c *client) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.calls--
	c.used = time.Now()
}

func (s *clients) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// close ends all calls.
func (s *clients) close() {
	s.mu.Lock()
	s.closed = true
	conns := s.conns
	s.conns = nil
	s.mu.Unlock()
	for _, c := range conns {
		_ = c.cc.Close() // running calls end with an error
	}
}

func (n *Network) clientOptions(id raft.ServerID, addr string) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			c, err := n.dial(ctx, peerv1.Kind_KIND_PEER, id, addr)
			if err != nil {
				return nil, err // not c: it is nil, and a net.Conn of it would not be
			}
			c.set = &n.dialed
			if !n.dialed.add(c, 0) {
				_ = c.Close()
				return nil, net.ErrClosed
			}
			return c, nil
		}),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithIdleTimeout(clientIdle),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxCall), grpc.MaxCallSendMsgSize(maxCall)),
		// A node that was away is tried again soon: elections and reads wait for it.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: handshakeTimeout,
		}),
	}
}
