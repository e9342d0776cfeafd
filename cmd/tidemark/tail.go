package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/follow"
)

// checkpointEvery is how often tail stores its progress while it prints.
const checkpointEvery = time.Second

// tailFlags are what the command line says about a subscription.
type tailFlags struct {
	client       clientFlags
	consistency  string
	timeline     string
	org, typ     string
	aggregates   []string
	fromPosition uint64
	fromNow      bool
	file         string
	notices      bool
	maxLatency   time.Duration
	noFollow     bool
	retryFor     time.Duration
	filter       pb.Filter
}

func newTailCommand() *cobra.Command {
	f := &tailFlags{}
	cmd := &cobra.Command{
		Use:   "tail",
		Short: "Follow events as they are committed",
		Long: `Print events of all aggregates, or of some, in the order in which they were committed, and
then those that are committed, until interrupted. It starts with what comes from now on,
unless a position or a checkpoint file says otherwise.

With --checkpoint-file, progress is stored in a file, after it was printed, and the next tail
with the same file goes on there: nothing is missed, and what was printed in the last second
before a crash may be printed again. The file names the timeline of its position; after a
restore from a backup it is refused.

The leader is followed by itself. A table shows one event a line; --output json prints one
batch, or one notice of a trim, a delete or a create, a line.`,
		Example: `  tidemark tail
  tidemark tail --org acme --type orders --event-type OrderPaid --output json
  tidemark tail --from-position 1 --checkpoint-file progress.json
  tidemark tail --org acme --notices --max-latency 5s`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.org, "org", "", "only aggregates of this `ORG`")
	flags.StringVar(&f.typ, "type", "", "only aggregates of this `TYPE`; needs --org")
	flags.StringArrayVar(&f.aggregates, "aggregate", nil, "only this aggregate, `ORG/TYPE/ID`; may be given several times")
	flags.Uint64Var(&f.fromPosition, "from-position", 0, "start at this `POSITION`; above 1 it needs --timeline")
	flags.BoolVar(&f.fromNow, "from-now", false, "start with what is committed from now on, which is the default")
	flags.StringVar(&f.timeline, "timeline", "", "refuse unless this `ID` is the cluster's timeline")
	flags.StringVar(&f.file, "checkpoint-file", "", "store progress in this `FILE`, and go on there if it exists")
	flags.BoolVar(&f.notices, "notices", false, "print what changed, not the events")
	flags.DurationVar(&f.maxLatency, "max-latency", 0, "with --notices, how long one may wait to be joined with others")
	flags.BoolVar(&f.noFollow, "no-follow", false, "end when everything has been printed that was committed at the beginning")
	flags.StringArrayVar(&f.filter.EventTypes, "event-type", nil, "only events of this `TYPE`; may be given several times, like the next two")
	flags.StringArrayVar(&f.filter.ClientIds, "client", nil, "only events of this writer (`NAME`)")
	flags.StringArrayVar(&f.filter.ExcludeClientIds, "exclude-client", nil, "no events of this writer (`NAME`)")
	flags.Var(choice{&f.consistency, []string{"leader", "linearizable", "any"}}, "consistency",
		"which node serves: `LEVEL` leader, linearizable (a leader that has proved it), or any (default leader)")
	flags.DurationVar(&f.retryFor, "retry-for", time.Minute, "how long a node is looked for before tail gives up")
	f.client.register(cmd, 0)
	return cmd
}

