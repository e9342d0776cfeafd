package importer

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// ExportOptions says what to export.
type ExportOptions struct {
	// Org, Type and IDPrefix narrow it; Type needs Org, and IDPrefix needs Type.
	Org, Type, IDPrefix string
	// Readers is how many aggregates are read at one time; 0 = 8.
	Readers int
	// RetryFor bounds how long a failing read is retried, from its first failure on; 0 = one
	// minute.
	RetryFor time.Duration
	// Progress is told the counts after every aggregate. May be nil.
	Progress func(ExportCounts)
	// Waiting is told once, of the first call that could not reach the store and is repeated.
	// May be nil.
	Waiting func(error)
}

// Validate checks the options; errors name the flag.
func (o *ExportOptions) Validate() error {
	switch {
	case o.Type != "" && o.Org == "":
		return errors.New("--type needs --org: a type is a part of an org")
	case o.IDPrefix != "" && o.Type == "":
		return errors.New("--id-prefix needs --type")
	}
	return nil
}

// ExportCounts says what was exported.
type ExportCounts struct {
	Aggregates, Events uint64
}

// listPage is how many aggregates are listed at a time.
const listPage = 1000

// chunksAhead is how many messages of one aggregate are read before its turn to be written.
const chunksAhead = 2

// Export writes the events of every aggregate that is not deleted as export lines, in byte
// order of (org, type, id), each aggregate's in version order. Each aggregate is exported as
// of a moment of its own. Memory is bounded by Readers, whatever there is to export.
//
// Running it twice on the same data gives the same bytes.
func Export(ctx context.Context, client pb.EventStoreServiceClient, w io.Writer, opts ExportOptions) (ExportCounts, error) {
	if err := opts.Validate(); err != nil {
		return ExportCounts{}, err
	}
	opts.Readers = orDefault(opts.Readers, 8)
	ctx, cancel := context.WithCancel(ctx)
	ex := &exportRun{
		client: client, opts: &opts,
		patience: patience{retryFor: orDefault(opts.RetryFor, defaultRetryFor), waiting: onceOf(opts.Waiting)},
		turns:    make(chan *reading, opts.Readers),
	}
	// The lister and the readers it starts end with their work or with ctx.
	ex.readers.Go(func() { ex.list(ctx) })
	counts, err := ex.write(w)
	cancel()
	for range ex.turns { // let the lister go on to see that ctx has ended
	}
	ex.readers.Wait()
	return counts, err
}

type exportRun struct {
	client pb.EventStoreServiceClient
	opts   *ExportOptions
	// patience has no deadline for a call: a reader may have to wait long for its turn.
	patience patience
	readers  sync.WaitGroup
	// turns are the aggregates being read, in the order to write them. Its capacity bounds
	// how many are.
	turns chan *reading
}

// reading is one aggregate's way from its reader to the writer.
type reading struct {
	// chunks holds whole lines; closed at the end.
	chunks chan chunk
	// err is set before chunks is closed.
	err error
}

type chunk struct {
	lines  []byte
	events int
}

// list starts a reader for each aggregate, in key order.
func (ex *exportRun) list(ctx context.Context) {
	defer close(ex.turns)
	token := ""
	for {
		var page *pb.ListAggregatesResponse
		err := ex.patience.retry(ctx, func(ctx context.Context) (progress bool, err error) {
			page, err = ex.client.ListAggregates(ctx, &pb.ListAggregatesRequest{
				Org: ex.opts.Org, Type: ex.opts.Type, IdPrefix: ex.opts.IDPrefix, PageSize: listPage, PageToken: token,
			})
			return false, err
		})
		if err != nil {
			ex.fail(fmt.Errorf("cannot list the aggregates: %w", err))
			return
		}
		for _, a := range page.GetAggregates() {
			r := &reading{chunks: make(chan chunk, chunksAhead)}
			select {
			case ex.turns <- r:
			case <-ctx.Done():
				ex.fail(context.Cause(ctx))
				return
			}
			ex.readers.Go(func() {
				r.err = ex.read(ctx, a.GetAggregate(), r.chunks)
				close(r.chunks)
			})
		}
		if token = page.GetNextPageToken(); token == "" {
			return
		}
	}
}

// fail ends the list with an error that the writer finds in its turn, so that an export that
// is cut short never looks like a whole one.
func (ex *exportRun) fail(err error) {
	failed := &reading{chunks: make(chan chunk), err: err}
	close(failed.chunks)
	ex.turns <- failed
}

// read reads one aggregate to its end. A stream that breaks is taken up again where it was.
func (ex *exportRun) read(ctx context.Context, key *pb.AggregateKey, chunks chan<- chunk) error {
	next := uint64(0)
	err := ex.patience.retry(ctx, func(ctx context.Context) (progress bool, err error) {
		stream, err := ex.client.Read(ctx, &pb.ReadRequest{Aggregate: key, FromVersion: next})
		if err != nil {
			return false, err
		}
		for {
			resp, err := stream.Recv()
			if err != nil {
				return progress, err
			}
			if c := encode(resp.GetBatches()); c.events > 0 {
				select {
				case chunks <- c:
				case <-ctx.Done():
					return progress, ctx.Err()
				}
				next = resp.GetBatches()[len(resp.GetBatches())-1].GetVersion() + 1
				progress = true
			}
			if resp.GetEnd() != nil {
				return progress, nil
			}
		}
	})
	switch {
	case err == nil:
		return nil
	case next == 0 && status.Code(err) == codes.NotFound:
		return nil // deleted since it was listed
	}
	return fmt.Errorf("cannot read %s/%s/%s from version %d on: %w", key.GetOrg(), key.GetType(), key.GetId(), max(next, 1), err)
}

func encode(batches []*pb.Batch) chunk {
	var c chunk
	for _, b := range batches {
		for i := range b.GetEvents() {
			c.lines = AppendLine(c.lines, b, i)
			c.events++
		}
	}
	return c
}

// write writes the aggregates in turn until the last one or the first error.
func (ex *exportRun) write(w io.Writer) (ExportCounts, error) {
	var counts ExportCounts
	out := bufio.NewWriterSize(w, 64<<10)
	for r := range ex.turns {
		for c := range r.chunks {
			if _, err := out.Write(c.lines); err != nil {
				return counts, fmt.Errorf("cannot write the export: %w", err)
			}
			counts.Events += uint64(c.events)
		}
		if r.err != nil {
			if err := out.Flush(); err != nil {
				return counts, fmt.Errorf("cannot write the export: %w", err)
			}
			return counts, r.err
		}
		counts.Aggregates++
		if ex.opts.Progress != nil {
			ex.opts.Progress(counts)
		}
	}
	if err := out.Flush(); err != nil {
		return counts, fmt.Errorf("cannot write the export: %w", err)
	}
	return counts, nil
}
