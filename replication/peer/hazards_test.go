package peer

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/raft"

	peerv1 "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
)

// pair is a transport and one that it calls, n2#2, whose raft the test plays.
type pair struct {
	a, b     *node
	from, to *Transport
	addr     raft.ServerAddress
}

func newPair(t *testing.T, timeout time.Duration) *pair {
	t.Helper()
	return newPairThatWaits(t, timeout, defaultWaits())
}

func newPairThatWaits(t *testing.T, timeout time.Duration, w waits) *pair {
	t.Helper()
	noLeaks(t)
	p := &pair{a: newNodeThatWaits(t, w, member("n1", "1")), b: newNodeThatWaits(t, w, member("n2", "2"))}
	p.from, p.to = p.a.transport(timeout), p.b.transport(timeout)
	p.addr = raft.ServerAddress(p.b.addr)
	return p
}

// next is the next call that arrives.
func next(t *testing.T, tr *Transport) raft.RPC {
	t.Helper()
	select {
	case rpc := <-tr.Consumer():
		return rpc
	case <-time.After(patience):
		t.Fatal("no call arrived")
		return raft.RPC{}
	}
}

// ends is what a call returns.
func ends(t *testing.T, call <-chan error) error {
	t.Helper()
	select {
	case err := <-call:
		return err
	case <-time.After(patience):
		t.Fatal("the call goes on")
		return nil
	}
}

func start(call func() error) <-chan error {
	c := make(chan error, 1)
	go func() { c <- call() }()
	return c
}

var heartbeat = &raft.AppendEntriesRequest{RPCHeader: raft.RPCHeader{ProtocolVersion: raft.ProtocolVersionMax, ID: []byte("n1#1"), Addr: []byte("a:1")}, Term: 7}

func (p *pair) beat() <-chan error {
	return start(func() error {
		return p.from.AppendEntries("n2#2", p.addr, heartbeat, new(raft.AppendEntriesResponse))
	})
}

// TestIssue695HeartbeatGoesThroughTheMainLoop: the fast path could change the term while
// raft writes the log.
func TestIssue695HeartbeatGoesThroughTheMainLoop(t *testing.T) {
	p := newPair(t, patience)
	p.to.SetHeartbeatHandler(func(rpc raft.RPC) {
		t.Error("a heartbeat went past the main loop")
		rpc.Respond(&raft.AppendEntriesResponse{}, nil)
	})
	var resp raft.AppendEntriesResponse
	call := start(func() error { return p.from.AppendEntries("n2#2", p.addr, heartbeat, &resp) })
	select {
	case rpc := <-p.to.Consumer():
		if r, ok := rpc.Command.(*raft.AppendEntriesRequest); !ok || r.Term != 7 || string(r.ID) != "n1#1" {
			t.Errorf("%+v arrived, want the heartbeat", rpc.Command)
		}
		rpc.Respond(&raft.AppendEntriesResponse{Term: 7, Success: true}, nil)
		if err := ends(t, call); err != nil || resp.Term != 7 || !resp.Success {
			t.Errorf("%+v (%v), want the answer", resp, err)
		}
	case err := <-call:
		t.Errorf("answered (%v) by no main loop", err)
	}
}

// TestIssue612NothingIsPipelined: a pipeline can wedge a follower.
func TestIssue612NothingIsPipelined(t *testing.T) {
	p := newPair(t, patience)
	pipeline, err := p.from.AppendEntriesPipeline("n2#2", p.addr)
	if !errors.Is(err, raft.ErrPipelineReplicationNotSupported) || pipeline != nil {
		t.Errorf("%v, %v; want raft to be told that there is none", pipeline, err)
	}
	if open := p.a.current().dialed.len(); open != 0 {
		t.Errorf("%d connections, want none", open)
	}
}

// trickle gives its bytes in pieces, some time after another.
type trickle struct {
	left  int // bytes
	every time.Duration
	ctx   context.Context
}

const piece = 1000

func (r *trickle) Read(b []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	timer := time.NewTimer(r.every)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-r.ctx.Done():
		return 0, r.ctx.Err()
	}
	n := min(piece, r.left, len(b))
	r.left -= n
	return n, nil
}

