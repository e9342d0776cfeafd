package record

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
)

// BatchView is a stored batch that is read in place: its slices alias the input.
type BatchView struct {
	Org, Type, ID    []byte
	Incarnation      uint32
	Version          uint64
	Shard            uint32
	Position         uint64
	CommitFirst      uint64
	CommitCount      uint32
	ClientID         []byte
	CommittedAt      int64 // Unix nanoseconds
	FirstEventNumber uint64
	EventCount       uint32
	// Events is EventCount canonical events, one after the other.
	Events      []byte
	Prev, Chain []byte
}

// ViewBatch reads a stored batch without copying anything, and does not check its hash.
func ViewBatch(b []byte, v *BatchView) error {
	c := cursor{b: b}
	if f := c.u8(); f != batchFormat && !c.bad {
		return fmt.Errorf("%w: batch format %d, this version reads %d", ErrCorrupt, f, batchFormat)
	}
	v.Prev = c.take(HashSize)
	v.Org, v.Type, v.ID = c.bytes(), c.bytes(), c.bytes()
	v.Incarnation = c.u32()
	v.Version = c.u64()
	v.Shard = c.u32()
	v.Position = c.u64()
	v.CommitFirst = c.u64()
	v.CommitCount = c.u32()
	v.ClientID = c.bytes()
	v.CommittedAt = int64(c.u64())
	v.FirstEventNumber = c.u64()
	v.EventCount = c.u32()
	v.Events = c.take(len(b) - c.off - HashSize)
	v.Chain = c.take(HashSize)
	if c.bad {
		return fmt.Errorf("%w: batch of %d bytes ends early", ErrCorrupt, len(b))
	}
	return nil
}

// Numbers of the fields of Batch and of Event, which AppendBatchMessage and
// AppendEventMessage write: the same messages that DecodeBatch makes, encoded, without making
// them. TestMessagesAreWhatDecodingMakes holds the two together.
const (
	batchEvents    = 11
	batchPrevChain = 12
	batchChain     = 13
	eventNumber    = 10
)

// AppendBatchMessage appends the fields of the Batch message, all but its events.
func AppendBatchMessage(dst []byte, v *BatchView) []byte {
	dst, key := OpenMessage(dst, 1, len(v.Org)+len(v.Type)+len(v.ID)+9)
	dst = appendBytesField(dst, 1, v.Org)
	dst = appendBytesField(dst, 2, v.Type)
	dst = appendBytesField(dst, 3, v.ID)
	dst = CloseMessage(dst, key)
	dst = appendVarintField(dst, 2, v.Version)
	dst = appendVarintField(dst, 3, uint64(v.Incarnation))
	dst = appendVarintField(dst, 4, uint64(v.Shard))
	dst = appendVarintField(dst, 5, v.Position)
	dst = appendVarintField(dst, 6, v.CommitFirst)
	dst = appendVarintField(dst, 7, uint64(v.CommitCount))
	dst = appendBytesField(dst, 8, v.ClientID)
	t := time.Unix(0, v.CommittedAt)
	dst = appendTimeField(dst, 9, t.Unix(), uint32(t.Nanosecond()))
	dst = appendVarintField(dst, 10, v.FirstEventNumber)
	dst = appendBytesField(dst, batchPrevChain, v.Prev)
	return appendBytesField(dst, batchChain, v.Chain)
}

// AppendEventMessage appends an event, given as its canonical encoding, as a field of the
// Batch message.
func AppendEventMessage(dst, event []byte, number uint64) ([]byte, error) {
	c := cursor{b: event}
	dst, field := OpenMessage(dst, batchEvents, len(event))
	dst = appendVarintField(dst, 1, c.u64())
	dst = appendBytesField(dst, 2, c.bytes())
	dst = appendBytesField(dst, 3, c.bytes())
	major, minor := c.u32(), c.u32()
	dst, schema := OpenMessage(dst, 4, 0)
	dst = appendVarintField(dst, 1, uint64(major))
	dst = appendVarintField(dst, 2, uint64(minor))
	dst = CloseMessage(dst, schema)
	if c.bool() {
		seconds, nanos := int64(c.u64()), c.u32()
		dst = appendTimeField(dst, 5, seconds, nanos)
	}
	content := c.bytes()
	n := c.u32()
	metadata := c.off
	for i := uint32(0); i < n && !c.bad; i++ {
		c.bytes()
		c.bytes()
	}
	var encrypted bool
	var scheme, keyID, nonce []byte
	if encrypted = c.bool(); encrypted {
		scheme, keyID, nonce = c.bytes(), c.bytes(), c.bytes()
	}
	payload := c.bytes()
	if c.bad || c.off != len(event) {
		return nil, fmt.Errorf("%w: event of %d bytes ends early, goes on, or holds a bad flag", ErrCorrupt, len(event))
	}
	dst = appendBytesField(dst, 6, payload)
	dst = appendBytesField(dst, 7, content)
	m := cursor{b: event, off: metadata}
	for range n {
		key, value := m.bytes(), m.bytes()
		var entry int
		dst, entry = OpenMessage(dst, 8, len(key)+len(value)+4)
		dst = appendBytesField(dst, 1, key)
		dst = appendBytesField(dst, 2, value)
		dst = CloseMessage(dst, entry)
	}
	if encrypted {
		var e int
		dst, e = OpenMessage(dst, 9, len(scheme)+len(keyID)+len(nonce)+6)
		dst = appendBytesField(dst, 1, scheme)
		dst = appendBytesField(dst, 2, keyID)
		dst = appendBytesField(dst, 3, nonce)
		dst = CloseMessage(dst, e)
	}
	dst = appendVarintField(dst, eventNumber, number)
	return CloseMessage(dst, field), nil
}

// OpenMessage starts an embedded message, whose length is known when CloseMessage ends it;
// about is a guess of it, so that nothing has to be moved then.
func OpenMessage(dst []byte, field protowire.Number, about int) (_ []byte, start int) {
	dst = protowire.AppendTag(dst, field, protowire.BytesType)
	room := protowire.SizeVarint(uint64(about))
	for range room {
		dst = append(dst, 0)
	}
	// The room that was left is the low bits, which is at most 10.
	return dst, len(dst)<<4 | room
}

// CloseMessage ends what OpenMessage started.
func CloseMessage(dst []byte, start int) []byte {
	at, room := start>>4, start&15
	size := len(dst) - at
	if need := protowire.SizeVarint(uint64(size)); need != room {
		dst = append(dst, make([]byte, max(need-room, 0))...)
		copy(dst[at-room+need:], dst[at:at+size])
		dst = dst[:at-room+need+size]
	}
	protowire.AppendVarint(dst[at-room:at-room], uint64(size))
	return dst
}

func appendVarintField(dst []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return dst
	}
	return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), v)
}

func appendBytesField(dst []byte, field protowire.Number, v []byte) []byte {
	if len(v) == 0 {
		return dst
	}
	return protowire.AppendBytes(protowire.AppendTag(dst, field, protowire.BytesType), v)
}

func appendTimeField(dst []byte, field protowire.Number, seconds int64, nanos uint32) []byte {
	dst, t := OpenMessage(dst, field, 0)
	dst = appendVarintField(dst, 1, uint64(seconds))
	dst = appendVarintField(dst, 2, uint64(nanos))
	return CloseMessage(dst, t)
}
