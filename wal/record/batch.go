package record

import (
	"encoding/binary"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	"lukechampine.com/blake3"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// BatchHeader is a batch without its events.
type BatchHeader struct {
	Key         Key
	Incarnation uint32
	Version     uint64
	Shard       uint32
	Position    uint64
	// CommitFirst and CommitCount name the positions of the request that wrote the batch.
	CommitFirst      uint64
	CommitCount      uint32
	ClientID         string
	CommittedAt      int64 // Unix nanoseconds
	FirstEventNumber uint64
	EventCount       uint32
}

// batchFormat is the first byte of a stored batch.
const batchFormat = 1

// AppendBatch appends the stored form of a batch to dst and returns it with the chain hash:
//
//	u8 format = 1 | previous chain hash (32) | canonical batch | chain hash (32)
//
// where canonical batch is
//
//	str org | str type | str id | u32 incarnation | u64 version | u32 shard | u64 position
//	u64 commit_first_position | u32 commit_count | str client_id | i64 committed_at (Unix ns)
//	u64 first_event_number | u32 n | n canonical events
//
// and chain hash = BLAKE3(previous chain hash || canonical batch). events is the
// concatenation of h.EventCount canonical events.
func AppendBatch(dst []byte, h *BatchHeader, prev Hash, events []byte) ([]byte, Hash) {
	be := binary.BigEndian
	start := len(dst)
	dst = append(dst, batchFormat)
	dst = append(dst, prev[:]...)
	dst = appendKeyParts(dst, h.Key)
	dst = be.AppendUint32(dst, h.Incarnation)
	dst = be.AppendUint64(dst, h.Version)
	dst = be.AppendUint32(dst, h.Shard)
	dst = be.AppendUint64(dst, h.Position)
	dst = be.AppendUint64(dst, h.CommitFirst)
	dst = be.AppendUint32(dst, h.CommitCount)
	dst = appendString(dst, h.ClientID)
	dst = be.AppendUint64(dst, uint64(h.CommittedAt))
	dst = be.AppendUint64(dst, h.FirstEventNumber)
	dst = be.AppendUint32(dst, h.EventCount)
	dst = append(dst, events...)
	sum := blake3.Sum256(dst[start+1:])
	return append(dst, sum[:]...), sum
}

// BatchSize is the length that AppendBatch adds for these inputs.
func BatchSize(h *BatchHeader, events int) int {
	return 1 + HashSize + 9 + len(h.Key) + 4 + 8 + 4 + 8 + 8 + 4 + 4 + len(h.ClientID) + 8 + 8 + 4 + events + HashSize
}

// ParseBatch reads a stored batch without copying its events, and does not check its hash.
func ParseBatch(b []byte) (h BatchHeader, prev, chain Hash, events []byte, err error) {
	c := cursor{b: b}
	if f := c.u8(); f != batchFormat && !c.bad {
		return h, prev, chain, nil, fmt.Errorf("%w: batch format %d, this version reads %d", ErrCorrupt, f, batchFormat)
	}
	prev = c.hash()
	org, typ, id := c.bytes(), c.bytes(), c.bytes()
	h.Incarnation = c.u32()
	h.Version = c.u64()
	h.Shard = c.u32()
	h.Position = c.u64()
	h.CommitFirst = c.u64()
	h.CommitCount = c.u32()
	h.ClientID = c.str()
	h.CommittedAt = int64(c.u64())
	h.FirstEventNumber = c.u64()
	h.EventCount = c.u32()
	n := len(b) - c.off - HashSize
	events = c.take(n)
	chain = c.hash()
	if c.bad {
		return h, prev, chain, nil, fmt.Errorf("%w: batch of %d bytes ends early", ErrCorrupt, len(b))
	}
	h.Key = MakeKey(string(org), string(typ), string(id))
	return h, prev, chain, events, nil
}

// VerifyBatch recomputes the chain hash of a stored batch.
func VerifyBatch(b []byte) error {
	if len(b) < 1+2*HashSize {
		return fmt.Errorf("%w: batch of %d bytes ends early", ErrCorrupt, len(b))
	}
	sum := blake3.Sum256(b[1 : len(b)-HashSize])
	if got := Hash(b[len(b)-HashSize:]); got != sum {
		return fmt.Errorf("%w: batch chain hash is %x, its content hashes to %x", ErrCorrupt, got[:8], sum[:8])
	}
	return nil
}

// DecodeBatch turns a stored batch into its message, in memory of its own.
func DecodeBatch(b []byte) (*pb.Batch, error) {
	h, prev, chain, events, err := ParseBatch(b)
	if err != nil {
		return nil, err
	}
	// No event is shorter than the least one, so a lying count cannot allocate much.
	if uint64(h.EventCount)*minEvent > uint64(len(events)) {
		return nil, fmt.Errorf("%w: batch claims %d events in %d bytes", ErrCorrupt, h.EventCount, len(events))
	}
	out := h.Message()
	out.PreviousChainHash = prev[:]
	out.ChainHash = chain[:]
	out.Events = make([]*pb.Event, 0, h.EventCount)
	for i := uint32(0); i < h.EventCount; i++ {
		var e *pb.Event
		if e, events, err = DecodeEvent(events); err != nil {
			return nil, err
		}
		e.EventNumber = h.FirstEventNumber + uint64(i)
		out.Events = append(out.Events, e)
	}
	if len(events) != 0 {
		return nil, fmt.Errorf("%w: %d bytes after the batch's %d events", ErrCorrupt, len(events), h.EventCount)
	}
	return out, nil
}

// Message is the header as a message without events and hashes.
func (h *BatchHeader) Message() *pb.Batch {
	org, typ, id, _ := h.Key.Parts()
	return &pb.Batch{
		Aggregate:           &pb.AggregateKey{Org: org, Type: typ, Id: id},
		Version:             h.Version,
		Incarnation:         h.Incarnation,
		Shard:               h.Shard,
		Position:            h.Position,
		CommitFirstPosition: h.CommitFirst,
		CommitCount:         h.CommitCount,
		ClientId:            h.ClientID,
		CommittedAt:         Timestamp(h.CommittedAt),
		FirstEventNumber:    h.FirstEventNumber,
	}
}

// Timestamp converts Unix nanoseconds.
func Timestamp(ns int64) *timestamppb.Timestamp { return timestamppb.New(time.Unix(0, ns)) }

func appendKeyParts(dst []byte, k Key) []byte {
	start := 0
	for i := 0; i < len(k); i++ {
		if k[i] == 0 {
			dst = appendString(dst, string(k[start:i]))
			start = i + 1
		}
	}
	return dst
}
