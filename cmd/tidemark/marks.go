package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

func newMarkCommand() *cobra.Command {
	var client clientFlags
	var fresh freshness
	cmd := &cobra.Command{
		Use:   "mark ORG/TYPE/ID CLIENT_ID",
		Short: "Print a writer's mark on an aggregate: its highest sequence",
		Long: `Print a writer's mark on an aggregate: the highest sequence that it ever recorded there,
and what recorded it. A restarting writer goes on with the next one. 0 = nothing recorded;
that is an answer too, also for an aggregate that never existed.`,
		Args: exactly("ORG/TYPE/ID", "CLIENT_ID"),
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
			var resp *pb.GetMarkResponse
			err = client.call(ctx, func(ctx context.Context, store pb.EventStoreServiceClient) (err error) {
				resp, err = store.GetMark(ctx, &pb.GetMarkRequest{
					Aggregate: key, ClientId: args[1],
					Consistency: fresh.level(), MinPosition: fresh.minPosition, Timeline: fresh.timeline,
				})
				return err
			})
			if err != nil {
				return callError(err)
			}
			if client.output == outputJSON {
				return writeJSON(cmd.OutOrStdout(), resp)
			}
			pairs := []any{"mark", resp.GetMark()}
			if resp.InFlightMark != nil {
				pairs = append(pairs, "mark in flight", resp.GetInFlightMark())
			}
			return fields(cmd.OutOrStdout(), append(pairs,
				"holder", formatHolder(resp.GetHolder()), "timeline", resp.GetTimeline())...)
		},
	}
	cmd.Flags().SortFlags = false
	fresh.register(cmd, "linearizable")
	client.register(cmd, 30*time.Second)
	return cmd
}

func newMarksCommand() *cobra.Command {
	var client clientFlags
	var fresh freshness
	cmd := &cobra.Command{
		Use:   "marks ORG/TYPE/ID",
		Short: "List the marks of all writers of an aggregate",
		Long: `List the marks of all writers of an aggregate, in the order of their names.
--output json prints one writer a line.`,
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
			t := newTable(cmd.OutOrStdout(), "CLIENT", "MARK", "VERSION", "POSITION", "EVENT ID", "COMMITTED AT")
			show := func(m *pb.WriterMark) error {
				if client.output == outputJSON {
					return writeJSON(cmd.OutOrStdout(), m)
				}
				h := m.GetHolder()
				return t.row(m.GetClientId(), m.GetMark(), h.GetVersion(), h.GetPosition(), shorten(h.GetEventId()), formatMilliseconds(h.GetCommittedAt()))
			}
			err = client.call(ctx, func(ctx context.Context, store pb.EventStoreServiceClient) error {
				return listMarks(ctx, store, &pb.ListMarksRequest{
					Aggregate: key, Consistency: fresh.level(), MinPosition: fresh.minPosition, Timeline: fresh.timeline,
				}, show)
			})
			if err != nil {
				return callError(err)
			}
			if client.output == outputJSON {
				return nil
			}
			return t.flush()
		},
	}
	cmd.Flags().SortFlags = false
	fresh.register(cmd, "linearizable")
	client.register(cmd, 30*time.Second)
	return cmd
}

// listMarks walks all pages.
func listMarks(ctx context.Context, store pb.EventStoreServiceClient, req *pb.ListMarksRequest, show func(*pb.WriterMark) error) error {
	for {
		page, err := store.ListMarks(ctx, req)
		if err != nil {
			return err
		}
		for _, m := range page.GetMarks() {
			if err := show(m); err != nil {
				return &exitError{code: exitFailure, err: err}
			}
		}
		if page.GetNextPageToken() == "" {
			return nil
		}
		req.PageToken = page.GetNextPageToken()
	}
}
