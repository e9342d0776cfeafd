package server

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
)

const (
	// slowLimit is the budget of these tests, slowBatch the size of the batches that are read.
	slowLimit = 8 << 20
	slowBatch = 1 << 20
	// stuckReaders would hold 100 MiB encoded, and as much again in what they hold besides.
	stuckReaders = 100
)

// startSlow serves an aggregate of three large batches and one of a small one.
func startSlow(t *testing.T, change func(*Options)) *rig {
	r := start(t, func(o *Options) {
		o.MaxReadBytes = slowLimit
		// Above what the test takes, so that nothing is cut and nobody is refused.
		o.readStall, o.readPatience = time.Hour, time.Hour
		if change != nil {
			change(o)
		}
	})
	for i := range 3 {
		r.shard.put(t, testKey("large"), "a", 100, &pb.NewEvent{ClientSeq: uint64(i + 1), Type: "T", Payload: make([]byte, slowBatch)})
	}
	r.shard.put(t, testKey("small"), "a", 100, &pb.NewEvent{ClientSeq: 1, Type: "T"})
	return r
}

func (r *rig) use() readUse { return r.server.chain.budget.use() }

// stick opens a read of the large batches that receives nothing.
func stick(t *testing.T, ctx context.Context, client pb.EventStoreServiceClient) {
	t.Helper()
	if _, err := client.Read(ctx, &pb.ReadRequest{Aggregate: pbKey("large")}); err != nil {
		t.Fatal(err)
	}
}

// readLarge reads the large batches as a client does.
func readLarge(ctx context.Context, client pb.EventStoreServiceClient) error {
	got, _, err := readAll(ctx, &rig{client: client}, &pb.ReadRequest{Aggregate: pbKey("large")})
	if err == nil && len(got) != 3 {
		err = fmt.Errorf("%d batches, want 3", len(got))
	}
	return err
}

// watch samples the budget until the returned function is called, which gives the most that
// was held.
func (r *rig) watch() (most func() int64) {
	done, result := make(chan struct{}), make(chan int64)
	go func() { // ends with most
		tick := time.NewTicker(100 * time.Microsecond)
		defer tick.Stop()
		var most int64
		for {
			most = max(most, r.use().bytes)
			select {
			case <-tick.C:
			case <-done:
				result <- most
				return
			}
		}
	}()
	return func() int64 {
		close(done)
		return <-result
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// However many clients read and take nothing, their answers stay below the bound, a client on
// another connection reads, and everything comes back when they are gone.
func TestStuckReadersAreBounded(t *testing.T) {
	r := startSlow(t, nil)
	stuck := pb.NewEventStoreServiceClient(dial(t, r.conn.Target()))
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	before := heap()
	most := r.watch()
	for range stuckReaders {
		stick(t, ctx, stuck)
	}
	// Each waits, but those that got something.
	eventually(t, "the readers hold or wait", func() bool {
		return r.server.chain.reads.Load() == stuckReaders && r.use().waiting > stuckReaders/2
	})
	if err := readLarge(ctx, r.client); err != nil {
		t.Errorf("a client that reads, beside clients that do not: %v", err)
	}
	if n := most(); n > slowLimit || n < slowBatch {
		t.Errorf("%d bytes were held at once; the limit is %d", n, slowLimit)
	}
	// What the clients' windows of 64 KiB let through is theirs, and in this process, too.
	if grown, most := heap()-before, int64(slowLimit+stuckReaders*100_000); grown > most {
		t.Errorf("the heap has grown by %d bytes, expected at most %d", grown, most)
	}
	cancel()
	eventually(t, "all is given back", func() bool {
		u := r.use()
		return u.bytes == 0 && u.waiting == 0 && r.server.chain.reads.Load() == 0
	})
}

// Clients that read all get their answers, in whatever numbers.
func TestManyReadersShareTheBudget(t *testing.T) {
	r := startSlow(t, nil)
	ctx := testContext(t)
	most := r.watch()
	var all sync.WaitGroup
	for range 6 {
		client := pb.NewEventStoreServiceClient(dial(t, r.conn.Target()))
		for range 2 {
			all.Go(func() {
				if err := readLarge(ctx, client); err != nil {
					t.Errorf("%v; the budget is %+v", err, r.use())
				}
			})
		}
	}
	all.Wait()
	if n := most(); n > slowLimit {
		t.Errorf("%d bytes were held at once; the limit is %d", n, slowLimit)
	}
	eventually(t, "all is given back", func() bool { return r.use().bytes == 0 })
}

// A call whose handler has long ended still holds what its client has not taken.
func TestTheLastMessageCountsUntilItHasLeft(t *testing.T) {
	r := startSlow(t, nil)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	// gRPC widens the windows of a connection by what it sees move, until the whole answer
	// fits and leaves at once. A size that is given stays.
	windows := []grpc.DialOption{grpc.WithInitialWindowSize(1 << 16), grpc.WithInitialConnWindowSize(1 << 16)}
	for name, open := range map[string]func(conn *grpc.ClientConn) (grpc.ClientStream, error){
		"Read": func(conn *grpc.ClientConn) (grpc.ClientStream, error) {
			return pb.NewEventStoreServiceClient(conn).Read(ctx, &pb.ReadRequest{Aggregate: pbKey("large"), Limit: 1})
		},
		// As a stream, so that the client is free not to receive.
		"FindEvent": func(conn *grpc.ClientConn) (grpc.ClientStream, error) {
			s, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, pb.EventStoreService_FindEvent_FullMethodName)
			if err == nil {
				err = s.SendMsg(&pb.FindEventRequest{Aggregate: pbKey("large"), ClientId: "a", ClientSeq: 1})
			}
			if err == nil {
				err = s.CloseSend()
			}
			return s, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := open(dial(t, r.conn.Target(), windows...))
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the answer is on its way", func() bool {
				held := r.use().bytes
				return r.server.chain.reads.Load() == 0 && held > slowBatch && held < slowBatch+1000
			})
			m := &pb.ReadResponse{}
			if name == "FindEvent" {
				err = s.RecvMsg(&pb.FindEventResponse{})
			} else {
				err = s.RecvMsg(m)
			}
			if err != nil {
				t.Fatal(err)
			}
			eventually(t, "the answer has left", func() bool { return r.use().bytes == 0 })
		})
	}
}

