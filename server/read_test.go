package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// readAll reads to the end, and returns the batches and the messages that brought them.
func readAll(ctx context.Context, r *rig, req *pb.ReadRequest) ([]*pb.Batch, []*pb.ReadResponse, error) {
	stream, err := r.client.Read(ctx, req)
	if err != nil {
		return nil, nil, err
	}
	var batches []*pb.Batch
	var messages []*pb.ReadResponse
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return batches, messages, nil
		}
		if err != nil {
			return batches, messages, err
		}
		batches = append(batches, m.GetBatches()...)
		messages = append(messages, m)
	}
}

// orders is an aggregate of five versions by two writers, version v committed at second
// 100+v, and what a read of all of it returns.
func orders(t *testing.T, r *rig) []*pb.Batch {
	t.Helper()
	at := func(s int64, n int32) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: s, Nanos: n} }
	events := [][]*pb.NewEvent{
		{{ClientSeq: 1, EventId: "a1", Type: "Placed", OccurredAt: at(10, 5)}},
		{{ClientSeq: 2, EventId: "a2", Type: "Paid", OccurredAt: at(10, 6)}, {ClientSeq: 3, EventId: "a3", Type: "Packed"}},
		{{ClientSeq: 1, EventId: "b1", Type: "Noted", OccurredAt: at(11, 0), Metadata: map[string]string{"k": "v"}}},
		{{ClientSeq: 4, Type: "Shipped", Schema: &pb.SchemaVersion{Major: 2, Minor: 1}, OccurredAt: at(12, 0)}},
		{{ClientSeq: 5, EventId: "a5", Type: "Paid", Payload: []byte("p"), OccurredAt: at(13, 0), Encryption: &pb.Encryption{Scheme: "x"}}},
	}
	writers := []string{"a", "a", "b", "a", "a"}
	var out []*pb.Batch
	number := uint64(1)
	var chain []byte
	for i, list := range events {
		// Another aggregate in between, so that positions are not versions.
		r.shard.put(t, testKey("other"), "c", 100, event(uint64(i+1), "T"))
		r.shard.put(t, testKey("1"), writers[i], 101+int64(i), list...)
		position := uint64(2*i + 2)
		b := &pb.Batch{
			Aggregate: pbKey("1"), Version: uint64(i + 1), Incarnation: 1, Position: position,
			CommitFirstPosition: position, CommitCount: 1, ClientId: writers[i],
			CommittedAt: at(101+int64(i), 0), FirstEventNumber: number,
			PreviousChainHash: chain,
		}
		if chain == nil {
			b.PreviousChainHash = make([]byte, record.HashSize)
		}
		head := r.shard.heads[testKey("1")]
		b.ChainHash = head.Chain[:]
		chain = b.ChainHash
		for _, e := range list {
			b.Events = append(b.Events, recorded(e, number))
			number++
		}
		out = append(out, b)
	}
	return out
}

// only is a batch with these of its events.
func only(b *pb.Batch, indexes ...int) *pb.Batch {
	out := proto.Clone(b).(*pb.Batch)
	out.Events = nil
	for _, i := range indexes {
		out.Events = append(out.Events, b.Events[i])
	}
	return out
}

func wantBatches(t *testing.T, got, want []*pb.Batch) {
	t.Helper()
	wantMessage(t, &pb.ReadResponse{Batches: got}, &pb.ReadResponse{Batches: want})
}

