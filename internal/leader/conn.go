package leader

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

const (
	// connectTimeout bounds how long one address is tried before the next one is;
	// connectSoon does if there are others.
	connectTimeout = 5 * time.Second
	connectSoon    = 2 * time.Second
	// maxNodes bounds the connections that a Conn keeps.
	maxNodes = 64
)

// Conn sends each call to the node that leads, as far as it knows: a
// grpc.ClientConnInterface. From a node that says that it does not lead it goes to the one
// that is named, or to the next of the addresses it was made with; from a node that does not
// answer it goes to the next one. A call that fails is not repeated; see Do.
//
// It may be used from many goroutines at once.
type Conn struct {
	seeds []string
	opts  []grpc.DialOption

	// current is where calls go; nil = a node is to be found.
	current atomic.Pointer[node]

	mu     sync.Mutex
	nodes  map[string]*node // that were connected to, by address
	hint   string           // the address that is said to be the leader's; "" = unknown
	next   int              // the seed to begin with
	search *search          // under way
	closed bool
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
}

// search is one round of looking for a node. All calls that need one share it.
type search struct {
	done chan struct{}
	// node or err is set before done is closed.
	node *node
	err  error
	// at is the address that is being tried; Conn.mu guards it.
	at string
}

// New makes a Conn to the cluster that the nodes at seeds, one or more, belong to. It
// connects when it is used.
func New(seeds []string, opts ...grpc.DialOption) *Conn {
	c := &Conn{seeds: slices.Clone(seeds), opts: opts, nodes: make(map[string]*node)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Close closes the connections. Calls that are under way fail.
func (c *Conn) Close() error {
	c.mu.Lock()
	c.closed = true
	running := c.search
	c.mu.Unlock()
	c.cancel()
	if running != nil {
		<-running.done
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, n := range c.nodes {
		errs = append(errs, n.conn.Close())
	}
	return errors.Join(errs...)
}

// Invoke implements grpc.ClientConnInterface. A *NotTakenError means that nothing was sent.
func (c *Conn) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) error {
	n, err := c.find(ctx)
	if err != nil {
		return err
	}
	if err = n.conn.Invoke(ctx, method, args, reply, opts...); err != nil {
		c.learn(n, err)
	}
	return err
}

// NewStream implements grpc.ClientConnInterface. A *NotTakenError means that nothing was
// sent.
func (c *Conn) NewStream(ctx context.Context, desc *grpc.StreamDesc, method string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	n, err := c.find(ctx)
	if err != nil {
		return nil, err
	}
	s, err := n.conn.NewStream(ctx, desc, method, opts...)
	if err != nil {
		c.learn(n, err)
		return nil, err
	}
	return &stream{ClientStream: s, conn: c, node: n}, nil
}

// stream tells its Conn how it ends.
type stream struct {
	grpc.ClientStream
	conn *Conn
	node *node
}

func (s *stream) RecvMsg(m any) error {
	err := s.ClientStream.RecvMsg(m)
	if err != nil && !errors.Is(err, io.EOF) {
		s.conn.learn(s.node, err)
	}
	return err
}

// learn decides from the failure of a call to n where later calls go.
func (c *Conn) learn(n *node, err error) {
	switch code := api.CodeOf(err); {
	case code == pb.ErrorCode_ERROR_CODE_NOT_LEADER:
		c.leave(n, leaderOf(err))
	case code == pb.ErrorCode_ERROR_CODE_SUBSCRIPTION_MOVED:
		detail, _ := api.DetailOf[*pb.SubscriptionMoved](err)
		c.leave(n, detail.GetLeaderAddress())
	case code != pb.ErrorCode_ERROR_CODE_UNSPECIFIED:
		// The node has answered.
	case status.Code(err) == codes.Unavailable, status.Code(err) == codes.DeadlineExceeded:
		// It has gone, or hangs.
		c.leave(n, "")
	}
}

// leaderOf is the address of the leader that a 2011 names, or "".
func leaderOf(err error) string {
	detail, _ := api.DetailOf[*pb.NotLeader](err)
	return detail.GetLeaderAddress()
}

// leave makes calls go elsewhere than to n: to the address that is named, if there is one.
// Of many calls that fail together the first one decides.
func (c *Conn) leave(n *node, to string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.current.Load() != n {
		return
	}
	c.current.Store(nil)
	c.hint = ""
	if to != n.address {
		c.hint = to
	}
	if i := slices.Index(c.seeds, n.address); i >= 0 {
		c.next = (i + 1) % len(c.seeds)
	}
}

// find returns the node that calls go to, once it takes them.
func (c *Conn) find(ctx context.Context) (*node, error) {
	if n := c.current.Load(); n != nil {
		return n, nil
	}
	c.mu.Lock()
	if n := c.current.Load(); n != nil {
		c.mu.Unlock()
		return n, nil
	}
	if c.closed {
		c.mu.Unlock()
		return nil, &NotTakenError{errs: []error{errors.New("the connection to the cluster is closed")}}
	}
	s := c.search
	if s == nil {
		s = &search{done: make(chan struct{}), at: cmp.Or(c.hint, c.seeds[c.next])}
		c.search = s
		go c.run(s) // ends with Close, and within connectTimeout for each address
	}
	c.mu.Unlock()
	select {
	case <-s.done:
		return s.node, s.err
	case <-ctx.Done():
		c.mu.Lock()
		defer c.mu.Unlock()
		return nil, &NotTakenError{errs: []error{noAnswer(s.at, ctx.Err())}}
	}
}

// run tries the addresses in turn until one can be connected to.
func (c *Conn) run(s *search) {
	c.mu.Lock()
	var addresses []string
	for _, a := range append(append([]string{c.hint}, c.seeds[c.next:]...), c.seeds[:c.next]...) {
		if a != "" && !slices.Contains(addresses, a) {
			addresses = append(addresses, a)
		}
	}
	c.mu.Unlock()
	timeout := connectTimeout
	if len(addresses) > 1 {
		timeout = connectSoon
	}
	failed := &NotTakenError{}
	for _, a := range addresses {
		c.mu.Lock()
		s.at = a
		c.mu.Unlock()
		n, err := c.connect(a, timeout)
		if err == nil {
			s.node = n
			break
		}
		failed.errs = append(failed.errs, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.search = nil
	if s.node == nil {
		s.err = failed
		c.hint = ""
	} else {
		c.current.Store(s.node)
	}
	close(s.done)
}

// connect opens a connection to an address, or takes the one that is open. Only run calls
// it, one at a time.
func (c *Conn) connect(address string, timeout time.Duration) (*node, error) {
	c.mu.Lock()
	n := c.nodes[address]
	if n == nil && len(c.nodes) >= maxNodes {
		c.mu.Unlock()
		return nil, errors.New("the cluster named more addresses than a client follows: " + address)
	}
	c.mu.Unlock()
	if n != nil && n.conn.GetState() == connectivity.TransientFailure {
		// gRPC would wait before it connects again; nothing is under way on it.
		_ = n.conn.Close()
		n = nil
	}
	if n == nil {
		var err error
		if n, err = newNode(address, c.opts); err != nil {
			return nil, err
		}
		c.mu.Lock()
		c.nodes[address] = n
		c.mu.Unlock()
	}
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	return n, n.ready(ctx)
}
