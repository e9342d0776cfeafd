package leader

import (
	"context"
	"fmt"
	"net"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
)

// maxMessageBytes is what is received in one message. A batch can be as large as the largest
// request (16 MiB), and a read message holds several small ones.
const maxMessageBytes = 64 << 20

// node is a connection to one address.
type node struct {
	address string
	conn    *grpc.ClientConn
	// dialled is the result of the last TCP connection attempt; nil = there was none.
	dialled *atomic.Pointer[error]
	// heard says that something came on a connection.
	heard *atomic.Bool
}

// hearing is a connection that notes whether anything comes on it.
type hearing struct {
	net.Conn
	heard *atomic.Bool
}

// Read implements net.Conn.
func (c hearing) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.heard.Store(true)
	}
	return n, err
}

// newNode makes a connection that is opened by ready. Service-config retries are off:
// whether an append may be sent again is the caller's decision.
func newNode(address string, opts []grpc.DialOption) (*node, error) {
	n := &node{address: address, dialled: &atomic.Pointer[error]{}, heard: &atomic.Bool{}}
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
		grpc.WithContextDialer(func(ctx context.Context, target string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", target)
			n.dialled.Store(&err)
			if err != nil {
				return nil, err
			}
			return hearing{conn, n.heard}, nil
		}),
	}, opts...)
	var err error
	if n.conn, err = grpc.NewClient("passthrough:///"+address, opts...); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", address, err)
	}
	return n, nil
}

// Dial opens a connection to one address and waits until it is ready for calls.
func Dial(ctx context.Context, address string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	n, err := newNode(address, opts)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	if err := n.ready(ctx); err != nil {
		_ = n.conn.Close()
		return nil, err
	}
	return n.conn, nil
}

// ready waits until the connection takes calls.
func (n *node) ready(ctx context.Context) error {
	n.conn.Connect()
	for {
		state := n.conn.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.TransientFailure, connectivity.Shutdown:
			return n.unreachable(ctx)
		case connectivity.Idle:
			n.conn.Connect()
		}
		if !n.conn.WaitForStateChange(ctx, state) {
			return n.unreachable(ctx)
		}
	}
}

// unreachable says why the node could not be reached.
func (n *node) unreachable(ctx context.Context) error {
	dialled := n.dialled.Load()
	switch {
	case dialled != nil && *dialled != nil:
		return fmt.Errorf("cannot reach a node at %s: %w; is \"tidemark serve\" running there, and is this its --listen address?",
			n.address, *dialled)
	case ctx.Err() != nil:
		return noAnswer(n.address, ctx.Err())
	case !n.heard.Load():
		return fmt.Errorf("cannot reach a node at %s: something accepts connections there and closes them at once: either a node that has as many as it may (its log says so; try again), or no node; expected the node's --listen address",
			n.address)
	default:
		return fmt.Errorf("cannot reach a node at %s: something answers there, but not with gRPC; expected the node's --listen address, is this another of its ports?",
			n.address)
	}
}

func noAnswer(address string, err error) error {
	return fmt.Errorf("cannot reach a node at %s: no answer in time (%w)", address, err)
}
