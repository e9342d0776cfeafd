package contract

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// x is a string of n bytes.
func x(n int) string { return strings.Repeat("x", n) }

func orders(id string) *pb.AggregateKey {
	return &pb.AggregateKey{Org: "acme", Type: "orders", Id: id}
}

func events(n int) []*pb.NewEvent {
	out := make([]*pb.NewEvent, n)
	for i := range out {
		out[i] = &pb.NewEvent{ClientSeq: uint64(i + 1), Type: "T"}
	}
	return out
}

// request creates one aggregate with these events.
func request(id string, list ...*pb.NewEvent) *pb.AppendRequest {
	return &pb.AppendRequest{ClientId: "a", Writes: []*pb.Write{{Aggregate: orders(id), Events: list, AllowCreate: true, EnforceClientIdempotency: true}}}
}

// fill makes the payload of the request's first event such that the request has size bytes.
func fill(t *testing.T, req *pb.AppendRequest, size int) *pb.AppendRequest {
	t.Helper()
	e := req.Writes[0].Events[0]
	for range 3 { // the lengths' own length settles
		e.Payload = make([]byte, len(e.Payload)+size-proto.Size(req))
	}
	if got := proto.Size(req); got != size {
		t.Fatalf("the request has %d bytes, want %d", got, size)
	}
	return req
}

// Every limit of section 5, and the lengths of section 1, on a whole node: what is at the
// limit lands and is read back as it was written, what is over it is refused by name and
// leaves nothing behind.
func TestLimitsFromBothSides(t *testing.T) {
	const most = 4 << 20
	n := startNode(t, settings{})
	defer n.stop(t)
	metadata := func(entries, bytes int) map[string]string {
		m := map[string]string{}
		for i := range entries {
			m[fmt.Sprintf("%03d", i)] = ""
		}
		m["000"] = x(bytes - 3*entries)
		return m
	}
	writes := func(n int) *pb.AppendRequest {
		req := &pb.AppendRequest{ClientId: "a"}
		for i := range n {
			req.Writes = append(req.Writes, request(fmt.Sprintf("many-%d-%03d", n, i), events(10)...).Writes...)
		}
		return req
	}
	with := func(id string, change func(*pb.AppendRequest, *pb.NewEvent)) *pb.AppendRequest {
		req := request(id, events(1)...)
		change(req, req.Writes[0].Events[0])
		return req
	}
	type req = pb.AppendRequest
	type ev = pb.NewEvent
	for _, c := range []struct {
		name     string
		at, over *pb.AppendRequest
		code     pb.ErrorCode
		field    string
	}{
		{"bytes", fill(t, request("bytes", events(1)...), most), fill(t, request("bytes-over", events(1)...), most+1), 2017, ""},
		{"bytes of many events", fill(t, request("bytes-many", events(1000)...), most), fill(t, request("bytes-many-over", events(1000)...), most+1), 2017, ""},
		{"events", request("events", events(1000)...), request("events-over", events(1001)...), 2016, "writes[0].events"},
		{"aggregates", writes(100), writes(101), 2016, "writes"},
		{"metadata entries", with("m", func(_ *req, e *ev) { e.Metadata = metadata(64, 64*3) }),
			with("m-over", func(_ *req, e *ev) { e.Metadata = metadata(65, 65*3) }), 2016, "writes[0].events[0].metadata"},
		{"metadata bytes", with("mb", func(_ *req, e *ev) { e.Metadata = metadata(64, 16<<10) }),
			with("mb-over", func(_ *req, e *ev) { e.Metadata = metadata(64, 16<<10+1) }), 2016, "writes[0].events[0].metadata"},
		{"key and writer", with("k", func(r *req, _ *ev) {
			r.ClientId = x(200)
			r.Writes[0].Aggregate = &pb.AggregateKey{Org: x(200), Type: strings.Repeat("é", 100), Id: x(200)}
		}), with("k-over", func(r *req, _ *ev) { r.Writes[0].Aggregate.Id = x(201) }), 2016, "writes[0].aggregate.id"},
		{"client_id", with("c", func(r *req, _ *ev) { r.ClientId = x(200) }), with("c-over", func(r *req, _ *ev) { r.ClientId = x(201) }), 2016, "client_id"},
		{"event", with("e", func(_ *req, e *ev) {
			e.ClientSeq, e.EventId, e.Type = 1<<63-1, x(200), x(200)
			e.Schema = &pb.SchemaVersion{Major: 1<<32 - 1, Minor: 1<<32 - 1}
			e.OccurredAt = &timestamppb.Timestamp{Seconds: 253402300799, Nanos: 999_999_999}
		}), with("e-over", func(_ *req, e *ev) { e.EventId = x(201) }), 2016, "writes[0].events[0].event_id"},
		{"first moment", with("t", func(_ *req, e *ev) { e.OccurredAt = &timestamppb.Timestamp{Seconds: -62135596800} }),
			with("t-over", func(_ *req, e *ev) { e.OccurredAt = &timestamppb.Timestamp{Seconds: -62135596801} }), 2016, "writes[0].events[0].occurred_at"},
		{"sequence", with("s", func(_ *req, e *ev) { e.ClientSeq = 1<<63 - 1 }), with("s-over", func(_ *req, e *ev) { e.ClientSeq = 1 << 63 }), 2016, "writes[0].events[0].client_seq"},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx := testContext(t)
			before := n.shard.Status().LastPosition
			_, err := n.client.Append(ctx, c.over)
			e, ok := api.FromStatus(err)
			if !ok || e.Code != c.code {
				t.Fatalf("over the limit: %.300v", err)
			}
			if field := fieldOf(err); field != c.field {
				t.Errorf("over the limit: %v names %q, want %q", e, field, c.field)
			}
			if after := n.shard.Status().LastPosition; after != before {
				t.Fatalf("the refused request took the position from %d to %d", before, after)
			}
			resp, err := n.client.Append(ctx, c.at)
			if err != nil {
				t.Fatalf("at the limit: %v", err)
			}
			if len(resp.GetResults()) != len(c.at.GetWrites()) {
				t.Fatalf("%d results for %d writes", len(resp.GetResults()), len(c.at.GetWrites()))
			}
			for i, w := range c.at.GetWrites() {
				sameEvents(t, readOne(ctx, t, n, w.GetAggregate()), w.GetEvents(), resp.GetResults()[i].GetFirstEventNumber())
			}
		})
	}
}

