package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

const (
	serverVariable = "TIDEMARK_SERVER"
	defaultServer  = "127.0.0.1:7440"

	// connectTimeout bounds how long one address is tried before the next one is.
	connectTimeout = 5 * time.Second

	// maxMessageBytes is what the commands receive in one message. A batch can be as large
	// as the largest request (16 MiB), and a read message holds several small ones.
	maxMessageBytes = 64 << 20
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

// dial connects to the first of the --server addresses that answers. The error, if none
// does, names each of them; nothing was sent then.
func dial(ctx context.Context, f *clientFlags, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	seeds, err := f.seeds()
	if err != nil {
		return nil, err
	}
	var failures []error
	for _, seed := range seeds {
		conn, err := dialAddress(ctx, seed, opts...)
		if err == nil {
			return conn, nil
		}
		failures = append(failures, err)
	}
	return nil, errors.Join(failures...)
}

// maxRedirects bounds how often one command follows "the leader is elsewhere".
const maxRedirects = 5

// call runs one call against the cluster: at the first of the --server addresses that can
// be reached, and from there at the leader, if a node says that it is not the leader. Such
// an answer (2011) is a definite no, so that nothing is sent twice. Every other failure is
// the call's result and is returned as it is; an *exitError means that nothing was sent.
func (f *clientFlags) call(ctx context.Context, call func(context.Context, pb.EventStoreServiceClient) error) error {
	seeds, err := f.seeds()
	if err != nil {
		return err
	}
	var failures []error
	redirects := 0
	for len(seeds) > 0 {
		address := seeds[0]
		seeds = seeds[1:]
		conn, err := dialAddress(ctx, address)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		err = call(ctx, pb.NewEventStoreServiceClient(conn))
		_ = conn.Close()
		if api.CodeOf(err) != pb.ErrorCode_ERROR_CODE_NOT_LEADER {
			return err
		}
		failures = append(failures, fmt.Errorf("%s: %w", address, err))
		leader, _ := api.DetailOf[*pb.NotLeader](err)
		if next := leader.GetLeaderAddress(); next != "" && next != address && redirects < maxRedirects {
			redirects++
			seeds = append([]string{next}, seeds...)
		}
	}
	return &exitError{code: exitFailure, err: errors.Join(failures...)}
}

// dialAddress opens one connection to address and waits until it is ready for calls, so
// that a node that is not there is found out before anything is sent. Service-config
// retries are off: whether an append may be sent again is the caller's decision.
func dialAddress(ctx context.Context, address string, opts ...grpc.DialOption) (*grpc.ClientConn, error) {
	var lastDial atomic.Pointer[error]
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes)),
		grpc.WithContextDialer(func(ctx context.Context, target string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, "tcp", target)
			lastDial.Store(&err)
			return conn, err
		}),
	}, opts...)
	conn, err := grpc.NewClient("passthrough:///"+address, opts...)
	if err != nil {
		return nil, usageError("--server %s: %w", address, err)
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn.Connect()
	for {
		state := conn.GetState()
		if state == connectivity.Ready {
			return conn, nil
		}
		failed := state == connectivity.TransientFailure || state == connectivity.Shutdown
		if !failed && conn.WaitForStateChange(ctx, state) {
			continue
		}
		_ = conn.Close()
		return nil, unreachable(ctx, address, lastDial.Load())
	}
}

// unreachable says why a node could not be reached. dialled is the result of the last TCP
// connection attempt, if there was one.
func unreachable(ctx context.Context, address string, dialled *error) error {
	switch {
	case dialled != nil && *dialled != nil:
		return fmt.Errorf("cannot reach a node at %s: %w; is \"tidemark serve\" running there, and is this its --listen address?",
			address, *dialled)
	case ctx.Err() != nil:
		return fmt.Errorf("cannot reach a node at %s: no answer in time (%w)", address, ctx.Err())
	default:
		return fmt.Errorf("cannot reach a node at %s: something answers there, but not with gRPC; expected the node's --listen address, is this another of its ports?",
			address)
	}
}