func TestReadRangesAndLimits(t *testing.T) {
	r := start(t, nil)
	all := orders(t, r)
	pick := func(versions ...int) (out []*pb.Batch) {
		for _, v := range versions {
			out = append(out, all[v-1])
		}
		return out
	}
	const backward = pb.Direction_DIRECTION_BACKWARD
	for _, c := range []struct {
		from, to  uint64
		direction pb.Direction
		limit     uint32
		want      []*pb.Batch
		next      uint64
	}{
		{0, 0, 0, 0, all, 6},
		{0, 0, pb.Direction_DIRECTION_FORWARD, 0, all, 6},
		{1, 0, 0, 0, all, 6},
		{3, 0, 0, 0, pick(3, 4, 5), 6},
		{2, 4, 0, 0, pick(2, 3, 4), 5},
		{2, 2, 0, 0, pick(2), 3},
		{5, 9, 0, 0, pick(5), 6},
		{4, 3, 0, 0, nil, 4}, // where paging through 1..3 ends up
		{6, 0, 0, 0, nil, 6},
		{10, 0, 0, 0, nil, 10},
		{math.MaxUint64, 0, 0, 0, nil, math.MaxUint64},
		{0, 0, 0, 2, pick(1, 2), 3},
		{3, 0, 0, 2, pick(3, 4), 5},
		{4, 0, 0, 2, pick(4, 5), 6},
		{0, 0, 0, 5, all, 6},
		{0, 0, 0, math.MaxUint32, all, 6},
		{0, 0, backward, 0, pick(5, 4, 3, 2, 1), 0},
		{4, 0, backward, 0, pick(4, 3, 2, 1), 0},
		{4, 2, backward, 0, pick(4, 3, 2), 1},
		{4, 4, backward, 0, pick(4), 3},
		{9, 0, backward, 1, pick(5), 4},
		{0, 4, backward, 0, pick(5, 4), 3},
		{2, 3, backward, 0, nil, 2},
		{0, 9, backward, 0, nil, 5},
		{1, 0, backward, 0, pick(1), 0},
		{2, 0, backward, 2, pick(2, 1), 0},
		{3, 0, backward, 2, pick(3, 2), 1},
	} {
		t.Run(fmt.Sprintf("%d..%d %v limit %d", c.from, c.to, c.direction, c.limit), func(t *testing.T) {
			got, messages, err := readAll(testContext(t), r, &pb.ReadRequest{
				Aggregate: pbKey("1"), FromVersion: c.from, ToVersion: c.to, Direction: c.direction, Limit: c.limit,
			})
			if err != nil {
				t.Fatal(err)
			}
			wantBatches(t, got, c.want)
			if len(messages) != 1 {
				t.Errorf("%d messages for a small answer, want 1", len(messages))
			}
			wantMessage(t, messages[0].GetEnd(), &pb.ReadEnd{NextVersion: c.next, CurrentVersion: 5, Position: 10, Timeline: testTimeline})
		})
	}
}

