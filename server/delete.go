package server

import (
	"context"
	"fmt"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// Delete implements pb.EventStoreServiceServer (contract 6).
func (s *eventStore) Delete(ctx context.Context, req *pb.DeleteRequest) (*pb.DeleteResponse, error) {
	if e := checkDelete(req); e != nil {
		return nil, e
	}
	return s.shard.Delete(ctx, req)
}

// checkDelete checks the shape of a request and returns the first violation or nil.
func checkDelete(req *pb.DeleteRequest) *api.Error {
	deletes := req.GetDeletes()
	switch {
	case len(deletes) == 0:
		return api.Errorf(pb.ErrorCode_ERROR_CODE_DELETE_EMPTY_DELETE_LIST, "deletes is empty; a request needs at least one aggregate to delete")
	case len(deletes) > maxWrites:
		return tooMany("deletes", maxWrites, len(deletes))
	}
	for i, d := range deletes {
		if e := checkKey(fmt.Sprintf("deletes[%d].aggregate", i), d.GetAggregate()); e != nil {
			return e
		}
		for j := range i {
			if sameKey(deletes[j].GetAggregate(), d.GetAggregate()) {
				return api.Invalid(fmt.Sprintf("deletes[%d].aggregate", i),
					"is the aggregate of deletes[%d] too; a request deletes an aggregate once", j)
			}
		}
		if d.GetRestartVersions() && !d.GetAllowRecreate() {
			return api.Invalid(fmt.Sprintf("deletes[%d].restart_versions", i), "is set without allow_recreate, which it needs")
		}
	}
	return checkTimeline(req.GetTimeline())
}
