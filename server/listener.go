package server

import (
	"net"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
)

// boundedListener closes a connection at once when its bound is reached. Leaving it in the
// kernel's queue instead would make a client wait for an answer that may never come.
type boundedListener struct {
	net.Listener
	most int64
	open atomic.Int64
	log  *zap.Logger

	// warned is when the bound was last logged, in Unix nanoseconds.
	warned atomic.Int64
}

// warnEvery spaces the log lines about refused connections.
const warnEvery = 10 * time.Second

func newBoundedListener(l net.Listener, most int, log *zap.Logger) *boundedListener {
	return &boundedListener{Listener: l, most: int64(most), log: log}
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= l.most {
			return &boundedConn{Conn: c, listener: l}, nil
		}
		l.open.Add(-1)
		l.warn(c.RemoteAddr())
		_ = c.Close() // nothing was sent on it
	}
}

func (l *boundedListener) warn(from net.Addr) {
	now := time.Now().UnixNano()
	last := l.warned.Load()
	if now-last >= int64(warnEvery) && l.warned.CompareAndSwap(last, now) {
		l.log.Warn("a connection was refused: the limit of connections is reached",
			zap.Int64("limit", l.most), zap.Stringer("from", from))
	}
}

// boundedConn gives its place back when it is closed.
type boundedConn struct {
	net.Conn
	listener *boundedListener
	once     sync.Once
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.once.Do(func() { c.listener.open.Add(-1) })
	return c.Conn.Close()
}