func (p *pair) install(size int64, from io.Reader, resp *raft.InstallSnapshotResponse) <-chan error {
	return start(func() error {
		return p.from.InstallSnapshot("n2#2", p.addr, &raft.InstallSnapshotRequest{RPCHeader: heartbeat.RPCHeader, Term: 7, Size: size}, resp, from)
	})
}

// TestSnapshotMayTakeLongerThanTheTimeout, to send and to use, as long as it moves.
func TestSnapshotMayTakeLongerThanTheTimeout(t *testing.T) {
	const timeout = 100 * time.Millisecond
	p := newPair(t, timeout)
	var resp raft.InstallSnapshotResponse
	// bufio in raft's transport gathers 256 KiB, so the sender's pieces are its own.
	const size = 600 * piece
	call := p.install(size, &trickle{size, time.Millisecond, t.Context()}, &resp)
	rpc := next(t, p.to)
	began := time.Now()
	if n, err := io.Copy(io.Discard, rpc.Reader); n != size || err != nil {
		t.Errorf("%d bytes arrived (%v), want %d", n, err, size)
	}
	restored := time.NewTimer(3 * timeout)
	defer restored.Stop()
	<-restored.C
	rpc.Respond(&raft.InstallSnapshotResponse{Term: 7, Success: true}, nil)
	if err := ends(t, call); err != nil || !resp.Success {
		t.Errorf("%+v after %s (%v), want it installed", resp, time.Since(began), err)
	}
}

// TestTimeForASnapshotGrowsWithIt: raft's own time for the whole is what the answer may
// take, at snapshotRate, and what the restore may on top.
func TestTimeForASnapshotGrowsWithIt(t *testing.T) {
	for timeout, want := range map[time.Duration]int{10 * time.Second: 10 << 20, 500 * time.Millisecond: 512 << 10, 0: 10 << 20} {
		a := newNode(t, member("n1", "1"))
		if got := a.transport(timeout).t.TimeoutScale; got != want {
			t.Errorf("timeout %s: scale %d, want %d", timeout, got, want)
		}
	}
	now := time.Unix(1000, 0)
	c := &conn{dialed: true, waits: waits{receive: time.Second, restore: time.Minute}}
	for by, want := range map[time.Duration]time.Duration{-time.Hour: time.Minute, time.Hour: time.Hour + time.Minute} {
		c.answerBy.Store(now.Add(by).UnixNano())
		if got := c.readDeadline(now).Sub(now); got != want {
			t.Errorf("a time that ends in %s: waits %s for the answer, want %s", by, got, want)
		}
	}
	c.dialed = false
	if got := c.readDeadline(now).Sub(now); got != time.Second {
		t.Errorf("the receiver waits %s for a piece, want 1s", got)
	}
}

// TestSenderThatHangsDoesNotHoldTheReceiver, whose main loop reads the snapshot.
func TestSenderThatHangsDoesNotHoldTheReceiver(t *testing.T) {
	w := defaultWaits()
	w.receive = 100 * time.Millisecond
	p := newPairThatWaits(t, patience, w)
	ctx, done := context.WithCancel(t.Context())
	defer done()
	call := p.install(3*piece, &trickle{3 * piece, time.Hour, ctx}, new(raft.InstallSnapshotResponse))
	rpc := next(t, p.to)
	began := time.Now()
	n, err := io.Copy(io.Discard, rpc.Reader)
	var timeout net.Error
	if n != 0 || !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("read %d bytes (%v), want to be told that nothing comes", n, err)
	}
	// Raft reads what is left before it answers.
	if n, err := io.Copy(io.Discard, rpc.Reader); n != 0 || err != nil {
		t.Errorf("read %d more bytes (%v) after %s, want an end at once", n, err, time.Since(began))
	}
	rpc.Respond(&raft.InstallSnapshotResponse{}, errors.New("short read"))
	done()
	if err := ends(t, call); err == nil {
		t.Error("installed, want the sender to fail")
	}
}

