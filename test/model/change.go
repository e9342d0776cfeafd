package model

import (
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"google.golang.org/protobuf/proto"
)

// Changed is what a trim or a delete is told: a response, or a code with its detail.
type Changed struct {
	Trimmed *pb.TrimResponse
	Deleted *pb.DeleteResponse
	Code    pb.ErrorCode
	Detail  proto.Message
}

// Trim makes the batches below keep_from_version unreadable (section 6), judged in the order
// existence, guard, range, nothing to do.
func (m *Model) Trim(req *pb.TrimRequest) Changed {
	a := m.aggregates[name(req.GetAggregate())]
	switch {
	case a == nil || a.deleted:
		return Changed{Code: pb.ErrorCode_ERROR_CODE_TRIM_AGGREGATE_NOT_EXISTS}
	case req.ExpectedVersion != nil && req.GetExpectedVersion() != a.version:
		return Changed{Code: pb.ErrorCode_ERROR_CODE_TRIM_OPTIMISTIC_CONCURRENCY_VIOLATION, Detail: &pb.GuardFailure{
			Aggregate: req.GetAggregate(), ExpectedVersion: req.ExpectedVersion, CurrentVersion: a.version,
		}}
	case req.GetKeepFromVersion() > a.version:
		return Changed{Code: pb.ErrorCode_ERROR_CODE_TRIM_INDEX_OUT_OF_RANGE, Detail: &pb.VersionUnavailable{
			Requested: req.GetKeepFromVersion(), FirstVersion: a.floor, CurrentVersion: a.version,
		}}
	case req.GetKeepFromVersion() <= a.floor:
		return Changed{Trimmed: &pb.TrimResponse{FirstVersion: a.floor, Timeline: m.Timeline}}
	}
	m.position++
	a.position, a.floor = m.position, req.GetKeepFromVersion()
	return Changed{Trimmed: &pb.TrimResponse{FirstVersion: a.floor, Position: m.position, Timeline: m.Timeline}}
}

// Delete ends a life of each aggregate, all or none: existence for all, then the guard for all.
func (m *Model) Delete(req *pb.DeleteRequest) Changed {
	twice := map[string]bool{}
	for _, d := range req.GetDeletes() {
		if twice[name(d.GetAggregate())] || d.GetRestartVersions() && !d.GetAllowRecreate() {
			return Changed{Code: pb.ErrorCode_ERROR_CODE_INVALID_REQUEST}
		}
		twice[name(d.GetAggregate())] = true
	}
	if len(twice) == 0 {
		return Changed{Code: pb.ErrorCode_ERROR_CODE_DELETE_EMPTY_DELETE_LIST}
	}
	for _, d := range req.GetDeletes() {
		if m.aggregates[name(d.GetAggregate())] == nil {
			return Changed{Code: pb.ErrorCode_ERROR_CODE_DELETE_AGGREGATE_NOT_EXISTS}
		}
	}
	for i, d := range req.GetDeletes() {
		if a := m.aggregates[name(d.GetAggregate())]; !a.deleted && d.ExpectedVersion != nil && d.GetExpectedVersion() != a.version {
			return Changed{Code: pb.ErrorCode_ERROR_CODE_DELETE_OPTIMISTIC_CONCURRENCY_VIOLATION, Detail: &pb.GuardFailure{
				Index: uint32(i), Aggregate: d.GetAggregate(), ExpectedVersion: d.ExpectedVersion, CurrentVersion: a.version,
			}}
		}
	}
	out := &pb.DeleteResponse{Timeline: m.Timeline}
	for _, d := range req.GetDeletes() {
		result := &pb.DeleteResult{Aggregate: d.GetAggregate()}
		out.Results = append(out.Results, result)
		a := m.aggregates[name(d.GetAggregate())]
		if a.deleted {
			continue
		}
		m.position++
		result.Position = m.position
		a.position, a.deleted, a.recreatable, a.restart = m.position, true, d.GetAllowRecreate(), d.GetRestartVersions()
		if d.GetForgetWriters() {
			a.forgotten = len(a.batches)
		}
	}
	return Changed{Deleted: out}
}
