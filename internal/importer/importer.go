package importer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// Format is what a file holds.
type Format string

// Formats of files.
const (
	CSV    Format = "csv"
	NDJSON Format = "ndjson"
)

// Columns names the columns (of NDJSON, the keys) that have a use of their own.
type Columns struct {
	// ID names the aggregate, EventType the event's type.
	ID, EventType string
	// Time is occurred_at, EventID the event_id; empty = no such column.
	Time, EventID string
}

// Options says how to import a file.
type Options struct {
	Format Format
	// Columns is empty for an export: NDJSON without columns.
	Columns Columns
	// Org and Type complete the aggregates' keys, ClientID is the writer. Empty for an
	// export, whose lines bring them.
	Org, Type, ClientID string

	// Outstanding is how many requests wait for their answer at one time; 0 = 256.
	Outstanding int
	// CallTimeout bounds one attempt; 0 = 30 s.
	CallTimeout time.Duration
	// RetryFor bounds how long a row is retried, from its first failure on, before the
	// import gives up; 0 = one minute.
	RetryFor time.Duration

	// Refused is told of every refusal, one at a time. May be nil.
	Refused func(Refusal)
	// Progress is told the counts after every row, one at a time, and how many bytes of the
	// file hold the rows that are counted. May be nil.
	Progress func(c Counts, bytes int64)
	// Waiting is told once, of the first call that could not reach the store and is repeated.
	// May be nil.
	Waiting func(error)
}

// Export says whether the file is an export rather than rows.
func (o *Options) Export() bool { return o.Format == NDJSON && o.Columns == Columns{} }

// Validate checks what does not need the file; errors name the flag.
func (o *Options) Validate() error {
	if o.Format != CSV && o.Format != NDJSON && o.Format != "" {
		return fmt.Errorf("--format: expected %s or %s, found %q", CSV, NDJSON, o.Format)
	}
	flags := []struct{ flag, value string }{
		{"--format", string(o.Format)},
		{"--id-column", o.Columns.ID}, {"--event-type-column", o.Columns.EventType},
		{"--org", o.Org}, {"--type", o.Type}, {"--client-id", o.ClientID},
	}
	if o.Export() {
		for _, f := range flags[3:] {
			if f.value != "" {
				return fmt.Errorf("%s: the lines of an export bring their own; for other NDJSON give --id-column and --event-type-column too", f.flag)
			}
		}
		return nil
	}
	var missing []string
	for _, f := range flags {
		if f.value == "" {
			missing = append(missing, f.flag)
		}
	}
	switch {
	case len(missing) == len(flags):
		return fmt.Errorf("--format is missing; expected %s or %s", CSV, NDJSON)
	case len(missing) == 1:
		return fmt.Errorf("%s is missing", missing[0])
	case len(missing) > 1:
		last := len(missing) - 1
		return fmt.Errorf("%s and %s are missing", strings.Join(missing[:last], ", "), missing[last])
	}
	for _, f := range flags[3:] {
		if err := checkName(f.value); err != nil {
			return fmt.Errorf("%s: %w", f.flag, err)
		}
	}
	used := make(map[string]string)
	flags = append(flags[1:3], []struct{ flag, value string }{
		{"--time-column", o.Columns.Time}, {"--event-id-column", o.Columns.EventID},
	}...)
	for _, f := range flags {
		if other := used[f.value]; other != "" && f.value != "" {
			return fmt.Errorf("%s and %s both name column %q; expected two columns", other, f.flag, f.value)
		}
		used[f.value] = f.flag
	}
	return nil
}

// Counts is what became of the rows so far.
type Counts struct {
	Imported, AlreadyThere, Refused uint64
}

// Total is how many rows are settled.
func (c Counts) Total() uint64 { return c.Imported + c.AlreadyThere + c.Refused }

// String is the line that an import ends with.
func (c Counts) String() string {
	return fmt.Sprintf("imported %d, already there %d, refused %d", c.Imported, c.AlreadyThere, c.Refused)
}

// source yields requests in file order. Its error is a *Refusal for lines that are left out,
// io.EOF at the end, or what ends the import.
type source interface {
	next() (*unit, error)
	// offset is how many bytes of the file were taken by what next has returned.
	offset() int64
}

