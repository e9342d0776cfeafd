package server

import (
	"fmt"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// freshness is what every read request says about how stale its answer may be.
type freshness interface {
	GetConsistency() pb.Consistency
	GetMinPosition() uint64
	GetTimeline() string
}

// checkFreshness checks those fields.
func checkFreshness(r freshness) *api.Error {
	if _, known := pb.Consistency_name[int32(r.GetConsistency())]; !known {
		return unknownEnum("consistency", int32(r.GetConsistency()))
	}
	if r.GetMinPosition() > 0 && r.GetTimeline() == "" {
		return api.Invalid("timeline", "is empty; min_position means nothing without the timeline that it was given with")
	}
	return checkTimeline(r.GetTimeline())
}

func checkRead(req *pb.ReadRequest) *api.Error {
	if e := checkKey("aggregate", req.GetAggregate()); e != nil {
		return e
	}
	if _, known := pb.Direction_name[int32(req.GetDirection())]; !known {
		return unknownEnum("direction", int32(req.GetDirection()))
	}
	if e := checkFilter(req.GetFilter()); e != nil {
		return e
	}
	return checkFreshness(req)
}

func checkGetAggregate(req *pb.GetAggregateRequest) *api.Error {
	if e := checkKey("aggregate", req.GetAggregate()); e != nil {
		return e
	}
	return checkFreshness(req)
}

func checkGetMark(req *pb.GetMarkRequest) *api.Error {
	if e := checkKey("aggregate", req.GetAggregate()); e != nil {
		return e
	}
	if e := checkClientID(req.GetClientId()); e != nil {
		return e
	}
	return checkFreshness(req)
}

func checkListMarks(req *pb.ListMarksRequest) *api.Error {
	if e := checkKey("aggregate", req.GetAggregate()); e != nil {
		return e
	}
	if e := checkPage(req); e != nil {
		return e
	}
	return checkFreshness(req)
}

func checkFindEvent(req *pb.FindEventRequest) *api.Error {
	if e := checkKey("aggregate", req.GetAggregate()); e != nil {
		return e
	}
	if e := checkClientID(req.GetClientId()); e != nil {
		return e
	}
	if seq := req.GetClientSeq(); seq == 0 || seq > maxSeq {
		return api.Invalid("client_seq", "is %d; expected 1..%d", seq, uint64(maxSeq))
	}
	return checkFreshness(req)
}

func checkListOrgs(req *pb.ListOrgsRequest) *api.Error {
	if e := checkPage(req); e != nil {
		return e
	}
	return checkFreshness(req)
}

func checkListTypes(req *pb.ListTypesRequest) *api.Error {
	if fault := partFault(req.GetOrg()); fault != "" {
		return badPart("org", fault, req.GetOrg())
	}
	if e := checkPage(req); e != nil {
		return e
	}
	return checkFreshness(req)
}

func checkListAggregates(req *pb.ListAggregatesRequest) *api.Error {
	if org := req.GetOrg(); org != "" {
		if fault := partFault(org); fault != "" {
			return badPart("org", fault, org)
		}
	}
	if typ := req.GetType(); typ != "" {
		if req.GetOrg() == "" {
			return api.Invalid("type", "is given without org, which it needs")
		}
		if fault := partFault(typ); fault != "" {
			return badPart("type", fault, typ)
		}
	}
	if prefix := req.GetIdPrefix(); prefix != "" {
		if req.GetType() == "" {
			return api.Invalid("id_prefix", "is given without type, which it needs")
		}
		if fault := partFault(prefix); fault != "" {
			return badPart("id_prefix", fault, prefix)
		}
	}
	if e := checkPage(req); e != nil {
		return e
	}
	return checkFreshness(req)
}

// paged is a request for one page of a list.
type paged interface {
	GetPageSize() uint32
	GetPageToken() string
}

func checkPage(r paged) *api.Error {
	if n := r.GetPageSize(); n > maxPage {
		return api.Invalid("page_size", "is %d; the limit is %d", n, maxPage)
	}
	if n := len(r.GetPageToken()); n > maxPageToken {
		return tooLong("page_token", maxPageToken, n)
	}
	return nil
}

// checkFilter checks a filter, which may be nil.
func checkFilter(f *pb.Filter) *api.Error {
	if f == nil {
		return nil
	}
	if e := checkEntries("event_types", f.GetEventTypes(), 1, maxEventType); e != nil {
		return e
	}
	if e := checkEntries("client_ids", f.GetClientIds(), 1, maxPart); e != nil {
		return e
	}
	if e := checkEntries("exclude_client_ids", f.GetExcludeClientIds(), 1, maxPart); e != nil {
		return e
	}
	if from, to := f.GetClientSeqFrom(), f.GetClientSeqTo(); to != 0 && from > to {
		return api.Invalid("filter.client_seq_from", "is %d, above client_seq_to, which is %d", from, to)
	}
	if e := checkSpan("committed", f.GetCommittedFrom(), f.GetCommittedTo()); e != nil {
		return e
	}
	if e := checkSpan("occurred", f.GetOccurredFrom(), f.GetOccurredTo()); e != nil {
		return e
	}
	return checkEntries("event_ids", f.GetEventIds(), 0, maxEventID)
}

// checkEntries checks a list of a filter: an entry that nothing could ever equal is a
// mistake of the caller's, not an empty answer.
func checkEntries(name string, list []string, least, most int) *api.Error {
	if len(list) > maxFilterEntries {
		return tooMany("filter."+name, maxFilterEntries, len(list))
	}
	for i, s := range list {
		if len(s) < least || len(s) > most {
			return api.Invalid(fmt.Sprintf("filter.%s[%d]", name, i), "has %d bytes; expected %d..%d", len(s), least, most)
		}
	}
	return nil
}

// checkSpan checks an inclusive range of times, open at an absent end.
func checkSpan(name string, from, to *timestamppb.Timestamp) *api.Error {
	if from != nil && !validTime(from) {
		return badTime("filter."+name+"_from", from)
	}
	if to != nil && !validTime(to) {
		return badTime("filter."+name+"_to", to)
	}
	if from != nil && to != nil && from.AsTime().After(to.AsTime()) {
		return api.Invalid("filter."+name+"_from", "is after %s_to", name)
	}
	return nil
}
