package peer

import (
	"context"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	peerv1 "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
)

// layer is what one instance of raft sends and receives on. Raft closes it when it shuts
// down, and the Network goes on with the next one. Everything it opened or took ends with
// it: raft's transport itself leaves its pooled connections open.
type layer struct {
	n         *Network
	advertise address
	feed      *feed
	accepted  connSet
	dialed    connSet
	ctx       context.Context // ends with cut
	stop      context.CancelFunc
}

var _ raft.StreamLayer = (*layer)(nil)

// address is an advertised host:port.
type address string

func (a address) Network() string { return "tcp" }
func (a address) String() string  { return string(a) }

// newLayer makes the layer that takes the Network's streams from now on.
func (n *Network) newLayer(advertise string) *layer {
	l := &layer{n: n, advertise: address(advertise), feed: newFeed(address(advertise))}
	l.ctx, l.stop = context.WithCancel(n.ctx)
	n.mu.Lock()
	before := n.layer
	n.layer = l
	n.mu.Unlock()
	if before != nil {
		before.cut()
	}
	if n.ctx.Err() != nil {
		l.cut() // Close may have looked for it before it was there
	}
	return l
}

// Addr is what other nodes reach this one by.
func (l *layer) Addr() net.Addr { return l.advertise }

// Accept waits for a stream until Close.
func (l *layer) Accept() (net.Conn, error) { return l.feed.Accept() }

// Dial connects to the server of a route.
func (l *layer) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	kind, id, addr, err := parseRoute(to)
	if err != nil {
		return nil, err
	}
	ctx, done := context.WithTimeout(l.ctx, timeout)
	defer done()
	c, err := l.n.dial(ctx, kind, id, addr)
	if err != nil {
		return nil, err
	}
	c.set = &l.dialed
	if !l.dialed.add(c, 0) {
		_ = c.Close()
		return nil, &connectError{addr, net.ErrClosed}
	}
	return c, nil
}

// Close ends all streams, and Accept.
func (l *layer) Close() error {
	l.n.mu.Lock()
	if l.n.layer == l {
		l.n.layer = nil
	}
	l.n.mu.Unlock()
	l.cut()
	return l.feed.Close()
}

// cut ends all streams, those being dialed too, and lets no more in. Accept goes on
// waiting for Close, since raft's transport would ask it again and again.
func (l *layer) cut() {
	l.stop()
	l.accepted.close()
	l.dialed.close()
}

// route is what raft's transport takes for an address: it names the connection's kind and
// the server that is meant, so that they travel with the dial, and connections to what a
// node was before a wipe are never mixed with those to what it is now.
func route(kind peerv1.Kind, id raft.ServerID, addr raft.ServerAddress) raft.ServerAddress {
	word := "raft"
	if kind == peerv1.Kind_KIND_SNAPSHOT {
		word = "snapshot"
	}
	_, address := SplitAddress(addr)
	return raft.ServerAddress(word + " " + string(id) + "@" + address)
}

func parseRoute(r raft.ServerAddress) (kind peerv1.Kind, id raft.ServerID, addr string, err error) {
	word, server, ok := strings.Cut(string(r), " ")
	at := strings.LastIndexByte(server, '@')
	switch word {
	case "raft":
		kind = peerv1.Kind_KIND_RAFT
	case "snapshot":
		kind = peerv1.Kind_KIND_SNAPSHOT
	default:
		ok = false
	}
	if !ok || at <= 0 {
		return 0, "", "", fmt.Errorf("expected a route like %q, found %q", "raft n1#0123abcd@host:port", r)
	}
	return kind, raft.ServerID(server[:at]), server[at+1:], nil
}

// feed is a listener whose connections are put into it.
type feed struct {
	addr  net.Addr
	conns chan net.Conn
	ctx   context.Context // ends with Close
	stop  context.CancelFunc
}

func newFeed(addr net.Addr) *feed {
	f := &feed{addr: addr, conns: make(chan net.Conn)}
	f.ctx, f.stop = context.WithCancel(context.Background())
	return f
}

// put reports whether someone took the connection, by the deadline.
func (f *feed) put(c net.Conn, deadline time.Time) bool {
	t := time.NewTimer(time.Until(deadline))
	defer t.Stop()
	select {
	case f.conns <- c:
		return true
	case <-t.C:
	case <-f.ctx.Done():
	}
	return false
}

func (f *feed) Accept() (net.Conn, error) {
	select {
	case c := <-f.conns:
		return c, nil
	case <-f.ctx.Done():
		return nil, net.ErrClosed
	}
}

func (f *feed) Addr() net.Addr { return f.addr }

func (f *feed) Close() error {
	f.stop()
	return nil
}
