package contract

import (
	"context"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/server"
)

// patience bounds every wait of a test.
const patience = 20 * time.Second

// settings are what the scripts change of a node.
type settings struct {
	freeDisk    int64 // bytes; 0 = plenty
	inFlight    int64 // replication.Options.MaxInFlightBytes
	maxCalls    int
	maxRequest  int
	maxRequests int64 // bytes of all requests at work
}

// node is a shard and its server.
type node struct {
	shard  *replication.Shard
	server *server.Server
	conn   *grpc.ClientConn
	client pb.EventStoreServiceClient
	gate   gate
	served chan error

	stopShard sync.Once
}

// gate stands before raft: while it is shut, what is admitted stays in flight.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // closed when it opens; nil = open
}

func (g *gate) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case shut && g.shut == nil:
		g.shut = make(chan struct{})
	case !shut && g.shut != nil:
		close(g.shut)
		g.shut = nil
	}
}

func (g *gate) pass() {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut != nil {
		<-shut
	}
}

// startNode starts a node on an empty directory and waits until it takes writes.
func startNode(t *testing.T, s settings) *node {
	t.Helper()
	n := &node{served: make(chan error, 1)}
	free := s.freeDisk
	if free == 0 {
		free = 1 << 40
	}
	var err error
	n.shard, err = replication.Open(replication.Options{
		Dir: t.TempDir(), AdvertiseAddress: "node.example:7440", MaxInFlightBytes: s.inFlight,
		BlockCacheBytes: 8 << 20, MemTableBytes: 16 << 20,
		FreeDisk: func(string) (int64, error) { return free, nil },
		Hooks:    replication.Hooks{BeforePropose: n.gate.pass},
	})
	if err != nil {
		t.Fatal(err)
	}
	if n.server, err = server.New(server.Options{
		Shard: n.shard, MaxCalls: s.maxCalls, MaxRequestBytes: s.maxRequest, MaxBytes: s.maxRequests,
	}); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { n.served <- n.server.Serve(l) }() // ends with the server, in stop
	n.conn, err = grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	n.client = pb.NewEventStoreServiceClient(n.conn)
	n.await(t, "the node takes writes", func() bool {
		ready, _ := n.shard.Leading()
		return ready
	})
	return n
}

// await waits for a state of the shard that nothing announces.
func (n *node) await(t *testing.T, what string, reached func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); !reached(); <-tick.C {
		if time.Since(begun) > patience {
			t.Fatalf("waited %v until %s", patience, what)
		}
	}
}

// endShard stops the shard under its server, as at the end of a drain.
func (n *node) endShard(t *testing.T) {
	t.Helper()
	n.stopShard.Do(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // what is in flight gets no time
		err := make(chan error, 1)
		go func() { err <- n.shard.Stop(ctx) }() // ends below
		n.await(t, "the shard has let go of what waited", func() bool {
			ready, _ := n.shard.Leading()
			return !ready && n.shard.Status().InFlightRequests == 0
		})
		n.gate.set(false)
		if err := <-err; err != nil {
			t.Errorf("stop the shard: %v", err)
		}
	})
}

// stop ends the node.
func (n *node) stop(t *testing.T) {
	t.Helper()
	n.gate.set(false)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	n.server.Stop(ctx)
	n.endShard(t)
	if err := <-n.served; err != nil {
		t.Errorf("serve: %v", err)
	}
	_ = n.conn.Close()
}

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// position is how many changes the node has committed.
func (n *node) position() string { return fmt.Sprint(n.shard.Status().LastPosition) }
