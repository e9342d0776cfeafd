package leader

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// fakeNode answers as a test says, and counts the calls.
type fakeNode struct {
	pb.UnimplementedEventStoreServiceServer
	address string
	server  *grpc.Server
	done    chan struct{}

	mu     sync.Mutex
	answer func(n int) error // of the nth call, from 1
	calls  int
}

func (f *fakeNode) took() error {
	f.mu.Lock()
	f.calls++
	n, answer := f.calls, f.answer
	f.mu.Unlock()
	if answer == nil {
		return nil
	}
	return answer(n)
}

func (f *fakeNode) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

func (f *fakeNode) say(answer func(n int) error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answer = answer
}

func (f *fakeNode) Append(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) {
	return &pb.AppendResponse{RequestId: f.address}, f.took()
}

func (f *fakeNode) ListOrgs(_ context.Context, r *pb.ListOrgsRequest) (*pb.ListOrgsResponse, error) {
	if r.GetConsistency() != pb.Consistency_CONSISTENCY_LEADER {
		return nil, status.Error(codes.InvalidArgument, "expected a read of the leader")
	}
	return &pb.ListOrgsResponse{}, f.took()
}

func (f *fakeNode) Read(_ *pb.ReadRequest, s grpc.ServerStreamingServer[pb.ReadResponse]) error {
	if err := f.took(); err != nil {
		return err
	}
	return s.Send(&pb.ReadResponse{})
}

// start serves a node until the test ends.
func start(t *testing.T, answer func(n int) error) *fakeNode {
	t.Helper()
	f := &fakeNode{answer: answer}
	f.listen(t, "127.0.0.1:0")
	t.Cleanup(f.stop)
	return f
}

func (f *fakeNode) listen(t *testing.T, address string) {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	f.address, f.server, f.done = l.Addr().String(), grpc.NewServer(), make(chan struct{})
	pb.RegisterEventStoreServiceServer(f.server, f)
	server, done := f.server, f.done
	go func() { // ends with stop
		defer close(done)
		_ = server.Serve(l)
	}()
}

func (f *fakeNode) stop() {
	f.server.Stop()
	<-f.done
}

func always(err error) func(int) error { return func(int) error { return err } }

// notLeader is a 2011 that names an address; "" = none is known.
func notLeader(address string) error {
	return api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "not here").With(&pb.NotLeader{LeaderAddress: address})
}

func notReady() error {
	return api.Errorf(pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY, "not yet").After(time.Millisecond)
}

// nobody is an address where nothing listens.
func nobody(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func connect(t *testing.T, seeds ...string) *Conn {
	t.Helper()
	c := New(seeds)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// appendOnce sends one call and says who answered it.
func appendOnce(t *testing.T, c *Conn) (address string, err error) {
	t.Helper()
	resp, err := pb.NewEventStoreServiceClient(c).Append(within(t, 20*time.Second), &pb.AppendRequest{})
	return resp.GetRequestId(), err
}

// counts are the calls that nodes have had.
func counts(t *testing.T, want []int, nodes ...*fakeNode) {
	t.Helper()
	var got []int
	for _, n := range nodes {
		got = append(got, n.count())
	}
	if !slices.Equal(got, want) {
		t.Errorf("the nodes had %v calls, want %v", got, want)
	}
}

func TestCallsGoToTheFirstSeedThatIsThere(t *testing.T) {
	a, b := start(t, nil), start(t, nil)
	c := connect(t, nobody(t), a.address, b.address)
	for range 2 {
		if who, err := appendOnce(t, c); err != nil || who != a.address {
			t.Errorf("%s answered, %v; want %s", who, err, a.address)
		}
	}
	counts(t, []int{2, 0}, a, b)
}

func TestTheCallAfterANotLeaderGoesToTheLeader(t *testing.T) {
	leader := start(t, nil)
	follower := start(t, always(notLeader(leader.address)))
	c := connect(t, follower.address)
	if _, err := appendOnce(t, c); api.CodeOf(err) != pb.ErrorCode_ERROR_CODE_NOT_LEADER {
		t.Errorf("the first call: %v, want 2011", err)
	}
	for range 2 {
		if who, err := appendOnce(t, c); err != nil || who != leader.address {
			t.Errorf("%s answered, %v; want the leader", who, err)
		}
	}
	counts(t, []int{1, 2}, follower, leader)
}

func TestTheCallAfterOneThatKnowsNoLeaderGoesToTheNextSeed(t *testing.T) {
	a, b, d := start(t, always(notLeader(""))), start(t, always(notLeader(""))), start(t, nil)
	c := connect(t, a.address, b.address, d.address)
	for range 3 {
		_, _ = appendOnce(t, c)
	}
	counts(t, []int{1, 1, 1}, a, b, d)
}

// What a failure leaves open is for the caller: no other node gets the call.
func TestACallWhoseOutcomeIsOpenIsNotSentAgain(t *testing.T) {
	for name, failure := range map[string]error{
		"a lost connection": status.Error(codes.Unavailable, "reset"),
		"no answer":         status.Error(codes.DeadlineExceeded, "slow"),
		"unknown":           api.Errorf(pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN, "stopping"),
		"a bug":             api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "bug"),
		"a refusal":         api.Errorf(pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION, "used"),
		"busy":              api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY, "busy"),
	} {
		t.Run(name, func(t *testing.T) {
			a, b := start(t, always(failure)), start(t, nil)
			if _, err := appendOnce(t, connect(t, a.address, b.address)); status.Code(err) != status.Code(failure) {
				t.Errorf("Invoke: %v, want %v", err, failure)
			}
			counts(t, []int{1, 0}, a, b)
			err := connect(t, a.address, b.address).Do(within(t, 20*time.Second), sendAppend)
			if status.Code(err) != status.Code(failure) {
				t.Errorf("Do: %v, want %v", err, failure)
			}
			counts(t, []int{2, 0}, a, b)
		})
	}
}