// TestReceiverThatHangsDoesNotHoldTheSender for as long as its size would allow.
func TestReceiverThatHangsDoesNotHoldTheSender(t *testing.T) {
	w := defaultWaits()
	w.send = 200 * time.Millisecond
	p := newPairThatWaits(t, patience, w)
	const size = 1 << 40
	call := p.install(size, io.LimitReader(endless{}, size), new(raft.InstallSnapshotResponse))
	rpc := next(t, p.to)
	err := ends(t, call)
	var timeout net.Error
	if !errors.As(err, &timeout) || !timeout.Timeout() {
		t.Errorf("%v, want the sender to give up", err)
	}
	rpc.Respond(&raft.InstallSnapshotResponse{}, nil)
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return len(b), nil }

// TestHeartbeatsWaitForASnapshot: its receiver reads it in the main loop, and would keep
// every heartbeat that was given up until the end.
func TestHeartbeatsWaitForASnapshot(t *testing.T) {
	p := newPair(t, 100*time.Millisecond)
	var resp raft.InstallSnapshotResponse
	ctx, done := context.WithCancel(t.Context())
	defer done()
	call := p.install(3*piece, &trickle{3 * piece, time.Hour, ctx}, &resp)
	rpc := next(t, p.to)
	for range 3 {
		if err := ends(t, p.beat()); !errors.Is(err, errInstalling) {
			t.Errorf("%v, want the heartbeat to wait for the snapshot", err)
		}
	}
	if s := p.b.Stats(); s.Raft != 1 {
		t.Errorf("%d connections, want that of the snapshot alone", s.Raft)
	}
	// Other servers are not kept waiting.
	if err := ends(t, start(func() error {
		return p.from.AppendEntries("n3#3", p.addr, heartbeat, new(raft.AppendEntriesResponse))
	})); err == nil || errors.Is(err, errInstalling) {
		t.Errorf("%v, want n3's own answer", err)
	}
	p.from.timeout = time.Hour
	held := p.beat()
	done() // the snapshot fails, and what waited for it goes on
	if err := ends(t, call); err == nil {
		t.Error("installed, want it to fail")
	}
	rpc.Respond(&resp, nil)
	rpc = next(t, p.to)
	rpc.Respond(&raft.AppendEntriesResponse{Term: 7, Success: true}, nil)
	if err := ends(t, held); err != nil {
		t.Errorf("%v, want the heartbeat to get there", err)
	}
}

// TestVotesAreNotLostToConnectionsThatDied in the pool: the server was restarted since.
func TestVotesAreNotLostToConnectionsThatDied(t *testing.T) {
	p := newPair(t, patience)
	for name, ask := range map[string]func() error{
		"RequestVote": func() error {
			return p.from.RequestVote("n2#2", p.addr, &raft.RequestVoteRequest{RPCHeader: heartbeat.RPCHeader}, new(raft.RequestVoteResponse))
		},
		"RequestPreVote": func() error {
			return p.from.RequestPreVote("n2#2", p.addr, &raft.RequestPreVoteRequest{RPCHeader: heartbeat.RPCHeader}, new(raft.RequestPreVoteResponse))
		},
		"TimeoutNow": func() error {
			return p.from.TimeoutNow("n2#2", p.addr, &raft.TimeoutNowRequest{RPCHeader: heartbeat.RPCHeader}, new(raft.TimeoutNowResponse))
		},
	} {
		// As many at once as the pool holds, so that it does.
		var calls []<-chan error
		var rpcs []raft.RPC
		for range raftPool {
			calls = append(calls, p.beat())
		}
		for range raftPool {
			rpcs = append(rpcs, next(t, p.to))
		}
		for _, rpc := range rpcs {
			rpc.Respond(&raft.AppendEntriesResponse{}, nil)
		}
		for i := range raftPool {
			if err := ends(t, calls[i]); err != nil {
				t.Fatal(err)
			}
		}
		_ = p.to.Close()
		p.to = p.b.transport(patience)
		call := start(ask)
		select {
		case rpc := <-p.to.Consumer():
			switch rpc.Command.(type) {
			case *raft.RequestVoteRequest:
				rpc.Respond(&raft.RequestVoteResponse{}, nil)
			case *raft.RequestPreVoteRequest:
				rpc.Respond(&raft.RequestPreVoteResponse{}, nil)
			case *raft.TimeoutNowRequest:
				rpc.Respond(&raft.TimeoutNowResponse{}, nil)
			}
			if err := ends(t, call); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		case err := <-call:
			t.Errorf("%s: %v, want it to arrive over a new connection", name, err)
		}
	}
}

