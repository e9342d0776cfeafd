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
	// batch is never cut, so a message may hold one that is larger.
	messageBytes = 256 << 10

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
		return api.Errorf(pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND, "%s has never been written", key)
	case head.Deleted:
		return api.Errorf(pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND, "%s is deleted", key)
	}
	span, e := spanOf(req, key, &head)
	if e != nil {
		return e
	}
	out := &batchStream{stream: stream}
	next, err := out.send(v, key, head.Incarnation, span, newFilter(req.GetFilter()), uint64(req.GetLimit()))
	if err != nil {
		return err
	}
	applied := v.Applied()
	out.msg.End = &pb.ReadEnd{
		NextVersion:    next,
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

// batchStream gathers batches into messages. It holds at most one message's worth.
type batchStream struct {
	stream grpc.ServerStreamingServer[pb.ReadResponse]
	msg    pb.ReadResponse
	size   int // of the stored batches in msg
}

// send sends what passes the filter, at most limit batches (0 = all), and returns the
// version after the last one that it looked at. What does not fill a message stays in msg.
func (b *batchStream) send(v *history.View, key record.Key, incarnation uint32, s span, f *filter, limit uint64) (next uint64, err error) {
	next = s.first
	if !s.holds(next) {
		return next, nil
	}
	it := v.Batches(key, incarnation, min(s.first, s.last), max(s.first, s.last), s.backward)
	defer func() { _ = it.Close() }() // what it has to say, Err has said
	ctx := b.stream.Context()
	sent := uint64(0)
	for looked := 0; s.holds(next) && (limit == 0 || sent < limit); looked++ {
		if looked%askEvery == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
		if !it.Next() {
			if err := it.Err(); err != nil {
				return 0, err
			}
			return 0, fmt.Errorf("%w: version %d of %s is missing from the history, which says it has %d to %d",
				record.ErrCorrupt, next, key, min(s.first, s.last), max(s.first, s.last))
		}
		stored := it.Value()
		batch, err := f.decode(stored, next)
		if err != nil {
			return 0, err
		}
		if batch != nil {
			if err := b.add(batch, len(stored)); err != nil {
				return 0, err
			}
			sent++
		}
		next = s.after(next)
	}
	return next, nil
}

// add puts a batch into the message, after sending what is in it if that is enough.
func (b *batchStream) add(batch *pb.Batch, size int) error {
	if b.size > 0 && b.size+size > messageBytes {
		if err := b.flush(); err != nil {
			return err
		}
	}
	b.msg.Batches = append(b.msg.Batches, batch)
	b.size += size
	return nil
}

// flush sends the message. gRPC has encoded it when Send returns, so it is used again.
func (b *batchStream) flush() error {
	err := b.stream.Send(&b.msg)
	clear(b.msg.Batches)
	b.msg.Batches = b.msg.Batches[:0]
	b.size = 0
	return err
}