func TestReadFilters(t *testing.T) {
	r := start(t, nil)
	all := orders(t, r)
	at := func(s int64, n int32) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: s, Nanos: n} }
	for _, c := range []struct {
		name   string
		filter *pb.Filter
		want   []*pb.Batch
	}{
		{"empty", &pb.Filter{}, all},
		{"type", &pb.Filter{EventTypes: []string{"Paid"}}, []*pb.Batch{only(all[1], 0), all[4]}},
		{"types", &pb.Filter{EventTypes: []string{"Packed", "Placed", "None"}}, []*pb.Batch{all[0], only(all[1], 1)}},
		{"client", &pb.Filter{ClientIds: []string{"b"}}, []*pb.Batch{all[2]}},
		{"not client", &pb.Filter{ExcludeClientIds: []string{"a", "z"}}, []*pb.Batch{all[2]}},
		{"client and not client", &pb.Filter{ClientIds: []string{"a", "b"}, ExcludeClientIds: []string{"a"}}, []*pb.Batch{all[2]}},
		{"seq from", &pb.Filter{ClientSeqFrom: 3}, []*pb.Batch{only(all[1], 1), all[3], all[4]}},
		{"seq to", &pb.Filter{ClientSeqTo: 2}, []*pb.Batch{all[0], only(all[1], 0), all[2]}},
		{"seq", &pb.Filter{ClientSeqFrom: 3, ClientSeqTo: 4}, []*pb.Batch{only(all[1], 1), all[3]}},
		{"committed from", &pb.Filter{CommittedFrom: at(104, 0)}, []*pb.Batch{all[3], all[4]}},
		{"committed just after", &pb.Filter{CommittedFrom: at(104, 1)}, []*pb.Batch{all[4]}},
		{"committed to", &pb.Filter{CommittedTo: at(102, 0)}, []*pb.Batch{all[0], all[1]}},
		{"committed just before", &pb.Filter{CommittedTo: at(101, 999_999_999)}, []*pb.Batch{all[0]}},
		{"committed in the year 1 to 9999", &pb.Filter{CommittedFrom: at(-62135596800, 0), CommittedTo: at(253402300799, 0)}, all},
		{"committed from the year 9999", &pb.Filter{CommittedFrom: at(253402300799, 0)}, nil},
		{"committed to the year 1", &pb.Filter{CommittedTo: at(-62135596800, 0)}, nil},
		// An event without occurred_at lies in no range.
		{"occurred from", &pb.Filter{OccurredFrom: at(10, 6)}, []*pb.Batch{only(all[1], 0), all[2], all[3], all[4]}},
		{"occurred to", &pb.Filter{OccurredTo: at(10, 5)}, []*pb.Batch{all[0]}},
		{"occurred", &pb.Filter{OccurredFrom: at(10, 6), OccurredTo: at(12, 0)}, []*pb.Batch{only(all[1], 0), all[2], all[3]}},
		{"event id", &pb.Filter{EventIds: []string{"a3", "b1"}}, []*pb.Batch{only(all[1], 1), all[2]}},
		{"no event id", &pb.Filter{EventIds: []string{""}}, []*pb.Batch{all[3]}},
		{"all of them", &pb.Filter{EventTypes: []string{"Paid"}, ClientIds: []string{"a"}, ClientSeqTo: 4}, []*pb.Batch{only(all[1], 0)}},
		{"none", &pb.Filter{EventTypes: []string{"None"}}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, messages, err := readAll(testContext(t), r, &pb.ReadRequest{Aggregate: pbKey("1"), Filter: c.filter})
			if err != nil {
				t.Fatal(err)
			}
			wantBatches(t, got, c.want)
			wantMessage(t, messages[len(messages)-1].GetEnd(), &pb.ReadEnd{NextVersion: 6, CurrentVersion: 5, Position: 10, Timeline: testTimeline})
		})
	}
	// The limit counts batches that pass, and the next read starts after the last one looked at.
	got, messages, err := readAll(testContext(t), r, &pb.ReadRequest{
		Aggregate: pbKey("1"), Filter: &pb.Filter{ExcludeClientIds: []string{"b"}}, Limit: 3,
	})
	if err != nil {
		t.Fatal(err)
	}
	wantBatches(t, got, []*pb.Batch{all[0], all[1], all[3]})
	wantMessage(t, messages[0].GetEnd(), &pb.ReadEnd{NextVersion: 5, CurrentVersion: 5, Position: 10, Timeline: testTimeline})
}

