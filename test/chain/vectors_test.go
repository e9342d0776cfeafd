package chain

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/timestamppb"
	"lukechampine.com/blake3"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/record"
)

var update = flag.Bool("update", false, "write docs/chain-vectors.json anew")

const (
	vectorsFile = "../../docs/chain-vectors.json"
	pageFile    = "../../docs/chain.md"
)

// vectors is what the file holds.
type vectors struct {
	Aggregates []aggregateVectors `json:"aggregates"`
}

type aggregateVectors struct {
	Comment string        `json:"comment"`
	Batches []batchVector `json:"batches"`
}

type batchVector struct {
	Batch         object   `json:"batch"`
	Canonical     string   `json:"canonical"`
	Events        []string `json:"events"`
	ContentHashes []string `json:"content_hashes"`
	Previous      string   `json:"previous_chain_hash"`
	Chain         string   `json:"chain_hash"`
}

// chainer makes the vectors of one aggregate with the server's encoder.
type chainer struct {
	t    *testing.T
	out  aggregateVectors
	prev record.Hash
	next uint64 // event number
}

func (c *chainer) batch(h record.BatchHeader, events ...*pb.NewEvent) {
	c.t.Helper()
	h.FirstEventNumber, h.EventCount = c.next, uint32(len(events))
	c.next += uint64(len(events))
	v := batchVector{Previous: hex.EncodeToString(c.prev[:])}
	var encoded []byte
	for _, e := range events {
		one := record.AppendEvent(nil, e)
		hash := record.ContentHash(one)
		v.Events = append(v.Events, hex.EncodeToString(one))
		v.ContentHashes = append(v.ContentHashes, hex.EncodeToString(hash[:]))
		encoded = append(encoded, one...)
	}
	stored, chain := record.AppendBatch(nil, &h, c.prev, encoded)
	v.Canonical = hex.EncodeToString(stored[1+record.HashSize : len(stored)-record.HashSize])
	v.Chain = hex.EncodeToString(chain[:])
	message, err := record.DecodeBatch(stored)
	if err != nil {
		c.t.Fatal(err)
	}
	v.Batch = objectOf(c.t, message)
	c.out.Batches, c.prev = append(c.out.Batches, v), chain
}