// InputError is the error of an import whose file cannot be begun: it is of another kind
// than the options say. Nothing was sent.
type InputError struct{ err error }

func (e *InputError) Error() string { return e.err.Error() }
func (e *InputError) Unwrap() error { return e.err }

func newSource(r io.Reader, opts *Options) (source, error) {
	switch {
	case opts.Export():
		return newBatchSource(r)
	case opts.Format == CSV:
		return newCSVSource(r, opts)
	default:
		return newObjectSource(r, opts)
	}
}

// Run imports what r holds. The counts say what was settled, also beside an error. An error
// means that the file was not read to its end, or that rows were given up; rows that were
// refused are counted and are no error.
//
// Cancelling ctx ends the import: nothing more is sent, and what is under way may or may
// not land. Running it again is safe after any end.
func Run(ctx context.Context, client pb.EventStoreServiceClient, r io.Reader, opts Options) (Counts, error) {
	if err := opts.Validate(); err != nil {
		return Counts{}, err
	}
	opts.Outstanding = orDefault(opts.Outstanding, 256)
	patience := patience{
		callTimeout: orDefault(opts.CallTimeout, defaultCallTimeout),
		retryFor:    orDefault(opts.RetryFor, defaultRetryFor),
		waiting:     onceOf(opts.Waiting),
	}
	src, err := newSource(r, &opts)
	if err != nil {
		return Counts{}, &InputError{err}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	im := &importRun{
		sender: sender{client: client, patience: patience}, opts: &opts, lanes: newLanes(), cancel: cancel,
	}
	defer im.lanes.stopWith(ctx)()
	// The workers end when the lanes are empty and closed, or stopped.
	var workers sync.WaitGroup
	for range opts.Outstanding {
		workers.Go(func() { im.work(ctx) })
	}
	// What was read before an error is still sent: stopping short would leave less settled.
	err = im.read(src)
	im.lanes.close()
	workers.Wait()
	if end := (*Stopped)(nil); errors.As(err, &end) {
		im.settle(refused, end.Rows, 0, &end.Refusal) // the last to be reported
	}
	if cause := context.Cause(ctx); cause != nil {
		err = errors.Join(cause, err)
	}
	im.mu.Lock()
	defer im.mu.Unlock()
	return im.counts, err
}

func orDefault[T int | time.Duration](value, standard T) T {
	if value == 0 {
		return standard
	}
	return value
}

// onceOf is tell, except that it tells once; nil stays nil.
func onceOf(tell func(error)) func(error) {
	if tell == nil {
		return nil
	}
	var once sync.Once
	return func(err error) { once.Do(func() { tell(err) }) }
}

// importRun is one import under way.
type importRun struct {
	sender sender
	opts   *Options
	lanes  *lanes
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	counts Counts
	bytes  int64 // of the file, that hold the rows counted
}

// read queues everything that src yields.
func (im *importRun) read(src source) error {
	offset := int64(0)
	for {
		u, err := src.next()
		bytes := src.offset() - offset
		offset += bytes
		if bad := (*Refusal)(nil); errors.As(err, &bad) {
			im.settle(refused, bad.Rows, bytes, bad)
			continue
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		u.bytes = bytes
		if !im.lanes.add(u) {
			return nil // cancelled; the cause says why
		}
	}
}

// work sends units until there are none. The first error that concerns more than its row
// cancels the import.
func (im *importRun) work(ctx context.Context) {
	for {
		u, ok := im.lanes.take()
		if !ok {
			return
		}
		result, refusal, err := im.sender.send(ctx, u)
		if err != nil {
			im.cancel(err)
			return
		}
		im.settle(result, u.rows, u.bytes, refusal)
		im.lanes.done(u)
	}
}

// settle counts rows and reports them.
func (im *importRun) settle(result outcome, rows int, bytes int64, refusal *Refusal) {
	im.mu.Lock()
	defer im.mu.Unlock()
	switch result {
	case imported:
		im.counts.Imported += uint64(rows)
	case alreadyThere:
		im.counts.AlreadyThere += uint64(rows)
	case refused:
		im.counts.Refused += uint64(rows)
		if im.opts.Refused != nil {
			im.opts.Refused(*refusal)
		}
	}
	im.bytes += bytes
	if im.opts.Progress != nil {
		im.opts.Progress(im.counts, im.bytes)
	}
}