func TestCallThatFailsIsNotMadeForEver(t *testing.T) {
	var calls int
	err := retry(func() error { calls++; return io.EOF })
	if calls != raftPool+1 || !errors.Is(err, io.EOF) {
		t.Errorf("%d calls (%v), want one for each in the pool and a last one", calls, err)
	}
	calls = 0
	err = retry(func() error { calls++; return &connectError{"b:1", io.EOF} })
	if calls != 1 || err.Error() != "connect to b:1: EOF" {
		t.Errorf("%d calls (%v), want one: there is nobody", calls, err)
	}
}

// TestShutdownDoesNotWaitForAHangingNode: raft waits for its calls when it shuts down, and
// closing the transport ends them.
func TestShutdownDoesNotWaitForAHangingNode(t *testing.T) {
	p := newPair(t, time.Hour)
	sending := p.install(1<<40, endless{}, new(raft.InstallSnapshotResponse))
	receiving := next(t, p.to)
	vote := start(func() error {
		return p.from.RequestVote("n2#2", p.addr, &raft.RequestVoteRequest{RPCHeader: heartbeat.RPCHeader}, new(raft.RequestVoteResponse))
	})
	next(t, p.to)
	if err := p.from.Close(); err != nil {
		t.Fatal(err)
	}
	for _, call := range []<-chan error{sending, vote} {
		if err := ends(t, call); err == nil {
			t.Error("a call ended well, want an error: the transport was closed")
		}
	}
	read := start(func() error { _, err := io.Copy(io.Discard, receiving.Reader); return err })
	_ = ends(t, read)
}

// TestCloseOfTheReceiverEndsASnapshot that its main loop waits for.
func TestCloseOfTheReceiverEndsASnapshot(t *testing.T) {
	p := newPair(t, patience)
	ctx, done := context.WithCancel(t.Context())
	defer done()
	call := p.install(piece, &trickle{piece, time.Hour, ctx}, new(raft.InstallSnapshotResponse))
	rpc := next(t, p.to)
	read := start(func() error { _, err := io.Copy(io.Discard, rpc.Reader); return err })
	if err := p.to.Close(); err != nil {
		t.Fatal(err)
	}
	_ = ends(t, read)
	done()
	_ = ends(t, call)
}

func TestNewTransportTakesThePlaceOfTheOneBefore(t *testing.T) {
	p := newPair(t, time.Hour)
	call := p.beat()
	next(t, p.to)
	second := p.b.transport(patience)
	if err := ends(t, call); err == nil {
		t.Error("a call of the transport before ended well, want it cut")
	}
	call = p.beat()
	select {
	case rpc := <-second.Consumer():
		rpc.Respond(&raft.AppendEntriesResponse{}, nil)
	case rpc := <-p.to.Consumer():
		t.Error("the transport before got the call")
		rpc.Respond(&raft.AppendEntriesResponse{}, nil)
	}
	if err := ends(t, call); err != nil {
		t.Error(err)
	}
	// That the one before is closed, late, does not concern the second one.
	_ = p.to.Close()
	if _, err := p.a.connect(peerv1.Kind_KIND_RAFT, p.b, "n2#2"); err != nil {
		t.Error(err)
	}
	call = p.beat()
	rpc := next(t, second)
	rpc.Respond(&raft.AppendEntriesResponse{}, nil)
	if err := ends(t, call); err != nil {
		t.Error(err)
	}
}

