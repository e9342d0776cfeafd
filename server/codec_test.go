package server

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// rawCodec sends bytes as they are.
type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

func (rawCodec) Name() string { return "proto" }

// sendRaw calls a unary method with these bytes as its request.
func sendRaw(t *testing.T, r *rig, method string, request []byte) error {
	t.Helper()
	var answer []byte
	return r.conn.Invoke(testContext(t), "/tidemark.v1.EventStoreService/"+method, &request, &answer, grpc.ForceCodecV2(rawCodec{}))
}

// field is a length-delimited field.
func field(num protowire.Number, content ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, num, protowire.BytesType), bytes.Join(content, nil))
}

func TestARequestThatCannotBeDecodedIsToldWhere(t *testing.T) {
	r := start(t, nil)
	key := field(1, field(1, []byte("acme")), field(2, []byte("orders")), field(3, []byte("1")))
	bad := []byte("a\xff")
	event := func(fields ...[]byte) []byte { return field(3, key, field(2, fields...)) }
	for _, c := range []struct {
		name, method string
		request      []byte
		field, fault string
		message      string
	}{
		{"garbage", "Append", []byte("\xff\xff\xff"), "AppendRequest", "ends in the middle of a field, or has bytes that are no protobuf", "AppendRequest"},
		{"field number 0", "Append", []byte{0x02, 0x00}, "AppendRequest", "ends in the middle of a field, or has bytes that are no protobuf", "AppendRequest"},
		{"truncated", "Append", field(2, []byte("writer"))[:4], "client_id", "ends in the middle of its value", "AppendRequest"},
		{"truncated write", "Append", append(event(), field(3, key[:len(key)-3])...), "writes[1].aggregate", "ends in the middle of its value", "AppendRequest"},
		{"client_id", "Append", field(2, bad), "client_id", "is not valid UTF-8", "AppendRequest"},
		{"aggregate", "Append", field(3, field(1, field(3, bad))), "writes[0].aggregate.id", "is not valid UTF-8", "AppendRequest"},
		{"second event", "Append", field(3, key, field(2, field(3, []byte("T"))), field(2, field(2, bad))), "writes[0].events[1].event_id", "is not valid UTF-8", "AppendRequest"},
		{"metadata value", "Append", event(field(8, field(1, []byte("k")), field(2, bad))), "writes[0].events[0].metadata", "is not valid UTF-8", "AppendRequest"},
		{"encryption", "Append", event(field(9, field(2, bad))), "writes[0].events[0].encryption.key_id", "is not valid UTF-8", "AppendRequest"},
		{"filter", "GetAggregate", field(1, field(1, bad)), "aggregate.org", "is not valid UTF-8", "GetAggregateRequest"},
		{"page_token", "ListMarks", field(3, bad), "page_token", "is not valid UTF-8", "ListMarksRequest"},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := sendRaw(t, r, c.method, c.request)
			wantError(t, err, invalid(c.field, c.fault+"; the request is not a valid tidemark.v1."+c.message+" message"))
		})
	}
	// Streams decode on another path.
	stream, err := r.conn.NewStream(testContext(t), &grpc.StreamDesc{ServerStreams: true},
		"/tidemark.v1.EventStoreService/Read", grpc.ForceCodecV2(rawCodec{}))
	if err != nil {
		t.Fatal(err)
	}
	request := field(6, field(2, []byte("ok")), field(2, bad))
	if err := stream.SendMsg(&request); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	var answer []byte
	wantError(t, stream.RecvMsg(&answer), invalid("filter.client_ids[1]", "is not valid UTF-8; the request is not a valid tidemark.v1.ReadRequest message"))

	// The server is none the worse.
	if _, err := r.client.Append(testContext(t), smallAppend()); err != nil {
		t.Fatal(err)
	}
}

