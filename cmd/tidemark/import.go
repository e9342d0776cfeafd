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
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/importer"
)

// importFlags are the flags of import.
type importFlags struct {
	client  clientFlags
	format  string
	opts    importer.Options
	printed uint64
}

func newImportCommand() *cobra.Command {
	f := &importFlags{}
	cmd := &cobra.Command{
		Use:   "import FILE",
		Short: "Import a CSV or NDJSON file, or an export",
		Long: `Import a file, one event for each row. FILE is UTF-8; "-" reads standard
input.

One aggregate is made for each value of --id-column. Every column that no flag names goes
into the payload, a JSON object; a CSV column without a name is called column_N there, N
counting from 0. The values of CSV stay strings, those of NDJSON objects stay what they are.
A row's sequence is its rank within its aggregate. A time is RFC 3339, or near it:
"2010-12-30 14:32:00+01:00", "2010-12-30 14:32:00" (taken as UTC), "2010-12-30".

Running an import again with the same file adds what is missing and nothing
else, whatever ended the run before. Ranks are counted from the rows of the file:
once imported, a file may only grow at its end. From the first row on that was
inserted, removed, moved or changed, the rows of its aggregate are refused, and
so are those of another file with the same --client-id and aggregates.

When a row is refused, the later rows of its aggregate are refused too and are
not sent; other aggregates go on. A row that was never written can be mended
where it stands; then run the import again. One that is refused because the
store holds another event in its place cannot: what is written stays.

If it cannot be told which aggregate a row belongs to (a line that is not CSV or
JSON, too few or too many columns, an id that is not allowed), the import stops
there: the rows before it are in, the rows behind it are not sent. Mend the line
and run the import again.

The lines that "tidemark export" writes are imported with --format ndjson and no other flags;
batches, writers and sequences come back as they were.

The file is streamed. Memory grows with the number of aggregates only, by about 100 bytes each.
The last line printed is "imported N, already there M, refused K"; the exit code is 0 if K is
0 and the file was read to its end, and 1 if not.`,
		Example: `  tidemark import orders.csv --format csv --org acme --type orders \
      --client-id loader --id-column order --event-type-column what \
      --time-column when
  tidemark export | tidemark import - --format ndjson --server other:7440`,
		Args: exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			f.opts.Format = importer.Format(f.format)
			if err := f.opts.Validate(); err != nil {
				return usageError("%w", err)
			}
			return f.run(cmd, args[0])
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Var(choice{&f.format, []string{string(importer.CSV), string(importer.NDJSON)}}, "format", "what the file holds (required)")
	flags.StringVar(&f.opts.Org, "org", "", "`ORG` of the aggregates")
	flags.StringVar(&f.opts.Type, "type", "", "`TYPE` of the aggregates")
	flags.StringVar(&f.opts.ClientID, "client-id", "", "the writer's `NAME`; an import is found again under it, so keep it")
	flags.StringVar(&f.opts.Columns.ID, "id-column", "", "`COLUMN` that names the aggregate (of NDJSON, the key)")
	flags.StringVar(&f.opts.Columns.EventType, "event-type-column", "", "`COLUMN` with the event's type")
	flags.StringVar(&f.opts.Columns.Time, "time-column", "", "`COLUMN` with the time when it happened; an empty value is left out")
	flags.StringVar(&f.opts.Columns.EventID, "event-id-column", "", "`COLUMN` with the event's own id; where empty or not given, a hash of the row is used")
	flags.IntVar(&f.opts.Outstanding, "outstanding", 256, "how many requests wait for their answer at one time")
	flags.DurationVar(&f.opts.RetryFor, "retry-for", time.Minute, "how long a row is sent again, if the server is busy or away, before the import ends")
	flags.Uint64Var(&f.printed, "print-refused", 20, "how many refused rows to report one by one")
	f.client.register(cmd, 0)
	return cmd
}

// run imports the file that name says.
func (f *importFlags) run(cmd *cobra.Command, name string) error {
	if f.opts.Outstanding < 1 || f.opts.Outstanding > 10_000 {
		return usageError("--outstanding: expected 1 to 10000, found %d", f.opts.Outstanding)
	}
	ctx, cancel := f.client.context(cmd.Context())
	defer cancel()
	file, size, err := openInput(ctx, cmd.InOrStdin(), name)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	conn, err := f.client.connect(notice())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()

	stderr := cmd.ErrOrStderr()
	bar := newProgress(stderr, size)
	// What the import says comes from several goroutines.
	var mu sync.Mutex
	warn := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		bar.clear()
		fmt.Fprintf(stderr, format+"\n", args...)
	}
	refusals := uint64(0)
	opts := f.opts
	opts.Progress = func(c importer.Counts, bytes int64) {
		mu.Lock()
		defer mu.Unlock()
		bar.say(c.String)
		bar.set(bytes)
	}
	opts.Waiting = func(err error) {
		warn("tidemark: %s; the import goes on trying, for up to %s (--retry-for)", printable(plainError(err).Error()), opts.RetryFor)
	}
	opts.Refused = func(r importer.Refusal) {
		if refusals++; refusals <= f.printed {
			warn("%s: %s", printable(name), printable(r.Error()))
		}
	}
	counts, err := importer.Run(ctx, pb.NewEventStoreServiceClient(conn), file, opts)
	bar.clear()
	if errors.As(err, new(*importer.InputError)) {
		return &exitError{code: exitUsage, err: fmt.Errorf("%s: %w", name, err), advice: "Nothing was imported."}
	}
	if refusals > f.printed {
		fmt.Fprintf(stderr, "%s: and %d more refusals; --print-refused N shows more\n", printable(name), refusals-f.printed)
	}
	failure := importError(ctx, name, counts, err)
	if failure != nil {
		// The counts are the last words.
		tell(cmd, failure)
		failure.reported = true
	}
	if err := f.printCounts(cmd.OutOrStdout(), counts); err != nil {
		return err
	}
	if failure != nil {
		return failure
	}
	return nil
}

