package server

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	reflectionpb "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
)

func TestHealthFollowsTheLeadership(t *testing.T) {
	r := start(t, nil)
	ctx := testContext(t)
	client := healthpb.NewHealthClient(r.conn)
	watch, err := client.Watch(ctx, &healthpb.HealthCheckRequest{Service: LeaderService})
	if err != nil {
		t.Fatal(err)
	}
	next := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		for {
			got, err := watch.Recv()
			if err != nil {
				t.Fatal(err)
			}
			// Before the first state is known the service is unknown.
			if got.GetStatus() == healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
				continue
			}
			if got.GetStatus() != want {
				t.Fatalf("leader health %v, want %v", got.GetStatus(), want)
			}
			return
		}
	}
	next(healthpb.HealthCheckResponse_NOT_SERVING)
	r.shard.setLeading(true)
	next(healthpb.HealthCheckResponse_SERVING)
	r.shard.setLeading(false)
	next(healthpb.HealthCheckResponse_NOT_SERVING)

	// A node that is not a member of a cluster yet has nothing to serve.
	is := func(want healthpb.HealthCheckResponse_ServingStatus) {
		t.Helper()
		all, err := client.Watch(ctx, &healthpb.HealthCheckRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for {
			got, err := all.Recv()
			if err != nil {
				t.Fatalf("waiting for the node to be %v: %v", want, err)
			}
			if got.GetStatus() == want {
				return
			}
		}
	}
	r.shard.setStatus(replication.Status{Role: "joining"})
	r.shard.setLeading(false)
	is(healthpb.HealthCheckResponse_NOT_SERVING)
	r.shard.setStatus(replication.Status{Role: "candidate"})
	is(healthpb.HealthCheckResponse_SERVING)

	node, err := client.Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil || node.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("the node's health: %v, %v", node, err)
	}
	_, err = client.Check(ctx, &healthpb.HealthCheckRequest{Service: "nothing"})
	if status.Code(err) != codes.NotFound {
		t.Errorf("health of an unknown service: %v", err)
	}

	// A client that watches does not hold up the end.
	if err := r.server.Drain(ctx); err != nil {
		t.Errorf("Drain with a watch: %v", err)
	}
	if _, err := watch.Recv(); err == nil {
		_, err = watch.Recv() // NOT_SERVING may come first
		if err == nil {
			t.Error("the watch goes on after the server has stopped")
		}
	}
}

