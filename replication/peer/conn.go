package peer

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"

	peerv1 "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
)

const (
	// sendStall is how long a snapshot's receiver may take nothing of it: it may be waiting
	// for its disk.
	sendStall = 30 * time.Second
	// receiveStall is how long a snapshot's sender may send nothing. Meanwhile the receiver
	// can neither vote nor follow another leader.
	receiveStall = 10 * time.Second
	// restoreTimeout is how long a node that has all of a snapshot may take to use it, on
	// top of a time for its size (snapshotRate).
	restoreTimeout = time.Minute
)

// waits are how long a node waits for others, which tests shorten.
type waits struct{ handshake, send, receive, restore time.Duration }

func defaultWaits() waits {
	return waits{handshake: handshakeTimeout, send: sendStall, receive: receiveStall, restore: restoreTimeout}
}

// keepAlive finds out within about ten seconds that a connection's other end is gone
// without a word: a node that waits for the rest of a snapshot from it cannot vote.
func keepAlive() net.KeepAliveConfig {
	return net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3}
}

// secure prepares a connection before its handshake, on both ends. TLS would begin here.
func secure(c net.Conn) net.Conn {
	if k, ok := c.(interface {
		SetKeepAliveConfig(net.KeepAliveConfig) error
	}); ok {
		_ = k.SetKeepAliveConfig(keepAlive()) // only makes a dead end known later
	}
	return c
}

// conn is a connection whose handshake is done. Closing it takes it out of its set.
type conn struct {
	net.Conn
	header header
	remote Identity // of the other end, whichever dialed
	set    *connSet
	waits  waits
	closed atomic.Bool
	// answerBy is when raft would give up a snapshot, as unix nanoseconds; see Read.
	answerBy atomic.Int64
	dialed   bool
}

// Read ends quietly when this end was closed: raft logs any other error.
//
// A snapshot's stream has no deadline as a whole, since what is too long for one is known
// only by its progress. The receiver waits for each piece of it, and ends a stream that
// stalls, or raft would wait for the rest once more, to discard it. The sender reads once,
// for the answer, which comes when the snapshot is in use.
func (c *conn) Read(b []byte) (int, error) {
	snapshot := c.header.kind == peerv1.Kind_KIND_SNAPSHOT
	if snapshot {
		// This fails only on a closed connection, and so will the read.
		_ = c.Conn.SetReadDeadline(c.readDeadline(time.Now()))
	}
	n, err := c.Conn.Read(b)
	switch {
	case err == nil:
	case c.closed.Load() && errors.Is(err, net.ErrClosed):
		err = io.EOF
	case snapshot:
		_ = c.Close() // the error that counts is err
	}
	return n, err
}

func (c *conn) readDeadline(now time.Time) time.Time {
	if !c.dialed {
		return now.Add(c.waits.receive)
	}
	if by := time.Unix(0, c.answerBy.Load()); by.After(now) {
		now = by
	}
	return now.Add(c.waits.restore)
}

// Write lets a snapshot's stream go on as long as it moves.
func (c *conn) Write(b []byte) (int, error) {
	if c.header.kind == peerv1.Kind_KIND_SNAPSHOT {
		_ = c.Conn.SetWriteDeadline(time.Now().Add(c.waits.send)) // as in Read
	}
	return c.Conn.Write(b)
}

// SetDeadline is raft's bound on a whole call. Of a snapshot's it tells the size.
func (c *conn) SetDeadline(t time.Time) error {
	if c.header.kind == peerv1.Kind_KIND_SNAPSHOT {
		c.answerBy.Store(t.UnixNano())
		return nil
	}
	return c.Conn.SetDeadline(t)
}

func (c *conn) Close() error {
	if c.closed.Swap(true) {
		return nil
	}
	if c.set != nil {
		c.set.remove(c)
	}
	return c.Conn.Close()
}

// RemoteAddr also tells whose it is, which is how a call finds out (Caller).
func (c *conn) RemoteAddr() net.Addr { return remoteAddr{c.Conn.RemoteAddr(), c.header} }

type remoteAddr struct {
	net.Addr
	header header
}

// connSet holds open connections so that their owner can close them all. Once closed it
// takes no more.
type connSet struct {
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
	closed bool
}

// add reports whether the set still takes connections and has fewer than limit (0 = any
// number).
func (s *connSet) add(c net.Conn, limit int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || limit > 0 && len(s.conns) >= limit {
		return false
	}
	if s.conns == nil {
		s.conns = make(map[net.Conn]struct{})
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *connSet) remove(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

func (s *connSet) len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// close closes all connections and takes no more.
func (s *connSet) close() {
	s.mu.Lock()
	s.closed = true
	conns := make([]net.Conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // nothing is owed to the other end
	}
}
