package server

import (
	"context"
	"fmt"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// The calls of this file answer for every aggregate, also for one that never existed: they
// are what a writer asks when it does not know what it has done.

// markBytes is about what one entry of ListMarks takes: a client_id and an event id.
const markBytes = 512

// GetMark implements pb.EventStoreServiceServer.
func (s *eventStore) GetMark(ctx context.Context, req *pb.GetMarkRequest) (*pb.GetMarkResponse, error) {
	if e := checkGetMark(req); e != nil {
		return nil, e
	}
	key := keyOf(req.GetAggregate())
	v, inFlight, err := s.shard.ReadMark(ctx, readOptions(req, pb.Consistency_CONSISTENCY_LINEARIZABLE), key, req.GetClientId())
	if err != nil {
		return nil, err
	}
	defer v.Release()
	mark, err := v.Mark(key, req.GetClientId())
	if err != nil {
		return nil, err
	}
	out := &pb.GetMarkResponse{Mark: mark, InFlightMark: inFlight, Timeline: v.Applied().Timeline}
	if mark > 0 {
		if out.Holder, err = s.shard.Holder(v, key, req.GetClientId(), mark); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ListMarks implements pb.EventStoreServiceServer. Writers come in byte order of their
// client_id; each page is as of a moment of its own.
func (s *eventStore) ListMarks(ctx context.Context, req *pb.ListMarksRequest) (*pb.ListMarksResponse, error) {
	if e := checkListMarks(req); e != nil {
		return nil, e
	}
	key := keyOf(req.GetAggregate())
	list := "marks\x00" + string(key)
	after, e := parseToken(req.GetPageToken(), list)
	if e != nil {
		return nil, e
	}
	v, err := s.shard.Read(ctx, readOptions(req, pb.Consistency_CONSISTENCY_LINEARIZABLE))
	if err != nil {
		return nil, err
	}
	defer v.Release()
	size := pageSize(req)
	if err := readsOf(ctx).reserve(ctx, size*markBytes); err != nil {
		return nil, err
	}
	out := &pb.ListMarksResponse{}
	for row, err := range v.Writers(key, after) {
		if err != nil {
			return nil, err
		}
		if len(out.Marks) == size {
			out.NextPageToken = makeToken(out.Marks[size-1].ClientId, list)
			break
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		h, err := s.shard.Holder(v, key, row.Client, row.ClientSeq)
		if err != nil {
			return nil, err
		}
		out.Marks = append(out.Marks, &pb.WriterMark{ClientId: row.Client, Mark: row.ClientSeq, Holder: h})
	}
	return out, nil
}

// FindEvent implements pb.EventStoreServiceServer.
func (s *eventStore) FindEvent(ctx context.Context, req *pb.FindEventRequest) (*pb.FindEventResponse, error) {
	if e := checkFindEvent(req); e != nil {
		return nil, e
	}
	v, err := s.shard.Read(ctx, readOptions(req, pb.Consistency_CONSISTENCY_LINEARIZABLE))
	if err != nil {
		return nil, err
	}
	defer v.Release()
	key, client, seq := keyOf(req.GetAggregate()), req.GetClientId(), req.GetClientSeq()
	h, err := s.shard.Holder(v, key, client, seq)
	if err != nil || h == nil {
		return &pb.FindEventResponse{}, err
	}
	out := &pb.FindEventResponse{Found: true, Holder: h}
	if out.EventIndex, err = eventIndex(v, key, client, seq, h.GetPosition()); err != nil {
		return nil, err
	}
	if h.GetTrimmed() {
		return out, nil
	}
	reads := readsOf(ctx)
	if err := reads.reserve(ctx, messageBytes); err != nil {
		return nil, err
	}
	stored, found, err := v.Batch(key, h.GetIncarnation(), h.GetVersion())
	if n := len(stored); n > messageBytes && !reads.extend(n) {
		// Read it again when there is room for it.
		stored = nil
		if err := reads.reserve(ctx, n); err != nil {
			return nil, err
		}
		stored, found, err = v.Batch(key, h.GetIncarnation(), h.GetVersion())
	}
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, fmt.Errorf("%w: version %d of %s is missing from the history; a writer row of %s says it recorded %d there",
			record.ErrCorrupt, h.GetVersion(), key, client, seq)
	}
	if out.Batch, err = record.DecodeBatch(stored); err != nil {
		return nil, err
	}
	return out, nil
}

// eventIndex is the place, within its batch, of the event that recorded seq at position.
func eventIndex(v *history.View, key record.Key, client string, seq, position uint64) (uint32, error) {
	row, found, err := v.Row(key, client, seq, position)
	if err == nil && !found {
		err = fmt.Errorf("%w: the writer row of %s, sequence %d, position %d on %s is gone", record.ErrCorrupt, client, seq, position, key)
	}
	return row.EventIndex, err
}