// request builds the request that the flags, and the checkpoint if there is one, describe.
func (f *tailFlags) request(stored *checkpoint) (*pb.SubscribeRequest, error) {
	req := &pb.SubscribeRequest{
		Filter: &f.filter, NoticesOnly: f.notices, Timeline: f.timeline,
		Consistency: (&freshness{consistency: f.consistency}).level(),
	}
	switch {
	case len(f.aggregates) > 0 && f.org != "":
		return nil, usageError("--aggregate and --org: expected one of them")
	case len(f.aggregates) > 0:
		scope := &pb.AggregatesScope{}
		for _, a := range f.aggregates {
			key, err := parseAggregate(a)
			if err != nil {
				return nil, err
			}
			scope.Aggregates = append(scope.Aggregates, key)
		}
		req.Scope = &pb.SubscribeRequest_Aggregates{Aggregates: scope}
	case f.typ != "" && f.org == "":
		return nil, usageError("--type needs --org: a type is a part of an org")
	case f.typ != "":
		req.Scope = &pb.SubscribeRequest_Type{Type: &pb.TypeScope{Org: f.org, Type: f.typ}}
	case f.org != "":
		req.Scope = &pb.SubscribeRequest_Org{Org: f.org}
	default:
		req.Scope = &pb.SubscribeRequest_All{All: &pb.AllScope{}}
	}
	if f.maxLatency > 0 {
		if !f.notices {
			return nil, usageError("--max-latency needs --notices: events are never held back")
		}
		req.MaxLatency = durationpb.New(f.maxLatency)
	}
	switch {
	case f.fromNow && f.fromPosition > 0:
		return nil, usageError("--from-now and --from-position: expected one of them")
	case stored != nil:
		if f.timeline != "" && f.timeline != stored.Timeline {
			return nil, usageError("--timeline is %s, and %s is of timeline %s", f.timeline, f.file, stored.Timeline)
		}
		req.Start, req.Timeline = &pb.SubscribeRequest_FromPosition{FromPosition: stored.NextPosition}, stored.Timeline
	case f.fromPosition > 1 && f.timeline == "":
		return nil, usageError("--from-position needs --timeline: positions of another timeline mean nothing here; \"tidemark aggregate\" shows the timeline")
	case f.fromPosition > 0:
		req.Start = &pb.SubscribeRequest_FromPosition{FromPosition: f.fromPosition}
	default:
		req.Start = &pb.SubscribeRequest_FromNow{FromNow: true}
	}
	return req, nil
}

func (f *tailFlags) run(cmd *cobra.Command) error {
	stored, err := loadCheckpoint(f.file)
	if err != nil {
		return &exitError{code: exitFailure, err: err}
	}
	req, err := f.request(stored)
	if err != nil {
		return err
	}
	ctx, cancel := f.client.context(cmd.Context())
	defer cancel()
	// A node that hangs, or a machine that is gone, says nothing; else nothing would be noticed.
	conn, err := f.client.connect(grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 10 * time.Second}))
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	printer := newTailPrinter(cmd.OutOrStdout(), f.client.output)
	progress := &checkpointer{file: f.file}
	opts := follow.Options{RetryFor: f.retryFor}
	told := time.Time{}
	opts.Waiting = func(err error) {
		if code := api.CodeOf(err); code != pb.ErrorCode_ERROR_CODE_SUBSCRIPTION_MOVED && time.Since(told) > 10*time.Second {
			told = time.Now()
			if refusal, ok := api.FromStatus(err); ok {
				err = refusal
			} else {
				err = plainError(err)
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "tidemark: %s; tail goes on trying, for up to %s (--retry-for)\n", printable(err.Error()), f.retryFor)
		}
	}
	err = follow.Run(ctx, pb.NewEventStoreServiceClient(conn), req, opts, func(m *pb.SubscribeResponse, next uint64) error {
		if err := printer.print(m); err != nil {
			return err
		}
		if err := progress.reached(m.GetTimeline(), next, time.Now()); err != nil {
			return err
		}
		if f.noFollow && m.GetCaughtUp() != nil {
			return io.EOF
		}
		return nil
	})
	if saveErr := progress.save(); saveErr != nil && (err == nil || errors.Is(err, context.Canceled)) {
		err = saveErr
	}
	return f.ended(cmd.Context(), ctx, err)
}

// ended is what a tail that has ended answers.
func (f *tailFlags) ended(interrupted, timed context.Context, err error) error {
	switch {
	case err == nil, errors.Is(err, syscall.EPIPE), interrupted.Err() != nil:
		return nil // whoever read it, or whoever started it, has had enough
	case timed.Err() != nil:
		return nil // --timeout was how long to follow
	case api.CodeOf(err) == pb.ErrorCode_ERROR_CODE_TIMELINE_MISMATCH && f.file != "":
		return &exitError{code: exitFailure, err: notTaken(err), advice: fmt.Sprintf(
			"The cluster was restored from a backup since %s was written, or is another one: its positions mean something else now. Make sure of what you have, then remove the file to begin anew.", f.file)}
	case api.CodeOf(err) != pb.ErrorCode_ERROR_CODE_UNSPECIFIED:
		return callError(err)
	}
	return &exitError{code: exitFailure, err: notTaken(err)}
}
