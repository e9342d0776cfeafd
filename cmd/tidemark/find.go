package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

func newFindCommand() *cobra.Command {
	var client clientFlags
	var fresh freshness
	cmd := &cobra.Command{
		Use:   "find ORG/TYPE/ID CLIENT_ID SEQ",
		Short: "Find the event that a writer recorded with a sequence",
		Long: `Find the event that a writer recorded with a sequence on an aggregate: what to ask after
an append whose outcome is unknown. Exits with 24 if there is none; that is final only once
the append cannot be on its way any more (to be sure, send the same append again).`,
		Example: `  tidemark find acme/orders/4821 billing 7`,
		Args:    exactly("ORG/TYPE/ID", "CLIENT_ID", "SEQ"),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := parseAggregate(args[0])
			if err == nil {
				err = fresh.check()
			}
			if err != nil {
				return err
			}
			seq, err := strconv.ParseUint(args[2], 10, 64)
			if err != nil || seq == 0 {
				return usageError("SEQ: expected a whole number from 1, found %q", args[2])
			}
			ctx, cancel := client.context(cmd.Context())
			defer cancel()
			var resp *pb.FindEventResponse
			err = client.call(ctx, func(ctx context.Context, store pb.EventStoreServiceClient) (err error) {
				resp, err = store.FindEvent(ctx, &pb.FindEventRequest{
					Aggregate: key, ClientId: args[1], ClientSeq: seq,
					Consistency: fresh.level(), MinPosition: fresh.minPosition, Timeline: fresh.timeline,
				})
				return err
			})
			if err != nil {
				return callError(err)
			}
			if client.output == outputJSON {
				err = writeJSON(cmd.OutOrStdout(), resp)
			} else if resp.GetFound() {
				err = printFound(cmd, resp)
			}
			if err == nil && !resp.GetFound() {
				err = &exitError{code: exitNotFound, err: fmt.Errorf("writer %q has no committed event with sequence %d on %s", args[1], seq, args[0])}
			}
			return err
		},
	}
	cmd.Flags().SortFlags = false
	fresh.register(cmd, "linearizable")
	client.register(cmd, 30*time.Second)
	return cmd
}

// printFound prints the event that was asked for, and its batch's place.
func printFound(cmd *cobra.Command, resp *pb.FindEventResponse) error {
	pairs := []any{"holder", formatHolder(resp.GetHolder())}
	events := resp.GetBatch().GetEvents()
	if i := int(resp.GetEventIndex()); i < len(events) {
		e := events[i]
		pairs = append(pairs,
			"event number", e.GetEventNumber(),
			"type", e.GetType(),
			"event id", dash(e.GetEventId()),
			"occurred at", formatTime(e.GetOccurredAt()),
			"content type", e.GetContentType(),
			"payload", formatPayload(e, len(e.GetPayload())))
	}
	return fields(cmd.OutOrStdout(), pairs...)
}