func TestReadOfWhatIsNotThere(t *testing.T) {
	r := start(t, nil)
	all := orders(t, r)
	_, _, err := readAll(testContext(t), r, &pb.ReadRequest{Aggregate: pbKey("2")})
	wantError(t, err, api.Errorf(pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND, "acme/orders/2 has never been written"))

	// What another node has may not have come to this one.
	_, _, err = readAll(testContext(t), r, &pb.ReadRequest{Aggregate: pbKey("2"), Consistency: pb.Consistency_CONSISTENCY_ANY})
	wantError(t, err, api.Errorf(pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND, "acme/orders/2 has not been written as far as this node has applied, position 10"))

	// Trimmed: what is named below the floor is refused, what begins at the beginning begins there.
	r.shard.changeHead(t, testKey("1"), func(h *history.Head) { h.Floor = 3 })
	unavailable := func(v uint64) *api.Error {
		return api.Errorf(pb.ErrorCode_ERROR_CODE_UNAVAILABLE_VERSION, "version %d of acme/orders/1 was trimmed; the first that can be read is 3", v).
			With(&pb.VersionUnavailable{Requested: v, FirstVersion: 3, CurrentVersion: 5})
	}
	for _, c := range []struct {
		from, to  uint64
		direction pb.Direction
		refused   uint64 // the version
		want      []*pb.Batch
		next      uint64
	}{
		{0, 0, 0, 0, all[2:], 6},
		{3, 0, 0, 0, all[2:], 6},
		{2, 0, 0, 2, nil, 0},
		{1, 4, 0, 1, nil, 0},
		{0, 2, 0, 2, nil, 0},
		{0, 0, 2, 0, []*pb.Batch{all[4], all[3], all[2]}, 0},
		{4, 3, 2, 0, []*pb.Batch{all[3], all[2]}, 0},
		{4, 2, 2, 2, nil, 0},
		{2, 0, 2, 2, nil, 0},
	} {
		got, messages, err := readAll(testContext(t), r, &pb.ReadRequest{Aggregate: pbKey("1"), FromVersion: c.from, ToVersion: c.to, Direction: c.direction})
		if c.refused != 0 {
			wantError(t, err, unavailable(c.refused))
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		wantBatches(t, got, c.want)
		wantMessage(t, messages[0].GetEnd(), &pb.ReadEnd{NextVersion: c.next, CurrentVersion: 5, Position: 10, Timeline: testTimeline})
	}

	r.shard.changeHead(t, testKey("1"), func(h *history.Head) { h.Deleted = true })
	_, _, err = readAll(testContext(t), r, &pb.ReadRequest{Aggregate: pbKey("1")})
	wantError(t, err, api.Errorf(pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND, "acme/orders/1 is deleted"))
}

// A head that promises more than the history holds is damage, and is not read around.
func TestReadOfAHistoryWithAHole(t *testing.T) {
	r := start(t, nil)
	orders(t, r)
	r.shard.changeHead(t, testKey("1"), func(h *history.Head) { h.Version = 7 })
	_, _, err := readAll(testContext(t), r, &pb.ReadRequest{Aggregate: pbKey("1"), FromVersion: 5})
	wantError(t, err, api.Corruptf("corrupt record: version 6 of acme/orders/1 is missing from the history, which says it has 5 to 7"))
	_, _, err = readAll(testContext(t), r, &pb.ReadRequest{Aggregate: pbKey("1"), Direction: pb.Direction_DIRECTION_BACKWARD})
	wantError(t, err, api.Corruptf("corrupt record: the batch where version 7 of acme/orders/1 was expected is version 5 of acme/orders/1"))
}

func TestReadMessagesAreBounded(t *testing.T) {
	r := start(t, nil)
	const size, n = 10_000, 100 // about 26 batches a message
	const largest = 4 << 20
	r.shard.batch.Reset()
	for i := range n {
		r.shard.stage(testKey("1"), "a", 100, &pb.NewEvent{ClientSeq: uint64(i + 1), Type: "T", Payload: make([]byte, size)})
	}
	r.shard.commit(t)
	huge := &pb.NewEvent{ClientSeq: n + 1, Type: "T", Payload: make([]byte, largest)}
	r.shard.put(t, testKey("1"), "a", 100, huge)
	r.shard.put(t, testKey("1"), "a", 100, &pb.NewEvent{ClientSeq: n + 2, Type: "T"})

	got, messages, err := readAll(testContext(t), r, &pb.ReadRequest{Aggregate: pbKey("1")})
	if err != nil {
		t.Fatal(err)
	}
	for i, b := range got {
		if b.GetVersion() != uint64(i+1) {
			t.Fatalf("batch %d is version %d", i, b.GetVersion())
		}
	}
	if len(got) != n+2 || len(got[n].GetEvents()[0].GetPayload()) != largest {
		t.Fatalf("%d batches, or the largest was cut", len(got))
	}
	for i, m := range messages {
		last := i == len(messages)-1
		if (m.GetEnd() != nil) != last {
			t.Errorf("message %d of %d: end %v", i, len(messages), m.GetEnd())
		}
		switch size := proto.Size(m); {
		case len(m.GetBatches()) > 1 && size > messageBytes:
			t.Errorf("message %d has %d batches and %d bytes", i, len(m.GetBatches()), size)
		case !last && len(m.GetBatches()) == 0:
			t.Errorf("message %d is empty", i)
		}
	}
	if len(messages) != 7 {
		t.Errorf("%d messages, want 5 of small batches, one with the largest, one with the last", len(messages))
	}
}

// What can be written can be read back: a request of the default limit, of many events.
func TestTheLargestRequestIsReadBack(t *testing.T) {
	r := start(t, nil)
	list := make([]*pb.NewEvent, maxEvents)
	for i := range list {
		list[i] = &pb.NewEvent{ClientSeq: maxSeq - maxEvents + uint64(i), EventId: s(200), Type: s(200),
			Metadata: metadata(2, 1), Payload: make([]byte, 3_600)}
	}
	if size := proto.Size(&pb.AppendRequest{Writes: []*pb.Write{{Events: list}}}); size > DefaultMaxRequestBytes || size < DefaultMaxRequestBytes*9/10 {
		t.Fatalf("the request is %d bytes", size)
	}
	r.shard.put(t, testKey("1"), "a", 100, list...)
	got, _, err := readAll(testContext(t), r, &pb.ReadRequest{Aggregate: pbKey("1")})
	if err != nil || len(got) != 1 || len(got[0].GetEvents()) != maxEvents {
		t.Fatalf("%d batches, %v", len(got), err)
	}
	wantMessage(t, got[0].GetEvents()[maxEvents-1], recorded(list[maxEvents-1], maxEvents))
}

// A read whose filter passes nothing sends nothing, and must still notice that its caller
// has gone.
func TestReadEndsWithItsCaller(t *testing.T) {
	r := start(t, nil)
	r.shard.batch.Reset()
	for i := range 3 * askEvery {
		r.shard.stage(testKey("1"), "a", 100, &pb.NewEvent{ClientSeq: uint64(i + 1), Type: "T"})
	}
	r.shard.commit(t)
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	v := r.shard.store.View()
	defer v.Release()
	out := &batchStream{
		stream: gone{ctx: ctx}, reads: newCallReads(newBudget(t, 1<<20), &connReads{}), view: v, key: testKey("1"), incarnation: 1, next: 1,
		span: span{first: 1, last: 3 * askEvery, floor: 1}, filter: newFilter(&pb.Filter{EventTypes: []string{"None"}}),
	}
	err := out.send()
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want the cancellation", err)
	}
	// Also over the wire, where the stream ends as soon as the caller does.
	stream, err := r.client.Read(ctx, &pb.ReadRequest{Aggregate: pbKey("1")})
	if err == nil {
		_, err = stream.Recv()
	}
	if status.Code(err) != codes.Canceled {
		t.Errorf("got %v", err)
	}
}