func TestAClosedConnectionFreesWhatItsReadersHold(t *testing.T) {
	r := startSlow(t, nil)
	conn := dial(t, r.conn.Target())
	for range 5 {
		stick(t, testContext(t), pb.NewEventStoreServiceClient(conn))
	}
	eventually(t, "the readers hold something", func() bool { return r.use().bytes > 0 })
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "all is given back", func() bool { return r.use().bytes == 0 && r.use().waiting == 0 })
}

// Stuck readers on many connections hold everything; they are cut for one that waits.
func TestStuckReadersAreCutForOthers(t *testing.T) {
	r := startSlow(t, func(o *Options) { o.readStall, o.readPatience = 100*time.Millisecond, patience })
	ctx := testContext(t)
	for range 12 {
		stick(t, ctx, pb.NewEventStoreServiceClient(dial(t, r.conn.Target())))
	}
	eventually(t, "there is no room", func() bool { return r.use().waiting > 0 })
	if err := readLarge(ctx, r.client); err != nil {
		t.Error(err)
	}
	if u := r.use(); u.cuts == 0 || u.bytes > slowLimit {
		t.Errorf("%d connections were cut, %d bytes are held", u.cuts, u.bytes)
	}
}

// While there is room, a client may take its time.
func TestStuckReadersAreLeftAloneWhileThereIsRoom(t *testing.T) {
	r := startSlow(t, func(o *Options) { o.readStall, o.readPatience = time.Millisecond, patience })
	ctx := testContext(t)
	stuck, err := pb.NewEventStoreServiceClient(dial(t, r.conn.Target())).Read(ctx, &pb.ReadRequest{Aggregate: pbKey("large")})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the answer is on its way", func() bool { return r.use().bytes > 0 && r.use().bytes < 2*slowBatch })
	for range 3 {
		if err := readLarge(ctx, r.client); err != nil {
			t.Fatal(err)
		}
	}
	for n := 0; ; n++ {
		m, err := stuck.Recv()
		if err != nil {
			t.Fatalf("after %d messages: %v", n, err)
		}
		if m.GetEnd() != nil {
			break
		}
	}
}

func TestAReadThatWaitsHonoursItsDeadline(t *testing.T) {
	r := startSlow(t, nil)
	ctx := testContext(t)
	held := mustTake(t, r.server.chain.budget.reader(), slowLimit)
	defer held.release()
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	for name, call := range map[string]func(context.Context) error{
		"Read": func(ctx context.Context) error { return readLarge(ctx, r.client) },
		"FindEvent": func(ctx context.Context) error {
			_, err := r.client.FindEvent(ctx, &pb.FindEventRequest{Aggregate: pbKey("large"), ClientId: "a", ClientSeq: 1})
			return err
		},
		"ListMarks": func(ctx context.Context) error {
			_, err := r.client.ListMarks(ctx, &pb.ListMarksRequest{Aggregate: pbKey("large")})
			return err
		},
		"ListOrgs": func(ctx context.Context) error {
			_, err := r.client.ListOrgs(ctx, &pb.ListOrgsRequest{})
			return err
		},
		"GetSchema": func(ctx context.Context) error {
			_, err := r.client.GetSchema(ctx, &pb.GetSchemaRequest{Org: "acme", Type: "orders", EventType: "Placed"})
			return err
		},
		"ListSchemas": func(ctx context.Context) error {
			_, err := r.client.ListSchemas(ctx, &pb.ListSchemasRequest{Org: "acme"})
			return err
		},
		"ListAggregates": func(ctx context.Context) error {
			_, err := r.client.ListAggregates(ctx, &pb.ListAggregatesRequest{})
			return err
		},
	} {
		if err := call(short); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("%s: %v", name, err)
		}
	}
	// What needs next to nothing does not wait.
	if _, err := r.client.GetMark(ctx, &pb.GetMarkRequest{Aggregate: pbKey("large"), ClientId: "a"}); err != nil {
		t.Error(err)
	}
	eventually(t, "nobody waits", func() bool { return r.use().waiting == 0 && r.server.chain.reads.Load() == 0 })
}

