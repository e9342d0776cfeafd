package offline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/inspect"
	"github.com/tidemark-db/tidemark/wal/record"
)

// Content is every batch and writer row that a data directory holds.
type Content struct {
	Batches map[inspect.Aggregate][]*pb.Batch
	Rows    []inspect.Row
	// FromTail is how many of the batches are in entries that the history lacked.
	FromTail int
	applied  inspect.Applied
}

// Sound fails the test if a directory is damaged whose node does not run. A directory that no
// node ever made is sound.
func Sound(tb testing.TB, dir string) {
	tb.Helper()
	_, err := inspect.Verify(tb.Context(), dir, inspect.VerifyOptions{Found: func(f inspect.Finding) {
		if f.Damage {
			tb.Errorf("found in a directory that nothing is wrong with: %s", f)
		}
	}})
	if err != nil && !errors.Is(err, inspect.ErrNoData) {
		tb.Errorf("verify %s: %v", dir, err)
	}
}

// Read reads a directory whose node does not run.
func Read(tb testing.TB, dir string) *Content {
	tb.Helper()
	d, err := inspect.Open(dir)
	if err != nil {
		tb.Fatal(err)
	}
	c := &Content{Batches: map[inspect.Aggregate][]*pb.Batch{}}
	c.applied, err = d.Read(inspect.Query{}, inspect.Content{
		Batch: func(b *inspect.Batch, in inspect.Source) error {
			if b.Chain != b.Computed {
				return fmt.Errorf("%s version %d: chain hash %x, expected %x", b.Aggregate, b.Version, b.Chain, b.Computed)
			}
			if in == inspect.InTail {
				c.FromTail++
			}
			c.Batches[b.Aggregate] = append(c.Batches[b.Aggregate], b.Message())
			return nil
		},
		Row: func(r *inspect.Row, _ inspect.Source) error {
			c.Rows = append(c.Rows, *r)
			return nil
		},
	})
	if err := errors.Join(err, d.Close()); err != nil {
		tb.Fatalf("read %s: %v", dir, err)
	}
	return c
}

// Compare reads everything that the node has, and returns what differs. Nobody may have
// written since the directory was read.
func (c *Content) Compare(ctx context.Context, client pb.EventStoreServiceClient) error {
	aggregates, err := everyAggregate(ctx, client)
	if err != nil {
		return err
	}
	if want := slices.Sorted(maps.Keys(c.Batches)); !slices.Equal(aggregates, want) {
		return fmt.Errorf("the node has %d aggregates, the directory had %d", len(aggregates), len(want))
	}
	for _, a := range aggregates {
		got, err := batches(ctx, client, a)
		if err != nil {
			return err
		}
		want := c.Batches[a]
		for i := range min(len(got), len(want)) {
			if !proto.Equal(got[i], want[i]) {
				return fmt.Errorf("%s: the node has\n%v\nthe directory had\n%v", a, got[i], want[i])
			}
		}
		if len(got) != len(want) {
			return fmt.Errorf("%s: the node has %d batches, the directory had %d", a, len(got), len(want))
		}
	}
	return c.compareRows(ctx, client)
}

// compareRows asks for the holder of every sequence that the directory has a row of, and holds
// the marks against them.
func (c *Content) compareRows(ctx context.Context, client pb.EventStoreServiceClient) error {
	type writer struct {
		aggregate inspect.Aggregate
		client    string
	}
	marks := map[writer]uint64{}
	for i := range c.Rows {
		r := &c.Rows[i]
		w := writer{r.Aggregate, r.Client}
		marks[w] = max(marks[w], r.ClientSeq)
		resp, err := client.FindEvent(ctx, &pb.FindEventRequest{Aggregate: r.Aggregate.Key(), ClientId: r.Client, ClientSeq: r.ClientSeq})
		if err != nil {
			return fmt.Errorf("%s: find %s %d: %w", r.Aggregate, r.Client, r.ClientSeq, err)
		}
		want := &pb.Holder{
			Version: r.Version, Incarnation: r.Incarnation, Position: r.Position, CommittedAt: timestamppb.New(stamp(r.CommittedAt)),
			ClientSeq: r.ClientSeq, EventId: r.EventID, FirstClientSeq: r.FirstSeq, LastClientSeq: r.LastSeq, EventCount: r.EventCount,
		}
		if !proto.Equal(resp.GetHolder(), want) || resp.GetEventIndex() != r.EventIndex {
			return fmt.Errorf("%s: %s %d: the node has\n%v, event %d\nthe directory had\n%v, event %d",
				r.Aggregate, r.Client, r.ClientSeq, resp.GetHolder(), resp.GetEventIndex(), want, r.EventIndex)
		}
		e := resp.GetBatch().GetEvents()[resp.GetEventIndex()]
		if e.GetEventNumber() != r.EventNumber || contentOf(e) != r.Content {
			return fmt.Errorf("%s: %s %d: the node has event %v, the directory had number %d with content %x", r.Aggregate, r.Client, r.ClientSeq, e, r.EventNumber, r.Content)
		}
	}
	for w, mark := range marks {
		resp, err := client.GetMark(ctx, &pb.GetMarkRequest{Aggregate: w.aggregate.Key(), ClientId: w.client})
		if err != nil {
			return err
		}
		if resp.GetMark() != mark {
			return fmt.Errorf("%s: the node has mark %d of %s, the directory had %d", w.aggregate, resp.GetMark(), w.client, mark)
		}
	}
	return nil
}

// everyAggregate lists what a node has.
func everyAggregate(ctx context.Context, client pb.EventStoreServiceClient) (out []inspect.Aggregate, err error) {
	orgs, err := client.ListOrgs(ctx, &pb.ListOrgsRequest{})
	if err != nil {
		return nil, err
	}
	for _, org := range orgs.GetOrgs() {
		types, err := client.ListTypes(ctx, &pb.ListTypesRequest{Org: org})
		if err != nil {
			return nil, err
		}
		for _, typ := range types.GetTypes() {
			req := &pb.ListAggregatesRequest{Org: org, Type: typ}
			for {
				page, err := client.ListAggregates(ctx, req)
				if err != nil {
					return nil, err
				}
				for _, a := range page.GetAggregates() {
					out = append(out, inspect.AggregateOf(a.GetAggregate()))
				}
				if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
					break
				}
			}
		}
	}
	slices.Sort(out)
	return out, nil
}

// batches reads an aggregate.
func batches(ctx context.Context, client pb.EventStoreServiceClient, a inspect.Aggregate) (out []*pb.Batch, err error) {
	stream, err := client.Read(ctx, &pb.ReadRequest{Aggregate: a.Key()})
	if err != nil {
		return nil, err
	}
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return out, nil
		case api.CodeOf(err) == pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND:
			return nil, nil
		case err != nil:
			return nil, fmt.Errorf("read %s: %w", a, err)
		}
		out = append(out, m.GetBatches()...)
	}
}

func stamp(ns int64) time.Time { return time.Unix(0, ns) }

// contentOf is the content hash of an event, by the encoder of the server.
func contentOf(e *pb.Event) inspect.Hash {
	return inspect.Hash(record.ContentHash(record.AppendEvent(nil, &pb.NewEvent{
		ClientSeq: e.GetClientSeq(), EventId: e.GetEventId(), Type: e.GetType(), Schema: e.GetSchema(), OccurredAt: e.GetOccurredAt(),
		Payload: e.GetPayload(), ContentType: e.GetContentType(), Metadata: e.GetMetadata(), Encryption: e.GetEncryption(),
	})))
}
