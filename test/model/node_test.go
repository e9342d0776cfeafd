package model

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/server"
)

// node is a whole server in this process, behind a real loopback connection.
type node struct {
	dir    string
	shard  *replication.Shard
	server *server.Server
	served chan error // what Serve returned
	conn   *grpc.ClientConn
	gate   gate
	clock  func() time.Time
	up     bool
}

// clock is a bad one: every few readings it falls back, by more than it has gone on.
type clock struct{ readings atomic.Int64 }

func (c *clock) now() time.Time {
	return time.Now().Add(-time.Duration(c.readings.Add(1)%4) * time.Second)
}

// gate stands before raft: while it is shut, what is admitted stays in flight.
type gate struct {
	mu    sync.Mutex
	shut  chan struct{} // closed when it opens; nil = open
	stood chan struct{} // closed when an entry stands before it
	lose  bool          // the entry that stands first is given back
}

func (g *gate) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut == nil {
		g.shut, g.stood = make(chan struct{}), make(chan struct{})
	}
}

func (g *gate) open(lose bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		g.lose = lose
		close(g.shut)
		g.shut = nil
	}
}

// pass is replication's hook: the batcher's goroutine alone calls it.
func (g *gate) pass(next func() (wait func() error)) (wait func() error) {
	g.mu.Lock()
	shut, stood := g.shut, g.stood
	g.mu.Unlock()
	if shut != nil {
		close(stood)
		<-shut
	}
	g.mu.Lock()
	lose := g.lose
	g.lose = false
	g.mu.Unlock()
	if lose {
		return func() error { return raft.ErrEnqueueTimeout }
	}
	return next()
}

// startNode opens a node in a directory of its own. The caller must close it.
func startNode(dir string, now func() time.Time) (*node, error) {
	n := &node{dir: dir, clock: now}
	return n, n.open(-1)
}

// cacheBytes are limits under which a cache, half of which admission and half of which
// Apply has, holds so many entries of these tests' small names; 0 is off.
func cacheBytes(entries int) (heads, marks int64) {
	switch {
	case entries < 0:
		return 0, 0 // the default
	case entries == 0:
		return -1, -1
	}
	return int64(entries) * 2 * 400, int64(entries) * 2 * 160
}

func (n *node) open(cache int) (err error) {
	heads, marks := cacheBytes(cache)
	n.shard, err = replication.Open(replication.Options{
		Dir: n.dir, HeadCacheBytes: heads, MarkCacheBytes: marks,
		// What a test writes fits into a fraction of what a server wants.
		HeartbeatTimeout: 20 * time.Millisecond, BlockCacheBytes: 8 << 20, MemTableBytes: 4 << 20, MinFreeDiskBytes: -1,
		Clock: n.clock, Hooks: replication.Hooks{Propose: n.gate.pass},
	})
	if err != nil {
		return err
	}
	if err := n.ready(); err != nil {
		return errors.Join(err, n.shard.Abandon())
	}
	if n.server, err = server.New(server.Options{Shard: n.shard}); err != nil {
		return errors.Join(err, n.shard.Abandon())
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return errors.Join(err, n.shard.Abandon())
	}
	n.served = make(chan error, 1)
	// Ends when close stops the server.
	go func() { n.served <- n.server.Serve(listener) }()
	n.up = true
	n.conn, err = grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	return err
}

// ready waits until the shard takes writes.
func (n *node) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		ready, changed := n.shard.Leading()
		if ready {
			return nil
		}
		select {
		case <-changed:
		case err := <-n.shard.Fatal():
			return err
		case <-ctx.Done():
			return fmt.Errorf("not ready for writes after %s", patience)
		}
	}
}

// close ends the node: gracefully, or as a crash would.
func (n *node) close(crash bool) error {
	if !n.up {
		return nil // the last start failed, and said so
	}
	n.up = false
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var err error
	if crash {
		n.gate.open(false)
		err = n.shard.Abandon()
		n.server.Stop(ctx)
	} else {
		n.gate.open(false)
		n.server.Stop(ctx)
		err = n.shard.Stop(ctx)
	}
	return errors.Join(err, <-n.served, n.conn.Close())
}

func (n *node) Client() pb.EventStoreServiceClient { return pb.NewEventStoreServiceClient(n.conn) }

func (n *node) Hold() { n.gate.hold() }

func (n *node) Release() { n.gate.open(false) }

func (n *node) Lose() { n.gate.open(true) }

func (n *node) Standing(ctx context.Context) error {
	n.gate.mu.Lock()
	stood := n.gate.stood
	n.gate.mu.Unlock()
	select {
	case <-stood:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Compact reclaims space, and has a snapshot taken and the log in front of it dropped.
func (n *node) Compact(ctx context.Context) error {
	resp, err := n.shard.Compact(ctx)
	if err == nil && len(resp.GetIncomplete()) > 0 {
		err = fmt.Errorf("compacted, but %q", resp.GetIncomplete())
	}
	return err
}

func (n *node) Restart(how string, cache int) error {
	if err := n.close(how == "crash"); err != nil {
		return err
	}
	if how == "rebuild" {
		// The tail still reaches back to the first entry: the history must come back from it.
		if err := os.RemoveAll(filepath.Join(n.dir, "history")); err != nil {
			return err
		}
	}
	return n.open(cache)
}
