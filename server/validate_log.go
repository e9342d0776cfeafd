package server

import (
	"fmt"
	"time"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

const (
	maxScopeEntries = 1000 // orgs or types of a ReadAll, aggregates of a subscription
	maxLatency      = time.Minute
)

func checkReadAll(req *pb.ReadAllRequest) *api.Error {
	if _, known := pb.Direction_name[int32(req.GetDirection())]; !known {
		return unknownEnum("direction", int32(req.GetDirection()))
	}
	for _, list := range []struct {
		name  string
		parts []string
	}{{"orgs", req.GetOrgs()}, {"types", req.GetTypes()}} {
		if n := len(list.parts); n > maxScopeEntries {
			return tooMany(list.name, maxScopeEntries, n)
		}
		for i, part := range list.parts {
			if fault := partFault(part); fault != "" {
				return badPart(fmt.Sprintf("%s[%d]", list.name, i), fault, part)
			}
		}
	}
	if e := checkFilter(req.GetFilter()); e != nil {
		return e
	}
	if e := checkShard(req.GetShard()); e != nil {
		return e
	}
	return checkLogFreshness(req, req.GetFromPosition())
}

// logFreshness is what a request that names a position says about how stale its answer may be.
func checkLogFreshness(r freshness, from uint64) *api.Error {
	if from > 1 && r.GetTimeline() == "" {
		return api.Invalid("timeline", "is empty; from_position means nothing without the timeline that it was given with")
	}
	return checkFreshness(r)
}

func checkShard(shard uint32) *api.Error {
	if shard != 0 {
		return api.Invalid("shard", "is %d; there is one shard, 0", shard)
	}
	return nil
}

// checkSubscribe checks a subscription: what is its own (scope, start, notices) answers 8000 and
// 8001, what all reads have answers as in all reads.
func checkSubscribe(req *pb.SubscribeRequest) *api.Error {
	if e := checkScope(req); e != nil {
		return e
	}
	switch start := req.GetStart().(type) {
	case nil:
		return badSubscription("start", "is missing; expected from_position, from_now or from_version")
	case *pb.SubscribeRequest_FromNow:
		if !start.FromNow {
			return badSubscription("from_now", "is false; name another start instead")
		}
	case *pb.SubscribeRequest_FromVersion:
		if n := len(req.GetAggregates().GetAggregates()); n != 1 {
			return badSubscription("from_version", "needs a scope of one aggregate, found %s", scopeText(req, n))
		}
	}
	if l := req.GetMaxLatency(); l != nil {
		switch {
		case !req.GetNoticesOnly():
			return badSubscription("max_latency", "is set without notices_only, which it belongs to")
		case l.CheckValid() != nil || l.AsDuration() < 0:
			return badSubscription("max_latency", "is no duration, or a negative one")
		case l.AsDuration() > maxLatency:
			return api.Errorf(pb.ErrorCode_ERROR_CODE_LATENCY_TOO_HIGH, "max_latency is %v; the limit is %v", l.AsDuration(), maxLatency)
		}
	}
	if e := checkFilter(req.GetFilter()); e != nil {
		return e
	}
	if e := checkShard(req.GetShard()); e != nil {
		return e
	}
	return checkLogFreshness(req, req.GetFromPosition())
}

func checkScope(req *pb.SubscribeRequest) *api.Error {
	part := func(field, part string) *api.Error {
		if fault := partFault(part); fault != "" {
			return asSubscription(badPart(field, fault, part))
		}
		return nil
	}
	switch scope := req.GetScope().(type) {
	case nil:
		return badSubscription("scope", "is missing; expected all, org, type or aggregates")
	case *pb.SubscribeRequest_Org:
		return part("org", scope.Org)
	case *pb.SubscribeRequest_Type:
		if e := part("type.org", scope.Type.GetOrg()); e != nil {
			return e
		}
		return part("type.type", scope.Type.GetType())
	case *pb.SubscribeRequest_Aggregates:
		list := scope.Aggregates.GetAggregates()
		switch {
		case len(list) == 0:
			return badSubscription("aggregates", "is empty; expected 1..%d aggregates", maxScopeEntries)
		case len(list) > maxScopeEntries:
			return asSubscription(tooMany("aggregates", maxScopeEntries, len(list)))
		}
		for i, k := range list {
			if e := checkKey(fmt.Sprintf("aggregates[%d]", i), k); e != nil {
				return asSubscription(e)
			}
		}
	}
	return nil
}

func scopeText(req *pb.SubscribeRequest, aggregates int) string {
	switch req.GetScope().(type) {
	case *pb.SubscribeRequest_All:
		return "all"
	case *pb.SubscribeRequest_Org:
		return "an org"
	case *pb.SubscribeRequest_Type:
		return "a type"
	}
	return fmt.Sprintf("%d aggregates", aggregates)
}

// badSubscription is api.Invalid with the code 8000.
func badSubscription(field, format string, args ...any) *api.Error {
	return asSubscription(api.Invalid(field, format, args...))
}

func asSubscription(e *api.Error) *api.Error {
	e.Code = pb.ErrorCode_ERROR_CODE_SUBSCRIBE_REQUEST_INVALID
	return e
}
