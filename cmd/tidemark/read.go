package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// freshness are the flags that say how fresh a read must be.
type freshness struct {
	consistency string
	minPosition uint64
	timeline    string
}

// register adds the flags; def names the method's default level.
func (f *freshness) register(cmd *cobra.Command, def string) {
	cmd.Flags().Var(choice{&f.consistency, []string{"leader", "linearizable", "any"}}, "consistency",
		"how fresh: `LEVEL` leader, linearizable, or any (what the node has applied) (default "+def+")")
	cmd.Flags().Uint64Var(&f.minPosition, "min-position", 0, "wait until the node has applied this `POSITION`; needs --timeline")
	cmd.Flags().StringVar(&f.timeline, "timeline", "", "refuse unless this `ID` is the cluster's timeline")
}

// check finds flags that do not go together before anything is sent.
func (f *freshness) check() error {
	if f.minPosition > 0 && f.timeline == "" {
		return usageError("--min-position needs --timeline: positions of another timeline mean nothing here; \"tidemark aggregate\" shows the timeline")
	}
	return nil
}

func (f *freshness) level() pb.Consistency {
	switch f.consistency {
	case "leader":
		return pb.Consistency_CONSISTENCY_LEADER
	case "linearizable":
		return pb.Consistency_CONSISTENCY_LINEARIZABLE
	case "any":
		return pb.Consistency_CONSISTENCY_ANY
	}
	return pb.Consistency_CONSISTENCY_UNSPECIFIED
}

// readFlags are what the command line says about a read.
type readFlags struct {
	client    clientFlags
	freshness freshness
	from, to  uint64
	limit     uint32
	backward  bool

	filter                     pb.Filter
	committedFrom, committedTo string
	occurredFrom, occurredTo   string
}