func TestAReadThatWaitsTooLongIsRefused(t *testing.T) {
	r := startSlow(t, func(o *Options) { o.readStall, o.readPatience = 10*time.Millisecond, 30*time.Millisecond })
	held := mustTake(t, r.server.chain.budget.reader(), slowLimit)
	defer held.release()
	wantError(t, readLarge(testContext(t), r.client), api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY,
		"answers to reads hold %d bytes on this node, which is its limit, because their clients do not take them; ask again later", slowLimit).After(time.Second))
	if n := r.server.chain.refused.Load(); n != 1 {
		t.Errorf("%d refusals are counted, want 1", n)
	}
}

// Reads have a limit of their own: above it they are refused, and appends are not.
func TestReadsAreBounded(t *testing.T) {
	r := startSlow(t, func(o *Options) { o.MaxReads = 2 })
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	stick(t, ctx, r.client)
	stick(t, ctx, r.client)
	eventually(t, "both are at work", func() bool { return r.server.chain.reads.Load() == 2 })
	busy := api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY, "2 calls that read are at work on this node, which is its limit; ask again later").After(retryBusy)
	wantError(t, readLarge(ctx, r.client), busy)
	_, err := r.client.GetMark(ctx, &pb.GetMarkRequest{Aggregate: pbKey("large"), ClientId: "a"})
	wantError(t, err, busy)
	if _, err := r.client.Append(ctx, smallAppend()); err != nil {
		t.Errorf("an append: %v", err)
	}
	cancel()
	eventually(t, "the places are free", func() bool { return r.server.chain.reads.Load() == 0 })
	if err := readLarge(testContext(t), r.client); err != nil {
		t.Error(err)
	}
	if n := r.server.chain.refused.Load(); n != 2 {
		t.Errorf("%d refusals are counted, want 2", n)
	}
}

// Every method is either a read or known not to be one: a new one must be put on a side.
func TestEveryMethodIsAReadOrNot(t *testing.T) {
	desc := pb.EventStoreService_ServiceDesc
	var names []string
	for _, m := range desc.Methods {
		names = append(names, m.MethodName)
	}
	for _, s := range desc.Streams {
		names = append(names, s.StreamName)
	}
	others := map[string]bool{"Append": true, "AppendStream": true, "RegisterSchema": true, "Trim": true, "Delete": true, "Subscribe": true}
	for _, name := range names {
		if rpcOf(desc.ServiceName, name).read == others[name] {
			t.Errorf("%s: is it a read? Say so in rpcOf, or here", name)
		}
	}
	if rpcOf("grpc.health.v1.Health", "List").read {
		t.Error("a method of the health service is taken for a read")
	}
}

// A read that fails after it has reserved memory gives it back.
func TestAReadThatFailsGivesBack(t *testing.T) {
	r := startSlow(t, nil)
	ctx := testContext(t)
	r.shard.changeHead(t, testKey("large"), func(h *history.Head) { h.Version = 7 })
	wantError(t, readLarge(ctx, r.client), api.Corruptf("corrupt record: version 4 of acme/orders/large is missing from the history, which says it has 1 to 7"))
	r.shard.refuseReads(errors.New("no view"))
	if _, err := r.client.ListAggregates(ctx, &pb.ListAggregatesRequest{}); err == nil {
		t.Error("a list without a view was answered")
	}
	eventually(t, "all is given back", func() bool { return r.use().bytes == 0 })
}

// A batch that turns out larger than what was reserved is read again when there is room for it;
// until then nothing is held that others could use.
func TestALargeBatchWaitsForRoomEmptyHanded(t *testing.T) {
	r := startSlow(t, nil)
	ctx := testContext(t)
	for name, call := range map[string]func() error{
		"Read": func() error { return readLarge(ctx, r.client) },
		"FindEvent": func() error {
			found, err := r.client.FindEvent(ctx, &pb.FindEventRequest{Aggregate: pbKey("large"), ClientId: "a", ClientSeq: 2})
			if err == nil && len(found.GetBatch().GetEvents()[0].GetPayload()) != slowBatch {
				err = errors.New("the event is not whole")
			}
			return err
		},
	} {
		const others = slowLimit - 2<<20 // leaves room for a small message
		held := mustTake(t, r.server.chain.budget.reader(), others)
		result := make(chan error, 1)
		go func() { result <- call() }() // ends with its context at the latest
		eventually(t, name+" waits", func() bool { return r.use().waiting == 1 })
		wantUse(t, r.server.chain.budget, others, 1)
		held.release()
		if err := <-result; err != nil {
			t.Errorf("%s: %v", name, err)
		}
		eventually(t, "all is given back", func() bool { return r.use().bytes == 0 })
	}
}
