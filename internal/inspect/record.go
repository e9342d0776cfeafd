package inspect

import (
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"lukechampine.com/blake3"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// Aggregate is an aggregate's key in its stored form: org, type and id, each followed by a zero
// byte.
type Aggregate string

func makeAggregate(org, typ, id string) Aggregate {
	return Aggregate(org + "\x00" + typ + "\x00" + id + "\x00")
}

// AggregateOf is the stored form of a key.
func AggregateOf(key *pb.AggregateKey) Aggregate {
	return makeAggregate(key.GetOrg(), key.GetType(), key.GetId())
}

// parts splits a key; ok is false if it is none.
func (a Aggregate) parts() (org, typ, id string, ok bool) {
	s := strings.Split(string(a), "\x00")
	if len(s) != 4 || s[0] == "" || s[1] == "" || s[2] == "" || s[3] != "" {
		return "", "", "", false
	}
	return s[0], s[1], s[2], true
}

// String is org/type/id.
func (a Aggregate) String() string {
	org, typ, id, ok := a.parts()
	if !ok {
		return fmt.Sprintf("%q", string(a))
	}
	return org + "/" + typ + "/" + id
}

// Key is the key as a message.
func (a Aggregate) Key() *pb.AggregateKey {
	org, typ, id, _ := a.parts()
	return &pb.AggregateKey{Org: org, Type: typ, Id: id}
}

// Event is one event of a batch.
type Event struct {
	ClientSeq uint64
	EventID   string
	// Content is the hash of the canonical encoding.
	Content Hash
	// Message is the whole event. Its number is 0 unless it was read in a batch.
	Message *pb.Event
}

// event reads one canonical event.
func (c *cursor) event() Event {
	start := c.off
	m := &pb.Event{ClientSeq: c.u64(), EventId: c.str(), Type: c.str()}
	m.Schema = &pb.SchemaVersion{Major: c.u32(), Minor: c.u32()}
	if c.flag() {
		m.OccurredAt = &timestamppb.Timestamp{Seconds: c.i64(), Nanos: int32(c.u32())}
		if m.OccurredAt.Nanos < 0 || m.OccurredAt.Nanos >= 1e9 {
			c.fail("expected less than 1000000000 nanoseconds, found %d", uint32(m.OccurredAt.Nanos))
		}
	}
	m.ContentType = c.str()
	before := ""
	for i := range c.u32() {
		if c.bad != "" {
			break
		}
		k := c.str()
		if i > 0 && k <= before {
			c.fail("expected metadata in order of its keys, found %q after %q", k, before)
		}
		if m.Metadata == nil {
			m.Metadata = map[string]string{}
		}
		m.Metadata[k], before = c.str(), k
	}
	if c.flag() {
		m.Encryption = &pb.Encryption{Scheme: c.str(), KeyId: c.str(), Nonce: copied(c.bytes())}
	}
	m.Payload = copied(c.bytes())
	if c.bad != "" {
		return Event{}
	}
	return Event{ClientSeq: m.ClientSeq, EventID: m.EventId, Content: blake3.Sum256(c.b[start:c.off]), Message: m}
}

// copied is b in memory of its own; nil for nothing.
func copied(b []byte) []byte { return append([]byte(nil), b...) }

// Batch is a stored batch.
type Batch struct {
	Aggregate   Aggregate
	Incarnation uint32
	Version     uint64
	Shard       uint32
	Position    uint64
	CommitFirst uint64
	CommitCount uint32
	Client      string
	CommittedAt int64 // Unix nanoseconds
	FirstEvent  uint64
	Events      []Event
	Previous    Hash // chain hash of the batch before
	Chain       Hash
	// Computed is the chain hash that the content has.
	Computed Hash
}

// parseBatch reads a stored batch.
func parseBatch(v []byte) (Batch, error) {
	c := cursor{b: v}
	c.format(1)
	b := Batch{Previous: c.hash()}
	b.Aggregate = makeAggregate(c.str(), c.str(), c.str())
	b.Incarnation = c.u32()
	b.Version = c.u64()
	b.Shard = c.u32()
	b.Position = c.u64()
	b.CommitFirst = c.u64()
	b.CommitCount = c.u32()
	b.Client = c.str()
	b.CommittedAt = c.i64()
	b.FirstEvent = c.u64()
	n := c.u32()
	if n == 0 {
		c.fail("expected events, found none")
	}
	for range n {
		if c.bad != "" {
			break
		}
		e := c.event()
		if e.Message != nil {
			e.Message.EventNumber = b.FirstEvent + uint64(len(b.Events))
		}
		b.Events = append(b.Events, e)
	}
	b.Chain = c.hash()
	if err := c.end("the batch"); err != nil {
		return b, err
	}
	b.Computed = blake3.Sum256(v[1 : len(v)-HashSize])
	return b, nil
}

// Message is the batch as the node returns it.
func (b *Batch) Message() *pb.Batch {
	m := &pb.Batch{
		Aggregate: b.Aggregate.Key(), Version: b.Version, Incarnation: b.Incarnation, Shard: b.Shard, Position: b.Position,
		CommitFirstPosition: b.CommitFirst, CommitCount: b.CommitCount, ClientId: b.Client, CommittedAt: stamp(b.CommittedAt),
		FirstEventNumber: b.FirstEvent, PreviousChainHash: b.Previous[:], ChainHash: b.Chain[:],
	}
	for i := range b.Events {
		m.Events = append(m.Events, b.Events[i].Message)
	}
	return m
}

func stamp(ns int64) *timestamppb.Timestamp { return timestamppb.New(time.Unix(0, ns)) }
