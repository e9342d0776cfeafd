package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/bench"
	"github.com/tidemark-db/tidemark/internal/leader"
)

const (
	modeCatchUp = "catch-up"
	modeLive    = "live"
	modeIdle    = "idle"
)

func newBenchSubscribeCommand() *cobra.Command {
	var client clientFlags
	var mode string
	var connections, subscriptions, rate, size int
	var count uint64
	var duration time.Duration
	cmd := &cobra.Command{
		Use:   "subscribe",
		Short: "Measure subscriptions of a running node",
		Long: `Measure subscriptions of a running node, and print JSON.

"catch-up" subscribes from the first position and says how many batches a second come until
the newest one, and what part that is of what a gRPC server gets across that only sends.
"live" appends --rate times a second and says how long after the answer of an append a
subscriber has it. "idle" opens --subscriptions to aggregates that nothing happens to, prints a
line when all are open, and holds them for --duration: the node's memory is to be read meanwhile.`,
		Example: `  tidemark bench append --fresh-aggregates --count 1000000 &&
      tidemark bench subscribe --mode catch-up
  tidemark bench subscribe --mode live --rate 5000 --duration 30s
  tidemark bench subscribe --mode idle --subscriptions 10000 --connections 100`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if connections < 1 || connections > maxConnections || subscriptions < 1 || rate < 1 || rate > 1_000_000 {
				return usageError("--connections: expected 1 to %d; --subscriptions: at least 1; --rate: 1 to 1000000", maxConnections)
			}
			ctx, cancel := client.context(cmd.Context())
			defer cancel()
			open := func(n int) (conns []grpc.ClientConnInterface, closeAll func(), err error) {
				closeAll = func() {}
				for range n {
					conn, err := dialLeader(ctx, &client, bench.DialOptions()...)
					if err != nil {
						return nil, closeAll, err
					}
					before := closeAll
					closeAll = func() { _ = conn.Close(); before() }
					conns = append(conns, conn)
				}
				return conns, closeAll, nil
			}
			conns, closeAll, err := open(connections)
			defer func() { closeAll() }()
			if err != nil {
				return err
			}
			out := json.NewEncoder(cmd.OutOrStdout())
			switch mode {
			case modeLive:
				own, closeOwn, err := open(1)
				defer closeOwn()
				if err != nil {
					return err
				}
				result, err := bench.Live(ctx, conns, own[0], rate, size, duration)
				return errors.Join(err, out.Encode(result))
			case modeIdle:
				held, stop := client.context(ctx)
				defer stop()
				timer := time.AfterFunc(24*time.Hour, stop)
				defer timer.Stop()
				result, err := bench.Idle(held, conns, subscriptions, func(r bench.IdleResult) {
					_ = out.Encode(r)
					timer.Reset(duration)
				})
				return errors.Join(err, out.Encode(result))
			}
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
			bare, err := leader.Dial(ctx, echo.Address, bench.DialOptions()...)
			if err != nil {
				return errors.Join(err, echo.Stop())
			}
			result, err := bench.CatchUp(ctx, pb.NewEventStoreServiceClient(conns[0]), pb.NewEventStoreServiceClient(bare), count)
			return errors.Join(err, out.Encode(result), bare.Close(), echo.Stop())
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	mode = modeCatchUp
	flags.Var(choice{&mode, []string{modeCatchUp, modeLive, modeIdle}}, "mode", "what to measure")
	flags.IntVar(&connections, "connections", 4, "how many connections appends, or subscriptions, are spread over")
	flags.IntVar(&subscriptions, "subscriptions", 10_000, "idle: how many subscriptions to open")
	flags.IntVar(&rate, "rate", 5000, "live: appends a second")
	flags.IntVar(&size, "size", 200, "live: bytes of payload of each event")
	flags.Uint64Var(&count, "count", 0, "catch-up: stop after this many batches; 0 = all")
	flags.DurationVar(&duration, "duration", 10*time.Second, "live and idle: how long")
	client.register(cmd, 0)
	return cmd
}
