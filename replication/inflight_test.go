package replication

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/record"
)

// gate stands between the batcher and raft. While it is shut, what is admitted stays in
// flight; fail makes the next proposals end with an error instead of reaching raft.
type gate struct {
	mu   sync.Mutex
	open chan struct{} // closed while the gate is open
	fail []error
}

func newGate() *gate {
	g := &gate{open: make(chan struct{})}
	close(g.open)
	return g
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.open = make(chan struct{})
}

func (g *gate) lift(fail ...error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.fail = append(g.fail, fail...)
	close(g.open)
}

func (g *gate) hooks() Hooks {
	return Hooks{Propose: func(next func() func() error) func() error {
		g.mu.Lock()
		open := g.open
		g.mu.Unlock()
		<-open
		g.mu.Lock()
		defer g.mu.Unlock()
		if len(g.fail) > 0 {
			err := g.fail[0]
			g.fail = g.fail[1:]
			return func() error { return err }
		}
		return next()
	}}
}

// call is an append that runs on its own.
type call struct {
	resp *pb.AppendResponse
	err  error
	done chan struct{}
}

// start begins an append and returns once it is in flight.
func start(t *testing.T, s *Shard, r *pb.AppendRequest) *call {
	t.Helper()
	before := s.Status().InFlightRequests
	c := goAppend(context.Background(), s, r)
	await(t, "the append is in flight", func() bool { return s.Status().InFlightRequests > before })
	return c
}

func goAppend(ctx context.Context, s *Shard, r *pb.AppendRequest) *call {
	c := &call{done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.resp, c.err = s.Append(ctx, r)
	}()
	return c
}

func (c *call) wait(t *testing.T) (*pb.AppendResponse, error) {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(20 * time.Second):
		t.Fatal("no answer after 20 s")
	}
	return c.resp, c.err
}

// await polls a condition, for what has no channel.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(20 * time.Second)
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("after 20 s still not: %s", what)
		}
	}
}

func wantCode(t *testing.T, err error, want pb.ErrorCode) {
	t.Helper()
	if got := api.CodeOf(err); got != want {
		t.Fatalf("error %v, want code %d", err, want)
	}
}

