package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	"github.com/tidemark-db/tidemark/internal/bench"
	"github.com/tidemark-db/tidemark/internal/leader"
	"github.com/tidemark-db/tidemark/server"
)

func newBenchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure a node, and what it can be measured against",
		Long: `Measure a node: "append" drives appends against a running one, "echo" the same calls
against a gRPC server that does nothing, and "fsync" appends to a file and flushes it.
The three together say how much of what the machine can do the node makes use of.`,
		Args: cobra.NoArgs, // with RunE, so that a word that is no command is an error
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newBenchAppendCommand(), newBenchSubscribeCommand(), newBenchEchoCommand(), newBenchFsyncCommand(), newEchoServerCommand())
	return cmd
}

// benchFlags are the flags that append and echo share.
type benchFlags struct {
	opts             bench.AppendOptions
	mode             string
	writesPerMessage int
	connections      int
}

const (
	modeUnary  = "unary"
	modeStream = "stream"

	maxConnections = 1024
)

func (f *benchFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.SortFlags = false
	f.mode = modeUnary
	flags.Var(choice{&f.mode, []string{modeUnary, modeStream}}, "mode", "one call for each write, or one append stream a connection")
	flags.IntVar(&f.writesPerMessage, "writes-per-message", 1, "most writes in one message of a stream")
	flags.IntVar(&f.connections, "connections", 4, "how many connections the calls are spread over")
	flags.IntVar(&f.opts.Outstanding, "outstanding", 64, "how many calls wait for their answer at one time, over all connections; each is a writer of its own; with --mode stream, each connection is one writer that pipelines its share")
	flags.DurationVar(&f.opts.Duration, "duration", 10*time.Second, "how long to measure; 0 = until --count")
	flags.Uint64Var(&f.opts.Count, "count", 0, "how many calls to measure; 0 = until --duration; what comes first ends the run")
	flags.DurationVar(&f.opts.Warmup, "warmup", 0, "how long to send before measuring")
	flags.IntVar(&f.opts.Size, "size", 200, "bytes of payload of each event")
	flags.BoolVar(&f.opts.Guard, "guard", false, "send the expected version with each write")
	flags.BoolVar(&f.opts.Enforce, "enforce", false, "ask for the check of the writer's sequence with each write")
	flags.BoolVar(&f.opts.FreshAggregates, "fresh-aggregates", false, "create an aggregate with each write, instead of one for each writer")
	flags.StringVar(&f.opts.Prefix, "prefix", "", "what the ids of aggregates and writers begin with; a random part follows, so that runs do not meet")
}

// validate checks the flags. --duration counts as not given beside --count alone.
func (f *benchFlags) validate(cmd *cobra.Command) error {
	f.opts.Stream, f.opts.WritesPerMessage = f.mode == modeStream, f.writesPerMessage
	if f.opts.Count > 0 && !cmd.Flags().Changed("duration") {
		f.opts.Duration = 0
	}
	if f.connections < 1 || f.connections > maxConnections {
		return usageError("--connections: expected 1 to %d, found %d", maxConnections, f.connections)
	}
	if err := f.opts.Validate(); err != nil {
		return usageError("%w", err)
	}
	return nil
}

// closableConn is a connection that is closed after the run.
type closableConn interface {
	grpc.ClientConnInterface
	io.Closer
}

// run opens the connections with dial, drives the calls, and prints the result.
func (f *benchFlags) run(ctx context.Context, cmd *cobra.Command, output string, dial func(...grpc.DialOption) (closableConn, error)) error {
	conns := make([]grpc.ClientConnInterface, 0, f.connections)
	for range min(f.connections, f.opts.Outstanding) {
		conn, err := dial(bench.DialOptions()...)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		conns = append(conns, conn)
	}
	result, err := bench.Append(ctx, conns, f.opts)
	if err != nil {
		return err
	}
	return printResult(cmd.OutOrStdout(), output, result)
}

