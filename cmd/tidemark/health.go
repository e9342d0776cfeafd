package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/server"
)

// newHealthCommand is the probe of places that have nothing but the binary: an image without
// a shell.
func newHealthCommand() *cobra.Command {
	var client clientFlags
	var leader bool
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Ask one node whether it is up, or whether it leads",
		Long: `Ask one node, and no other, whether it is a member of its cluster and takes calls; with
--leader, whether it serves as leader. It asks the standard gRPC health service, so that any
gRPC health probe can do the same, and prints "SERVING" or "NOT_SERVING".

A member is SERVING whether or not its cluster has a leader; /readyz on the HTTP port also
says whether the node is as far as the others.

Exits with 0 if the answer is SERVING, and with 1 if it is anything else or none comes.`,
		Example: `  tidemark health
  tidemark health --leader --server 10.0.0.2:7440`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := client.context(cmd.Context())
			defer cancel()
			seeds, err := client.seeds()
			if err != nil {
				return err
			}
			if len(seeds) > 1 {
				return usageError("--server: expected one host:port, because health is one node's, found %d", len(seeds))
			}
			conn, err := grpc.NewClient(seeds[0], grpc.WithTransportCredentials(insecure.NewCredentials()))
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close() }()
			service := ""
			if leader {
				service = server.LeaderService
			}
			answer, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: service})
			if status.Code(err) == codes.Unavailable {
				return &exitError{code: exitFailure, err: fmt.Errorf("%s: %s", seeds[0], status.Convert(err).Message())}
			}
			if err != nil {
				return callError(err)
			}
			if client.output == outputJSON {
				err = writeJSON(cmd.OutOrStdout(), answer)
			} else {
				_, err = fmt.Fprintln(cmd.OutOrStdout(), answer.GetStatus())
			}
			if err == nil && answer.GetStatus() != healthpb.HealthCheckResponse_SERVING {
				return &exitError{code: exitFailure, err: fmt.Errorf("%s is %s", seeds[0], answer.GetStatus()), reported: true}
			}
			return err
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&leader, "leader", false, "ask whether the node serves as leader")
	client.register(cmd, 3*time.Second)
	return cmd
}
