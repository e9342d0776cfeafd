package server

import (
	"fmt"

	"google.golang.org/grpc"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

const (
	// messageBytes is about how many bytes of batches one message of a read carries. A
	// batch is never cut, so a message may hold one that is larger. Encoded it is about as
	// large, and fits the buffer of the next power of two.
	messageBytes = 224 << 10

	// askEvery is after how many batches a read looks whether its caller has gone: one
	// whose filter passes nothing sends nothing and would not notice.
	askEvery = 256
)

// keyOf is the stored form of a checked key.
func keyOf(k *pb.AggregateKey) record.Key {
	return record.MakeKey(k.GetOrg(), k.GetType(), k.GetId())
}

// readOptions resolves what a request says about freshness; unspecified is the method's
// default.
func readOptions(r freshness, unspecified pb.Consistency) replication.ReadOptions {
	c := r.GetConsistency()
	if c == pb.Consistency_CONSISTENCY_UNSPECIFIED {
		c = unspecified
	}
	return replication.ReadOptions{Consistency: c, MinPosition: r.GetMinPosition(), Timeline: r.GetTimeline()}
}

// neverWritten is the answer about an aggregate that v does not have. What another node has of it
// may not have come to one that answers with what it has.
func neverWritten(code pb.ErrorCode, key record.Key, c pb.Consistency, v *history.View) *api.Error {
	if c == pb.Consistency_CONSISTENCY_ANY {
		return api.Errorf(code, "%s has not been written as far as this node has applied, position %d", key, v.Applied().Position)
	}
	return api.Errorf(code, "%s has never been written", key)
}

// Read implements pb.EventStoreServiceServer (contract 5).
func (s *eventStore) Read(req *pb.ReadRequest, stream grpc.ServerStreamingServer[pb.ReadResponse]) error {
	if e := checkRead(req); e != nil {
		return e
	}
	v, err := s.shard.Read(stream.Context(), readOptions(req, pb.Consistency_CONSISTENCY_LEADER))
	if err != nil {
		return err
	}
	defer v.Release()

	key := keyOf(req.GetAggregate())
	head, found, err := v.Head(key)
	switch {
	case err != nil:
		return err
	case !found:
		return neverWritten(pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND, key, req.GetConsistency(), v)
	case head.Deleted:
		return api.Errorf(pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND, "%s is deleted", key)
	}
	span, e := spanOf(req, key, &head)
	if e != nil {
		return e
	}
	out := &batchStream{
		stream: stream, reads: readsOf(stream.Context()),
		view: v, key: key, incarnation: head.Incarnation, span: span,
		filter: newFilter(req.GetFilter()), limit: uint64(req.GetLimit()), next: span.first,
	}
	if err := out.send(); err != nil {
		return err
	}
	applied := v.Applied()
	out.msg.End = &pb.ReadEnd{
		NextVersion:    out.next,
		CurrentVersion: head.Version,
		Position:       applied.Position,
		Timeline:       applied.Timeline,
	}
	return out.flush()
}

// span is the versions that a read looks at: from first to last, in its direction, both
// included. It is empty if last lies before first.
type span struct {
	first, last uint64
	backward    bool
	// floor is the lowest version that can be read at all.
	floor uint64
}

// spanOf resolves the versions that a request names. One that is named and was trimmed is
// refused, so that a caller that counts on it is never answered with less.
func spanOf(req *pb.ReadRequest, key record.Key, head *history.Head) (span, *api.Error) {
	from, to := req.GetFromVersion(), req.GetToVersion()
	s := span{floor: max(head.Floor, 1), backward: req.GetDirection() == pb.Direction_DIRECTION_BACKWARD}
	for _, named := range []uint64{from, to} {
		if named != 0 && named < s.floor {
			return s, api.Errorf(pb.ErrorCode_ERROR_CODE_UNAVAILABLE_VERSION,
				"version %d of %s was trimmed; the first that can be read is %d", named, key, s.floor).
				With(&pb.VersionUnavailable{Requested: named, FirstVersion: s.floor, CurrentVersion: head.Version})
		}
	}
	if s.backward {
		s.first, s.last = head.Version, max(to, s.floor)
		if from != 0 {
			s.first = min(from, head.Version)
		}
		return s, nil
	}
	s.first, s.last = max(from, s.floor), head.Version
	if to != 0 {
		s.last = min(to, head.Version)
	}
	return s, nil
}

// holds says whether version v, reached from first, is still within the span.
func (s span) holds(v uint64) bool {
	if s.backward {
		return v >= s.last && v != 0
	}
	return v <= s.last
}

// after is the version that follows v; backward, 0 when none that can be read does.
func (s span) after(v uint64) uint64 {
	switch {
	case !s.backward:
		return v + 1
	case v > s.floor:
		return v - 1
	}
	return 0
}

// batchStream gathers batches into messages. It holds the message that it builds and, once
// the client has shown that it reads, one that is on its way.
type batchStream struct {
	stream grpc.ServerStreamingServer[pb.ReadResponse]
	reads  *callReads

	view        *history.View
	key         record.Key
	incarnation uint32
	span        span
	filter      *filter
	limit       uint64 // batches that are still to be sent; 0 = all

	next uint64 // the version to look at
	msg  pb.ReadResponse
	size int // of the stored batches in msg
}

// send sends what passes the filter. What does not fill a message stays in msg.
func (b *batchStream) send() error {
	need := messageBytes
	for {
		if err := b.room(need); err != nil {
			return err
		}
		more, err := b.fill()
		if err != nil {
			return err
		}
		switch need = max(more, messageBytes); {
		case more == 0:
			return nil
		case b.size == 0: // a batch that needs more room than was reserved
		default:
			if err := b.flush(); err != nil {
				return err
			}
		}
	}
}

// room waits until the next message, of about size bytes, may be built.
func (b *batchStream) room(size int) error {
	ctx := b.stream.Context()
	b.reads.abandon()
	if err := b.reads.room(ctx); err != nil {
		return err
	}
	return b.reads.reserve(ctx, size)
}

// fill puts batches into msg and returns 0 at the end of what is to be sent, else the size of
// the batch that comes next: msg is full, or empty if there is not enough reserved for that
// batch. It reads with an iterator of its own, because an iterator keeps memtables and blocks
// in memory, and what follows may wait for the client.
func (b *batchStream) fill() (more int, err error) {
	if !b.span.holds(b.next) {
		return 0, nil
	}
	it := b.view.Batches(b.key, b.incarnation, min(b.next, b.span.last), max(b.next, b.span.last), b.span.backward)
	defer func() { _ = it.Close() }() // what it has to say, Err has said
	ctx := b.stream.Context()
	for looked := 0; b.span.holds(b.next); looked++ {
		if looked%askEvery == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if !it.Next() {
			if err := it.Err(); err != nil {
				return 0, err
			}
			return 0, fmt.Errorf("%w: version %d of %s is missing from the history, which says it has %d to %d",
				record.ErrCorrupt, b.next, b.key, min(b.span.first, b.span.last), max(b.span.first, b.span.last))
		}
		stored := it.Value()
		switch {
		case b.size > 0 && b.size+len(stored) > messageBytes:
			return len(stored), nil
		case b.size == 0 && len(stored) > messageBytes && !b.reads.extend(len(stored)):
			return len(stored), nil
		}
		batch, err := b.filter.decode(stored, b.next)
		if err != nil {
			return 0, err
		}
		b.next = b.span.after(b.next)
		if batch == nil {
			continue
		}
		b.msg.Batches = append(b.msg.Batches, batch)
		b.size += len(stored)
		if b.limit == 1 {
			return 0, nil
		}
		b.limit = max(b.limit, 1) - 1
	}
	return 0, nil
}

// flush sends the message. It lets go of the batches first: Send may wait for the client, and
// the bytes are what it waits with.
func (b *batchStream) flush() error {
	out, err := b.reads.encode(&b.msg)
	clear(b.msg.Batches)
	b.msg.Batches, b.size = b.msg.Batches[:0], 0
	if err != nil {
		return err
	}
	return b.stream.SendMsg(out)
}