// TestAddressesTravelAsTheyAre: the server's id is put into what raft's transport takes for
// an address, and into nothing that other nodes see.
func TestAddressesTravelAsTheyAre(t *testing.T) {
	p := newPair(t, patience)
	if got := string(p.from.EncodePeer("n2#2", "b:1")); got != "b:1" {
		t.Errorf("encoded %q, want b:1", got)
	}
	if got := p.from.DecodePeer([]byte("b:1")); got != "b:1" {
		t.Errorf("decoded %q, want b:1", got)
	}
	if got := string(p.from.LocalAddr()); got != p.a.addr {
		t.Errorf("is at %q, want %q", got, p.a.addr)
	}
	for _, r := range []struct {
		kind     peerv1.Kind
		id, addr string
	}{
		{peerv1.Kind_KIND_RAFT, "n1#0123abcd", "host.example:7441"},
		{peerv1.Kind_KIND_SNAPSHOT, "n1", "[::1]:7441"},
		{peerv1.Kind_KIND_RAFT, "snapshot n@1#1", "h:1"},
	} {
		kind, id, addr, err := parseRoute(route(r.kind, raftID(r.id), raft.ServerAddress(r.addr)))
		if err != nil || kind != r.kind || string(id) != r.id || addr != r.addr {
			t.Errorf("%v %q %q (%v), want %+v", kind, id, addr, err, r)
		}
	}
	// Raft's configuration holds an address with the server's id, its messages one without.
	const listed, plain = raft.ServerAddress("n2#2@host:1"), raft.ServerAddress("host:1")
	if got := Address("n2#2", "host:1"); got != listed {
		t.Errorf("the address in the configuration is %q, want %q", got, listed)
	}
	for a, want := range map[raft.ServerAddress]raft.ServerID{listed: "n2#2", plain: ""} {
		if id, addr := SplitAddress(a); id != want || addr != "host:1" {
			t.Errorf("%q is %q at %q, want %q at host:1", a, id, addr, want)
		}
		if got, want := route(peerv1.Kind_KIND_RAFT, "n2#2", a), raft.ServerAddress("raft n2#2@host:1"); got != want {
			t.Errorf("%q: route %q, want %q", a, got, want)
		}
	}
	for _, r := range []raft.ServerAddress{"", "host:1", "raft host:1", "raft @host:1", "vote n1@host:1", "raft"} {
		want := `expected a route like "raft n1#0123abcd@host:port", found "` + string(r) + `"`
		if _, err := p.a.current().Dial(r, time.Second); err == nil || err.Error() != want {
			t.Errorf("%q: %v, want %s", r, err, want)
		}
	}
}

// TestEveryCallNamesItsServer: none reaches what the node at the address is now.
func TestEveryCallNamesItsServer(t *testing.T) {
	p := newPair(t, time.Second)
	var arrived atomic.Int32
	go func() {
		for {
			select {
			case rpc := <-p.to.Consumer():
				arrived.Add(1)
				rpc.Respond(nil, errors.New("arrived"))
			case <-t.Context().Done():
				return
			}
		}
	}()
	const was = raft.ServerID("n2#before")
	h := heartbeat.RPCHeader
	for name, call := range map[string]func() error{
		"AppendEntries": func() error { return p.from.AppendEntries(was, p.addr, heartbeat, new(raft.AppendEntriesResponse)) },
		"RequestVote": func() error {
			return p.from.RequestVote(was, p.addr, &raft.RequestVoteRequest{RPCHeader: h}, new(raft.RequestVoteResponse))
		},
		"RequestPreVote": func() error {
			return p.from.RequestPreVote(was, p.addr, &raft.RequestPreVoteRequest{RPCHeader: h}, new(raft.RequestPreVoteResponse))
		},
		"TimeoutNow": func() error {
			return p.from.TimeoutNow(was, p.addr, &raft.TimeoutNowRequest{RPCHeader: h}, new(raft.TimeoutNowResponse))
		},
		"InstallSnapshot": func() error {
			return p.from.InstallSnapshot(was, p.addr, &raft.InstallSnapshotRequest{RPCHeader: h}, new(raft.InstallSnapshotResponse), strings.NewReader(""))
		},
	} {
		err := ends(t, start(call))
		var refused *RefusedError
		if !errors.As(err, &refused) || refused.Reason != peerv1.Refusal_REFUSAL_OTHER_TARGET || refused.Remote != p.b.identity() {
			t.Errorf("%s: %v, want it refused: the server is another one now", name, err)
		}
	}
	if n := arrived.Load(); n != 0 {
		t.Errorf("%d calls arrived, want none", n)
	}
}
