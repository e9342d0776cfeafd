package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/bench"
)

// freeAddress is a loopback address that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	return listener.Addr().String()
}

func TestNobodyListeningIsADefiniteFailure(t *testing.T) {
	first, second := freeAddress(t), freeAddress(t)
	code, stdout, stderr := runCommand(t, appendArgs(first+", "+second)...)
	line := func(a string) string {
		return "cannot reach a node at " + a + ": dial tcp " + a + ": connect: connection refused; is \"tidemark serve\" running there, and is this its --listen address?\n"
	}
	if want := "tidemark: " + line(first) + line(second); code != exitFailure || stdout != "" || stderr != want {
		t.Errorf("exit %d, stdout %q, stderr\n%s\nwant 1, nothing,\n%s", code, stdout, stderr, want)
	}
}

func TestAPortThatDoesNotSpeakGRPCIsNamed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	go func() { // ends when the listener is closed
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1024)) // closing what was not read would take back the answer
			_, _ = conn.Write([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"))
			_ = conn.Close()
		}
	}()
	address := listener.Addr().String()
	code, _, stderr := runCommand(t, appendArgs(address)...)
	want := "tidemark: cannot reach a node at " + address + ": something answers there, but not with gRPC; expected the node's --listen address, is this another of its ports?\n"
	if code != exitFailure || stderr != want {
		t.Errorf("exit %d, stderr %q, want 1, %q", code, stderr, want)
	}
}

// A node that has as many connections as it may closes further ones without a word.
func TestANodeWithoutRoomForAConnectionIsToldFromAnotherPort(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	go func() { // ends when the listener is closed
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_ = conn.Close()
		}
	}()
	address := listener.Addr().String()
	code, _, stderr := runCommand(t, appendArgs(address)...)
	want := "tidemark: cannot reach a node at " + address + ": something accepts connections there and closes them at once: either a node that has as many as it may (its log says so; try again), or no node; expected the node's --listen address\n"
	if code != exitFailure || stderr != want {
		t.Errorf("exit %d, stderr %q, want 1, %q", code, stderr, want)
	}
}

func TestTheNextSeedIsTriedIfOneCannotBeReached(t *testing.T) {
	store := &fakeStore{append: func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) { return appendAnswer(), nil }}
	t.Setenv("TIDEMARK_SERVER", freeAddress(t)+","+store.start(t))
	args := appendArgs("unused")
	args = append(args[:2], args[4:]...) // without --server
	code, _, stderr := runCommand(t, args...)
	if code != exitOK || stderr != "" {
		t.Errorf("exit %d, stderr %q; want 0", code, stderr)
	}
	store.asked(t, appendRequest())
}

func TestTheLeaderIsFollowed(t *testing.T) {
	leader := &fakeStore{append: func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) { return appendAnswer(), nil }}
	follower := refuse(api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "n2 leads").
		With(&pb.NotLeader{LeaderId: "n2", LeaderAddress: leader.start(t)}))
	code, _, stderr := runCommand(t, appendArgs(follower.start(t))...)
	if code != exitOK || stderr != "" {
		t.Errorf("exit %d, stderr %q; want 0", code, stderr)
	}
	follower.asked(t, appendRequest())
	leader.asked(t, appendRequest())
}

func TestNodesThatPointAtEachOtherEndTheSearch(t *testing.T) {
	a, b := &fakeStore{}, &fakeStore{}
	addressA, addressB := a.start(t), b.start(t)
	point := func(to string) func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) {
		return func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) {
			return nil, api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "not me").With(&pb.NotLeader{LeaderAddress: to})
		}
	}
	a.append, b.append = point(addressB), point(addressA)
	code, _, stderr := runCommand(t, appendArgs(addressA, "--timeout", "1s")...)
	lines := strings.Split(strings.TrimPrefix(stderr, "tidemark: "), "\n")
	slices.Sort(lines)
	want := []string{"", addressA + ": 2011 NotLeader: not me", addressB + ": 2011 NotLeader: not me"}
	slices.Sort(want)
	if code != exitFailure || !slices.Equal(lines, want) {
		t.Errorf("exit %d, want 1, and the lines %q, want %q", code, lines, want)
	}
}

