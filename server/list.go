package server

import (
	"context"
	"strings"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// A list that has looked at this many aggregates which it leaves out ends its page early, so
// that one call's work is bounded; the page's token goes on from there.
const maxPassedOver = 10_000

// About what one entry of a list takes: a part of a key; a key, a client_id and the rest.
const nameBytes, aggregateBytes = 256, 1 << 10

// ListOrgs implements pb.EventStoreServiceServer.
func (s *eventStore) ListOrgs(ctx context.Context, req *pb.ListOrgsRequest) (*pb.ListOrgsResponse, error) {
	if e := checkListOrgs(req); e != nil {
		return nil, e
	}
	names, next, err := s.names(ctx, req, "")
	return &pb.ListOrgsResponse{Orgs: names, NextPageToken: next}, err
}

// ListTypes implements pb.EventStoreServiceServer.
func (s *eventStore) ListTypes(ctx context.Context, req *pb.ListTypesRequest) (*pb.ListTypesResponse, error) {
	if e := checkListTypes(req); e != nil {
		return nil, e
	}
	names, next, err := s.names(ctx, req, req.GetOrg()+"\x00")
	return &pb.ListTypesResponse{Types: names, NextPageToken: next}, err
}

// namesRequest is a request for a page of key parts.
type namesRequest interface {
	freshness
	paged
}

// names lists the different parts that follow prefix in the keys of aggregates: the orgs
// after "", the types after an org. It jumps from one to the next.
func (s *eventStore) names(ctx context.Context, req namesRequest, prefix string) (names []string, next string, err error) {
	list := "names\x00" + prefix
	last, e := parseToken(req.GetPageToken(), list)
	if e != nil {
		return nil, "", e
	}
	v, err := s.shard.Read(ctx, readOptions(req, pb.Consistency_CONSISTENCY_LEADER))
	if err != nil {
		return nil, "", err
	}
	defer v.Release()
	size := pageSize(req)
	if err := readsOf(ctx).reserve(ctx, size*nameBytes); err != nil {
		return nil, "", err
	}
	for len(names) <= size {
		name, err := nextName(v, prefix, last)
		if err != nil {
			return nil, "", err
		}
		if err := ctx.Err(); err != nil {
			return nil, "", err
		}
		if name == "" {
			return names, "", nil
		}
		names = append(names, name)
		last = name
	}
	return names[:size], makeToken(names[size-1], list), nil
}

// nextName is the first part above last that follows prefix; "" if there is none.
func nextName(v *history.View, prefix, last string) (string, error) {
	for a, err := range v.Aggregates(prefix, pastName(prefix, last)) {
		if err != nil {
			return "", err
		}
		name, _, _ := strings.Cut(strings.TrimPrefix(string(a.Key), prefix), "\x00")
		return name, nil
	}
	return "", nil
}

// pastName is a key above every key whose part after prefix is last: no part has the byte
// 0xff, which is none of UTF-8.
func pastName(prefix, last string) record.Key {
	if last == "" {
		return ""
	}
	const parts = 3
	key := prefix + last + "\x00"
	return record.Key(key + strings.Repeat("\xff\x00", parts-strings.Count(key, "\x00")))
}

// ListAggregates implements pb.EventStoreServiceServer. A page can be shorter than asked
// for, and even empty, without being the last: next_page_token says.
func (s *eventStore) ListAggregates(ctx context.Context, req *pb.ListAggregatesRequest) (*pb.ListAggregatesResponse, error) {
	if e := checkListAggregates(req); e != nil {
		return nil, e
	}
	prefix := ""
	if req.GetOrg() != "" {
		prefix = req.GetOrg() + "\x00"
	}
	if req.GetType() != "" {
		prefix += req.GetType() + "\x00" + req.GetIdPrefix()
	}
	list := "aggregates\x00" + prefix
	if req.GetIncludeDeleted() {
		list = "all " + list
	}
	after, e := parseToken(req.GetPageToken(), list)
	if e != nil {
		return nil, e
	}
	v, err := s.shard.Read(ctx, readOptions(req, pb.Consistency_CONSISTENCY_LEADER))
	if err != nil {
		return nil, err
	}
	defer v.Release()
	timeline, size := v.Applied().Timeline, pageSize(req)
	if err := readsOf(ctx).reserve(ctx, size*aggregateBytes); err != nil {
		return nil, err
	}
	out := &pb.ListAggregatesResponse{}
	var last record.Key
	passedOver := 0
	for a, err := range v.Aggregates(prefix, record.Key(after)) {
		if err != nil {
			return nil, err
		}
		if len(out.Aggregates) == size || passedOver == maxPassedOver {
			out.NextPageToken = makeToken(string(last), list)
			break
		}
		last = a.Key
		if a.Head.Deleted && !req.GetIncludeDeleted() {
			passedOver++
			continue
		}
		out.Aggregates = append(out.Aggregates, describe(a.Key, &a.Head, timeline))
	}
	return out, nil
}