// sized is a valid append of exactly so many bytes.
func sized(t *testing.T, size int) *pb.AppendRequest {
	t.Helper()
	req := smallAppend()
	e := req.Writes[0].Events[0]
	for n := size; n > 0; n-- {
		e.Payload = make([]byte, n)
		if got := proto.Size(req); got <= size {
			if got < size {
				t.Fatalf("no payload gives %d bytes", size)
			}
			return req
		}
	}
	t.Fatalf("no payload gives %d bytes", size)
	return nil
}

func TestRequestBytesFromBothSides(t *testing.T) {
	const most = 64 << 10
	r := start(t, func(o *Options) { o.MaxRequestBytes = most })
	if _, err := r.client.Append(testContext(t), sized(t, most)); err != nil {
		t.Errorf("a request of exactly the limit: %v", err)
	}
	_, err := r.client.Append(testContext(t), sized(t, most+1))
	wantError(t, err, api.Errorf(pb.ErrorCode_ERROR_CODE_REQUEST_TOO_LARGE, "the request has 65537 bytes; the limit is 65536 bytes a request"))
	// As far as gRPC's own bound, which lies far above, it is our code that answers.
	const transport = 4*most + 1<<20
	_, err = r.client.Append(testContext(t), sized(t, transport))
	wantError(t, err, api.Errorf(pb.ErrorCode_ERROR_CODE_REQUEST_TOO_LARGE, "the request has 1310720 bytes; the limit is 65536 bytes a request"))
	_, err = r.client.Append(testContext(t), sized(t, transport+1))
	if _, ours := api.FromStatus(err); ours || status.Code(err) != codes.ResourceExhausted {
		t.Errorf("beyond gRPC's bound: %v", err)
	}
}

