package record

import (
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// A batch of the shortest events (no id, a type of one byte, nothing else) was taken for a
// damaged one: the decoder's lower bound for an event lay above what an event can be.
func TestBatchOfTheShortestEventsDecodes(t *testing.T) {
	shortest := &pb.NewEvent{ClientSeq: 1, Type: "T"}
	h := BatchHeader{
		Key: MakeKey("o", "t", "i"), Incarnation: 1, Version: 1, Position: 1, CommitFirst: 1, CommitCount: 1,
		ClientID: "a", FirstEventNumber: 1, EventCount: 2,
	}
	stored, chain := AppendBatch(nil, &h, Hash{}, AppendEvent(AppendEvent(nil, shortest), shortest))
	got, err := DecodeBatch(stored)
	if err != nil {
		t.Fatal(err)
	}
	want := h.Message()
	want.PreviousChainHash = make([]byte, HashSize)
	want.ChainHash = chain[:]
	for i := range uint64(2) {
		want.Events = append(want.Events, &pb.Event{ClientSeq: 1, Type: "T", Schema: &pb.SchemaVersion{Major: 1}, EventNumber: 1 + i})
	}
	if !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if n := len(AppendEvent(nil, &pb.NewEvent{})); n != minEvent {
		t.Errorf("an event with nothing in it takes %d bytes, minEvent is %d", n, minEvent)
	}
}
