package record

import (
	"bytes"
	"encoding/hex"
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// full is an event with every field set; plain one with none but the required.
func full() *pb.NewEvent {
	return &pb.NewEvent{
		ClientSeq: 7, EventId: "ev-7", Type: "placed", Schema: &pb.SchemaVersion{Major: 2, Minor: 3},
		OccurredAt: &timestamppb.Timestamp{Seconds: -5, Nanos: 6}, Payload: []byte("{}"), ContentType: "application/json",
		Metadata:   map[string]string{"b": "2", "a": "1", "": "empty"},
		Encryption: &pb.Encryption{Scheme: "s", KeyId: "k", Nonce: []byte{9}},
	}
}

func plain() *pb.NewEvent { return &pb.NewEvent{ClientSeq: 1, Type: "t"} }

// TestCanonicalBytes pins the encodings: they are hashed, stored, and what others recompute
// the chain from. A change here is a new format.
func TestCanonicalBytes(t *testing.T) {
	events := AppendEvent(AppendEvent(nil, full()), plain())
	wantEvents := "0000000000000007" + "00000004" + hex.EncodeToString([]byte("ev-7")) +
		"00000006" + hex.EncodeToString([]byte("placed")) + "00000002" + "00000003" +
		"01" + "fffffffffffffffb" + "00000006" +
		"00000010" + hex.EncodeToString([]byte("application/json")) +
		"00000003" + "00000000" + "00000005" + hex.EncodeToString([]byte("empty")) +
		"00000001" + "61" + "00000001" + "31" + "00000001" + "62" + "00000001" + "32" +
		"01" + "00000001" + "73" + "00000001" + "6b" + "00000001" + "09" +
		"00000002" + "7b7d" +
		// plain: schema 1.0 filled in, everything else empty
		"0000000000000001" + "00000000" + "00000001" + "74" + "00000001" + "00000000" +
		"00" + "00000000" + "00000000" + "00" + "00000000"
	if got := hex.EncodeToString(events); got != wantEvents {
		t.Fatalf("events\n got %s\nwant %s", got, wantEvents)
	}
	h := BatchHeader{Key: MakeKey("acme", "orders", "1"), Incarnation: 1, Version: 2, Shard: 3, Position: 4,
		CommitFirst: 5, CommitCount: 6, ClientID: "a", CommittedAt: 8, FirstEventNumber: 9, EventCount: 2}
	prev := Hash{0xaa}
	b, chain := AppendBatch(nil, &h, prev, events)
	wantBatch := "01" + "aa" + hex.EncodeToString(make([]byte, 31)) +
		"00000004" + hex.EncodeToString([]byte("acme")) + "00000006" + hex.EncodeToString([]byte("orders")) + "00000001" + "31" +
		"00000001" + "0000000000000002" + "00000003" + "0000000000000004" + "0000000000000005" + "00000006" +
		"00000001" + "61" + "0000000000000008" + "0000000000000009" + "00000002" + wantEvents
	if got := hex.EncodeToString(b[:len(b)-HashSize]); got != wantBatch {
		t.Fatalf("batch\n got %s\nwant %s", got, wantBatch)
	}
	if len(b) != BatchSize(&h, len(events)) {
		t.Fatalf("BatchSize says %d, the batch has %d bytes", BatchSize(&h, len(events)), len(b))
	}
	// BLAKE3 of the bytes above, computed with the reference implementation in Rust.
	const wantChain = "1f8492e66a2293f6cb0868c8d7589c12df9ee0c5238adc45bbd3a378029e03e6"
	if got := hex.EncodeToString(chain[:]); got != wantChain {
		t.Fatalf("chain hash %s, want %s", got, wantChain)
	}
}

func TestBatchComesBack(t *testing.T) {
	events := AppendEvent(AppendEvent(nil, full()), plain())
	h := BatchHeader{Key: MakeKey("acme", "orders", "ö"), Incarnation: 1, Version: 2, Shard: 3, Position: 4,
		CommitFirst: 5, CommitCount: 6, ClientID: "a", CommittedAt: 8, FirstEventNumber: 9, EventCount: 2}
	b, chain := AppendBatch(nil, &h, Hash{1}, events)
	got, err := DecodeBatch(b)
	if err != nil {
		t.Fatal(err)
	}
	one, two := full(), plain()
	two.Schema = &pb.SchemaVersion{Major: 1}
	asEvent := func(e *pb.NewEvent, number uint64) *pb.Event {
		return &pb.Event{ClientSeq: e.ClientSeq, EventId: e.EventId, Type: e.Type, Schema: e.Schema, OccurredAt: e.OccurredAt,
			Payload: e.Payload, ContentType: e.ContentType, Metadata: e.Metadata, Encryption: e.Encryption, EventNumber: number}
	}
	prev := Hash{1}
	want := &pb.Batch{Aggregate: &pb.AggregateKey{Org: "acme", Type: "orders", Id: "ö"}, Version: 2, Incarnation: 1, Shard: 3,
		Position: 4, CommitFirstPosition: 5, CommitCount: 6, ClientId: "a", CommittedAt: &timestamppb.Timestamp{Nanos: 8},
		FirstEventNumber: 9, Events: []*pb.Event{asEvent(one, 9), asEvent(two, 10)}, PreviousChainHash: prev[:], ChainHash: chain[:]}
	if !proto.Equal(got, want) {
		t.Fatalf("batch\n got %v\nwant %v", got, want)
	}
}

// TestVerifyBatchFindsEveryFlip flips each byte of a stored batch behind its format byte.
func TestVerifyBatchFindsEveryFlip(t *testing.T) {
	h := BatchHeader{Key: MakeKey("acme", "orders", "1"), Version: 1, EventCount: 1, ClientID: "a"}
	b, _ := AppendBatch(nil, &h, Hash{}, AppendEvent(nil, full()))
	if err := VerifyBatch(b); err != nil {
		t.Fatal(err)
	}
	for i := 1; i < len(b); i++ {
		bad := bytes.Clone(b)
		bad[i] ^= 1
		if err := VerifyBatch(bad); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("byte %d flipped: %v, want ErrCorrupt", i, err)
		}
	}
}

