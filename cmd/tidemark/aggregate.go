package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

func newAggregateCommand() *cobra.Command {
	var client clientFlags
	var fresh freshness
	cmd := &cobra.Command{
		Use:   "aggregate ORG/TYPE/ID",
		Short: "Describe an aggregate: version, event count, last writer",
		Long: `Describe an aggregate: its version, how many events were written to it, and by whom
last. A deleted aggregate is described too; one that never existed exits with 24.`,
		Args: exactly("ORG/TYPE/ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := parseAggregate(args[0])
			if err == nil {
				err = fresh.check()
			}
			if err != nil {
				return err
			}
			ctx, cancel := client.context(cmd.Context())
			defer cancel()
			var resp *pb.GetAggregateResponse
			err = client.call(ctx, func(ctx context.Context, store pb.EventStoreServiceClient) (err error) {
				resp, err = store.GetAggregate(ctx, &pb.GetAggregateRequest{
					Aggregate: key, Consistency: fresh.level(), MinPosition: fresh.minPosition, Timeline: fresh.timeline,
				})
				return err
			})
			if err != nil {
				return callError(err)
			}
			if client.output == outputJSON {
				return writeJSON(cmd.OutOrStdout(), resp)
			}
			return fields(cmd.OutOrStdout(),
				"aggregate", formatAggregate(resp.GetAggregate()),
				"version", resp.GetVersion(),
				"first version", resp.GetFirstVersion(),
				"events", resp.GetEventCount(),
				"incarnation", resp.GetIncarnation(),
				"state", aggregateState(resp),
				"created at", formatTime(resp.GetCreatedAt()),
				"last committed at", formatTime(resp.GetLastCommittedAt()),
				"last writer", resp.GetLastClientId(),
				"position", resp.GetPosition(),
				"chain hash", fmt.Sprintf("%x", resp.GetChainHash()),
				"timeline", resp.GetTimeline())
		},
	}
	cmd.Flags().SortFlags = false
	fresh.register(cmd, "leader")
	client.register(cmd, 30*time.Second)
	return cmd
}

func aggregateState(resp *pb.GetAggregateResponse) string {
	switch {
	case resp.GetDeleted() && resp.GetAllowRecreate():
		return "deleted, may be created again"
	case resp.GetDeleted():
		return "deleted for good"
	}
	return "live"
}
