package server

import (
	"google.golang.org/grpc"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
)

// ReadAll implements pb.EventStoreServiceServer (contract 5).
func (s *eventStore) ReadAll(req *pb.ReadAllRequest, stream grpc.ServerStreamingServer[pb.ReadAllResponse]) error {
	if e := checkReadAll(req); e != nil {
		return e
	}
	v, err := s.shard.Read(stream.Context(), readOptions(req, pb.Consistency_CONSISTENCY_LEADER))
	if err != nil {
		return err
	}
	defer v.Release()
	applied := v.Applied()
	out := &logStream{
		stream: stream, reads: readsOf(stream.Context()), view: v,
		log:      logReader{scope: scope{orgs: setOf(req.GetOrgs()), types: setOf(req.GetTypes())}, filter: newFilter(req.GetFilter())},
		backward: req.GetDirection() == pb.Direction_DIRECTION_BACKWARD,
		limit:    uint64(req.GetLimit()), next: max(req.GetFromPosition(), 1), last: applied.Position,
	}
	if out.backward {
		out.last = 1
		if out.next = applied.Position; req.GetFromPosition() != 0 {
			out.next = min(req.GetFromPosition(), applied.Position)
		}
	}
	if err := out.send(); err != nil {
		return err
	}
	return stream.Send(&pb.ReadAllResponse{End: &pb.ReadAllEnd{
		NextPosition: out.next, LastPosition: applied.Position, Timeline: applied.Timeline,
	}})
}

// logStream sends the log, a window to a message. It holds the message that it builds and,
// once the client has shown that it reads, one that is on its way.
type logStream struct {
	stream   grpc.ServerStreamingServer[pb.ReadAllResponse]
	reads    *callReads
	view     *history.View
	log      logReader
	backward bool
	limit    uint64 // batches that are still to be sent; 0 = all
	next     uint64 // the position to look at
	last     uint64 // the last one to look at, in this direction
}

// left says whether there is anything to look at.
func (o *logStream) left() bool {
	if o.backward {
		return o.next >= o.last
	}
	return o.next <= o.last
}

func (o *logStream) send() error {
	ctx := o.stream.Context()
	for need := messageBytes; o.left(); {
		if o.reads.building == nil || need > messageBytes {
			o.reads.abandon()
			if err := o.reads.room(ctx); err != nil {
				return err
			}
			if err := o.reads.reserve(ctx, need); err != nil {
				return err
			}
		}
		more, out, err := o.message(need)
		if err != nil {
			return err
		}
		if out != nil {
			if err := o.stream.SendMsg(out); err != nil {
				return err
			}
		}
		if ctx.Err() != nil { // a filter that passes nothing sends nothing and would not notice
			return ctx.Err()
		}
		if o.limit == limitReached {
			return nil
		}
		need = max(more, messageBytes)
	}
	return nil
}

// limitReached is the limit of a stream that has sent all that was asked for.
const limitReached = ^uint64(0)

// message builds the message of the next window, nil if nothing of it passes; more is what the
// next batch needs if that does not fit into room.
func (o *logStream) message(room int) (more int, _ *outbound, err error) {
	arena := o.reads.buffer(room)
	defer arena.free()
	after, more, err := o.log.load(o.view, o.next, o.last, o.backward, (*arena.backing)[:room])
	if err != nil || more > 0 {
		return more, nil, err
	}
	m := o.reads.buffer(room)
	for i := range o.log.items {
		c := &o.log.items[i]
		if c.Stored == nil {
			continue
		}
		var passed bool
		if m.b, passed, err = o.log.appendBatch(m.b, c); err != nil {
			m.free()
			return 0, nil, err
		}
		if !passed || o.limit == 0 {
			continue
		}
		if o.limit--; o.limit == 0 {
			o.limit = limitReached
			if after = c.Position + 1; o.backward {
				after -= 2
			}
			break
		}
	}
	o.next = after
	if len(m.b) == 0 {
		m.free()
		return 0, nil, nil
	}
	return 0, o.reads.ship(m), nil
}