// sampleEntry is an entry of two requests, the second one with two writes.
func sampleEntry() []byte {
	data := AppendEntryHeader(nil, 3, 4, 2)
	for i, writes := range [][]Write{
		{{Key: MakeKey("acme", "orders", "1"), Flags: FlagEnforce | FlagHasExpected, Expected: 5}},
		{{Key: MakeKey("acme", "orders", "2"), Flags: FlagAllowCreate}, {Key: MakeKey("b", "c", "d"), Flags: FlagEnforce | FlagHasPrevious, Previous: 6}},
	} {
		start := len(data)
		data = AppendRequestHeader(data, int64(100+i), "writer", uint32(len(writes)))
		for _, w := range writes {
			data, _ = EncodeWrite(data, &w, []*pb.NewEvent{full(), plain()})
		}
		FinishRequest(data[start:], 0)
	}
	return data
}

func TestEntryComesBack(t *testing.T) {
	data := sampleEntry()
	r, err := ReadEntry(data)
	if err != nil {
		t.Fatal(err)
	}
	if r.Term != 3 || r.Ticket != 4 || r.Count != 2 {
		t.Fatalf("header: %+v", r)
	}
	one, two := AppendEvent(nil, full()), AppendEvent(nil, plain())
	h1, h2 := ContentHash(one), ContentHash(two)
	hashes, events := append(h1[:], h2[:]...), append(one, two...)
	check := func(w Write, key Key, flags byte, expected, previous uint64) {
		t.Helper()
		if w.Key != key || w.Flags != flags || w.Expected != expected || w.Previous != previous || w.EventCount != 2 ||
			w.Lowest != 1 || w.Highest != 7 || !bytes.Equal(w.Hashes, hashes) || !bytes.Equal(w.Events, events) || w.Hash(1) != h2 {
			t.Fatalf("write %+v", w)
		}
	}
	req, err := r.Next()
	if err != nil || req.CommittedAt != 100 || req.ClientID != "writer" || len(req.Writes) != 1 {
		t.Fatalf("request 0: %+v, %v", req, err)
	}
	check(req.Writes[0], MakeKey("acme", "orders", "1"), FlagEnforce|FlagHasExpected, 5, 0)
	req, err = r.Next()
	if err != nil || req.CommittedAt != 101 || len(req.Writes) != 2 {
		t.Fatalf("request 1: %+v, %v", req, err)
	}
	check(req.Writes[0], MakeKey("acme", "orders", "2"), FlagAllowCreate, 0, 0)
	check(req.Writes[1], MakeKey("b", "c", "d"), FlagEnforce|FlagHasPrevious, 0, 6)
	if req, err = r.Next(); req != nil || err != nil {
		t.Fatalf("after the last: %+v, %v", req, err)
	}
}

