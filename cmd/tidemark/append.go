package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

const (
	contentJSON   = "application/json"
	contentBinary = "application/octet-stream"

	// largestFile is the largest request that a server can be told to accept.
	largestFile = 16 << 20
)

// appendFlags are what the command line says about one event.
type appendFlags struct {
	client      clientFlags
	clientID    string
	seq         uint64
	eventType   string
	data        string
	file        string
	eventID     string
	contentType string
	occurredAt  string
	metadata    []string
	expect      uint64
	create      bool
	enforce     bool
	previousSeq uint64
	confirm     bool
	requestID   string
	timeline    string
}

func newAppendCommand() *cobra.Command {
	f := &appendFlags{}
	cmd := &cobra.Command{
		Use:   "append ORG/TYPE/ID",
		Short: "Append one event to an aggregate",
		Long: `Append one event to an aggregate, as the writer --client-id with its sequence --seq.

The sequence is what makes a retry safe: a writer counts its events up, and a sequence that
was used is refused (exit code 20), so the same command can be given again after any
failure without writing twice. The request is sent once; nothing here resends it after an
outcome that leaves open whether it landed (exit code 23, which says how to find out).`,
		Example: `  tidemark append acme/orders/4821 --client-id billing --seq 1 \
      --event-type OrderPlaced --data '{"total":12}' --create
  tidemark append acme/orders/4821 --client-id billing --seq 2 \
      --event-type OrderPaid --file payment.json --expect 1 --event-id pay-77 \
      --confirm`,
		Args: exactly("ORG/TYPE/ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req, err := f.request(cmd, args[0])
			if err != nil {
				return err
			}
			return f.send(cmd, req)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.clientID, "client-id", "", "the writer's `NAME`; stable across its restarts (required)")
	flags.Uint64Var(&f.seq, "seq", 0, "`NUMBER` that the writer gives this event, counting up from 1 (required)")
	flags.StringVar(&f.eventType, "event-type", "", "`TYPE` of the event (required)")
	flags.StringVar(&f.data, "data", "", "payload, as `JSON`")
	flags.StringVar(&f.file, "file", "", "`FILE` with the payload, sent as it is; - = standard input")
	flags.StringVar(&f.contentType, "content-type", "", "content `TYPE` of the payload (default "+contentJSON+" for --data and *.json, else "+contentBinary+")")
	flags.StringVar(&f.eventID, "event-id", "", "your own `ID` for the event")
	flags.StringVar(&f.occurredAt, "occurred-at", "", "`TIME` when it happened, RFC 3339, e.g. 2026-01-31T12:00:00Z; not set = left out")
	flags.StringArrayVar(&f.metadata, "metadata", nil, "metadata of the event, `KEY=VALUE`; may be given several times")
	flags.Uint64Var(&f.expect, "expect", 0, "refuse unless the aggregate is at this `VERSION`; 0 = it must not exist")
	flags.BoolVar(&f.create, "create", false, "create the aggregate if it does not exist")
	flags.BoolVar(&f.enforce, "enforce", true, "refuse a sequence that this writer has used on the aggregate")
	flags.Uint64Var(&f.previousSeq, "previous-seq", 0, "refuse unless this `NUMBER` is the writer's last sequence on the aggregate")
	flags.BoolVar(&f.confirm, "confirm", false, "if this very event landed before, answer with its original result; needs --event-id")
	flags.StringVar(&f.requestID, "request-id", "", "`ID` for the server's log")
	flags.StringVar(&f.timeline, "timeline", "", "refuse unless this `ID` is the cluster's timeline")
	f.client.register(cmd, 30*time.Second)
	for _, name := range []string{"client-id", "seq", "event-type"} {
		// The flags exist: this cannot fail.
		_ = cmd.MarkFlagRequired(name)
	}
	return cmd
}

// request builds the request that the flags describe.
func (f *appendFlags) request(cmd *cobra.Command, aggregate string) (*pb.AppendRequest, error) {
	key, err := parseAggregate(aggregate)
	if err != nil {
		return nil, err
	}
	switch data, file := cmd.Flags().Changed("data"), cmd.Flags().Changed("file"); {
	case !data && !file:
		return nil, usageError("expected the payload, as --data JSON or --file FILE, found neither")
	case data && file:
		return nil, usageError("expected the payload once, as --data JSON or --file FILE, found both")
	case f.seq == 0:
		return nil, usageError("--seq: expected a number from 1, found 0")
	case f.confirm && f.eventID == "":
		return nil, usageError("--confirm needs --event-id: it is what tells this event from another one with the same --seq")
	case f.confirm && !f.enforce:
		return nil, usageError("--confirm needs --enforce: without it nothing is looked up")
	}
	event := &pb.NewEvent{
		ClientSeq: f.seq, EventId: f.eventID, Type: f.eventType, ContentType: contentJSON,
	}
	if cmd.Flags().Changed("file") {
		if event.Payload, err = readPayload(cmd.InOrStdin(), f.file); err != nil {
			return nil, err
		}
		if !strings.EqualFold(filepath.Ext(f.file), ".json") {
			event.ContentType = contentBinary
		}
	} else {
		event.Payload = []byte(f.data)
		if err := json.Unmarshal(event.Payload, new(json.RawMessage)); err != nil {
			return nil, usageError("--data: expected JSON, found %q (%w); to send bytes of any kind use --file", f.data, err)
		}
	}
	if f.contentType != "" {
		event.ContentType = f.contentType
	}
	if event.OccurredAt, err = parseTime("occurred-at", f.occurredAt); err != nil {
		return nil, err
	}
	if event.Metadata, err = parseMetadata(f.metadata); err != nil {
		return nil, err
	}
	write := &pb.Write{
		Aggregate: key, Events: []*pb.NewEvent{event},
		AllowCreate: f.create, EnforceClientIdempotency: f.enforce,
	}
	if cmd.Flags().Changed("expect") {
		write.ExpectedVersion = &f.expect
	}
	if cmd.Flags().Changed("previous-seq") {
		write.PreviousClientSeq = &f.previousSeq
	}
	req := &pb.AppendRequest{
		RequestId: f.requestID, ClientId: f.clientID, Writes: []*pb.Write{write},
		OnDuplicate: pb.OnDuplicate_ON_DUPLICATE_REJECT, Timeline: f.timeline,
	}
	if f.confirm {
		req.OnDuplicate = pb.OnDuplicate_ON_DUPLICATE_CONFIRM
	}
	return req, nil
}

// send sends the request and prints the result.
func (f *appendFlags) send(cmd *cobra.Command, req *pb.AppendRequest) error {
	ctx, cancel := f.client.context(cmd.Context())
	defer cancel()
	var resp *pb.AppendResponse
	err := f.client.call(ctx, func(ctx context.Context, store pb.EventStoreServiceClient) (err error) {
		resp, err = store.Append(ctx, req)
		return err
	})
	if err != nil {
		return appendError(err, req, func(refusal error) comparison { return f.compareRecorded(ctx, req, refusal) })
	}
	return unprinted("the write has landed", f.print(cmd.OutOrStdout(), resp))
}

func (f *appendFlags) print(out io.Writer, resp *pb.AppendResponse) error {
	if f.client.output == outputJSON {
		return writeJSON(out, resp)
	}
	for _, r := range resp.GetResults() {
		outcome := "written"
		if r.GetAlreadyCommitted() {
			outcome = "had landed already; this is the original result"
		}
		if err := fields(out, "result", outcome,
			"aggregate", formatAggregate(r.GetAggregate()),
			"version", r.GetVersion(),
			"position", r.GetPosition(),
			"event number", r.GetFirstEventNumber(),
			"committed at", formatTime(r.GetCommittedAt()),
			"chain hash", fmt.Sprintf("%x", r.GetChainHash())); err != nil {
			return err
		}
	}
	return nil
}

// readPayload reads a file, or standard input for "-".
func readPayload(stdin io.Reader, name string) ([]byte, error) {
	in := stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return nil, usageError("--file: %w", err)
		}
		defer func() { _ = file.Close() }()
		in = file
	}
	payload, err := io.ReadAll(io.LimitReader(in, largestFile+1))
	if err != nil {
		return nil, usageError("--file: %w", err)
	}
	if len(payload) > largestFile {
		return nil, usageError("--file: expected at most %d bytes, the largest request that any server accepts; %s is larger", largestFile, name)
	}
	return payload, nil
}

// parseMetadata reads KEY=VALUE pairs. A key that is given twice is a mistake.
func parseMetadata(pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	metadata := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok {
			return nil, usageError("--metadata: expected KEY=VALUE, found %q", pair)
		}
		if _, twice := metadata[key]; twice {
			return nil, usageError("--metadata: expected every key once, found %q twice", key)
		}
		metadata[key] = value
	}
	return metadata, nil
}

// parseTime reads the value of a flag that holds a time; empty = not set.
func parseTime(flag, text string) (*timestamppb.Timestamp, error) {
	if text == "" {
		return nil, nil
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil, usageError("--%s: expected a time such as 2026-01-31T12:00:00Z (RFC 3339), found %q", flag, text)
	}
	return timestamppb.New(t), nil
}