func sendAppend(ctx context.Context, conn grpc.ClientConnInterface) error {
	_, err := pb.NewEventStoreServiceClient(conn).Append(ctx, &pb.AppendRequest{})
	return err
}

func TestTheCallAfterALostConnectionGoesToTheNextSeed(t *testing.T) {
	a, b := start(t, nil), start(t, nil)
	c := connect(t, a.address, b.address)
	_, _ = appendOnce(t, c)
	a.stop()
	// The first may be the one that finds out.
	if who, err := appendOnce(t, c); status.Code(err) != codes.Unavailable && who != b.address {
		t.Errorf("%s answered, %v; want a lost connection", who, err)
	}
	if who, err := appendOnce(t, c); err != nil || who != b.address {
		t.Errorf("%s answered, %v; want the other node", who, err)
	}
	// And back, when the first has come back and the second has gone.
	a.listen(t, a.address)
	b.stop()
	_, _ = appendOnce(t, c)
	if who, err := appendOnce(t, c); err != nil || who != a.address {
		t.Errorf("%s answered, %v; want the node that came back", who, err)
	}
}

func TestStreamsFollowTheLeaderToo(t *testing.T) {
	leader := start(t, nil)
	follower := start(t, always(notLeader(leader.address)))
	store := pb.NewEventStoreServiceClient(connect(t, follower.address))
	read := func() error {
		s, err := store.Read(within(t, 20*time.Second), &pb.ReadRequest{})
		if err == nil {
			_, err = s.Recv()
		}
		return err
	}
	if err := read(); api.CodeOf(err) != pb.ErrorCode_ERROR_CODE_NOT_LEADER {
		t.Errorf("the first read: %v, want 2011", err)
	}
	if err := read(); err != nil {
		t.Errorf("the second read: %v", err)
	}
	counts(t, []int{1, 1}, follower, leader)
}