func newBenchAppendCommand() *cobra.Command {
	var f benchFlags
	var client clientFlags
	cmd := &cobra.Command{
		Use:   "append",
		Short: "Drive appends against a running node",
		Long: `Drive appends against a running node and print how many succeed in a second, how long they
take, and what errors there are. What it writes stays in the store: aggregates
bench/append/..., for good, since this version cannot delete.

Each outstanding call is a writer of its own, with an aggregate of its own unless
--fresh-aggregates. With --mode stream each connection has one append stream and one writer, whose
writes are pipelined: --outstanding is shared among the connections, and a message takes what
may be sent, up to --writes-per-message. After an error that leaves open whether the write landed it goes on with
a new aggregate.`,
		Example: `  tidemark bench append --connections 4 --outstanding 1024 --duration 30s \
      --guard --enforce
  tidemark bench append --mode stream --writes-per-message 64 --connections 1 \
      --outstanding 64
  tidemark bench append --outstanding 256 --fresh-aggregates --count 1000000 \
      --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.validate(cmd); err != nil {
				return err
			}
			ctx, cancel := client.context(cmd.Context())
			defer cancel()
			return f.run(ctx, cmd, client.output, func(opts ...grpc.DialOption) (closableConn, error) {
				return dialLeader(ctx, &client, opts...)
			})
		},
	}
	f.register(cmd)
	client.register(cmd, 0)
	return cmd
}

// dialLeader connects to the node that leads, so that finding it is no part of what is
// measured. When another one leads the connection goes there.
func dialLeader(ctx context.Context, client *clientFlags, opts ...grpc.DialOption) (closableConn, error) {
	conn, err := client.connect(opts...)
	if err != nil {
		return nil, err
	}
	if err := conn.FindLeader(ctx); err != nil {
		_ = conn.Close()
		return nil, callError(notTaken(err))
	}
	return conn, nil
}

func newBenchEchoCommand() *cobra.Command {
	var f benchFlags
	var client clientFlags
	cmd := &cobra.Command{
		Use:   "echo",
		Short: "Drive the same calls against a gRPC server that does nothing",
		Long: `Start a gRPC server that does nothing but answer, in a process of its own, with the
transport options of a node, and drive it like "bench append" does: the same requests, and
answers of the same size. A node cannot be faster than this on the same machine.

It takes the flags of "bench append", so that one command line does for both; --server has
no effect.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := f.validate(cmd); err != nil {
				return err
			}
			ctx, cancel := client.context(cmd.Context())
			defer cancel()
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("find this program, to start the echo server: %w", err)
			}
			command := exec.Command(self, "bench", "echo-server")
			command.Stderr = cmd.ErrOrStderr()
			echo, err := bench.StartEcho(ctx, command)
			if err != nil {
				return err
			}
			err = f.run(ctx, cmd, client.output, func(opts ...grpc.DialOption) (closableConn, error) {
				return leader.Dial(ctx, echo.Address, opts...)
			})
			return errors.Join(err, echo.Stop())
		},
	}
	f.register(cmd)
	client.register(cmd, 0)
	return cmd
}

// newEchoServerCommand is what bench echo starts.
func newEchoServerCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "echo-server",
		Short:  "Serve the echo until standard input ends",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return bench.ServeEcho(cmd.InOrStdin(), cmd.OutOrStdout(), server.TransportOptions(server.DefaultMaxRequestBytes)...)
		},
	}
}

func newBenchFsyncCommand() *cobra.Command {
	var opts bench.FsyncOptions
	var output string
	cmd := &cobra.Command{
		Use:   "fsync",
		Short: "Append to a file and flush it, one writer",
		Long: `Append to a growing file and flush it (fdatasync), again and again, and print how many a
second and how long one takes. A durable write to the same disk cannot be faster, unless it
shares its flush with others.`,
		Example: `  tidemark bench fsync --dir tidemark-data --size 4096 --duration 10s`,
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.Validate(); err != nil {
				return usageError("%w", err)
			}
			result, err := bench.Fsync(cmd.Context(), opts)
			if err != nil {
				return err
			}
			return printResult(cmd.OutOrStdout(), output, result)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&opts.Dir, "dir", "", "`DIRECTORY` to write in; the file is removed afterwards (required)")
	flags.IntVar(&opts.Size, "size", 4096, "bytes to append before each flush")
	flags.DurationVar(&opts.Duration, "duration", 5*time.Second, "how long to measure")
	registerOutput(cmd, &output)
	return cmd
}

// printResult prints what a benchmark measured.
func printResult(w io.Writer, output string, r bench.Result) error {
	if output == outputJSON {
		return json.NewEncoder(w).Encode(r)
	}
	var failed []string
	for _, code := range slices.Sorted(maps.Keys(r.Errors)) {
		failed = append(failed, fmt.Sprintf("%s: %d", code, r.Errors[code]))
	}
	if failed == nil {
		failed = []string{"none"}
	}
	return fields(w,
		"rate", fmt.Sprintf("%.0f/s", r.Rate),
		"p50", fmt.Sprintf("%.3f ms", r.P50MS),
		"p99", fmt.Sprintf("%.3f ms", r.P99MS),
		"p99.9", fmt.Sprintf("%.3f ms", r.P999MS),
		"errors", strings.Join(failed, ", "),
		"count", r.Count,
		"measured", fmt.Sprintf("%.3f s", r.Seconds))
}
