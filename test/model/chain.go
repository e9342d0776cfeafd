package model

import (
	"bytes"
	"encoding/binary"
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"lukechampine.com/blake3"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// The canonical encoding, written a second time from wal/DESIGN.md, over what reads return:
// section 7 promises that anyone can do this.

// encoder writes big-endian integers, and strings behind a u32 length.
type encoder struct{ bytes.Buffer }

func (e *encoder) fixed(values ...any) {
	for _, v := range values {
		if err := binary.Write(e, binary.BigEndian, v); err != nil {
			panic(err) // only a value of a type without a fixed size
		}
	}
}

func (e *encoder) strings(values ...string) {
	for _, v := range values {
		e.fixed(uint32(len(v)))
		e.WriteString(v)
	}
}

func (e *encoder) event(v *pb.Event) {
	e.fixed(v.GetClientSeq())
	e.strings(v.GetEventId(), v.GetType())
	e.fixed(v.GetSchema().GetMajor(), v.GetSchema().GetMinor(), v.GetOccurredAt() != nil)
	if t := v.GetOccurredAt(); t != nil {
		e.fixed(t.GetSeconds(), t.GetNanos())
	}
	e.strings(v.GetContentType())
	e.fixed(uint32(len(v.GetMetadata())))
	for _, k := range slices.Sorted(maps.Keys(v.GetMetadata())) {
		e.strings(k, v.GetMetadata()[k])
	}
	e.fixed(v.GetEncryption() != nil)
	if c := v.GetEncryption(); c != nil {
		e.strings(c.GetScheme(), c.GetKeyId(), string(c.GetNonce()))
	}
	e.strings(string(v.GetPayload()))
}

// chainHash recomputes a batch's chain hash from the batch as reads return it.
func chainHash(b *pb.Batch) []byte {
	var e encoder
	e.Write(b.GetPreviousChainHash())
	k := b.GetAggregate()
	e.strings(k.GetOrg(), k.GetType(), k.GetId())
	e.fixed(b.GetIncarnation(), b.GetVersion(), b.GetShard(), b.GetPosition(), b.GetCommitFirstPosition(), b.GetCommitCount())
	e.strings(b.GetClientId())
	e.fixed(b.GetCommittedAt().AsTime().UnixNano(), b.GetFirstEventNumber(), uint32(len(b.GetEvents())))
	for _, v := range b.GetEvents() {
		e.event(v)
	}
	sum := blake3.Sum256(e.Bytes())
	return sum[:]
}

// recorded is an event as it is read back: the writer's fields, the default schema filled in.
func recorded(e *pb.NewEvent, number uint64) *pb.Event {
	schema := &pb.SchemaVersion{Major: 1}
	if s := e.GetSchema(); s != nil {
		schema = s
	}
	return proto.Clone(&pb.Event{
		ClientSeq: e.GetClientSeq(), EventId: e.GetEventId(), Type: e.GetType(), Schema: schema, OccurredAt: e.GetOccurredAt(),
		Payload: e.GetPayload(), ContentType: e.GetContentType(), Metadata: e.GetMetadata(), Encryption: e.GetEncryption(),
		EventNumber: number,
	}).(*pb.Event)
}

// event is what two events are compared by: every field of NewEvent, defaults filled in.
type event interface {
	*pb.NewEvent | *pb.Event
}

func content[E event](v E) string {
	var e encoder
	switch v := any(v).(type) {
	case *pb.NewEvent:
		e.event(recorded(v, 0))
	case *pb.Event:
		e.event(v)
	}
	return e.String()
}

func sameEvent[A, B event](a A, b B) bool { return content(a) == content(b) }

func sameEvents[A, B event](a []A, b []B) bool {
	return slices.EqualFunc(a, b, sameEvent[A, B])
}