func gated(t *testing.T) (*Shard, *gate) {
	g := newGate()
	s := openShard(t, Options{Dir: t.TempDir(), Hooks: g.hooks()})
	t.Cleanup(func() {
		if err := s.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return s, g
}

// Contract 2.2 and the in-flight rows of 2.3: a write, its resends, the one behind it, and
// another writer's, while it is in flight and after it landed.
func TestWhileAWriteIsInFlight(t *testing.T) {
	s, g := gated(t)
	mustAppend(t, s, appendOf("a", "1", seqs(5)))
	mustAppend(t, s, appendOf("a", "1", seqs(6)))
	mustAppend(t, s, appendOf("a", "1", seqs(7)))
	g.shut()
	first := start(t, s, appendOf("a", "1", seqs(8), expect(3)))

	inFlight := proto.Uint64(8)
	wantFailure(t, s, appendOf("a", "1", seqs(8), expect(3)), &pb.AppendFailure{
		Code: 2013, Aggregate: key("1"), ExpectedVersion: proto.Uint64(3), CurrentVersion: 3, AttemptedSeq: 8, Mark: 7, InFlightMark: inFlight})
	wantFailure(t, s, appendOf("a", "1", seqs(8)), &pb.AppendFailure{
		Code: 2013, Aggregate: key("1"), CurrentVersion: 3, AttemptedSeq: 8, Mark: 7, InFlightMark: inFlight})
	wantFailure(t, s, appendOf("a", "1", seqs(8), expect(2)), &pb.AppendFailure{
		Code: 2003, Aggregate: key("1"), ExpectedVersion: proto.Uint64(2), CurrentVersion: 3, AttemptedSeq: 8, Mark: 7, InFlightMark: inFlight})
	wantFailure(t, s, appendOf("b", "1", seqs(1), expect(3)), &pb.AppendFailure{
		Code: 2003, Aggregate: key("1"), ExpectedVersion: proto.Uint64(3), CurrentVersion: 3, InFlightVersion: proto.Uint64(4), AttemptedSeq: 1})
	behind := start(t, s, appendOf("a", "1", seqs(9), expect(4)))
	confirm := goAppend(context.Background(), s, appendOf("a", "1", seqs(8), expect(3), confirmRequest))

	g.lift()
	resp, err := first.wait(t)
	if err != nil || resp.Results[0].Version != 4 {
		t.Fatalf("first: %v, %v; want version 4", resp, err)
	}
	if resp, err := behind.wait(t); err != nil || resp.Results[0].Version != 5 {
		t.Fatalf("behind: %v, %v; want version 5", resp, err)
	}
	want := proto.Clone(resp.Results[0]).(*pb.WriteResult)
	want.AlreadyCommitted = true
	if resp, err := confirm.wait(t); err != nil || !proto.Equal(resp.Results[0], want) {
		t.Fatalf("confirm: %v, %v; want %v", resp, err, want)
	}
	holder := &pb.Holder{Version: 4, Incarnation: 1, Position: 4, ClientSeq: 8, EventId: "a-8", FirstClientSeq: 8, LastClientSeq: 8, EventCount: 1}
	wantFailure(t, s, appendOf("a", "1", seqs(8), expect(3)), &pb.AppendFailure{
		Code: 2003, Aggregate: key("1"), ExpectedVersion: proto.Uint64(3), CurrentVersion: 5, AttemptedSeq: 8, Mark: 9, Holder: holder})
	wantFailure(t, s, appendOf("a", "1", seqs(8)), &pb.AppendFailure{
		Code: 2002, Aggregate: key("1"), CurrentVersion: 5, AttemptedSeq: 8, Mark: 9, Holder: holder})
}

// Only three answers of raft are a definite no; then nothing is left behind.
func TestGivenBackByRaftIsADefiniteNo(t *testing.T) {
	for _, cause := range []error{raft.ErrNotLeader, raft.ErrEnqueueTimeout, raft.ErrLeadershipTransferInProgress} {
		t.Run(cause.Error(), func(t *testing.T) {
			s, g := gated(t)
			g.shut()
			c := start(t, s, appendOf("a", "1", seqs(1), expect(0)))
			attached := goAppend(context.Background(), s, appendOf("a", "1", seqs(1), expect(0), confirmRequest))
			g.lift(fmt.Errorf("wrapped: %w", cause))
			_, err := c.wait(t)
			wantCode(t, err, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
			if st := s.Status(); st.InFlightBytes != 0 && st.InFlightRequests > 1 {
				t.Fatalf("left in flight: %+v", st)
			}
			// The CONFIRM behind it is judged afresh and lands itself, unless it came after.
			if resp, err := attached.wait(t); err != nil || resp.Results[0].Version != 1 {
				t.Fatalf("confirm: %v, %v; want version 1", resp, err)
			}
		})
	}
}

// Anything else that raft answers leaves the outcome open, and until the term ends the
// write counts as in flight: its resend is neither a clean write nor a conflict.
func TestLostProposalIsUnknownAndStaysInFlight(t *testing.T) {
	for _, cause := range []error{raft.ErrLeadershipLost, raft.ErrRaftShutdown, raft.ErrAbortedByRestore, fmt.Errorf("write tail: no space left on device")} {
		t.Run(cause.Error(), func(t *testing.T) {
			s, g := gated(t)
			g.shut()
			c := start(t, s, appendOf("a", "1", seqs(1), expect(0)))
			attached := goAppend(context.Background(), s, appendOf("a", "1", seqs(1), expect(0), confirmRequest))
			g.lift(cause)
			_, err := c.wait(t)
			wantCode(t, err, pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN)
			_, err = attached.wait(t)
			wantCode(t, err, pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN)
			wantFailure(t, s, appendOf("a", "1", seqs(1), expect(0)), &pb.AppendFailure{
				Code: 2013, Aggregate: key("1"), ExpectedVersion: proto.Uint64(0), AttemptedSeq: 1, InFlightMark: proto.Uint64(1)})
			s.endTenure("the term ends in a test")
			s.beginTenure(s.group.get())
			waitReady(t, s)
			if resp := mustAppend(t, s, appendOf("a", "1", seqs(1), expect(0))); resp.Results[0].Version != 1 {
				t.Fatalf("after the term ended: %v, want version 1", resp)
			}
		})
	}
}

// A tenure that ends gives back what was queued and leaves open what was proposed.
func TestEndOfATenure(t *testing.T) {
	hold := make(chan struct{})
	held := make(chan struct{}, 8)
	o := Options{Dir: t.TempDir(), MaxOutstandingEntries: 1, Hooks: Hooks{BeforePropose: func() {
		held <- struct{}{}
		<-hold
	}}}
	s := openShard(t, o)
	proposed := goAppend(context.Background(), s, appendOf("a", "1", seqs(1)))
	<-held
	queued := start(t, s, appendOf("a", "2", seqs(1)))
	s.endTenure("the term ends in a test")
	_, err := proposed.wait(t)
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN)
	_, err = queued.wait(t)
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
	close(hold)
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// A call that ends while its write is in flight is told that the outcome is open, and the
// write goes on; one that ended before admission leaves nothing behind.
func TestDeadlineAndCancellation(t *testing.T) {
	s, g := gated(t)
	gone, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := s.Append(gone, appendOf("a", "1", seqs(1))); status.Code(err) != codes.Canceled {
		t.Fatalf("cancelled before: %v", err)
	}
	if st := s.Status(); st.InFlightRequests != 0 || st.LastPosition != 0 {
		t.Fatalf("left behind: %+v", st)
	}
	g.shut()
	ctx, cancel := context.WithCancel(context.Background())
	c := goAppend(ctx, s, appendOf("a", "1", seqs(1)))
	await(t, "the append is in flight", func() bool { return s.Status().InFlightRequests == 1 })
	cancel()
	if _, err := c.wait(t); status.Code(err) != codes.Canceled {
		t.Fatalf("cancelled in flight: %v", err)
	}
	short, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := s.Append(short, appendOf("a", "2", seqs(1))); status.Code(err) != codes.DeadlineExceeded {
		t.Fatalf("deadline in flight: %v", err)
	}
	g.lift()
	await(t, "both writes land", func() bool { return s.Status().LastPosition >= 1 && s.Status().InFlightRequests == 0 })
	holder := &pb.Holder{Version: 1, Incarnation: 1, Position: 1, ClientSeq: 1, EventId: "a-1", FirstClientSeq: 1, LastClientSeq: 1, EventCount: 1}
	wantFailure(t, s, appendOf("a", "1", seqs(1)), &pb.AppendFailure{Code: 2002, Aggregate: key("1"), CurrentVersion: 1, AttemptedSeq: 1, Mark: 1, Holder: holder})
}

// The bytes in flight are bounded: 2012 with RetryInfo, and a duplicate is told first.
func TestBackpressure(t *testing.T) {
	g := newGate()
	s := openShard(t, Options{Dir: t.TempDir(), MaxInFlightBytes: 2000, Hooks: g.hooks()})
	defer func() { _ = s.Stop(context.Background()) }()
	mustAppend(t, s, appendOf("a", "0", seqs(1)))
	g.shut()
	var calls []*call
	for i := 1; ; i++ {
		c := goAppend(context.Background(), s, appendOf("a", fmt.Sprint(i), seqs(1)))
		n := len(calls)
		await(t, "the append is in flight or refused", func() bool {
			select {
			case <-c.done:
				return true
			default:
				return s.Status().InFlightRequests > n
			}
		})
		if s.Status().InFlightRequests == n {
			_, err := c.wait(t)
			wantCode(t, err, pb.ErrorCode_ERROR_CODE_REPLICATION_BACKPRESSURE)
			break
		}
		calls = append(calls, c)
	}
	if len(calls) == 0 || len(calls) > 3 {
		t.Fatalf("%d writes of about 900 bytes were taken in under a limit of 2000", len(calls))
	}
	_, err := s.Append(context.Background(), appendOf("a", "0", seqs(1)))
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION)
	g.lift()
	for _, c := range calls {
		if _, err := c.wait(t); err != nil {
			t.Fatal(err)
		}
	}
}

// Disk space is the last check: what landed is told on a full disk, and reads go on.
func TestReserveOfDiskSpace(t *testing.T) {
	var free atomic.Int64
	free.Store(1000)
	s := openShard(t, Options{Dir: t.TempDir(), MinFreeDiskBytes: 1000, FreeDisk: func(string) (int64, error) { return free.Load(), nil }})
	defer func() { _ = s.Stop(context.Background()) }()
	mustAppend(t, s, appendOf("a", "1", seqs(1)))
	free.Store(999)
	await(t, "the disk watch sees it", func() bool { return s.disk.low() == 999 })
	_, err := s.Append(context.Background(), appendOf("a", "1", seqs(2)))
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_INSUFFICIENT_DISK_SPACE)
	_, err = s.Append(context.Background(), appendOf("a", "1", seqs(1)))
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION)
	v, err := s.Read(context.Background(), ReadOptions{Consistency: pb.Consistency_CONSISTENCY_LINEARIZABLE})
	if err != nil {
		t.Fatal(err)
	}
	v.Release()
	free.Store(1000)
	await(t, "the disk watch sees that there is room", func() bool { return s.disk.low() < 0 })
	mustAppend(t, s, appendOf("a", "1", seqs(2)))
}

