package cluster

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/leader"
	"github.com/tidemark-db/tidemark/test/listing"
)

// reader is a client of the cluster that asks again, at whichever node leads then, when it is
// refused or its node is gone: what it asks may be asked twice.
type reader struct {
	*leader.Conn
}

func (r reader) Invoke(ctx context.Context, method string, args, reply any, opts ...grpc.CallOption) (err error) {
	for range 20 {
		err = r.Do(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
			return conn.Invoke(ctx, method, args, reply, opts...)
		})
		if status.Code(err) != codes.Unavailable {
			return err
		}
	}
	return err
}

// A list goes on at the next leader where it was at the one before, and has what stayed throughout
// exactly once, while aggregates are created, deleted and recreated.
func TestListsThroughFailovers(t *testing.T) {
	c := Start(t, Options{Nodes: 3, Args: []string{"--memtable-bytes", "1MiB", "--block-cache-bytes", "8MiB"}})
	var seeds []string
	for _, n := range c.Members() {
		seeds = append(seeds, c.Network.Host(n.Number)+":7440")
	}
	conn := leader.New(seeds, grpc.WithContextDialer(c.Network.Dial))
	defer func() { _ = conn.Close() }()
	client := pb.NewEventStoreServiceClient(reader{conn})
	stays, err := listing.Fill(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var churning sync.WaitGroup
	var changes atomic.Int64
	for i := range uint64(3) {
		store := c.store(t)
		churning.Go(func() { listing.Churn(ctx, store, i, func() { changes.Add(1) }) })
	}
	rng := rand.New(rand.NewPCG(7, 8))
	c.Until("changes", func() bool { return changes.Load() > 100 })
	failovers := 0
	req := &pb.ListAggregatesRequest{PageSize: uint32(4 + rng.IntN(3)), IncludeDeleted: true}
	err = stays.List(t.Context(), client, req, func(page int) pb.EventStoreServiceClient {
		if page != 3 {
			return client
		}
		failovers++
		l := c.Leader()
		l.Kill()
		c.Leader(c.Others(l)...)
		before := changes.Load()
		c.Until("changes", func() bool { return changes.Load() > before+50 })
		l.Launch()
		return client
	})
	if err != nil {
		t.Fatal(err)
	}
	if failovers != 1 {
		t.Errorf("expected one failover, found %d", failovers)
	}
	for _, err := range []error{stays.List(t.Context(), client, listing.Request(rng), nil), stays.Names(t.Context(), client, 1)} {
		if err != nil {
			t.Error(err)
		}
	}
	stop()
	churning.Wait()
}