func TestALeaderThatIsNotReadyIsAskedAgain(t *testing.T) {
	calls := 0
	store := &fakeStore{append: func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) {
		if calls++; calls < 3 {
			return nil, api.Errorf(pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY, "soon")
		}
		return appendAnswer(), nil
	}}
	if code, _, stderr := runCommand(t, appendArgs(store.start(t))...); code != exitOK || stderr != "" {
		t.Errorf("exit %d, stderr %q; want 0", code, stderr)
	}
	store.asked(t, appendRequest(), appendRequest(), appendRequest())
}

// A node that is started after its import is found: the import waits for it.
func TestImportWaitsForANode(t *testing.T) {
	address := freeAddress(t)
	dir, stderr := t.TempDir(), newLogSink()
	var stdout bytes.Buffer
	done := make(chan int, 1)
	go func() { // ends when the node takes the rows
		done <- run(t.Context(), importClaims(address, "testdata/claims.csv"), strings.NewReader(""), &stdout, stderr)
	}()
	stderr.until(t, "; the import goes on trying, for up to 1m0s (--retry-for)\n")
	serve(t, dir, "--listen", address)
	if code := <-done; code != exitOK || stdout.String() != "imported 5, already there 0, refused 0\n" {
		t.Errorf("exit %d, %q, %q; want 0 and 5 rows", code, stdout.String(), stderr)
	}
	if want := "tidemark: cannot reach a node at " + address + ": dial tcp " + address + ": connect: connection refused; "; !strings.HasPrefix(stderr.String(), want) || strings.Count(stderr.String(), "\n") != 1 {
		t.Errorf("stderr %q, want one line that begins with %q", stderr, want)
	}
}

func TestExportAndImportFollowTheLeader(t *testing.T) {
	node := serve(t, t.TempDir()).address
	follower := &fakeStore{
		append: func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) {
			return nil, api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "n2 leads").With(&pb.NotLeader{LeaderId: "n2", LeaderAddress: node})
		},
		aggregates: func(*pb.ListAggregatesRequest) (*pb.ListAggregatesResponse, error) {
			return nil, api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "n2 leads").With(&pb.NotLeader{LeaderId: "n2", LeaderAddress: node})
		},
	}
	address := follower.start(t)
	expect(t, exitOK, "imported 5, already there 0, refused 0\n", "", importClaims(address, "testdata/claims.csv", "--outstanding", "1")...)
	expect(t, exitOK, exportedClaims, "", "export", "--server", address)
	if n := follower.calls(); n != 2 {
		t.Errorf("the follower was asked %d times, want once by each command", n)
	}
}

func TestBenchFindsTheLeaderBeforeItMeasures(t *testing.T) {
	node := serve(t, t.TempDir()).address
	follower := &fakeStore{orgs: func(*pb.ListOrgsRequest) (*pb.ListOrgsResponse, error) {
		return nil, api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "n2 leads").With(&pb.NotLeader{LeaderId: "n2", LeaderAddress: node})
	}}
	code, stdout, stderr := runCommand(t, "bench", "append", "--connections", "2", "--outstanding", "8", "--count", "40",
		"--server", freeAddress(t)+","+follower.start(t), "--output", "json")
	var r bench.Result
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK || stderr != "" || r.Count != 40 || len(r.Errors) != 0 {
		t.Errorf("exit %d, %q, %q, %v; want 40 calls without errors", code, stdout, stderr, err)
	}
	if n := follower.calls(); n != 2 {
		t.Errorf("the follower was asked %d times, want once for each connection", n)
	}
	address := freeAddress(t)
	code, stdout, stderr = runCommand(t, "bench", "append", "--server", address)
	if code != exitFailure || stdout != "" || !strings.HasPrefix(stderr, "tidemark: cannot reach a node at "+address+": ") {
		t.Errorf("with nobody there: exit %d, %q, %q", code, stdout, stderr)
	}
}
