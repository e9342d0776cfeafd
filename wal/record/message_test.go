package record

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// message is the Batch message of a stored batch, as AppendBatchMessage and
// AppendEventMessage write it.
func message(t *testing.T, stored []byte) *pb.Batch {
	t.Helper()
	var v BatchView
	if err := ViewBatch(stored, &v); err != nil {
		t.Fatal(err)
	}
	out := AppendBatchMessage(nil, &v)
	rest := v.Events
	for i := range v.EventCount {
		var e EventView
		var err error
		if rest, err = NextEvent(rest, &e); err != nil {
			t.Fatal(err)
		}
		if out, err = AppendEventMessage(out, e.Raw, v.FirstEventNumber+uint64(i)); err != nil {
			t.Fatal(err)
		}
	}
	b := &pb.Batch{}
	if err := proto.Unmarshal(out, b); err != nil {
		t.Fatal(err)
	}
	return b
}

func TestMessagesAreWhatDecodingMakes(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	// Lengths around those where a length takes one byte more.
	text := func() string {
		lengths := []int{0, 1, 50, 119, 120, 121, 126, 127, 128, 129, 200, 16382, 16383, 16384, 16385}
		return strings.Repeat("x", lengths[rng.IntN(len(lengths))])
	}
	part := func() string { return fmt.Sprintf("p%s", strings.Repeat("y", rng.IntN(199))) }
	number := func() uint64 { return rng.Uint64() >> rng.IntN(64) }
	signed := func() int64 { return int64(number()) * int64(1-2*rng.IntN(2)) }
	for range 2000 {
		var events []byte
		n := rng.IntN(4)
		for range n {
			e := &pb.NewEvent{ClientSeq: number(), EventId: text(), Type: text(), ContentType: text(), Payload: []byte(text())}
			if rng.IntN(2) == 0 {
				e.Schema = &pb.SchemaVersion{Major: uint32(number()), Minor: uint32(number())}
			}
			if rng.IntN(2) == 0 {
				e.OccurredAt = &timestamppb.Timestamp{Seconds: signed(), Nanos: int32(rng.IntN(1e9))}
			}
			for range rng.IntN(3) {
				if e.Metadata == nil {
					e.Metadata = map[string]string{}
				}
				e.Metadata[text()] = text()
			}
			if rng.IntN(2) == 0 {
				e.Encryption = &pb.Encryption{Scheme: text(), KeyId: text(), Nonce: []byte(text())}
			}
			events = AppendEvent(events, e)
		}
		h := BatchHeader{
			Key: MakeKey(part(), part(), part()), Incarnation: uint32(number()), Version: number(), Shard: uint32(rng.IntN(2)),
			Position: number(), CommitFirst: number(), CommitCount: uint32(number()), ClientID: part(),
			CommittedAt: signed(), FirstEventNumber: number(), EventCount: uint32(n),
		}
		stored, _ := AppendBatch(nil, &h, Hash{byte(rng.Uint32())}, events)
		want, err := DecodeBatch(stored)
		if err != nil {
			t.Fatal(err)
		}
		if got := message(t, stored); !proto.Equal(got, want) {
			t.Fatalf("got  %v\nwant %v", got, want)
		}
	}
}

// FuzzMessages looks for bytes on which the two ways to a message differ, or one panics.
func FuzzMessages(f *testing.F) {
	events := AppendEvent(nil, &pb.NewEvent{ClientSeq: 1, Type: "T", Metadata: map[string]string{"k": "v"}})
	stored, _ := AppendBatch(nil, &BatchHeader{Key: MakeKey("a", "b", "c"), Version: 1, ClientID: "w", EventCount: 1}, Hash{}, events)
	f.Add(stored)
	f.Fuzz(func(t *testing.T, stored []byte) {
		want, wantErr := DecodeBatch(stored)
		var v BatchView
		err := ViewBatch(stored, &v)
		rest := v.Events
		out := AppendBatchMessage(nil, &v)
		for i := uint32(0); i < v.EventCount && err == nil; i++ {
			var e EventView
			if rest, err = NextEvent(rest, &e); err == nil {
				out, err = AppendEventMessage(out, e.Raw, v.FirstEventNumber+uint64(i))
			}
		}
		if err == nil && len(rest) != 0 {
			err = ErrCorrupt
		}
		if (err == nil) != (wantErr == nil) {
			t.Fatalf("in place: %v; decoded: %v", err, wantErr)
		}
		if err != nil || want.GetAggregate().GetOrg() == "" {
			return // or no key that a batch could have
		}
		wantBytes, err := proto.Marshal(want)
		if err != nil {
			return // not UTF-8
		}
		got, wantAgain := &pb.Batch{}, &pb.Batch{}
		if err := proto.Unmarshal(out, got); err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(wantBytes, wantAgain); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got, wantAgain) {
			t.Fatalf("got  %v\nwant %v", got, wantAgain)
		}
	})
}
