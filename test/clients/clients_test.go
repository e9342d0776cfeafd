package clients

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/linear"
	"github.com/tidemark-db/tidemark/test/process"
)

func TestMain(m *testing.M) { process.Main(m) }

// between stands between the clients and a node: it does something to every n-th append.
type between struct {
	*grpc.ClientConn
	every   int64
	appends atomic.Int64
	do      func(ctx context.Context, req *pb.AppendRequest, resp *pb.AppendResponse, call func() error) error
}

func (b *between) Invoke(ctx context.Context, method string, args, reply any, o ...grpc.CallOption) error {
	call := func() error { return b.ClientConn.Invoke(ctx, method, args, reply, o...) }
	req, ok := args.(*pb.AppendRequest)
	if !ok || b.appends.Add(1)%b.every != 0 {
		return call()
	}
	return b.do(ctx, req, reply.(*pb.AppendResponse), call)
}

// judged runs clients against one node for a while and returns what was found wrong.
func judged(t *testing.T, b *between, requests int, within time.Duration) error {
	t.Helper()
	n := process.Start(t, process.Options{DataDir: filepath.Join(t.TempDir(), "data")})
	b.ClientConn = n.Dial(t)
	s, err := pb.NewClusterServiceClient(b.ClientConn).GetStatus(t.Context(), &pb.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	address, err := n.Address(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	l := Start(Options{
		Name: "t", Seed: 1, Targets: []Target{{ID: "n1", Address: address, Conn: b}}, Timeline: s.GetTimeline(),
		Writers: 8, Readers: 3, Aggregates: 4, Operations: 500, Pause: time.Millisecond,
	})
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(within); l.Acknowledged() < requests && time.Now().Before(deadline); {
		<-ticker.C
	}
	found := l.Settle(2 * time.Second)
	content, err := l.Inspect(t.Context(), b.ClientConn, 0)
	if err != nil {
		return errors.Join(found, err)
	}
	if len(content.Batches) == 0 || len(l.Ops()) < requests {
		t.Fatalf("%d aggregates, %d operations: nothing was tried", len(content.Batches), len(l.Ops()))
	}
	return errors.Join(found, linear.Check(l.Ops(), content.Batches, 20*time.Second))
}

var lost = status.Error(codes.Unavailable, "the connection is lost")

// Answers that are lost, requests that are, and copies that arrive late must all come out right.
func TestClientsFindOutWhatBecameOfTheirRequests(t *testing.T) {
	var copies atomic.Int64
	b := &between{every: 3, do: func(ctx context.Context, req *pb.AppendRequest, _ *pb.AppendResponse, call func() error) error {
		switch copies.Add(1) % 3 {
		case 0:
			return lost // and so is the request
		case 1:
			_ = call() // its answer is lost
		}
		if err := call(); err != nil && api.CodeOf(err) == 0 {
			return err
		}
		return lost
	}}
	if err := judged(t, b, 500, 20*time.Second); err != nil {
		t.Error(err)
	}
}

func TestLiesToClientsAreFound(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(ctx context.Context, req *pb.AppendRequest, resp *pb.AppendResponse, call func() error) error
		want string
	}{
		{"an acknowledgement of nothing", func(_ context.Context, req *pb.AppendRequest, resp *pb.AppendResponse, _ func() error) error {
			for range req.GetWrites() {
				resp.Results = append(resp.Results, &pb.WriteResult{Version: 1 << 40, Position: 1 << 40})
			}
			return nil
		}, "is not there"},
		{"another version", func(_ context.Context, _ *pb.AppendRequest, resp *pb.AppendResponse, call func() error) error {
			err := call()
			if err == nil && resp.GetResults()[0].GetVersion() > 1 {
				resp.Results[0].Version--
			}
			return err
		}, "not what was acknowledged"},
		{"other bytes", func(_ context.Context, req *pb.AppendRequest, _ *pb.AppendResponse, call func() error) error {
			req.Writes[0].Events[0].Payload[0]++
			return call()
		}, "other events than those sent"},
		{"a definite refusal of what landed", func(_ context.Context, req *pb.AppendRequest, _ *pb.AppendResponse, call func() error) error {
			if err := call(); err != nil {
				return err
			}
			return api.Errorf(conflict, "no").With(&pb.AppendFailure{Code: conflict, CurrentVersion: 1 << 40})
		}, "that is not passed"},
		{"2002 without a holder", func(_ context.Context, _ *pb.AppendRequest, _ *pb.AppendResponse, _ func() error) error {
			return api.Errorf(used, "no").With(&pb.AppendFailure{Code: used, Mark: 1 << 40})
		}, "never used otherwise"},
		{"a refusal without its detail", func(_ context.Context, _ *pb.AppendRequest, _ *pb.AppendResponse, _ func() error) error {
			return api.Errorf(used, "no")
		}, "without its detail"},
		{"a leader that is not", func(_ context.Context, _ *pb.AppendRequest, _ *pb.AppendResponse, _ func() error) error {
			return api.Errorf(notLeader, "no").With(&pb.NotLeader{LeaderAddress: "nowhere:1"})
		}, "where no node is"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			err := judged(t, &between{every: 20, do: tc.do}, 100, 3*time.Second)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("found %v, expected an error that says %q", err, tc.want)
			}
		})
	}
}

func TestARequestThatNeverResolvesIsFound(t *testing.T) {
	var appends atomic.Int64
	b := &between{every: 1, do: func(_ context.Context, _ *pb.AppendRequest, _ *pb.AppendResponse, call func() error) error {
		if appends.Add(1) > 50 {
			return lost
		}
		return call()
	}}
	if err := judged(t, b, 1000, 2*time.Second); err == nil || !strings.Contains(err.Error(), "does not resolve") {
		t.Errorf("found %v, expected an error that says that a request does not resolve", err)
	}
}
