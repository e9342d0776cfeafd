package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/fakestore"
)

// measure runs a benchmark of 100 calls by 4 writers over 2 connections.
func measure(t *testing.T, store *fakestore.Store, change func(*AppendOptions)) Result {
	t.Helper()
	opts := AppendOptions{Outstanding: 4, Count: 100, Size: 10, Guard: true, Enforce: true, Prefix: "x-"}
	change(&opts)
	conns := []grpc.ClientConnInterface{fakestore.Dial(t, store, DialOptions()...), fakestore.Dial(t, store, DialOptions()...)}
	r, err := Append(t.Context(), conns, opts)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantErrors(t *testing.T, got, want map[string]uint64) {
	t.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("errors %v; want %v", got, want)
	}
}

func TestEachWriterFillsAnAggregateOfItsOwn(t *testing.T) {
	for _, c := range []struct{ guard, enforce bool }{{true, true}, {true, false}, {false, true}, {false, false}} {
		store := fakestore.New()
		store.Before = func(_ int, req *pb.AppendRequest) error {
			w := req.GetWrites()[0]
			if (w.ExpectedVersion != nil) != c.guard || w.GetEnforceClientIdempotency() != c.enforce {
				t.Errorf("guard %v, enforcement %v asked for; sent %v", c.guard, c.enforce, w)
			}
			return nil
		}
		r := measure(t, store, func(o *AppendOptions) { o.Guard, o.Enforce = c.guard, c.enforce })
		wantErrors(t, r.Errors, nil)
		if r.Count != 100 || r.Rate <= 0 || r.Seconds <= 0 || r.P50MS <= 0 || r.P50MS > r.P99MS || r.P99MS > r.P999MS {
			t.Errorf("result %+v; want 100 calls, a rate, and quantiles in order", r)
		}
		batches := store.Batches()
		writers := make(map[string]string)
		for _, b := range batches {
			e := b.GetEvents()[0]
			if e.GetClientSeq() != b.GetVersion() || len(e.GetPayload()) != 10 || len(b.GetEvents()) != 1 {
				t.Errorf("batch %v; want one event of 10 bytes whose sequence is the version", b)
			}
			id, client := b.GetAggregate().GetId(), b.GetClientId()
			if !strings.HasPrefix(id, "x-") || writers[id] != "" && writers[id] != client {
				t.Errorf("aggregate %s has writers %s and %s", id, writers[id], client)
			}
			writers[id] = client
		}
		if len(batches) != 100 || len(writers) > 4 {
			t.Errorf("%d batches on %d aggregates; want 100 on at most 4", len(batches), len(writers))
		}
	}
}

func TestFreshAggregatesGetOneEventEach(t *testing.T) {
	store := fakestore.New()
	r := measure(t, store, func(o *AppendOptions) { o.FreshAggregates = true })
	seen := make(map[string]bool)
	for _, b := range store.Batches() {
		seen[b.GetAggregate().GetId()] = true
	}
	if r.Count != 100 || len(seen) != 100 || len(store.Batches()) != 100 {
		t.Errorf("%d calls, %d aggregates, %d batches; want 100 of each", r.Count, len(seen), len(store.Batches()))
	}
}

func TestErrorsAreCountedAndAnAmbiguousOneIsNotGuessedAbout(t *testing.T) {
	store := fakestore.New()
	answers := []error{
		5: api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY, "full").After(time.Millisecond),
		9: api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "elsewhere"),
	}
	lost := []error{
		7:  status.Error(codes.Unavailable, "lost"),
		11: api.Errorf(pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN, "stopping"),
		13: status.Error(codes.DeadlineExceeded, "late"),
	}
	at := func(errs []error) func(int, *pb.AppendRequest) error {
		return func(n int, _ *pb.AppendRequest) error {
			if n < len(errs) {
				return errs[n]
			}
			return nil
		}
	}
	store.Before, store.After = at(answers), at(lost)
	r := measure(t, store, func(o *AppendOptions) { o.Outstanding = 1 })
	// No 2002 and no 2003: after an error the writer knew where it was.
	wantErrors(t, r.Errors, map[string]uint64{"11000": 1, "2011": 1, "2014": 1, "UNAVAILABLE": 1, "DEADLINE_EXCEEDED": 1})
	if r.Count != 95 || len(store.Batches()) != 98 {
		t.Errorf("%d successes, %d batches; want 95 and 98, three of them unknown to the writer", r.Count, len(store.Batches()))
	}
	aggregates := make(map[string]int)
	for _, b := range store.Batches() {
		aggregates[b.GetAggregate().GetId()[len("x-123456789012"):]]++
	}
	// 1-4 and 6-7 and so on: a new aggregate only after the three ambiguous ones.
	wantAggregates := map[string]int{"-0-0": 6, "-0-1": 3, "-0-2": 2, "-0-3": 87}
	if fmt.Sprint(aggregates) != fmt.Sprint(wantAggregates) {
		t.Errorf("batches by aggregate %v; want %v", aggregates, wantAggregates)
	}
}

func TestOnlyWhatIsSentAfterTheWarmUpIsMeasured(t *testing.T) {
	store := fakestore.New()
	r := measure(t, store, func(o *AppendOptions) { o.Warmup = 50 * time.Millisecond })
	if r.Count != 100 || len(store.Batches()) <= 100 {
		t.Errorf("%d calls measured, %d batches; want 100, and more that warmed up", r.Count, len(store.Batches()))
	}
}

