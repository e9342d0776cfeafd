package server

import (
	"context"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// Trim implements pb.EventStoreServiceServer (contract 6).
func (s *eventStore) Trim(ctx context.Context, req *pb.TrimRequest) (*pb.TrimResponse, error) {
	if e := checkTrim(req); e != nil {
		return nil, e
	}
	return s.shard.Trim(ctx, req)
}

func checkTrim(req *pb.TrimRequest) *api.Error {
	if e := checkKey("aggregate", req.GetAggregate()); e != nil {
		return e
	}
	return checkTimeline(req.GetTimeline())
}