// A faulty client that sends two requests in one unary call must not take from the budget
// what it does not give back.
func TestTwoRequestsInOneCall(t *testing.T) {
	r := start(t, nil)
	chain := r.server.chain
	stream, err := r.conn.NewStream(testContext(t), &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/tidemark.v1.EventStoreService/Append")
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := stream.SendMsg(smallAppend()); err != nil {
			t.Fatal(err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := stream.RecvMsg(&pb.AppendResponse{}); status.Code(err) != codes.Internal {
		t.Errorf("got %v, want gRPC's own refusal", err)
	}
	stop(t, r)
	if n := chain.bytes.Load(); n != 0 {
		t.Errorf("%d bytes of the budget are held", n)
	}
}

func TestAQueryIsBoundedLowerThanAnAppend(t *testing.T) {
	r := start(t, nil)
	req := &pb.ReadRequest{Aggregate: pbKey("none"), Filter: &pb.Filter{}}
	for range maxFilterEntries {
		req.Filter.EventTypes = append(req.Filter.EventTypes, s(200))
		req.Filter.ClientIds = append(req.Filter.ClientIds, s(200))
		req.Filter.ExcludeClientIds = append(req.Filter.ExcludeClientIds, s(200))
		req.Filter.EventIds = append(req.Filter.EventIds, s(200))
	}
	_, _, err := readAll(testContext(t), r, req)
	wantError(t, err, api.Errorf(pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND, "acme/orders/none has never been written"))

	err = sendRaw(t, r, "GetMark", field(2, bytes.Repeat([]byte("x"), maxQuery)))
	wantError(t, err, api.Errorf(pb.ErrorCode_ERROR_CODE_REQUEST_TOO_LARGE, "the request has 1048580 bytes; the limit is 1048576 bytes a request"))
}

// A request of a million empty elements would take a hundred times its size in memory if
// it were decoded before it is counted.
func TestHugeCountsAreRefusedWithoutBeingDecoded(t *testing.T) {
	const size = 1 << 20
	c := &chain{maxRequest: size, maxBytes: size}
	events := field(3, bytes.Repeat(field(2), (size-16)/2))
	entries := field(3, field(2, bytes.Repeat(field(8), (size-32)/2)))
	for _, tc := range []struct {
		name    string
		request []byte
		want    *api.Error
	}{
		{"writes", bytes.Repeat(field(3), size/2), invalid("writes", fmt.Sprintf("has %d entries; the limit is 100", size/2))},
		{"events", events, invalid("writes", fmt.Sprintf("have %d events in all; the limit is 1000 events a request", (size-16)/2))},
		{"metadata", entries, invalid("writes", fmt.Sprintf("have %d metadata entries in all; the limit is 64 an event", (size-32)/2))},
	} {
		t.Run(tc.name, func(t *testing.T) {
			in := inbound{chain: c, msg: &pb.AppendRequest{}}
			data := mem.BufferSlice{mem.SliceBuffer(tc.request)}
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			in.decode(data)
			runtime.ReadMemStats(&after)
			if in.err == nil {
				t.Fatal("accepted")
			}
			wantError(t, in.err, tc.want)
			if used := after.TotalAlloc - before.TotalAlloc; used > 256<<10 {
				t.Errorf("refusing it took %d bytes of memory", used)
			}
			c.bytes.Add(-in.held)
		})
	}
	if c.bytes.Load() != 0 {
		t.Errorf("%d bytes of the budget are held", c.bytes.Load())
	}
}

// Counting must not refuse what validation accepts.
func TestTheLargestCountsAreDecoded(t *testing.T) {
	req := &pb.AppendRequest{ClientId: "a", Writes: manyWrites(100)}
	for _, w := range req.Writes {
		for _, e := range w.Events {
			e.Metadata = metadata(64, 1)
		}
	}
	b, err := proto.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	in := inbound{chain: &chain{maxRequest: 16 << 20, maxBytes: 16 << 20}, msg: &pb.AppendRequest{}}
	in.decode(mem.BufferSlice{mem.SliceBuffer(b)})
	if in.err != nil {
		t.Fatal(in.err)
	}
	if e := checkAppend(in.msg.(*pb.AppendRequest)); e != nil {
		t.Fatal(e)
	}
}

// FuzzAppendBytes: whatever bytes come, decoding ends in a message or in a 2016 or 2017 that
// names something, and what was decoded can be validated.
func FuzzAppendBytes(f *testing.F) {
	for _, req := range []*pb.AppendRequest{validAppend(), smallAppend(), {}} {
		b, err := proto.Marshal(req)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(b[:len(b)/2])
		f.Add([]byte(strings.Replace(string(b), "writer", "\xff\xfe", 1)))
	}
	f.Add(bytes.Repeat(field(3), scanAbove))
	f.Fuzz(func(t *testing.T, b []byte) {
		in := inbound{chain: &chain{maxRequest: 1 << 20, maxBytes: 1 << 30}, msg: &pb.AppendRequest{}}
		if err := newCodec().Unmarshal(mem.BufferSlice{mem.SliceBuffer(b)}, &in); err != nil {
			t.Fatalf("the codec answered for itself: %v", err)
		}
		e := in.err
		decodable := proto.Unmarshal(b, &pb.AppendRequest{}) == nil
		switch {
		case len(b) > 1<<20:
			if e == nil || e.Code != pb.ErrorCode_ERROR_CODE_REQUEST_TOO_LARGE {
				t.Fatalf("%d bytes: %v", len(b), e)
			}
			return
		case e == nil && !decodable:
			t.Fatal("bytes that are no request were accepted")
		case e != nil && decodable && len(b) <= scanAbove:
			t.Fatalf("a request that can be decoded was refused: %v", e)
		}
		if e == nil {
			e = checkAppend(in.msg.(*pb.AppendRequest))
		}
		if e == nil {
			return
		}
		switch e.Code {
		case 2000, 2001, 2019:
		case pb.ErrorCode_ERROR_CODE_INVALID_REQUEST:
			if len(e.Details) != 1 {
				t.Fatalf("%v has no field", e)
			}
		default:
			t.Fatalf("unexpected code: %v", e)
		}
		if e.Message == "" {
			t.Fatalf("%d without a text", e.Code)
		}
	})
}