// The largest request that can be configured, on a node of its own.
func TestTheLargestConfigurableRequest(t *testing.T) {
	const most = 16 << 20
	n := startNode(t, settings{maxRequest: most})
	defer n.stop(t)
	ctx := testContext(t)
	req := fill(t, request("1", events(2)...), most)
	if _, err := n.client.Append(ctx, req); err != nil {
		t.Fatal(err)
	}
	sameEvents(t, readOne(ctx, t, n, orders("1")), req.GetWrites()[0].GetEvents(), 1)
	_, err := n.client.Append(ctx, fill(t, request("2", events(2)...), most+1))
	if api.CodeOf(err) != pb.ErrorCode_ERROR_CODE_REQUEST_TOO_LARGE {
		t.Errorf("over the limit: %v", err)
	}
}

// fieldOf is the field that a 2016 names.
func fieldOf(err error) string {
	_, after, _ := strings.Cut(failureText(err, "none"), `field="`)
	field, _, _ := strings.Cut(after, `"`)
	return field
}

// readOne reads an aggregate that has one batch.
func readOne(ctx context.Context, t *testing.T, n *node, k *pb.AggregateKey) *pb.Batch {
	t.Helper()
	stream, err := n.client.Read(ctx, &pb.ReadRequest{Aggregate: k})
	if err != nil {
		t.Fatal(err)
	}
	var batches []*pb.Batch
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		batches = append(batches, m.GetBatches()...)
	}
	if len(batches) != 1 {
		t.Fatalf("%d batches, want 1", len(batches))
	}
	return batches[0]
}

// sameEvents compares what was read with what was written, every field of every event.
func sameEvents(t *testing.T, got *pb.Batch, written []*pb.NewEvent, first uint64) {
	t.Helper()
	if len(got.GetEvents()) != len(written) {
		t.Fatalf("%d events, want %d", len(got.GetEvents()), len(written))
	}
	for i, w := range written {
		want := &pb.Event{
			ClientSeq: w.GetClientSeq(), EventId: w.GetEventId(), Type: w.GetType(), Schema: w.GetSchema(), OccurredAt: w.GetOccurredAt(),
			Payload: w.GetPayload(), ContentType: w.GetContentType(), Metadata: w.GetMetadata(), Encryption: w.GetEncryption(),
			EventNumber: first + uint64(i),
		}
		if want.Schema == nil {
			want.Schema = &pb.SchemaVersion{Major: 1}
		}
		if !proto.Equal(got.GetEvents()[i], want) {
			t.Fatalf("event %d: got\n%.500s\nwant\n%.500s", i, prototext.Format(got.GetEvents()[i]), prototext.Format(want))
		}
	}
}
