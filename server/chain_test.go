package server

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"
	"google.golang.org/grpc/codes"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/record"
)

func smallAppend() *pb.AppendRequest {
	return &pb.AppendRequest{RequestId: "r", ClientId: "a", Writes: []*pb.Write{{Aggregate: pbKey("1"), Events: events(1)}}}
}

// holdAppends makes appends wait, and returns a channel that tells of each and a function
// that lets all go on.
func holdAppends(f *fakeShard) (waiting <-chan struct{}, release func()) {
	in, out := make(chan struct{}, 100), make(chan struct{})
	f.onAppend(func(ctx context.Context, req *pb.AppendRequest) (*pb.AppendResponse, error) {
		in <- struct{}{}
		select {
		case <-out:
			return &pb.AppendResponse{RequestId: req.GetRequestId()}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	})
	return in, sync.OnceFunc(func() { close(out) })
}

// inBackground makes a call that a test waits for later.
func inBackground(t *testing.T, r *rig, req *pb.AppendRequest) (wait func() error) {
	done := make(chan error, 1)
	ctx := testContext(t)
	go func() { // ends when the call is answered or the test's context is over
		_, err := r.client.Append(ctx, req)
		done <- err
	}()
	return func() error { return <-done }
}

func TestAppendPassesThroughToTheShard(t *testing.T) {
	r := start(t, nil)
	want := &pb.AppendResponse{RequestId: "r", Timeline: testTimeline, Results: []*pb.WriteResult{{Aggregate: pbKey("1"), Version: 4}}}
	var got *pb.AppendRequest
	r.shard.onAppend(func(_ context.Context, req *pb.AppendRequest) (*pb.AppendResponse, error) {
		got = req
		return want, nil
	})
	resp, err := r.client.Append(testContext(t), validAppend())
	if err != nil {
		t.Fatal(err)
	}
	wantMessage(t, resp, want)
	wantMessage(t, got, validAppend())

	refusal := api.Errorf(pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION, "used").With(&pb.AppendFailure{
		Code: pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION, Mark: 7, Holder: &pb.Holder{Version: 3},
	})
	r.shard.onAppend(func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) { return nil, refusal })
	_, err = r.client.Append(testContext(t), validAppend())
	wantError(t, err, refusal)

	// A bad shape never reaches the shard.
	r.shard.onAppend(func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) {
		t.Error("the shard was asked")
		return nil, nil
	})
	_, err = r.client.Append(testContext(t), &pb.AppendRequest{ClientId: "a"})
	wantError(t, err, invalid("writes", "is empty; a request needs at least one write"))
}

func TestMoreCallsThanTheBoundAreRefusedAndHealthIsNot(t *testing.T) {
	r := start(t, func(o *Options) { o.MaxCalls = 1 })
	waiting, release := holdAppends(r.shard)
	defer release()
	first := inBackground(t, r, smallAppend())
	<-waiting

	busy := api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY, "1 calls are at work on this node, which is its limit; ask again later").After(retryBusy)
	_, err := r.client.Append(testContext(t), smallAppend())
	wantError(t, err, busy)
	stream, err := r.client.Read(testContext(t), &pb.ReadRequest{Aggregate: pbKey("1")})
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	wantError(t, err, busy)
	h, err := healthpb.NewHealthClient(r.conn).Check(testContext(t), &healthpb.HealthCheckRequest{})
	if err != nil || h.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health under load: %v, %v", h, err)
	}

	release()
	if err := first(); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.Append(testContext(t), smallAppend()); err != nil {
		t.Errorf("the place was not given back: %v", err)
	}
}

func TestMoreBytesThanTheBudgetAreRefused(t *testing.T) {
	const budget = 1 << 20
	r := start(t, func(o *Options) { o.MaxBytes, o.MaxRequestBytes = budget, budget })
	waiting, release := holdAppends(r.shard)
	defer release()
	large := smallAppend()
	large.Writes[0].Events[0].Payload = make([]byte, budget/2)
	first := inBackground(t, r, large)
	<-waiting

	_, err := r.client.Append(testContext(t), large)
	wantError(t, err, api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY,
		"requests of 1048576 bytes are at work on this node, which is its limit; ask again later").After(retryBusy))
	small := inBackground(t, r, smallAppend())
	<-waiting

	release()
	if err := errors.Join(first(), small()); err != nil {
		t.Fatal(err)
	}
	if _, err := r.client.Append(testContext(t), large); err != nil {
		t.Errorf("the budget was not given back: %v", err)
	}
}

func TestAPanicIsAnAnswer(t *testing.T) {
	core, logs := observer.New(zap.ErrorLevel)
	r := start(t, func(o *Options) { o.Logger = zap.New(core); o.MaxCalls = 1 })
	r.shard.onAppend(func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) { panic("no such thing") })
	_, err := r.client.Append(testContext(t), smallAppend())
	wantError(t, err, api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL,
		"the node met a bug in /tidemark.v1.EventStoreService/Append; its log has the stack. If this was a write, its outcome is unknown"))
	entries := logs.TakeAll()
	if len(entries) != 1 {
		t.Fatalf("logged %v, want one entry", entries)
	}
	fields := entries[0].ContextMap()
	if fields["panic"] != "no such thing" || !strings.Contains(fmt.Sprint(fields["stack"]), "TestAPanicIsAnAnswer") {
		t.Errorf("logged %v", fields)
	}
	if got := counted(t, r.server, "call_panics"); got != "call_panics_total 1" {
		t.Errorf("counted %q", got)
	}
	r.shard.onAppend(func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) { return &pb.AppendResponse{}, nil })
	if _, err := r.client.Append(testContext(t), smallAppend()); err != nil {
		t.Errorf("after a panic, with room for one call: %v", err)
	}
}

