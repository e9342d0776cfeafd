package record

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sort"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"lukechampine.com/blake3"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// ErrCorrupt is returned by every decoder for bytes that it could not have been given by
// its encoder. Match with errors.Is; the text says what was expected where.
var ErrCorrupt = errors.New("corrupt record")

// HashSize is the size of content hashes and chain hashes (BLAKE3, 32 bytes).
const HashSize = 32

// Hash is a BLAKE3 hash.
type Hash [HashSize]byte

// AppendEvent appends the canonical encoding of e to dst:
//
//	u64 client_seq | str event_id | str type | u32 schema.major | u32 schema.minor
//	u8 has_occurred_at [i64 seconds, u32 nanos] | str content_type
//	u32 n, n times (str key, str value) in byte order of the keys
//	u8 has_encryption [str scheme, str key_id, bytes nonce] | bytes payload
//
// An absent schema is 1.0.
func AppendEvent(dst []byte, e *pb.NewEvent) []byte {
	be := binary.BigEndian
	dst = be.AppendUint64(dst, e.GetClientSeq())
	dst = appendString(dst, e.GetEventId())
	dst = appendString(dst, e.GetType())
	major, minor := uint32(1), uint32(0)
	if s := e.GetSchema(); s != nil {
		major, minor = s.GetMajor(), s.GetMinor()
	}
	dst = be.AppendUint32(dst, major)
	dst = be.AppendUint32(dst, minor)
	if t := e.GetOccurredAt(); t != nil {
		dst = append(dst, 1)
		dst = be.AppendUint64(dst, uint64(t.GetSeconds()))
		dst = be.AppendUint32(dst, uint32(t.GetNanos()))
	} else {
		dst = append(dst, 0)
	}
	dst = appendString(dst, e.GetContentType())
	md := e.GetMetadata()
	dst = be.AppendUint32(dst, uint32(len(md)))
	if len(md) > 0 {
		keys := make([]string, 0, len(md))
		for k := range md {
			keys = append(keys, k)
		}
		sort.Strings(keys)
		for _, k := range keys {
			dst = appendString(dst, k)
			dst = appendString(dst, md[k])
		}
	}
	if enc := e.GetEncryption(); enc != nil {
		dst = append(dst, 1)
		dst = appendString(dst, enc.GetScheme())
		dst = appendString(dst, enc.GetKeyId())
		dst = appendBytes(dst, enc.GetNonce())
	} else {
		dst = append(dst, 0)
	}
	return appendBytes(dst, e.GetPayload())
}

// minEvent is the length of the shortest encoding, that of an event with nothing in it.
const minEvent = 8 + 4 + 4 + 4 + 4 + 1 + 4 + 4 + 1 + 4

// ContentHash is the hash of one canonical event encoding.
func ContentHash(event []byte) Hash { return blake3.Sum256(event) }

// EventView is the part of an encoded event that Apply and filters need. Its slices alias
// the input.
type EventView struct {
	ClientSeq uint64
	EventID   []byte
	Type      []byte
	// HasOccurredAt says whether OccurredAt was given.
	HasOccurredAt bool
	Seconds       int64
	Nanos         uint32
	// Raw is the whole canonical encoding.
	Raw []byte
}

// OccurredAt is the writer's time; only meaningful with HasOccurredAt.
func (v *EventView) OccurredAt() time.Time { return time.Unix(v.Seconds, int64(v.Nanos)) }

// NextEvent parses the first event of b without copying and returns what follows it.
func NextEvent(b []byte, v *EventView) (rest []byte, err error) {
	c := cursor{b: b}
	v.ClientSeq = c.u64()
	v.EventID = c.bytes()
	v.Type = c.bytes()
	c.skip(8)
	v.HasOccurredAt = c.bool()
	v.Seconds, v.Nanos = 0, 0
	if v.HasOccurredAt {
		v.Seconds = int64(c.u64())
		v.Nanos = c.u32()
	}
	c.bytes()
	n := c.u32()
	for i := uint32(0); i < n && !c.bad; i++ {
		c.bytes()
		c.bytes()
	}
	if c.bool() {
		c.bytes()
		c.bytes()
		c.bytes()
	}
	c.bytes()
	if c.bad {
		return nil, fmt.Errorf("%w: event of %d bytes ends early or holds a bad flag", ErrCorrupt, len(b))
	}
	v.Raw = b[:c.off]
	return b[c.off:], nil
}

// DecodeEvent parses the first event of b into its own memory and returns what follows it.
// EventNumber is left 0.
func DecodeEvent(b []byte) (e *pb.Event, rest []byte, err error) {
	c := cursor{b: b}
	e = &pb.Event{}
	e.ClientSeq = c.u64()
	e.EventId = c.str()
	e.Type = c.str()
	e.Schema = &pb.SchemaVersion{Major: c.u32(), Minor: c.u32()}
	if c.bool() {
		e.OccurredAt = &timestamppb.Timestamp{Seconds: int64(c.u64()), Nanos: int32(c.u32())}
	}
	e.ContentType = c.str()
	if n := c.u32(); n > 0 && !c.bad {
		// Each entry takes at least 8 bytes: a lying count cannot allocate more than the input.
		if uint64(n)*8 > uint64(len(c.b)-c.off) {
			c.bad = true
		} else {
			e.Metadata = make(map[string]string, n)
			for i := uint32(0); i < n && !c.bad; i++ {
				k := c.str()
				e.Metadata[k] = c.str()
			}
		}
	}
	if c.bool() {
		e.Encryption = &pb.Encryption{Scheme: c.str(), KeyId: c.str(), Nonce: c.copy()}
	}
	e.Payload = c.copy()
	if c.bad {
		return nil, nil, fmt.Errorf("%w: event of %d bytes ends early or holds a bad flag", ErrCorrupt, len(b))
	}
	return e, b[c.off:], nil
}

func appendString(dst []byte, s string) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(s)))
	return append(dst, s...)
}

func appendBytes(dst, s []byte) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(s)))
	return append(dst, s...)
}

// cursor reads fixed-size integers and length-prefixed strings; after the first read past
// the end, bad is set and every read returns zero.
type cursor struct {
	b   []byte
	off int
	bad bool
}

func (c *cursor) take(n int) []byte {
	if c.bad || n < 0 || n > len(c.b)-c.off {
		c.bad = true
		return nil
	}
	p := c.b[c.off : c.off+n : c.off+n]
	c.off += n
	return p
}

func (c *cursor) skip(n int) { c.take(n) }

func (c *cursor) u8() byte {
	if p := c.take(1); p != nil {
		return p[0]
	}
	return 0
}

// bool reads a flag byte, which must be 0 or 1.
func (c *cursor) bool() bool {
	v := c.u8()
	if v > 1 {
		c.bad = true
	}
	return v == 1 && !c.bad
}

func (c *cursor) u32() uint32 {
	if p := c.take(4); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if p := c.take(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

func (c *cursor) bytes() []byte {
	n := c.u32()
	if uint64(n) > uint64(len(c.b)-c.off) {
		c.bad = true
		return nil
	}
	return c.take(int(n))
}

func (c *cursor) str() string { return string(c.bytes()) }

func (c *cursor) copy() []byte {
	p := c.bytes()
	if len(p) == 0 {
		return nil
	}
	return append(make([]byte, 0, len(p)), p...)
}

func (c *cursor) hash() (h Hash) {
	copy(h[:], c.take(HashSize))
	return h
}