// TestEntryCutAnywhereIsCorrupt: no prefix of an entry passes for a whole one.
func TestEntryCutAnywhereIsCorrupt(t *testing.T) {
	data := sampleEntry()
	for n := range data {
		if err := readAll(data[:n]); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("cut to %d of %d bytes: %v, want ErrCorrupt", n, len(data), err)
		}
	}
	if err := readAll(append(bytes.Clone(data), 0)); !errors.Is(err, ErrCorrupt) {
		t.Fatalf("with a byte behind it: %v, want ErrCorrupt", err)
	}
}

func readAll(data []byte) error {
	r, err := ReadEntry(data)
	if err != nil {
		return err
	}
	for {
		if req, err := r.Next(); err != nil || req == nil {
			return err
		}
	}
}

func TestKeyParts(t *testing.T) {
	k := MakeKey("acme", "orders", "4821")
	if org, typ, id, ok := k.Parts(); org != "acme" || typ != "orders" || id != "4821" || !ok {
		t.Fatalf("parts: %q %q %q %v", org, typ, id, ok)
	}
	if k.String() != "acme/orders/4821" {
		t.Fatalf("text form %q", k)
	}
	for _, bad := range []Key{"", "a", "a\x00b\x00", "a\x00b\x00c", "a\x00b\x00c\x00d", "a\x00b\x00\x00", "\x00b\x00c\x00"} {
		if _, _, _, ok := bad.Parts(); ok {
			t.Fatalf("%q passes for a key", bad)
		}
	}
}

func FuzzEntry(f *testing.F) {
	f.Add(sampleEntry())
	f.Add(AppendEntryHeader(nil, 1, 1, 1<<31))
	f.Fuzz(func(t *testing.T, data []byte) {
		if err := readAll(data); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%v is not ErrCorrupt", err)
		}
	})
}

func FuzzBatch(f *testing.F) {
	h := BatchHeader{Key: MakeKey("acme", "orders", "1"), Version: 1, EventCount: 2, ClientID: "a"}
	b, _ := AppendBatch(nil, &h, Hash{}, AppendEvent(AppendEvent(nil, full()), plain()))
	f.Add(b)
	f.Fuzz(func(t *testing.T, data []byte) {
		if _, err := DecodeBatch(data); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Fatalf("%v is not ErrCorrupt", err)
		}
		_ = VerifyBatch(data)
	})
}

// FuzzEvent: both parsers take the same bytes for an event, and agree on it.
func FuzzEvent(f *testing.F) {
	f.Add(AppendEvent(nil, full()))
	f.Add(AppendEvent(nil, plain()))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, rest, err := DecodeEvent(data)
		var v EventView
		rest2, err2 := NextEvent(data, &v)
		if (err == nil) != (err2 == nil) {
			t.Fatalf("DecodeEvent says %v, NextEvent %v", err, err2)
		}
		if err != nil {
			if !errors.Is(err, ErrCorrupt) || !errors.Is(err2, ErrCorrupt) {
				t.Fatalf("%v, %v: not ErrCorrupt", err, err2)
			}
			return
		}
		if len(rest) != len(rest2) || v.ClientSeq != e.ClientSeq || string(v.EventID) != e.EventId || string(v.Type) != e.Type {
			t.Fatalf("the parsers differ: %v and %+v", e, v)
		}
	})
}
