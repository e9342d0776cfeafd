package main

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/leader"
)

const (
	serverVariable = "TIDEMARK_SERVER"
	defaultServer  = "127.0.0.1:7440"
)

// clientFlags are the flags that all commands which talk to a node share.
type clientFlags struct {
	server  string
	output  string
	timeout time.Duration
}

// register adds the shared flags. timeout is the default of --timeout; 0 = no limit.
func (f *clientFlags) register(cmd *cobra.Command, timeout time.Duration) {
	server := defaultServer
	if v := os.Getenv(serverVariable); v != "" {
		server = v
	}
	cmd.Flags().StringVar(&f.server, "server", server,
		"client addresses of the cluster, `HOST:PORT,...`, tried in order ["+serverVariable+"]")
	cmd.Flags().DurationVar(&f.timeout, "timeout", timeout,
		"how long the command may take, e.g. 500ms or 1m; 0 = no limit")
	registerOutput(cmd, &f.output)
}

// context bounds ctx by --timeout.
func (f *clientFlags) context(ctx context.Context) (context.Context, context.CancelFunc) {
	if f.timeout > 0 {
		return context.WithTimeout(ctx, f.timeout)
	}
	return context.WithCancel(ctx)
}

// seeds splits --server.
func (f *clientFlags) seeds() ([]string, error) {
	var seeds []string
	for part := range strings.SplitSeq(f.server, ",") {
		part = strings.TrimSpace(part)
		if part == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(part); err != nil {
			return nil, usageError("--server: expected host:port, found %q", part)
		}
		seeds = append(seeds, part)
	}
	if len(seeds) == 0 {
		return nil, usageError("--server: expected one or more host:port, found none")
	}
	return seeds, nil
}

// connect makes a connection to the cluster at the --server addresses, which connects when
// it is used: calls go to the node that leads, as far as it is known.
func (f *clientFlags) connect(opts ...grpc.DialOption) (*leader.Conn, error) {
	seeds, err := f.seeds()
	if err != nil {
		return nil, err
	}
	return leader.New(seeds, opts...), nil
}

// call runs one call against the cluster's event store, as do does.
func (f *clientFlags) call(ctx context.Context, call func(context.Context, pb.EventStoreServiceClient) error) error {
	return f.do(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return call(ctx, pb.NewEventStoreServiceClient(conn))
	})
}

// do runs one call against the cluster: at the first of the --server addresses that can be
// reached, and from there at the leader, if a node says that it is not the leader. Such an
// answer (2011, 2015) is a definite no, so that nothing is done twice. Every other failure is
// the call's result and is returned as it is; an *exitError means that nothing was done.
func (f *clientFlags) do(ctx context.Context, call func(context.Context, grpc.ClientConnInterface) error) error {
	conn, err := f.connect()
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	return notTaken(conn.Do(ctx, call))
}

// notTaken makes the failure of a call that no node took the command's: nothing was done.
func notTaken(err error) error {
	if nobody := (*leader.NotTakenError)(nil); errors.As(err, &nobody) {
		return &exitError{code: exitFailure, err: nobody}
	}
	return err
}