func TestARunEndsWithItsDuration(t *testing.T) {
	r := measure(t, fakestore.New(), func(o *AppendOptions) { o.Count, o.Duration = 0, 30*time.Millisecond })
	if r.Seconds != 0.03 || r.Rate != float64(r.Count)/0.03 {
		t.Errorf("result %+v; want what happened in 0.03 s", r)
	}
}

func TestCancellingEndsARunWithWhatItHasMeasured(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	store := fakestore.New()
	store.After = func(n int, _ *pb.AppendRequest) error {
		if n == 50 {
			cancel()
		}
		return nil
	}
	conns := []grpc.ClientConnInterface{fakestore.Dial(t, store, DialOptions()...)}
	r, err := Append(ctx, conns, AppendOptions{Outstanding: 4, Count: 1 << 40, Guard: true})
	if err != nil || r.Count < 50 || r.Count != uint64(len(store.Batches())) || len(r.Errors) > 0 {
		t.Errorf("result %+v, %v, %d batches; want at least 50, all of them answered", r, err, len(store.Batches()))
	}
}

// closedConn fails every call at once.
type closedConn struct {
	mu    sync.Mutex
	calls int
}

func (c *closedConn) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls++
	return status.Error(codes.Unavailable, "gone")
}

func (c *closedConn) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, status.Error(codes.Unavailable, "gone")
}

func TestAServerThatIsGoneIsNotHammered(t *testing.T) {
	conn := &closedConn{}
	r, err := Append(t.Context(), []grpc.ClientConnInterface{conn}, AppendOptions{Outstanding: 1, Duration: 100 * time.Millisecond})
	if err != nil || r.Count != 0 || r.Rate != 0 || r.P999MS != 0 || r.Errors["UNAVAILABLE"] == 0 || conn.calls > 20 {
		t.Errorf("result %+v, %v after %d calls; want no success and a few calls", r, err, conn.calls)
	}
}

// instantConn answers at once.
type instantConn struct{ closedConn }

func (*instantConn) Invoke(_ context.Context, _ string, _, reply any, _ ...grpc.CallOption) error {
	reply.(*answer).version++
	return nil
}

func TestTheGeneratorAddsNoGarbageToWhatACallMakes(t *testing.T) {
	g := &generator{opts: &AppendOptions{Guard: true, Enforce: true}, stop: t.Context().Done()}
	w := newWriter(g, 0, &instantConn{}, nil)
	allocs := testing.AllocsPerRun(1000, func() {
		if err := w.call(t.Context(), time.Now()); err != nil {
			t.Error(err)
		}
	})
	if allocs != 0 || g.latency.count.Load() != 1001 || w.version != 1001 || w.write.GetExpectedVersion() != 1001 || w.event.GetClientSeq() != 1002 {
		t.Errorf("%g allocations a call, %d recorded, the writer is at version %d; want none and 1001", allocs, g.latency.count.Load(), w.version)
	}
}

func TestResultsAreTheJSONThatWasAgreedOn(t *testing.T) {
	out, err := json.Marshal(Result{Rate: 1.5, P50MS: 2, P99MS: 3, P999MS: 4, Errors: map[string]uint64{"2014": 5}, Count: 6, Seconds: 7})
	const want = `{"rate":1.5,"p50_ms":2,"p99_ms":3,"p999_ms":4,"errors":{"2014":5},"count":6,"seconds":7}`
	if err != nil || string(out) != want {
		t.Errorf("found %s, %v; want %s", out, err, want)
	}
}

func TestAppendOptionsAreChecked(t *testing.T) {
	for want, opts := range map[string]AppendOptions{
		"--outstanding: expected 1 to 100000, found 0":                    {Count: 1},
		"--duration and --warmup: expected no negative time":              {Outstanding: 1, Duration: -1},
		"expected --duration or --count: nothing else ends the run":       {Outstanding: 1},
		"--size: expected 0 to 16777216 bytes, found -1":                  {Outstanding: 1, Count: 1, Size: -1},
		"--prefix: expected at most 100 bytes without '/', found \"a/b\"": {Outstanding: 1, Count: 1, Prefix: "a/b"},
	} {
		if _, err := Append(t.Context(), nil, opts); err == nil || err.Error() != want {
			t.Errorf("error %v; want %s", err, want)
		}
	}
}

func TestAnAnswerIsReadWithoutMakingMessages(t *testing.T) {
	whole := &pb.AppendResponse{RequestId: "r", Timeline: echoTimeline, Results: []*pb.WriteResult{{
		Aggregate: &pb.AggregateKey{Org: "o", Type: "t", Id: "i"}, Version: 1 << 40, Position: 3, ChainHash: make([]byte, 32),
	}}}
	encoded, err := proto.Marshal(whole)
	if err != nil {
		t.Fatal(err)
	}
	var a answer
	if err := a.read(encoded); err != nil || a.version != 1<<40 {
		t.Errorf("found version %d, %v; want %d", a.version, err, uint64(1)<<40)
	}
	if allocs := testing.AllocsPerRun(100, func() { _ = a.read(encoded) }); allocs != 0 {
		t.Errorf("%g allocations; want none", allocs)
	}
	for i := range encoded[:len(encoded)-1] {
		_ = a.read(encoded[:i]) // must not panic
	}
	if err := a.read(nil); err == nil || err.Error() != "the answer has no field 2; expected an AppendResponse with one result" {
		t.Errorf("error %v for an empty answer", err)
	}
}