// A read of any consistency on a shard that has stopped used to take a view that was gone.
func TestReadAfterStop(t *testing.T) {
	s := openShard(t, Options{Dir: t.TempDir()})
	mustAppend(t, s, appendOf("a", "1", seqs(1)))
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []pb.Consistency{pb.Consistency_CONSISTENCY_ANY, pb.Consistency_CONSISTENCY_LEADER, pb.Consistency_CONSISTENCY_LINEARIZABLE} {
		_, err := s.Read(context.Background(), ReadOptions{Consistency: c})
		wantCode(t, err, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
		_, _, err = s.ReadMark(context.Background(), ReadOptions{Consistency: c}, record.MakeKey("acme", "orders", "1"), "a")
		wantCode(t, err, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
	}
	_, err := s.Append(context.Background(), appendOf("a", "1", seqs(2)))
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
}

// Raft's notices of leadership can come so late that two tenures are of one term. Tickets
// used to begin anew with each, and an entry of the first was then taken for the second's:
// a write was told that it had landed where another one had.
func TestEntryOfAnEarlierTenureOfTheTerm(t *testing.T) {
	held := make(chan chan struct{})
	s := openShard(t, Options{Dir: t.TempDir(), Hooks: Hooks{BeforePropose: func() {
		c := make(chan struct{})
		held <- c
		<-c
	}}})
	first := goAppend(context.Background(), s, appendOf("a", "1", seqs(1)))
	holdFirst := <-held
	s.endTenure("the notice of the lost leadership comes late")
	s.beginTenure(s.group.get())
	waitReady(t, s)
	_, err := first.wait(t)
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN)

	second := goAppend(context.Background(), s, appendOf("b", "2", seqs(1)))
	holdSecond := <-held
	close(holdFirst)
	await(t, "the first write lands", func() bool { return s.Status().LastPosition == 1 })
	close(holdSecond)
	if resp, err := second.wait(t); err != nil || resp.Results[0].Position != 2 {
		t.Fatalf("second: %v, %v; want position 2", resp, err)
	}
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// Contract 2.4: in_flight_mark is there whenever the writer has something in flight on the
// aggregate. A refusal by Apply used to leave it out.
func TestRefusalByApplySaysWhatIsInFlight(t *testing.T) {
	s, g := gated(t)
	g.shut()
	first := start(t, s, appendOf("a", "1", seqs(1), expect(0)))
	await(t, "the first has an entry of its own", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return len(s.tenure.proposed) == 1
	})
	second := start(t, s, appendOf("a", "1", seqs(2), expect(1)))
	third := start(t, s, appendOf("a", "1", seqs(3)))
	g.lift(raft.ErrEnqueueTimeout) // the first is given back, so the second is doomed
	_, err := first.wait(t)
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
	if resp, err := third.wait(t); err != nil || resp.Results[0].Version != 1 {
		t.Fatalf("third: %v, %v; want version 1", resp, err)
	}
	_, err = second.wait(t)
	got, _ := api.DetailOf[*pb.AppendFailure](err)
	want := &pb.AppendFailure{Code: 2003, Aggregate: key("1"), ExpectedVersion: proto.Uint64(1), AttemptedSeq: 2, InFlightMark: proto.Uint64(3)}
	if !proto.Equal(got, want) {
		t.Fatalf("second: %v\n got %v\nwant %v", err, got, want)
	}
}