func TestReflectionListsTheServices(t *testing.T) {
	r := start(t, nil)
	stream, err := reflectionpb.NewServerReflectionClient(r.conn).ServerReflectionInfo(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&reflectionpb.ServerReflectionRequest{MessageRequest: &reflectionpb.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	resp, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range resp.GetListServicesResponse().GetService() {
		names = append(names, s.GetName())
	}
	if got := strings.Join(names, " "); !strings.Contains(got, "grpc.health.v1.Health") || !strings.Contains(got, "tidemark.v1.EventStoreService") || !strings.Contains(got, "tidemark.v1.ClusterService") {
		t.Errorf("services: %s", got)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
}

// get fetches a path of the HTTP server.
func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(testContext(t), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestProbesAndMetrics(t *testing.T) {
	r := start(t, nil)
	l := listen(t)
	served := make(chan error, 1)
	go func() { served <- r.server.ServeWeb(l) }() // ends with Stop below
	base := "http://" + l.Addr().String()
	want := func(path string, code int, body string) {
		t.Helper()
		if gotCode, got := get(t, base+path); gotCode != code || got != body {
			t.Errorf("%s: %d %q, want %d %q", path, gotCode, got, code, body)
		}
	}
	want("/livez", 200, "ok\n")
	want("/livez?verbose", 200, "[+]ping ok\n")
	want("/readyz", 200, "ok\n")
	r.shard.setChecks(replication.Check{Name: "member"}, replication.Check{Name: "disk", Err: errors.New("nearly full"), Tolerated: true})
	want("/readyz", 200, "ok\n")
	want("/readyz?verbose", 200, "[+]ping ok\n[+]member ok\n[+]disk ok, but: nearly full\n[+]serving ok\n")
	if code, body := get(t, base+"/metrics"); code != 200 || !strings.Contains(body, "\ngo_goroutines ") || !strings.Contains(body, "\nprocess_resident_memory_bytes ") {
		t.Errorf("/metrics: %d %.200q", code, body)
	}
	if code, _ := get(t, base+"/nothing"); code != 404 {
		t.Errorf("/nothing: %d", code)
	}

	r.shard.setChecks(replication.Check{Name: "member"}, replication.Check{Name: "leader", Err: errors.New("it knows none")})
	want("/readyz", 503, "[+]ping ok\n[+]member ok\n[-]leader: it knows none\n[+]serving ok\n")
	want("/livez", 200, "ok\n")
	r.shard.setChecks()

	for _, c := range []struct {
		status replication.Status
		line   string
	}{
		{replication.Status{NodeID: "n1"}, "this node does not serve as leader, and knows none"},
		{replication.Status{NodeID: "n1", LeaderID: "n2", LeaderAddress: "10.0.0.2:7440"}, "this node does not serve as leader; the leader is n2 at 10.0.0.2:7440"},
		{replication.Status{NodeID: "n1", LeaderID: "n2"}, "this node does not serve as leader; the leader is n2 at an address that is not known yet"},
		{replication.Status{NodeID: "n1", LeaderID: "n1"}, "this node leads, but does not serve yet, or not any more"},
	} {
		r.shard.setStatus(c.status)
		want("/leaderz", 503, "[+]ping ok\n[-]leader: "+c.line+"\n[+]serving ok\n")
	}
	r.shard.setLeading(true)
	want("/leaderz", 200, "ok\n")
	want("/leaderz?verbose", 200, "[+]ping ok\n[+]leader ok\n[+]serving ok\n")

	// Going away: not ready, still alive, until it is gone.
	waiting, release := holdAppends(r.shard)
	call := inBackground(t, r, smallAppend())
	<-waiting
	over, cancel := context.WithCancel(context.Background())
	cancel()
	if err := r.server.Drain(over); !errors.Is(err, context.Canceled) {
		t.Errorf("Drain with a call at work: %v", err)
	}
	want("/readyz", 503, "[+]ping ok\n[-]serving: the node is stopping\n")
	want("/leaderz", 503, "[+]ping ok\n[+]leader ok\n[-]serving: the node is stopping\n")
	want("/livez", 200, "ok\n")
	release()
	if err := call(); err != nil {
		t.Errorf("the call at work: %v", err)
	}
	r.server.Stop(testContext(t))
	if err := <-served; err != nil {
		t.Errorf("ServeWeb: %v", err)
	}
}

func TestDrainAnswersWhatIsAtWorkAndRefusesWhatIsNew(t *testing.T) {
	r := start(t, nil)
	ctx := testContext(t)
	waiting, release := holdAppends(r.shard)
	call := inBackground(t, r, smallAppend())
	<-waiting
	drained := make(chan error, 1)
	go func() { drained <- r.server.Drain(ctx) }() // ends with the call at work
	r.shard.onAppend(func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) { return &pb.AppendResponse{}, nil })
	// A call may slip in before the connection is told to go away; then none does.
	for {
		_, err := r.client.Append(ctx, smallAppend())
		if status.Code(err) == codes.Unavailable {
			break
		}
		if err != nil {
			t.Fatalf("a new call while draining: %v", err)
		}
	}
	select {
	case err := <-drained:
		t.Fatalf("drained with a call at work: %v", err)
	default:
	}
	release()
	if err := errors.Join(call(), <-drained); err != nil {
		t.Error(err)
	}
}

// What does not end in time is cut, and its caller sees a lost connection: an outcome that
// it must take for unknown.
func TestStopCutsWhatDoesNotEnd(t *testing.T) {
	r := start(t, nil)
	waiting, release := holdAppends(r.shard)
	defer release()
	call := inBackground(t, r, smallAppend())
	<-waiting
	over, cancel := context.WithCancel(context.Background())
	cancel()
	r.server.Stop(over)
	if err := call(); status.Code(err) != codes.Unavailable {
		t.Errorf("the call that was cut: %v", err)
	}
	r.server.Stop(over) // again is nothing
}

func TestConnectionsAreBounded(t *testing.T) {
	r := start(t, func(o *Options) { o.MaxConnections = 1 })
	ctx := testContext(t)
	if _, err := r.client.Append(ctx, smallAppend()); err != nil {
		t.Fatal(err)
	}
	second := pb.NewEventStoreServiceClient(dial(t, r.conn.Target()))
	if _, err := second.Append(ctx, smallAppend()); status.Code(err) != codes.Unavailable {
		t.Errorf("over the limit of connections: %v", err)
	}
	if _, err := r.client.Append(ctx, smallAppend()); err != nil {
		t.Errorf("the first connection: %v", err)
	}
	if err := r.conn.Close(); err != nil {
		t.Fatal(err)
	}
	// The place is free when the server has noticed; the client asks until then.
	for {
		_, err := second.Append(ctx, smallAppend())
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("the place of a closed connection is not given back: %v", err)
		}
	}
}

// Connections that do not become HTTP/2 ones are closed after a while, so that they cannot
// keep others out.
func TestSilentConnectionsAreClosed(t *testing.T) {
	const most = 4
	r := start(t, func(o *Options) { o.MaxConnections, o.HandshakeTimeout = most, 300*time.Millisecond })
	const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
	var silent []net.Conn
	for _, said := range []string{"", preface[:5], preface, preface + "\x00\x00\x06\x04"} {
		c, err := net.Dial("tcp", r.conn.Target())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		if _, err := c.Write([]byte(said)); err != nil {
			t.Fatal(err)
		}
		silent = append(silent, c)
	}
	eventually(t, "they have all places", func() bool { return r.server.conns.open.Load() == most })
	ctx := testContext(t)
	if _, err := r.client.Append(ctx, smallAppend()); status.Code(err) != codes.Unavailable {
		t.Fatalf("the places are taken, and a client got in: %v", err)
	}
	for i, c := range silent {
		_ = c.SetReadDeadline(time.Now().Add(patience))
		if _, err := io.Copy(io.Discard, c); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("silent connection %d was not closed", i)
		}
	}
	eventually(t, "their places are free", func() bool { return r.server.conns.open.Load() < most })
	if _, err := r.client.Append(ctx, smallAppend(), grpc.WaitForReady(true)); err != nil {
		t.Errorf("a client after silent connections: %v", err)
	}
	// A connection that has spoken may be silent for longer: for as long as another one is let.
	c, err := net.Dial("tcp", r.conn.Target())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_, _ = io.Copy(io.Discard, c)
	if s := r.conn.GetState(); s != connectivity.Ready {
		t.Errorf("the client's connection is %v", s)
	}
}

func TestListenerBound(t *testing.T) {
	inner := listen(t)
	l := &boundedListener{inner, &connBound{most: 1, log: zap.NewNop()}}
	defer func() { _ = l.Close() }()
	connect := func() net.Conn {
		c, err := net.Dial("tcp", inner.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	connect()
	first, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	refused := connect()
	accepted := make(chan net.Conn, 1)
	go func() { // ends with the third connection
		c, err := l.Accept()
		if err == nil {
			accepted <- c
		}
		close(accepted)
	}()
	if _, err := refused.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a connection over the limit reads %v, want EOF", err)
	}
	// Closing twice gives one place back.
	_ = first.Close()
	_ = first.Close()
	connect()
	if c := <-accepted; c == nil {
		t.Fatal("the free place was not taken")
	}
	if open, refused := l.bound.open.Load(), l.bound.refused.Load(); open != 1 || refused != 1 {
		t.Errorf("%d connections are counted and %d refused, want 1 and 1", open, refused)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	shard := newFakeShard(t)
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{}, "server: Options.Shard is nil; a server needs a shard to serve"},
		{Options{Shard: shard, MaxRequestBytes: 16<<20 + 1}, "server: Options.MaxRequestBytes is 16777217; expected 1..16777216"},
		{Options{Shard: shard, MaxBytes: 1}, "server: MaxCalls 8192 and MaxConnections 1024 must be positive, and MaxBytes 1 must hold a request of 4194304 bytes"},
		{Options{Shard: shard, MaxCalls: -1}, "server: MaxCalls -1 and MaxConnections 1024 must be positive, and MaxBytes 268435456 must hold a request of 4194304 bytes"},
	} {
		if _, err := New(c.o); err == nil || err.Error() != c.want {
			t.Errorf("New(%+v): %v, want %s", c.o, err, c.want)
		}
	}
}

// A node that is told to end while it starts may stop before it serves; that is no failure.
func TestServeAfterStopEndsAtOnce(t *testing.T) {
	s, err := New(Options{Shard: newFakeShard(t)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.Stop(ctx)
	l := listen(t)
	if err := s.Serve(l); err != nil {
		t.Errorf("Serve after Stop: %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener was left open: %v", err)
	}
}