// objectOf is a batch as its JSON.
func objectOf(t *testing.T, m *pb.Batch) (o object) {
	t.Helper()
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err == nil {
		err = json.Unmarshal(text, &o)
	}
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// makeVectors makes all vectors.
func makeVectors(t *testing.T) (out vectors) {
	t.Helper()
	second := int64(time.Second)
	aggregate := func(comment string, prev record.Hash, next uint64, fill func(c *chainer)) record.Hash {
		c := &chainer{t: t, out: aggregateVectors{Comment: comment}, prev: prev, next: next}
		fill(c)
		out.Aggregates = append(out.Aggregates, c.out)
		return c.prev
	}
	header := func(k record.Key, incarnation uint32, version, position uint64, client string, at int64) record.BatchHeader {
		return record.BatchHeader{Key: k, Incarnation: incarnation, Version: version, Position: position, CommitFirst: position, CommitCount: 1, ClientID: client, CommittedAt: at}
	}
	first := record.MakeKey("a", "b", "c")
	last := aggregate("an event with nothing in it; every field there is; two events, by a request that wrote to two aggregates", record.Hash{}, 1, func(c *chainer) {
		c.batch(header(first, 1, 1, 7, "w", second), &pb.NewEvent{ClientSeq: 1, Type: "T"})
		c.batch(header(first, 1, 2, 8, "w", 1_767_225_600_123_456_789), &pb.NewEvent{
			ClientSeq: 1<<63 - 1, EventId: "id-2", Type: "Placed", Schema: &pb.SchemaVersion{Major: 2, Minor: 7},
			OccurredAt: &timestamppb.Timestamp{Seconds: -1, Nanos: 999_999_999}, ContentType: "application/json", Payload: []byte{0, 1, 0xfe, 0xff},
			// The order is that of UTF-8: U+FF5E before U+1F600, which UTF-16 has the other way round.
			Metadata:   map[string]string{"b": "", "a": "1", "ab": "2", "": "no key", "\U0001F600": "3", "\uFF5E": "4", "é": "5"},
			Encryption: &pb.Encryption{Scheme: "aes-256-gcm", KeyId: "k/1", Nonce: []byte{9, 8, 7}},
		})
		h := header(first, 1, 3, 9, "another writer", 1_767_225_600_123_456_789)
		h.CommitCount = 2
		c.batch(h, &pb.NewEvent{ClientSeq: 3, EventId: "x", Type: "T", Encryption: &pb.Encryption{}}, &pb.NewEvent{ClientSeq: 3, EventId: "y", Type: "T", Payload: []byte("{}")})
	})
	aggregate("the other aggregate of that request, with names that are not ASCII and a time before 1970", record.Hash{}, 1, func(c *chainer) {
		h := header(record.MakeKey("ä", "日本", "\U0001F600"), 1, 1, 10, "another writer", -1_500_000_000)
		h.CommitFirst, h.CommitCount = 9, 2
		c.batch(h, &pb.NewEvent{ClientSeq: 3, Type: "T", OccurredAt: &timestamppb.Timestamp{}})
	})
	aggregate("the first aggregate, trimmed to keep from version 4: what can be read goes on from the hash of what cannot", last, 5, func(c *chainer) {
		c.batch(header(first, 1, 4, 12, "w", 1_767_225_601*second), &pb.NewEvent{ClientSeq: 4, Type: "T"})
		last = c.prev
	})
	last = aggregate("deleted and recreated: the second life goes on, with the version, the event number and the hash of the first", last, 6, func(c *chainer) {
		c.batch(header(first, 2, 5, 14, "w", 1_767_225_602*second), &pb.NewEvent{ClientSeq: 5, Type: "T"})
	})
	aggregate("deleted with restart_versions and recreated: the third life begins anew", record.Hash{}, 1, func(c *chainer) {
		c.batch(header(first, 3, 1, 16, "w", 1_767_225_603*second), &pb.NewEvent{ClientSeq: 6, Type: "T"})
		c.batch(header(first, 3, 2, 17, "w", 1_767_225_603*second), &pb.NewEvent{ClientSeq: 7, Type: "T"})
	})
	return out
}

func TestVectorsAreCurrent(t *testing.T) {
	want, err := json.MarshalIndent(makeVectors(t), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	if *update {
		if err := os.WriteFile(vectorsFile, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the server's encoder makes. The encoding may never change: what was written would have other hashes. Only if the vectors were added to, run the test with -args -update", vectorsFile)
	}
}

// TestVectorsFollowFromTheDocumentation computes the vectors with the encoder that was written
// from docs/chain.md.
func TestVectorsFollowFromTheDocumentation(t *testing.T) {
	text, err := os.ReadFile(vectorsFile)
	if err != nil {
		t.Fatal(err)
	}
	var all vectors
	if err := json.Unmarshal(text, &all); err != nil {
		t.Fatal(err)
	}
	same := func(what string, got []byte, want string) {
		t.Helper()
		if hex.EncodeToString(got) != want {
			t.Errorf("%s: the documentation makes\n%x, the file has\n%s", what, got, want)
		}
	}
	n := 0
	for _, a := range all.Aggregates {
		for i, v := range a.Batches {
			n++
			same(a.Comment, canonicalBatch(v.Batch), v.Canonical)
			same(a.Comment, v.Batch.bytes("previous_chain_hash"), v.Previous)
			same(a.Comment, v.Batch.bytes("chain_hash"), v.Chain)
			same(a.Comment, chainHash(v.Batch), v.Chain)
			for j, e := range v.Batch.events() {
				one := canonicalEvent(e)
				hash := blake3.Sum256(one)
				same(a.Comment, one, v.Events[j])
				same(a.Comment, hash[:], v.ContentHashes[j])
			}
			if i > 0 && v.Previous != a.Batches[i-1].Chain {
				t.Errorf("%s: batch %d goes on from %s", a.Comment, i, v.Previous)
			}
		}
	}
	if n != 8 || len(all.Aggregates) != 5 {
		t.Errorf("found %d batches of %d aggregates", n, len(all.Aggregates))
	}
	page, err := os.ReadFile(pageFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, example := range []string{all.Aggregates[0].Batches[0].Canonical, all.Aggregates[0].Batches[0].Chain} {
		if indented := indent(example); !strings.Contains(string(page), indented) {
			t.Errorf("%s does not have the example\n%s", pageFile, indented)
		}
	}
}

// indent is hex as the page has it: 32 bytes a line.
func indent(text string) string {
	var b strings.Builder
	for ; text != ""; text = text[min(64, len(text)):] {
		b.WriteString("    " + text[:min(64, len(text))] + "\n")
	}
	return b.String()
}
