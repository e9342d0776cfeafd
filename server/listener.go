package server

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// connBound bounds the connections of one kind.
type connBound struct {
	most    int64
	open    atomic.Int64
	refused atomic.Uint64
	log     *zap.Logger
	// budget is told of connections that close; nil where no reads are served.
	budget *readBudget

	// When it was last logged that one was refused, or cut, in Unix nanoseconds.
	warnedRefused, warnedCut atomic.Int64
}

// warnEvery spaces the log lines about connections; metrics count every one.
const warnEvery = 10 * time.Second

// due says whether it is time to log again what was logged last at the time in last.
func due(last *atomic.Int64) bool {
	now, was := time.Now().UnixNano(), last.Load()
	return now-was >= int64(warnEvery) && last.CompareAndSwap(was, now)
}

// boundedListener closes a connection at once when its bound is reached. Leaving it in the
// kernel's queue instead would make a client wait for an answer that may never come.
type boundedListener struct {
	net.Listener
	bound *connBound
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.bound.open.Add(1) <= l.bound.most {
			return newBoundedConn(c, l.bound), nil
		}
		l.bound.open.Add(-1)
		l.bound.refused.Add(1)
		if due(&l.bound.warnedRefused) {
			l.bound.log.Warn("a connection was refused: the limit of connections is reached",
				zap.Int64("limit", l.bound.most), zap.Stringer("from", c.RemoteAddr()))
		}
		_ = c.Close() // nothing was sent on it
	}
}

// boundedConn gives its place back when it is closed.
type boundedConn struct {
	net.Conn
	bound *connBound
	// reads is what the reads of this connection hold.
	reads *connReads
	once  sync.Once
}

func newBoundedConn(c net.Conn, bound *connBound) *boundedConn {
	b := &boundedConn{Conn: c, bound: bound, reads: &connReads{}}
	b.reads.cut = b.cutStalled
	return b
}

// connAddr is the peer's address as a call sees it, by which the call finds its connection.
type connAddr struct {
	net.Addr
	conn *boundedConn
}

// RemoteAddr implements net.Conn.
func (c *boundedConn) RemoteAddr() net.Addr { return connAddr{c.Conn.RemoteAddr(), c} }

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		c.bound.open.Add(-1)
		if c.bound.budget != nil {
			c.bound.budget.disconnected(c.reads)
		}
	})
	return err
}

// cutStalled closes the connection for the sake of reads that wait for what it holds.
func (c *boundedConn) cutStalled() {
	if due(&c.bound.warnedCut) {
		c.bound.log.Warn("a connection was closed: its client has not taken answers to reads for a while, and other reads wait for the memory that they hold",
			zap.Stringer("client", c.Conn.RemoteAddr()))
	}
	_ = c.Close() // whatever it says, the connection is gone
}