// printCounts prints what the import ends with.
func (f *importFlags) printCounts(w io.Writer, c importer.Counts) error {
	text := c.String()
	if f.client.output == outputJSON {
		text = fmt.Sprintf(`{"imported":"%d","already_there":"%d","refused":"%d"}`, c.Imported, c.AlreadyThere, c.Refused)
	}
	_, err := fmt.Fprintln(w, text)
	return err
}

// importError is the command's error after an import; nil if all rows are in the store.
func importError(ctx context.Context, name string, counts importer.Counts, err error) *exitError {
	stopped := (*importer.Stopped)(nil)
	failure := &exitError{
		code: exitFailure, mayHaveHappened: err != nil || counts.Imported > 0,
		advice: "What was imported is safe. Run the same command again to complete the import: rows that are there already are recognised.",
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		failure.err = errors.New("the import did not end within --timeout")
	case ctx.Err() != nil:
		failure.err = errors.New("interrupted")
	case errors.As(err, &stopped):
		failure.err = fmt.Errorf("%s: %w", name, err)
		failure.advice = fmt.Sprintf("Mend line %d (or remove it, if it is no row) and run the same command again: rows that are there already are recognised.", stopped.Line)
	case err != nil:
		failure.err = fmt.Errorf("%s: %w", name, err)
	case counts.Refused > 0:
		failure.err = fmt.Errorf("%s: %d refused", name, counts.Refused)
		failure.advice = "A row that was never written can be mended where it stands; then run the same command again: rows that are there already are recognised. " +
			"A row that is refused because the store holds another event in its place cannot: a file that was imported may only grow at its end."
	default:
		return nil
	}
	return failure
}

// notice makes a connection find out in a minute that its server has vanished, which calls
// that wait for it without a deadline would not.
func notice() grpc.DialOption {
	return grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 30 * time.Second, Timeout: 20 * time.Second})
}

// openInput opens a file and says how large it is; -1 = not known. Reading standard input
// ends with ctx.
func openInput(ctx context.Context, stdin io.Reader, name string) (io.ReadCloser, int64, error) {
	if name == "-" {
		return interruptible(ctx, stdin), -1, nil
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, 0, usageError("cannot open the file: %w", err)
	}
	info, err := file.Stat()
	switch {
	case err != nil:
		_ = file.Close()
		return nil, 0, usageError("cannot open the file: %w", err)
	case info.IsDir():
		_ = file.Close()
		return nil, 0, usageError("%s is a directory; expected a file", name)
	case !info.Mode().IsRegular():
		return file, -1, nil
	}
	return file, info.Size(), nil
}

// interruptible is r, except that reading ends when ctx does: nothing else gets a read of a
// terminal or a pipe to return. The goroutine that is left in such a read ends with the
// process, or with the next input.
func interruptible(ctx context.Context, r io.Reader) io.ReadCloser {
	out, in := io.Pipe()
	go func() {
		_, err := io.Copy(in, r)
		_ = in.CloseWithError(err)
	}()
	context.AfterFunc(ctx, func() { _ = in.CloseWithError(context.Cause(ctx)) })
	return out
}
