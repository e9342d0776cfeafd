package main

import (
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

func TestHealthAsksOneNodeForItselfOrForLeadership(t *testing.T) {
	t.Setenv("TIDEMARK_SERVER", "")
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	answers := health.NewServer()
	s := grpc.NewServer()
	healthpb.RegisterHealthServer(s, answers)
	done := make(chan struct{})
	go func() { // ends when Stop closes the listener
		defer close(done)
		_ = s.Serve(listener)
	}()
	t.Cleanup(func() { s.Stop(); <-done })
	address := listener.Addr().String()

	const up, down = healthpb.HealthCheckResponse_SERVING, healthpb.HealthCheckResponse_NOT_SERVING
	answers.SetServingStatus("", up)
	answers.SetServingStatus("tidemark.leader", down) // the name is the contract's
	check(t, output{exitOK, "SERVING\n", ""}, "health", "--server", address)
	check(t, output{exitFailure, "NOT_SERVING\n", ""}, "health", "--leader", "--server", address)
	answers.SetServingStatus("", down)
	answers.SetServingStatus("tidemark.leader", up)
	check(t, output{exitFailure, "NOT_SERVING\n", ""}, "health", "--server", address)
	check(t, output{exitOK, "SERVING\n", ""}, "health", "--leader", "--server", address)
	check(t, output{exitUsage, "", "tidemark: --server: expected one host:port, because health is one node's, found 2\nSee \"tidemark health --help\".\n"},
		"health", "--server", address+","+address)

	s.Stop()
	code, stdout, stderr := runCommand(t, "health", "--server", address)
	if code != exitFailure || stdout != "" || !strings.HasPrefix(stderr, "tidemark: "+address+": ") || !strings.Contains(stderr, "connection refused") {
		t.Errorf("with nobody there: exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}