// gone is the stream of a caller that does not listen.
type gone struct {
	pb.EventStoreService_ReadServer
	ctx context.Context
}

func (g gone) Context() context.Context { return g.ctx }

func (g gone) SendMsg(any) error { return errors.New("a message was sent") }

func TestReadOptionsReachTheShard(t *testing.T) {
	r := start(t, nil)
	orders(t, r)
	ctx := testContext(t)
	for _, c := range []struct {
		name        string
		call        func(consistency pb.Consistency, position uint64, timeline string) error
		unspecified pb.Consistency
	}{
		{"Read", func(c pb.Consistency, p uint64, tl string) error {
			_, _, err := readAll(ctx, r, &pb.ReadRequest{Aggregate: pbKey("1"), Consistency: c, MinPosition: p, Timeline: tl})
			return err
		}, pb.Consistency_CONSISTENCY_LEADER},
		{"GetAggregate", func(c pb.Consistency, p uint64, tl string) error {
			_, err := r.client.GetAggregate(ctx, &pb.GetAggregateRequest{Aggregate: pbKey("1"), Consistency: c, MinPosition: p, Timeline: tl})
			return err
		}, pb.Consistency_CONSISTENCY_LEADER},
		{"GetMark", func(c pb.Consistency, p uint64, tl string) error {
			_, err := r.client.GetMark(ctx, &pb.GetMarkRequest{Aggregate: pbKey("1"), ClientId: "a", Consistency: c, MinPosition: p, Timeline: tl})
			return err
		}, pb.Consistency_CONSISTENCY_LINEARIZABLE},
		{"ListMarks", func(c pb.Consistency, p uint64, tl string) error {
			_, err := r.client.ListMarks(ctx, &pb.ListMarksRequest{Aggregate: pbKey("1"), Consistency: c, MinPosition: p, Timeline: tl})
			return err
		}, pb.Consistency_CONSISTENCY_LINEARIZABLE},
		{"FindEvent", func(c pb.Consistency, p uint64, tl string) error {
			_, err := r.client.FindEvent(ctx, &pb.FindEventRequest{Aggregate: pbKey("1"), ClientId: "a", ClientSeq: 1, Consistency: c, MinPosition: p, Timeline: tl})
			return err
		}, pb.Consistency_CONSISTENCY_LINEARIZABLE},
		{"ListOrgs", func(c pb.Consistency, p uint64, tl string) error {
			_, err := r.client.ListOrgs(ctx, &pb.ListOrgsRequest{Consistency: c, MinPosition: p, Timeline: tl})
			return err
		}, pb.Consistency_CONSISTENCY_LEADER},
		{"ListTypes", func(c pb.Consistency, p uint64, tl string) error {
			_, err := r.client.ListTypes(ctx, &pb.ListTypesRequest{Org: "acme", Consistency: c, MinPosition: p, Timeline: tl})
			return err
		}, pb.Consistency_CONSISTENCY_LEADER},
		{"ListAggregates", func(c pb.Consistency, p uint64, tl string) error {
			_, err := r.client.ListAggregates(ctx, &pb.ListAggregatesRequest{Consistency: c, MinPosition: p, Timeline: tl})
			return err
		}, pb.Consistency_CONSISTENCY_LEADER},
		{"GetSchema", func(c pb.Consistency, p uint64, tl string) error {
			_, err := r.client.GetSchema(ctx, &pb.GetSchemaRequest{Org: "acme", Type: "orders", EventType: "Placed", Consistency: c, MinPosition: p, Timeline: tl})
			return err
		}, pb.Consistency_CONSISTENCY_LEADER},
		{"ListSchemas", func(c pb.Consistency, p uint64, tl string) error {
			_, err := r.client.ListSchemas(ctx, &pb.ListSchemasRequest{Org: "acme", Consistency: c, MinPosition: p, Timeline: tl})
			return err
		}, pb.Consistency_CONSISTENCY_LEADER},
	} {
		t.Run(c.name, func(t *testing.T) {
			for asked, want := range map[pb.Consistency]pb.Consistency{
				pb.Consistency_CONSISTENCY_UNSPECIFIED:  c.unspecified,
				pb.Consistency_CONSISTENCY_LEADER:       pb.Consistency_CONSISTENCY_LEADER,
				pb.Consistency_CONSISTENCY_LINEARIZABLE: pb.Consistency_CONSISTENCY_LINEARIZABLE,
				pb.Consistency_CONSISTENCY_ANY:          pb.Consistency_CONSISTENCY_ANY,
			} {
				if err := c.call(asked, 7, testTimeline); err != nil {
					t.Fatal(err)
				}
				if got := r.shard.lastRead(); got.Consistency != want || got.MinPosition != 7 || got.Timeline != testTimeline {
					t.Errorf("asked for %v: the shard was asked for %+v", asked, got)
				}
			}
			wantError(t, c.call(0, 7, ""), invalid("timeline", "is empty; min_position means nothing without the timeline that it was given with"))
			refusal := api.Errorf(pb.ErrorCode_ERROR_CODE_TIMELINE_MISMATCH, "restored")
			r.shard.refuseReads(refusal)
			defer r.shard.refuseReads(nil)
			wantError(t, c.call(0, 7, testTimeline), refusal)
		})
	}
}