func newReadCommand() *cobra.Command {
	f := &readFlags{}
	cmd := &cobra.Command{
		Use:   "read ORG/TYPE/ID",
		Short: "Read the events of an aggregate",
		Long: `Read the events of an aggregate in version order.

A table shows one event a line and cuts long payloads and event ids ("tidemark find"
shows one event in full); --output json prints one whole batch a line. Filters narrow what is returned: an event must pass all of them, and a batch that
keeps no event is left out.`,
		Example: `  tidemark read acme/orders/4821
  tidemark read acme/orders/4821 --backward --limit 1
  tidemark read acme/orders/4821 --event-type OrderPaid --output json`,
		Args: exactly("ORG/TYPE/ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := f.request(args[0])
			if err != nil {
				return err
			}
			return f.stream(cmd, req)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Uint64Var(&f.from, "from", 0, "`VERSION` to start at; 0 = the first, backward the newest")
	flags.Uint64Var(&f.to, "to", 0, "last `VERSION` to return; 0 = open")
	flags.Uint32Var(&f.limit, "limit", 0, "return at most this `NUMBER` of batches; 0 = no limit")
	flags.BoolVar(&f.backward, "backward", false, "newest first")
	flags.StringArrayVar(&f.filter.EventTypes, "event-type", nil, "only events of this `TYPE`; may be given several times, like the next three")
	flags.StringArrayVar(&f.filter.EventIds, "event-id", nil, "only the event with this `ID`")
	flags.StringArrayVar(&f.filter.ClientIds, "client", nil, "only events of this writer (`NAME`)")
	flags.StringArrayVar(&f.filter.ExcludeClientIds, "exclude-client", nil, "no events of this writer (`NAME`)")
	flags.Uint64Var(&f.filter.ClientSeqFrom, "seq-from", 0, "only events with this client_seq (`NUMBER`) or a higher one")
	flags.Uint64Var(&f.filter.ClientSeqTo, "seq-to", 0, "only events with this client_seq (`NUMBER`) or a lower one")
	flags.StringVar(&f.committedFrom, "committed-from", "", "only events committed at this `TIME` (RFC 3339) or later")
	flags.StringVar(&f.committedTo, "committed-to", "", "only events committed at this `TIME` or earlier")
	flags.StringVar(&f.occurredFrom, "occurred-from", "", "only events that occurred at this `TIME` or later")
	flags.StringVar(&f.occurredTo, "occurred-to", "", "only events that occurred at this `TIME` or earlier")
	f.freshness.register(cmd, "leader")
	f.client.register(cmd, 0)
	return cmd
}

// request builds the request that the flags describe.
func (f *readFlags) request(aggregate string) (*pb.ReadRequest, error) {
	key, err := parseAggregate(aggregate)
	if err == nil {
		err = f.freshness.check()
	}
	if err != nil {
		return nil, err
	}
	for _, t := range []struct {
		flag, text string
		field      **timestamppb.Timestamp
	}{
		{"committed-from", f.committedFrom, &f.filter.CommittedFrom},
		{"committed-to", f.committedTo, &f.filter.CommittedTo},
		{"occurred-from", f.occurredFrom, &f.filter.OccurredFrom},
		{"occurred-to", f.occurredTo, &f.filter.OccurredTo},
	} {
		if *t.field, err = parseTime(t.flag, t.text); err != nil {
			return nil, err
		}
	}
	req := &pb.ReadRequest{
		Aggregate: key, FromVersion: f.from, ToVersion: f.to, Limit: f.limit,
		Direction: pb.Direction_DIRECTION_FORWARD, Filter: &f.filter,
		Consistency: f.freshness.level(), MinPosition: f.freshness.minPosition, Timeline: f.freshness.timeline,
	}
	if f.backward {
		req.Direction = pb.Direction_DIRECTION_BACKWARD
	}
	return req, nil
}

// stream sends the request and prints batches as they arrive.
func (f *readFlags) stream(cmd *cobra.Command, req *pb.ReadRequest) error {
	ctx, cancel := f.client.context(cmd.Context())
	defer cancel()
	printer := newBatchPrinter(cmd.OutOrStdout(), f.client.output)
	var end *pb.ReadEnd
	err := f.client.call(ctx, func(ctx context.Context, store pb.EventStoreServiceClient) error {
		stream, err := store.Read(ctx, req)
		if err != nil {
			return err
		}
		for {
			resp, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			for _, b := range resp.GetBatches() {
				if err := printer.print(b); err != nil {
					return &exitError{code: exitFailure, err: err}
				}
			}
			if resp.GetEnd() != nil {
				end = resp.GetEnd()
			}
		}
	})
	if flushErr := printer.flush(); err == nil {
		err = flushErr
	}
	if err != nil {
		return callError(err)
	}
	if end == nil {
		return &exitError{code: exitFailure, err: errors.New("the answer ended early: expected a last message with the aggregate's version, found none; read again")}
	}
	if f.client.output == outputTable {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s, %s; %s is at version %d, as of position %d\n",
			count(printer.batches, "batch", "batches"), count(printer.events, "event", "events"), formatAggregate(req.GetAggregate()), end.GetCurrentVersion(), end.GetPosition())
	}
	return nil
}

// count is a number with its noun.
func count(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// batchPrinter prints batches as they come.
type batchPrinter struct {
	out             io.Writer
	table           *table // nil = JSON
	batches, events int
}

func newBatchPrinter(out io.Writer, output string) *batchPrinter {
	p := &batchPrinter{out: out}
	if output == outputTable {
		p.table = newTable(out, "VERSION", "EVENT", "POSITION", "CLIENT", "SEQ", "TYPE", "EVENT ID", "COMMITTED AT", "PAYLOAD")
		p.table.width = terminalWidth(out)
	}
	return p
}

func (p *batchPrinter) print(b *pb.Batch) error {
	p.batches++
	p.events += len(b.GetEvents())
	if p.table == nil {
		return writeJSON(p.out, b)
	}
	for _, e := range b.GetEvents() {
		if err := p.table.row(b.GetVersion(), e.GetEventNumber(), b.GetPosition(), b.GetClientId(), e.GetClientSeq(),
			e.GetType(), shorten(e.GetEventId()), formatMilliseconds(b.GetCommittedAt()), formatPayload(e, payloadBytes)); err != nil {
			return err
		}
	}
	return nil
}

func (p *batchPrinter) flush() error {
	if p.table == nil || p.events == 0 {
		return nil
	}
	return p.table.flush()
}

// payloadBytes is how much of a payload a table looks at, whatever the terminal's width.
const payloadBytes = 4096

// formatPayload is the first bytes of a payload, as text.
func formatPayload(e *pb.Event, most int) string {
	payload := e.GetPayload()
	if e.GetEncryption() != nil {
		return fmt.Sprintf("(%d bytes, encrypted)", len(payload))
	}
	if len(payload) > most {
		// The last character may be cut through.
		return strings.ToValidUTF8(string(payload[:most]), "") + "…"
	}
	return string(payload)
}

// idColumns is how much of an event id a table shows.
const idColumns = 16

// shorten cuts an id for a table.
func shorten(id string) string {
	if runes := []rune(id); len(runes) > idColumns+1 {
		return string(runes[:idColumns]) + "…"
	}
	return id
}
