package server

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// patience bounds every wait of a test.
const patience = 20 * time.Second

// rig is a server on loopback and a client of it.
type rig struct {
	shard  *fakeShard
	server *Server
	conn   *grpc.ClientConn
	client pb.EventStoreServiceClient
}

// start serves a fake shard; change may alter the options.
func start(t testing.TB, change func(*Options)) *rig {
	t.Helper()
	r := &rig{shard: newFakeShard(t)}
	o := Options{Shard: r.shard}
	if change != nil {
		change(&o)
	}
	var err error
	if r.server, err = New(o); err != nil {
		t.Fatal(err)
	}
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- r.server.Serve(l) }() // ends with Stop below
	r.conn = dial(t, l.Addr().String())
	r.client = pb.NewEventStoreServiceClient(r.conn)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		r.server.Stop(ctx)
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return r
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func dial(t testing.TB, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(addr, append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func testContext(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}
