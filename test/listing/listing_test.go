package listing

import (
	"context"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/server"
)

// serve runs a node on a directory in this process, until end is called.
func serve(t *testing.T, dir string) (client pb.EventStoreServiceClient, end func()) {
	t.Helper()
	shard, err := replication.Open(replication.Options{Dir: dir, MinFreeDiskBytes: -1, MemTableBytes: 256 << 10})
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.After(20 * time.Second)
	for {
		ready, changed := shard.Leading()
		if ready {
			break
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("expected a node that takes writes within 20 s")
		}
	}
	s, err := server.New(server.Options{Shard: shard})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }() // ends with end
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	return pb.NewEventStoreServiceClient(conn), func() {
		_ = conn.Close()
		s.Stop(context.Background())
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := shard.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	}
}

func TestListsUnderConcurrentChanges(t *testing.T) {
	dir := t.TempDir()
	client, end := serve(t, dir)
	defer func() { end() }()
	stays, err := Fill(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	var churning sync.WaitGroup
	var changes atomic.Int64
	for i := range uint64(4) {
		churning.Go(func() { Churn(ctx, client, i, func() { changes.Add(1) }) })
	}
	rng := rand.New(rand.NewPCG(5, 6))
	for lists := 0; lists < 60 || changes.Load() < 500; lists++ {
		if err := stays.List(t.Context(), client, Request(rng), nil); err != nil {
			t.Fatal(err)
		}
		if err := stays.Names(t.Context(), client, uint32(1+rng.IntN(2))); err != nil {
			t.Fatal(err)
		}
	}
	stop()
	churning.Wait()
	// A list goes on where it was after a restart, with the token of the process before.
	for _, deleted := range []bool{false, true} {
		restarts := 0
		err := stays.List(t.Context(), client, &pb.ListAggregatesRequest{PageSize: 20, IncludeDeleted: deleted}, func(page int) pb.EventStoreServiceClient {
			if page == 2 {
				end()
				client, end = serve(t, dir)
				restarts++
			}
			return client
		})
		if err != nil {
			t.Fatal(err)
		}
		if restarts != 1 {
			t.Errorf("restarted %d times", restarts)
		}
	}
}

// What has been deleted is still in the lists of orgs and types, by which include_deleted finds it;
// and a token is of one list alone.
func TestListsOfTheDeletedAndTokens(t *testing.T) {
	client, end := serve(t, t.TempDir())
	defer end()
	ctx := t.Context()
	gone := &pb.AggregateKey{Org: "gone", Type: "t", Id: "1"}
	for _, k := range []*pb.AggregateKey{gone, {Org: "here", Type: "t", Id: "1"}, {Org: "here", Type: "t", Id: "2"}, {Org: "here", Type: "u", Id: "1"}} {
		if err := write(ctx, client, k, 1); err != nil {
			t.Fatal(err)
		}
	}
	if err := remove(ctx, client, gone, true); err != nil {
		t.Fatal(err)
	}
	orgs, err := client.ListOrgs(ctx, &pb.ListOrgsRequest{})
	if err != nil || !slices.Equal(orgs.GetOrgs(), []string{"gone", "here"}) {
		t.Errorf("found %v, %v", orgs, err)
	}
	types, err := client.ListTypes(ctx, &pb.ListTypesRequest{Org: "gone"})
	if err != nil || !slices.Equal(types.GetTypes(), []string{"t"}) {
		t.Errorf("found %v, %v", types, err)
	}
	for deleted, want := range map[bool]int{false: 0, true: 1} {
		list, err := client.ListAggregates(ctx, &pb.ListAggregatesRequest{Org: "gone", IncludeDeleted: deleted})
		if err != nil || len(list.GetAggregates()) != want || list.GetNextPageToken() != "" {
			t.Errorf("include_deleted %t: found %v, %v", deleted, list, err)
		}
	}
	first, err := client.ListAggregates(ctx, &pb.ListAggregatesRequest{Org: "here", Type: "t", PageSize: 1})
	if err != nil || len(first.GetAggregates()) != 1 {
		t.Fatalf("found %v, %v", first, err)
	}
	token := first.GetNextPageToken()
	for what, call := range map[string]func() error{
		"another org": func() error {
			_, err := client.ListAggregates(ctx, &pb.ListAggregatesRequest{Org: "gone", Type: "t", PageToken: token})
			return err
		},
		"another type": func() error {
			_, err := client.ListAggregates(ctx, &pb.ListAggregatesRequest{Org: "here", Type: "u", PageToken: token})
			return err
		},
		"a prefix": func() error {
			_, err := client.ListAggregates(ctx, &pb.ListAggregatesRequest{Org: "here", Type: "t", IdPrefix: "1", PageToken: token})
			return err
		},
		"the deleted too": func() error {
			_, err := client.ListAggregates(ctx, &pb.ListAggregatesRequest{Org: "here", Type: "t", IncludeDeleted: true, PageToken: token})
			return err
		},
		"orgs": func() error { _, err := client.ListOrgs(ctx, &pb.ListOrgsRequest{PageToken: token}); return err },
		"types": func() error {
			_, err := client.ListTypes(ctx, &pb.ListTypesRequest{Org: "here", PageToken: token})
			return err
		},
		"cut off": func() error {
			_, err := client.ListAggregates(ctx, &pb.ListAggregatesRequest{Org: "here", Type: "t", PageToken: token[:len(token)-1]})
			return err
		},
	} {
		if code := api.CodeOf(call()); code != pb.ErrorCode_ERROR_CODE_INVALID_REQUEST {
			t.Errorf("a token, used for %s: found %v, expected 2016", what, code)
		}
	}
	rest, err := client.ListAggregates(ctx, &pb.ListAggregatesRequest{Org: "here", Type: "t", PageSize: 7, PageToken: token})
	if err != nil || len(rest.GetAggregates()) != 1 || rest.GetAggregates()[0].GetAggregate().GetId() != "2" || rest.GetNextPageToken() != "" {
		t.Errorf("found %v, %v", rest, err)
	}
}
