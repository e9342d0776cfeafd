package main

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
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
	code, _, stderr := runCommand(t, appendArgs(addressA)...)
	if lines := strings.Count(stderr, "2011 NotLeader: not me"); code != exitFailure || lines != 1+maxRedirects {
		t.Errorf("exit %d and %d refusals, want 1 and %d:\n%s", code, lines, 1+maxRedirects, stderr)
	}
}
