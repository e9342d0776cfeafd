package bench

import (
	"fmt"
	"math"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/fakestore"
)

func streamOf(perMessage int) func(*AppendOptions) {
	return func(o *AppendOptions) { o.Stream, o.WritesPerMessage, o.Outstanding = true, perMessage, 16 }
}

func TestEachStreamIsOneWriterThatFillsAnAggregate(t *testing.T) {
	for _, perMessage := range []int{1, 8, 64} {
		store := fakestore.New()
		store.Before = func(n int, req *pb.AppendRequest) error {
			w := req.GetWrites()[0]
			if w.GetExpectedVersion() != w.GetEvents()[0].GetClientSeq()-1 || !w.GetEnforceClientIdempotency() {
				return status.Errorf(codes.Unimplemented, "append %d is %v", n, w)
			}
			return nil
		}
		r := measure(t, store, streamOf(perMessage))
		wantErrors(t, r.Errors, nil)
		if r.Count != 100 || r.Rate <= 0 || r.Seconds <= 0 || r.P50MS <= 0 || r.P50MS > r.P99MS {
			t.Errorf("result %+v; want 100 appends, a rate, and quantiles in order", r)
		}
		aggregates := map[string]uint64{}
		for _, b := range store.Batches() {
			e := b.GetEvents()[0]
			aggregates[b.GetAggregate().GetId()]++
			if e.GetClientSeq() != b.GetVersion() || len(e.GetPayload()) != 10 || b.GetAggregate().GetId() != b.GetClientId()+"-0" {
				t.Errorf("batch %v; want one event of 10 bytes whose sequence is the version", b)
			}
		}
		if len(store.Batches()) != 100 || len(aggregates) > 2 {
			t.Errorf("%d batches on %d aggregates; want 100 on at most 2", len(store.Batches()), len(aggregates))
		}
	}
}

func TestStreamsFillFreshAggregates(t *testing.T) {
	store := fakestore.New()
	r := measure(t, store, func(o *AppendOptions) { streamOf(4)(o); o.FreshAggregates = true })
	seen := make(map[string]bool)
	for _, b := range store.Batches() {
		seen[b.GetAggregate().GetId()] = true
	}
	if r.Count != 100 || len(seen) != 100 || len(store.Batches()) != 100 {
		t.Errorf("%d appends, %d aggregates, %d batches; want 100 of each", r.Count, len(seen), len(store.Batches()))
	}
}

// After an error a stream goes on with a new aggregate, and one that broke is opened again; what
// it had outstanding has failed with it.
func TestStreamsGoOnBehindErrors(t *testing.T) {
	store := fakestore.New()
	store.Before = func(n int, _ *pb.AppendRequest) error {
		switch n {
		case 20:
			return api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY, "full").After(time.Millisecond)
		case 50:
			return status.Error(codes.Unavailable, "broken")
		}
		return nil
	}
	opts := AppendOptions{Stream: true, WritesPerMessage: 4, Outstanding: 4, Count: 100, Enforce: true}
	r, err := Append(t.Context(), []grpc.ClientConnInterface{fakestore.Dial(t, store, DialOptions()...)}, opts)
	if err != nil {
		t.Fatal(err)
	}
	all := r.Count
	for _, n := range r.Errors {
		all += n
	}
	if all != 100 || r.Errors["11000"] != 1 || r.Errors["UNAVAILABLE"] == 0 || r.Errors["UNAVAILABLE"] > 4 || len(r.Errors) != 2 {
		t.Errorf("result %+v; want 100 in all, one 11000, and up to 4 that broke with the stream", r)
	}
	aggregates := map[string]bool{}
	for _, b := range store.Batches() {
		aggregates[b.GetAggregate().GetId()] = true
	}
	if len(aggregates) < 3 {
		t.Errorf("%d aggregates; want a new one after each error", len(aggregates))
	}
}

func TestAServerWithoutStreamsIsNotHammered(t *testing.T) {
	r, err := Append(t.Context(), []grpc.ClientConnInterface{&closedConn{}},
		AppendOptions{Stream: true, WritesPerMessage: 1, Outstanding: 1, Duration: 100 * time.Millisecond})
	if err != nil || r.Count != 0 || r.Errors["UNAVAILABLE"] == 0 || r.Errors["UNAVAILABLE"] > 20 {
		t.Errorf("result %+v, %v; want no success and a few calls", r, err)
	}
}

func TestTheEchoAnswersStreams(t *testing.T) {
	p, err := StartEcho(t.Context(), echoCommand(t, "serve"))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient(p.Address, append(DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Append(t.Context(), []grpc.ClientConnInterface{conn}, AppendOptions{Stream: true, WritesPerMessage: 8, Outstanding: 32, Count: 500, Size: 200})
	if err != nil || r.Count != 500 || len(r.Errors) > 0 {
		t.Errorf("result %+v, %v; want 500 appends, no errors", r, err)
	}
	_ = conn.Close()
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

func TestAnswersOfAStreamAreRead(t *testing.T) {
	busy := api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY, "full")
	encoded, err := proto.Marshal(&pb.AppendStreamResponse{Answers: []*pb.AppendAnswer{
		{RequestId: "17", Outcome: &pb.AppendAnswer_Response{Response: &pb.AppendResponse{RequestId: "17"}}},
		{RequestId: "0", Outcome: &pb.AppendAnswer_Error{Error: status.Convert(busy).Proto()}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	var a answers
	if err := a.read(encoded); err != nil || len(a.all) != 2 || a.all[0] != (streamAnswer{slot: 17}) || a.all[1].slot != 0 || errorName(a.all[1].err) != "11000" {
		t.Errorf("found %v, %v", a.all, err)
	}
	for i := range encoded {
		_ = a.read(encoded[:i]) // must not panic
	}
	for id, want := range map[string]string{"x": `an answer to request "x", which was not sent`, fmt.Sprint(math.MaxInt64): `an answer to request "9223372036854775807", which was not sent`} {
		encoded, _ := proto.Marshal(&pb.AppendStreamResponse{Answers: []*pb.AppendAnswer{{RequestId: id}}})
		if err := a.read(encoded); err == nil || err.Error() != want {
			t.Errorf("%s: %v", id, err)
		}
	}
}
