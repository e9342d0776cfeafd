package server

import (
	"testing"

	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/record"
)

const testTimeline = "0123456789abcdef0123456789abcdef"

// wantError compares an error with the one expected in every part that a client sees:
// status code, text, details.
func wantError(t *testing.T, got error, want *api.Error) {
	t.Helper()
	if got == nil {
		t.Fatalf("got no error, want %v", want)
	}
	e, ok := api.FromStatus(got)
	if !ok {
		t.Fatalf("got %v, which has no code; want %v", got, want)
	}
	g, w := e.GRPCStatus().Proto(), want.GRPCStatus().Proto()
	if !proto.Equal(g, w) {
		t.Fatalf("got\n%s\nwant\n%s", prototext.Format(g), prototext.Format(w))
	}
}

func wantMessage(t *testing.T, got, want proto.Message) {
	t.Helper()
	if !proto.Equal(got, want) {
		t.Fatalf("got\n%s\nwant\n%s", prototext.Format(got), prototext.Format(want))
	}
}

func testKey(id string) record.Key { return record.MakeKey("acme", "orders", id) }

func pbKey(id string) *pb.AggregateKey {
	return &pb.AggregateKey{Org: "acme", Type: "orders", Id: id}
}

// event is an event with a sequence, an id made from it, and a type.
func event(seq uint64, typ string) *pb.NewEvent {
	return &pb.NewEvent{ClientSeq: seq, EventId: "e" + string(rune('0'+seq%10)), Type: typ, Payload: []byte(typ)}
}

// recorded is a NewEvent as a read returns it.
func recorded(e *pb.NewEvent, number uint64) *pb.Event {
	schema := e.GetSchema()
	if schema == nil {
		schema = &pb.SchemaVersion{Major: 1}
	}
	return &pb.Event{
		ClientSeq: e.GetClientSeq(), EventId: e.GetEventId(), Type: e.GetType(), Schema: schema,
		OccurredAt: e.GetOccurredAt(), Payload: e.GetPayload(), ContentType: e.GetContentType(),
		Metadata: e.GetMetadata(), Encryption: e.GetEncryption(), EventNumber: number,
	}
}
