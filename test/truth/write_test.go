package truth

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

const (
	none         = pb.ErrorCode_ERROR_CODE_UNSPECIFIED
	used         = pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION     // 2002
	conflict     = pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION // 2003
	inFlight     = pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE         // 2013
	notLeader    = pb.ErrorCode_ERROR_CODE_NOT_LEADER                       // 2011
	leaderWaits  = pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY                 // 2015
	outcomeOpen  = pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN            // 2014
	linearizable = pb.Consistency_CONSISTENCY_LINEARIZABLE
	anyNode      = pb.Consistency_CONSISTENCY_ANY
)

// write is one enforced write of one event. Its content is a function of its aggregate,
// writer and sequence, so that one with the same fields is the same to the byte.
type write struct {
	aggregate, client string
	seq               uint64
	expect, previous  *uint64
}

func version(v uint64) *uint64 { return &v }

func key(id string) *pb.AggregateKey {
	return &pb.AggregateKey{Org: "acme", Type: "orders", Id: id}
}

// event is the id of the write's event, and of no other's.
func (w write) event() string { return fmt.Sprintf("%s-by-%s-%d", w.aggregate, w.client, w.seq) }

func (w write) request() *pb.AppendRequest {
	return &pb.AppendRequest{ClientId: w.client, Writes: []*pb.Write{{
		Aggregate: key(w.aggregate), AllowCreate: true, EnforceClientIdempotency: true,
		ExpectedVersion: w.expect, PreviousClientSeq: w.previous,
		Events: []*pb.NewEvent{{ClientSeq: w.seq, EventId: w.event(), Type: "placed", Payload: []byte("content of " + w.event())}},
	}}}
}

// unguarded is the write without its expected_version.
func (w write) unguarded() write {
	w.expect = nil
	return w
}

func (w write) confirm() *pb.AppendRequest {
	r := w.request()
	r.OnDuplicate = pb.OnDuplicate_ON_DUPLICATE_CONFIRM
	return r
}

// answer is what came of a call.
type answer struct {
	resp *pb.AppendResponse
	err  error
}

// ask makes one call.
func (n *node) ask(t *testing.T, r *pb.AppendRequest) answer {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	resp, err := n.Append(ctx, r)
	return answer{resp, err}
}

// begin makes a call whose answer comes later.
func (n *node) begin(t *testing.T, r *pb.AppendRequest, deadline time.Duration) <-chan answer {
	t.Helper()
	out := make(chan answer, 1)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	go func() { // ends with its deadline
		defer cancel()
		resp, err := n.Append(ctx, r)
		out <- answer{resp, err}
	}()
	return out
}

// await waits for the answer of a call that began earlier.
func await(t *testing.T, call <-chan answer) answer {
	t.Helper()
	select {
	case a := <-call:
		return a
	case <-time.After(patience):
		t.Fatalf("no answer within %v", patience)
	}
	return answer{}
}

// unanswered checks that calls have no answer yet.
func unanswered(t *testing.T, calls ...<-chan answer) {
	t.Helper()
	for i, c := range calls {
		select {
		case a := <-c:
			t.Fatalf("call %d of those that must wait was answered: %v", i, a)
		default:
		}
	}
}

// settled asks until the answer is about the write and not about the leader's readiness.
func (n *node) settled(t *testing.T, r *pb.AppendRequest) answer {
	t.Helper()
	var a answer
	until(t, n.id+" to answer as the leader", func() bool {
		a = n.ask(t, r)
		return a.code() != notLeader && a.code() != leaderWaits
	})
	return a
}

func (a answer) code() pb.ErrorCode { return api.CodeOf(a.err) }

func (a answer) String() string {
	if f := a.failure(); f != nil {
		return fmt.Sprintf("%v %s", a.err, prototext.Format(f))
	}
	if a.err != nil {
		return fmt.Sprint(a.err)
	}
	return prototext.Format(a.resp)
}

func (a answer) failure() *pb.AppendFailure {
	f, _ := api.DetailOf[*pb.AppendFailure](a.err)
	return f
}

// ok expects a first success of the write at a version.
func (a answer) ok(t *testing.T, version uint64) *pb.WriteResult {
	t.Helper()
	r := a.resp.GetResults()
	if a.err != nil || len(r) != 1 || r[0].GetVersion() != version || r[0].GetAlreadyCommitted() {
		t.Fatalf("expected a clean write at version %d, found %v", version, a)
	}
	return r[0]
}