func TestErrorsOfTheShardAreMapped(t *testing.T) {
	core, logs := observer.New(zap.ErrorLevel)
	damage := make(chan error, 1)
	r := start(t, func(o *Options) {
		o.Logger = zap.New(core)
		o.OnDamage = func(err error) { damage <- err }
	})
	corrupt := fmt.Errorf("%w: 000012.sst at offset 77", record.ErrCorrupt)
	for _, c := range []struct {
		name   string
		err    error
		status codes.Code
		want   *api.Error // nil: no code of the contract
		text   string     // then
		logged bool
	}{
		{"of the contract", api.Errorf(pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY, "wait"), codes.Unavailable,
			api.Errorf(pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY, "wait"), "", false},
		{"of the contract, wrapped", fmt.Errorf("shard 0: %w", api.Errorf(pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY, "wait")), codes.Unavailable,
			api.Errorf(pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY, "wait"), "", false},
		{"internal", api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "file x"), codes.Internal,
			api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "file x"), "", true},
		{"deadline", fmt.Errorf("apply: %w", context.DeadlineExceeded), codes.DeadlineExceeded, nil, "apply: context deadline exceeded", false},
		{"cancelled", context.Canceled, codes.Canceled, nil, "context canceled", false},
		{"a status", status.Error(codes.DeadlineExceeded, "min_position"), codes.DeadlineExceeded, nil, "min_position", false},
		{"unknown", errors.New("disk on fire"), codes.Internal, api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "disk on fire"), "", true},
		{"damage", corrupt, codes.DataLoss, api.Corruptf("corrupt record: 000012.sst at offset 77"), "", true},
		{"damage, of the contract", api.Corruptf("%v", corrupt), codes.DataLoss, api.Corruptf("corrupt record: 000012.sst at offset 77"), "", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			r.shard.onAppend(func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) { return nil, c.err })
			_, err := r.client.Append(testContext(t), smallAppend())
			if status.Code(err) != c.status {
				t.Errorf("status %v, want %v", status.Code(err), c.status)
			}
			if c.want != nil {
				wantError(t, err, c.want)
			} else if st := status.Convert(err); st.Message() != c.text || len(st.Details()) != 0 {
				t.Errorf("got %v %v, want the text %q and no details", st, st.Details(), c.text)
			}
			if entries := logs.TakeAll(); (len(entries) == 1) != c.logged || len(entries) > 1 {
				t.Errorf("logged %v, want it logged: %v", entries, c.logged)
			}
			// The owner has been told of damage by the time that the client is.
			var told error
			select {
			case told = <-damage:
			default:
			}
			if c.status != codes.DataLoss && told != nil || c.status == codes.DataLoss && (told == nil || told.Error() != c.want.Error()) {
				t.Errorf("the owner was told of damage: %v", told)
			}
		})
	}
}

type observed struct {
	method string
	status codes.Code
	code   pb.ErrorCode
}

func TestObserverAndAuthenticatorSeeEveryCall(t *testing.T) {
	var mu sync.Mutex
	var calls []observed
	type who struct{}
	denied := api.Errorf(pb.ErrorCode_ERROR_CODE_AUTH_REQUIRED, "send a key")
	var deny bool
	r := start(t, func(o *Options) {
		o.Observe = func(method string, status codes.Code, code pb.ErrorCode, took time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			if took <= 0 || took > patience {
				t.Errorf("%s took %v", method, took)
			}
			calls = append(calls, observed{method, status, code})
		}
		o.Authenticate = func(ctx context.Context, method string) (context.Context, error) {
			if deny {
				return ctx, denied
			}
			return context.WithValue(ctx, who{}, "alice"), nil
		}
	})
	r.shard.onAppend(func(ctx context.Context, _ *pb.AppendRequest) (*pb.AppendResponse, error) {
		if ctx.Value(who{}) != "alice" {
			t.Error("the handler does not see what the authenticator added")
		}
		return &pb.AppendResponse{}, nil
	})
	if _, err := r.client.Append(testContext(t), smallAppend()); err != nil {
		t.Fatal(err)
	}
	_, err := r.client.Append(testContext(t), &pb.AppendRequest{ClientId: "a"})
	wantError(t, err, invalid("writes", "is empty; a request needs at least one write"))
	_, _, err = readAll(testContext(t), r, &pb.ReadRequest{Aggregate: pbKey("none")})
	wantError(t, err, api.Errorf(pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND, "acme/orders/none has never been written"))
	deny = true
	_, err = r.client.Append(testContext(t), smallAppend())
	wantError(t, err, denied)

	stop(t, r) // every call has been observed when the server has stopped
	want := []observed{
		{"/tidemark.v1.EventStoreService/Append", codes.OK, 0},
		{"/tidemark.v1.EventStoreService/Append", codes.InvalidArgument, 2016},
		{"/tidemark.v1.EventStoreService/Read", codes.NotFound, 1001},
		{"/tidemark.v1.EventStoreService/Append", codes.Unauthenticated, 10005},
	}
	if !slices.Equal(calls, want) {
		t.Errorf("observed %v, want %v", calls, want)
	}
}

func stop(t *testing.T, r *rig) {
	t.Helper()
	r.server.Stop(testContext(t))
}
