package server

import (
	"context"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// GetAggregate implements pb.EventStoreServiceServer. A deleted aggregate is described;
// one that was never written is 7001.
func (s *eventStore) GetAggregate(ctx context.Context, req *pb.GetAggregateRequest) (*pb.GetAggregateResponse, error) {
	if e := checkGetAggregate(req); e != nil {
		return nil, e
	}
	v, err := s.shard.Read(ctx, readOptions(req, pb.Consistency_CONSISTENCY_LEADER))
	if err != nil {
		return nil, err
	}
	defer v.Release()
	key := keyOf(req.GetAggregate())
	head, found, err := v.Head(key)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, neverWritten(pb.ErrorCode_ERROR_CODE_AGGREGATE_DETAILS_NOT_FOUND, key, req.GetConsistency(), v)
	}
	return describe(key, &head, v.Applied().Timeline), nil
}

// describe is what GetAggregate and ListAggregates say of an aggregate.
func describe(key record.Key, head *history.Head, timeline string) *pb.GetAggregateResponse {
	org, typ, id, _ := key.Parts()
	return &pb.GetAggregateResponse{
		Aggregate:       &pb.AggregateKey{Org: org, Type: typ, Id: id},
		Version:         head.Version,
		Incarnation:     head.Incarnation,
		FirstVersion:    max(head.Floor, 1),
		EventCount:      head.EventCount,
		CreatedAt:       record.Timestamp(head.CreatedAt),
		LastCommittedAt: record.Timestamp(head.CommittedAt),
		LastClientId:    head.LastClient,
		Position:        head.Position,
		Deleted:         head.Deleted,
		AllowRecreate:   head.Deleted && head.Recreatable,
		ChainHash:       head.Chain[:],
		Timeline:        timeline,
	}
}
