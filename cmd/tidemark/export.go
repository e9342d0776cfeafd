package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/importer"
)

func newExportCommand() *cobra.Command {
	var client clientFlags
	var opts importer.ExportOptions
	cmd := &cobra.Command{
		Use:   "export",
		Short: "Write events to standard output as NDJSON, one event a line",
		Long: `Write the events of all aggregates, or of some, as NDJSON, one event a line, in the order
of the aggregates' keys and of their versions. "tidemark import" takes the lines back.

A line has what makes the event: aggregate, version, event_index and event_count (its place
in its batch), client_id, client_seq, event_id, type, schema, occurred_at, content_type,
metadata, encryption, and the payload: as "payload" if it is JSON, by its content type and in
fact, and comes back unchanged, else as "payload_base64". 64-bit numbers are strings. What
belongs to the store is left out (positions, commit times, hashes), so that the export of an
imported export is the same file.

Deleted aggregates are left out, and so is what was trimmed. Each aggregate is exported as of
one moment, but not all as of the same.`,
		Example: `  tidemark export --org acme --type orders > orders.ndjson
  tidemark export --org acme --type orders --id-prefix 2024- | jq -c .payload`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.Validate(); err != nil {
				return usageError("%w", err)
			}
			return runExport(cmd, &client, opts)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&opts.Org, "org", "", "only this `ORG`")
	flags.StringVar(&opts.Type, "type", "", "only this `TYPE` of aggregates; needs --org")
	flags.StringVar(&opts.IDPrefix, "id-prefix", "", "only aggregates whose id begins with this `PREFIX`; needs --type")
	flags.DurationVar(&opts.RetryFor, "retry-for", time.Minute, "how long a failing read is repeated before the export ends")
	client.register(cmd, 0)
	return cmd
}

func exported(c importer.ExportCounts) string {
	return count(int(c.Events), "event", "events") + " of " + count(int(c.Aggregates), "aggregate", "aggregates")
}

// isRegular says whether w is a file in a file system.
func isRegular(w io.Writer) bool {
	file, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode().IsRegular()
}

func runExport(cmd *cobra.Command, client *clientFlags, opts importer.ExportOptions) error {
	ctx, cancel := client.context(cmd.Context())
	defer cancel()
	conn, err := client.connect(notice())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	// A bar among the lines themselves would help nobody, and what a pipe leads to may well
	// print on the same terminal.
	bar := &progress{}
	if isRegular(cmd.OutOrStdout()) {
		bar = newProgress(cmd.ErrOrStderr(), -1)
	}
	// What the export says comes from several goroutines.
	var mu sync.Mutex
	opts.Progress = func(c importer.ExportCounts) {
		mu.Lock()
		defer mu.Unlock()
		bar.say(func() string { return exported(c) })
	}
	opts.Waiting = func(err error) {
		mu.Lock()
		defer mu.Unlock()
		bar.clear()
		fmt.Fprintf(cmd.ErrOrStderr(), "tidemark: %s; the export goes on trying, for up to %s (--retry-for)\n", printable(plainError(err).Error()), opts.RetryFor)
	}
	_, err = importer.Export(ctx, pb.NewEventStoreServiceClient(conn), cmd.OutOrStdout(), opts)
	bar.clear()
	const incomplete = "The export is not complete; do not use it."
	switch {
	case err == nil:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &exitError{code: exitFailure, err: errors.New("the export did not end within --timeout"), advice: incomplete}
	case ctx.Err() != nil:
		return &exitError{code: exitFailure, err: errors.New("interrupted"), advice: incomplete}
	}
	return &exitError{code: exitFailure, err: err, advice: incomplete}
}