// is expects one code and nothing else about the write.
func (a answer) is(t *testing.T, code pb.ErrorCode) {
	t.Helper()
	if a.code() != code || a.failure() != nil || code == none {
		t.Fatalf("expected %v, found %v", code, a)
	}
}

// refused expects a refusal, to the last field.
func (a answer) refused(t *testing.T, want *pb.AppendFailure) {
	t.Helper()
	if !a.refusedAs(want) {
		t.Fatalf("found %v\nexpected %s", a, prototext.Format(want))
	}
}

func (a answer) refusedAs(want *pb.AppendFailure) bool {
	return a.code() == want.GetCode() && proto.Equal(a.failure(), want)
}

// failed is the refusal of a write with a code, at a committed version and mark.
func (w write) failed(code pb.ErrorCode, current, mark uint64) *pb.AppendFailure {
	return &pb.AppendFailure{
		Code: code, Aggregate: key(w.aggregate), ExpectedVersion: w.expect,
		CurrentVersion: current, AttemptedSeq: w.seq, Mark: mark,
	}
}

// held is the refusal of a write that had landed: r is where.
func (w write) held(code pb.ErrorCode, current, mark uint64, r *pb.WriteResult) *pb.AppendFailure {
	f := w.failed(code, current, mark)
	f.Holder = &pb.Holder{
		Version: r.GetVersion(), Incarnation: r.GetIncarnation(), Position: r.GetPosition(), CommittedAt: r.GetCommittedAt(),
		ClientSeq: w.seq, EventId: w.event(), FirstClientSeq: w.seq, LastClientSeq: w.seq, EventCount: 1,
	}
	return f
}

// landed expects that a write is there at a version, and returns the result that its first
// call would have had. Its retries then say so: 2002, and 2003 with the guard that it had.
func (n *node) landed(t *testing.T, w write, version uint64) *pb.WriteResult {
	t.Helper()
	a := n.settled(t, w.confirm())
	r := a.resp.GetResults()
	if a.err != nil || len(r) != 1 || r[0].GetVersion() != version || !r[0].GetAlreadyCommitted() {
		t.Fatalf("expected the original result at version %d, found %v", version, a)
	}
	n.ask(t, w.unguarded().request()).refused(t, w.unguarded().held(used, version, w.seq, r[0]))
	if w.expect != nil {
		n.ask(t, w.request()).refused(t, w.held(conflict, version, w.seq, r[0]))
	}
	r[0].AlreadyCommitted = false
	return r[0]
}

// onDisk begins a write and waits until it is fsynced on the leader: its bytes are in the
// log's files, and a flush has ended that had not before. Nothing else may be flushed there
// meanwhile.
func (n *node) onDisk(t *testing.T, w write) <-chan answer {
	t.Helper()
	before := n.state(t).Flushes
	call := n.begin(t, w.request(), patience)
	until(t, "the write to be on the leader's disk", func() bool {
		return n.inTail(t, w.event()) && n.state(t).Flushes > before
	})
	return call
}

// batches is an aggregate as a node serves it to who asks for no more than what it has
// applied, once that reaches to a position.
func (n *node) batches(t *testing.T, id, timeline string, position uint64) []*pb.Batch {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, err := n.Read(ctx, &pb.ReadRequest{Aggregate: key(id), Consistency: anyNode, MinPosition: position, Timeline: timeline})
	if err != nil {
		t.Fatal(err)
	}
	var out []*pb.Batch
	for {
		m, err := stream.Recv()
		if err == io.EOF {
			return out
		}
		if err != nil {
			t.Fatalf("%s: read %s: %v", n.id, id, err)
		}
		out = append(out, m.GetBatches()...)
	}
}

// same expects that all nodes serve the same batches of aggregates, to the byte.
func (c *cluster) same(t *testing.T, position uint64, aggregates ...string) {
	t.Helper()
	for _, id := range aggregates {
		want := c.nodes[0].batches(t, id, c.timeline, position)
		for _, n := range c.nodes[1:] {
			got := n.batches(t, id, c.timeline, position)
			equal := len(got) == len(want) && len(got) > 0
			for i := range got {
				equal = equal && proto.Equal(got[i], want[i])
			}
			if !equal {
				t.Errorf("%s holds %v of %s, %s holds %v", n.id, got, id, c.nodes[0].id, want)
			}
		}
	}
}

// lost expects the end of a call whose server was killed, and whose connection was then
// closed on this side too.
func (a answer) lost(t *testing.T) {
	t.Helper()
	if c := status.Code(a.err); a.code() != none || c != codes.Unavailable && c != codes.Canceled {
		t.Fatalf("expected a lost connection, found %v", a)
	}
}
