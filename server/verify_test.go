package server

import (
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// verified is all that a Verify call answers.
func verified(t *testing.T, c pb.ClusterServiceClient, req *pb.VerifyRequest) (found []*pb.VerifyFinding, last *pb.VerifyProgress) {
	t.Helper()
	stream, err := c.Verify(testContext(t), req)
	for err == nil {
		var m *pb.VerifyResponse
		if m, err = stream.Recv(); err == nil {
			found, last = append(found, m.GetFindings()...), m.GetProgress()
		}
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return found, last
}

func startVerify(t *testing.T, change func(*Options)) (*rig, pb.ClusterServiceClient) {
	t.Helper()
	r := start(t, change)
	for _, id := range []string{"1", "2", "22"} {
		for seq := uint64(1); seq <= 3; seq++ {
			r.shard.put(t, testKey(id), "a", int64(seq), event(seq, "x"), event(seq+100, "y"))
		}
	}
	r.shard.put(t, record.MakeKey("acme", "invoices", "1"), "a", 9, event(1, "x"))
	r.shard.put(t, record.MakeKey("beta", "orders", "1"), "a", 9, event(1, "x"))
	return r, pb.NewClusterServiceClient(r.conn)
}

func TestVerifyChecksItsScope(t *testing.T) {
	_, c := startVerify(t, nil)
	for _, scope := range []struct {
		req                         *pb.VerifyRequest
		aggregates, batches, events uint64
		last                        *pb.AggregateKey
	}{
		{&pb.VerifyRequest{}, 5, 11, 20, &pb.AggregateKey{Org: "beta", Type: "orders", Id: "1"}},
		{&pb.VerifyRequest{Org: "acme"}, 4, 10, 19, pbKey("22")},
		{&pb.VerifyRequest{Org: "acme", Type: "orders"}, 3, 9, 18, pbKey("22")},
		{&pb.VerifyRequest{Org: "acme", Type: "orders", Id: "2"}, 1, 3, 6, pbKey("2")},
		{&pb.VerifyRequest{Org: "acme", Type: "orders", Id: "3"}, 0, 0, 0, nil},
		{&pb.VerifyRequest{Org: "acm"}, 0, 0, 0, nil},
	} {
		found, last := verified(t, c, scope.req)
		if len(found) != 0 {
			t.Errorf("%v: found %v in what nothing is wrong with", scope.req, found)
		}
		if (last.GetBytes() == 0) != (scope.batches == 0) {
			t.Errorf("%v: read %d bytes", scope.req, last.GetBytes())
		}
		last.Bytes = 0
		wantMessage(t, last, &pb.VerifyProgress{
			NodeId: "n1", Timeline: testTimeline, Position: 11, Aggregates: scope.aggregates, Batches: scope.batches, Events: scope.events,
			Aggregate: scope.last, Done: true,
		})
	}
}

func TestVerifyRefusesAScopeThatIsNone(t *testing.T) {
	_, c := startVerify(t, nil)
	for _, bad := range []struct {
		req  *pb.VerifyRequest
		want *api.Error
	}{
		{&pb.VerifyRequest{Type: "orders"}, api.Invalid("type", "is given without org, which it needs")},
		{&pb.VerifyRequest{Org: "acme", Id: "1"}, api.Invalid("id", "is given without type, which it needs")},
		{&pb.VerifyRequest{Org: "a/b"}, badPart("org", partFault("a/b"), "a/b")},
	} {
		stream, err := c.Verify(testContext(t), bad.req)
		if err == nil {
			_, err = stream.Recv()
		}
		wantError(t, err, bad.want)
	}
}

// Findings are told as they are found, and counted.
func TestVerifyNamesWhatItFinds(t *testing.T) {
	r, c := startVerify(t, nil)
	r.shard.changeHead(t, testKey("1"), func(h *history.Head) { h.Chain[0]++ })
	r.shard.changeHead(t, testKey("2"), func(h *history.Head) { h.Floor = 2 })
	found, last := verified(t, c, &pb.VerifyRequest{Org: "acme"})
	for _, f := range found {
		if f.GetText() == "" {
			t.Errorf("%v says nothing", f)
		}
		f.Text = ""
	}
	want := []*pb.VerifyFinding{
		{Kind: pb.FindingKind_FINDING_KIND_HEAD, Aggregate: pbKey("1"), Incarnation: 1, Version: 3},
		{Kind: pb.FindingKind_FINDING_KIND_LEFTOVER, Aggregate: pbKey("2"), Incarnation: 1, Version: 1},
		{Kind: pb.FindingKind_FINDING_KIND_HEAD, Aggregate: pbKey("2"), Incarnation: 1, Version: 2},
	}
	wantMessage(t, &pb.VerifyResponse{Findings: found}, &pb.VerifyResponse{Findings: want})
	if last.GetFindings() != 3 || !last.GetDone() {
		t.Errorf("found %v, expected 3 findings", last)
	}
	if n := r.server.verifications.findings.Load(); n != 3 {
		t.Errorf("%d findings are counted, expected 3", n)
	}
}

// TestVerificationsAreBounded keeps as many at work as there may be, and sees that one more is
// refused, that none of them holds a view, that they end with their callers, and that a node that
// stops ends them.
func TestVerificationsAreBounded(t *testing.T) {
	r, c := startVerify(t, func(o *Options) { o.verifyPace = pace{work: 1, rest: time.Hour} })
	var streams []pb.ClusterService_VerifyClient
	var ends []context.CancelFunc
	for range maxVerifications {
		ctx, end := context.WithCancel(testContext(t))
		defer end()
		stream, err := c.Verify(ctx, &pb.VerifyRequest{})
		if err != nil {
			t.Fatal(err)
		}
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if p := m.GetProgress(); p.GetBatches() != 1 || p.GetDone() {
			t.Errorf("found %v, expected a step of one batch", p)
		}
		streams, ends = append(streams, stream), append(ends, end)
	}
	refused := func() error {
		stream, err := c.Verify(testContext(t), &pb.VerifyRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		return err
	}
	wantError(t, refused(), api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY,
		"2 verifications are at work on this node, which is its limit, because each takes from what reads and writes need; ask again later, or ask another node").After(retryVerify))
	if n, batches := r.server.verifications.running.Load(), r.server.verifications.batches.Load(); n != maxVerifications || batches != maxVerifications {
		t.Errorf("%d verifications are counted with %d batches, expected %d with as many", n, batches, maxVerifications)
	}
	ends[0]()
	if _, err := streams[0].Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("found %v, expected the call to be cancelled", err)
	}
	var stream pb.ClusterService_VerifyClient
	for { // until the node has seen that its caller left
		var err error
		if stream, err = c.Verify(testContext(t), &pb.VerifyRequest{}); err == nil {
			_, err = stream.Recv()
		}
		if err == nil {
			break
		}
		if api.CodeOf(err) != pb.ErrorCode_ERROR_CODE_SERVER_BUSY {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := r.server.Drain(ctx); err != nil {
		t.Fatal(err)
	}
	_, err := stream.Recv()
	wantError(t, err, api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER,
		"this node is stopping: not everything was verified; ask again, or ask another node").With(&pb.NotLeader{}))
}
