package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

func newTrimCommand() *cobra.Command {
	var client clientFlags
	var keepFrom, expect uint64
	var timeline string
	cmd := &cobra.Command{
		Use:   "trim ORG/TYPE/ID --keep-from VERSION",
		Short: "Make the oldest batches of an aggregate unreadable, for good",
		Long: `Make the batches of an aggregate below a version unreadable, for good. The newest batch
always stays. If that version is the first that can be read already, or lies below it,
nothing changes.

What writers have recorded is not forgotten: a sequence that was used is refused as
before. Space is reclaimed in the background; "tidemark compact" does it now.

Trimming again after an unknown outcome (exit code 23) does no harm.`,
		Example: `  tidemark trim acme/orders/4821 --keep-from 1200
  tidemark trim acme/orders/4821 --keep-from 1200 --expect 1350`,
		Args: exactly("ORG/TYPE/ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			key, err := parseAggregate(args[0])
			if err != nil {
				return err
			}
			req := &pb.TrimRequest{Aggregate: key, KeepFromVersion: keepFrom, Timeline: timeline}
			if cmd.Flags().Changed("expect") {
				req.ExpectedVersion = &expect
			}
			ctx, cancel := client.context(cmd.Context())
			defer cancel()
			var resp *pb.TrimResponse
			err = client.call(ctx, func(ctx context.Context, store pb.EventStoreServiceClient) (err error) {
				resp, err = store.Trim(ctx, req)
				return err
			})
			if err != nil {
				return alterError(err, "trim", againIsHarmless)
			}
			const done = "the trim has happened"
			if client.output == outputJSON {
				return unprinted(done, writeJSON(cmd.OutOrStdout(), resp))
			}
			changed := "trimmed"
			if resp.GetPosition() == 0 {
				changed = "nothing to trim"
			}
			return unprinted(done, fields(cmd.OutOrStdout(),
				"aggregate", formatAggregate(key), "result", changed, "first version", resp.GetFirstVersion(),
				"position", resp.GetPosition(), "timeline", resp.GetTimeline()))
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Uint64Var(&keepFrom, "keep-from", 0, "the first `VERSION` that stays (required)")
	flags.Uint64Var(&expect, "expect", 0, "refuse unless the aggregate is at this `VERSION`")
	flags.StringVar(&timeline, "timeline", "", "refuse unless the cluster is on this `TIMELINE`")
	client.register(cmd, 30*time.Second)
	_ = cmd.MarkFlagRequired("keep-from") // the flag exists: this cannot fail
	return cmd
}

const againIsHarmless = "Giving the same command again does no harm."

// alterError turns what a trim or a delete failed with into the command's error. The call was
// sent: whatever is not known to be a definite no is an unknown outcome; again says what giving
// the same command once more would do then.
func alterError(err error, what, again string) error {
	if err == nil || errors.As(err, new(*exitError)) {
		return err
	}
	unknown := &exitError{
		code: exitUnknown, err: plainError(err), mayHaveHappened: true,
		advice: fmt.Sprintf("The %s may or may not have happened, and may still. %s", what, again),
	}
	refusal, ok := api.FromStatus(err)
	switch {
	case !ok && status.Code(err) == codes.Unimplemented:
		return callError(err)
	case !ok:
		return unknown
	case refusal.MayHaveHappened() == api.Yes:
		unknown.err = refusal
		return unknown
	}
	err = callError(err)
	switch refusal.Code {
	case pb.ErrorCode_ERROR_CODE_TRIM_OPTIMISTIC_CONCURRENCY_VIOLATION, pb.ErrorCode_ERROR_CODE_DELETE_OPTIMISTIC_CONCURRENCY_VIOLATION:
		if failure := (*exitError)(nil); errors.As(err, &failure) {
			failure.code = exitConflict
		}
	}
	return err
}