func TestNobodyThere(t *testing.T) {
	a, b := nobody(t), nobody(t)
	c := connect(t, a, b)
	line := func(a string) string {
		return "cannot reach a node at " + a + ": dial tcp " + a + `: connect: connection refused; is "tidemark serve" running there, and is this its --listen address?`
	}
	want := line(a) + "\n" + line(b)
	began := time.Now()
	for _, err := range []error{c.Do(within(t, 20*time.Second), sendAppend), c.FindLeader(within(t, 20*time.Second))} {
		if _, ok := err.(*NotTakenError); !ok || err.Error() != want || status.Code(err) != codes.Unavailable {
			t.Errorf("found %T %v, %v\nwant %s", err, err, status.Code(err), want)
		}
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("it took %v to find that nobody is there", took)
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := c.Do(within(t, 20*time.Second), sendAppend); err == nil || err.Error() != "the connection to the cluster is closed" {
		t.Errorf("after Close: %v", err)
	}
}

func TestDoFollowsAndWaits(t *testing.T) {
	leader := start(t, func(n int) error {
		if n <= 3 {
			return notReady()
		}
		return nil
	})
	follower := start(t, always(notLeader(leader.address)))
	if err := connect(t, nobody(t), follower.address).Do(within(t, 20*time.Second), sendAppend); err != nil {
		t.Error(err)
	}
	counts(t, []int{1, 4}, follower, leader)
}

func TestDoWaitsForAnElection(t *testing.T) {
	dead := nobody(t)
	elected := make(chan struct{})
	a := start(t, func(n int) error { // it takes the dead node for the leader for a while
		if n == 3 {
			close(elected)
		}
		return notLeader(dead)
	})
	b := start(t, func(int) error {
		select {
		case <-elected:
			return nil
		default:
			return notLeader("")
		}
	})
	if err := connect(t, a.address, b.address).FindLeader(within(t, 20*time.Second)); err != nil {
		t.Error(err)
	}
}

func TestDoSaysWhatTheNodesSaid(t *testing.T) {
	a, b := &fakeNode{}, &fakeNode{}
	a.listen(t, "127.0.0.1:0")
	b.listen(t, "127.0.0.1:0")
	t.Cleanup(a.stop)
	t.Cleanup(b.stop)
	a.say(always(notLeader(b.address)))
	b.say(always(notLeader(a.address)))
	// They name each other for ever: the search goes on, but not in circles without a pause.
	err := connect(t, a.address).Do(within(t, 500*time.Millisecond), sendAppend)
	lines := strings.Split(fmt.Sprint(err), "\n")
	slices.Sort(lines)
	want := []string{a.address + ": 2011 NotLeader: not here", b.address + ": 2011 NotLeader: not here"}
	slices.Sort(want)
	if _, ok := err.(*NotTakenError); !ok || !slices.Equal(lines, want) || api.CodeOf(err) != pb.ErrorCode_ERROR_CODE_NOT_LEADER {
		t.Errorf("found %T %q, want %q", err, lines, want)
	}
	if n := a.count() + b.count(); n < 4 || n > 100 {
		t.Errorf("the nodes were asked %d times in half a second", n)
	}
}

// A node whose process is stopped takes the connection, and then says nothing.
func TestASilentNodeIsPassedOver(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	a := start(t, nil)
	c := connect(t, l.Addr().String(), a.address)
	if who, err := appendOnce(t, c); err != nil || who != a.address {
		t.Errorf("%s answered, %v; want the other node", who, err)
	}
	// Its own caller's patience may be shorter than that, and over before it is tried.
	over, cancel := context.WithCancel(t.Context())
	cancel()
	err = connect(t, l.Addr().String()).Do(over, sendAppend)
	if want := "cannot reach a node at " + l.Addr().String() + ": no answer in time (context canceled)"; err == nil || err.Error() != want {
		t.Errorf("found %v, want %s", err, want)
	}
	err = connect(t, l.Addr().String()).Do(within(t, 100*time.Millisecond), sendAppend)
	if want := "cannot reach a node at " + l.Addr().String() + ": no answer in time (context deadline exceeded)"; err == nil || err.Error() != want {
		t.Errorf("found %v, want %s", err, want)
	}
}

// Many calls at once while the leader moves to and fro: each is answered by whoever leads
// then, or with a definite failure.
func TestManyCallsFollowTogether(t *testing.T) {
	var mu sync.Mutex
	nodes := []*fakeNode{start(t, nil), start(t, nil), start(t, nil)}
	leads := 0
	for i, n := range nodes {
		n.say(func(int) error {
			mu.Lock()
			defer mu.Unlock()
			if leads == i {
				return nil
			}
			return notLeader(nodes[leads].address)
		})
	}
	c := connect(t, nodes[2].address, nodes[1].address)
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			for done := 0; done < 50; {
				_, err := appendOnce(t, c)
				switch {
				case err == nil:
					if done++; done%10 == 9 {
						mu.Lock()
						leads = (leads + 1) % len(nodes)
						mu.Unlock()
					}
				case api.CodeOf(err) != pb.ErrorCode_ERROR_CODE_NOT_LEADER:
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}
