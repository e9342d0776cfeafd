package server

import (
	"strings"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/wal/record"
)

// scope says which aggregates of the log somebody wants. What is set must all hold; nothing
// set is all of them.
type scope struct {
	prefix      string // of keys
	keys        map[record.Key]struct{}
	orgs, types map[string]struct{}
}

func (s *scope) holds(k record.Key) bool {
	if !strings.HasPrefix(string(k), s.prefix) {
		return false
	}
	if s.keys != nil {
		if _, in := s.keys[k]; !in {
			return false
		}
	}
	if s.orgs == nil && s.types == nil {
		return true
	}
	org, rest, _ := strings.Cut(string(k), "\x00")
	if s.orgs != nil {
		if _, in := s.orgs[org]; !in {
			return false
		}
	}
	if s.types != nil {
		typ, _, _ := strings.Cut(rest, "\x00")
		if _, in := s.types[typ]; !in {
			return false
		}
	}
	return true
}

// scopeOf is the scope of a checked subscription, twice: to test what comes, and to be woken.
func scopeOf(req *pb.SubscribeRequest) (scope, replication.FollowScope) {
	switch of := req.GetScope().(type) {
	case *pb.SubscribeRequest_Org:
		prefix := of.Org + "\x00"
		return scope{prefix: prefix}, replication.FollowScope{Prefixes: []string{prefix}}
	case *pb.SubscribeRequest_Type:
		prefix := of.Type.GetOrg() + "\x00" + of.Type.GetType() + "\x00"
		return scope{prefix: prefix}, replication.FollowScope{Prefixes: []string{prefix}}
	case *pb.SubscribeRequest_Aggregates:
		s := scope{keys: map[record.Key]struct{}{}}
		var f replication.FollowScope
		for _, a := range of.Aggregates.GetAggregates() {
			k := keyOf(a)
			s.keys[k] = struct{}{}
			f.Keys = append(f.Keys, k)
		}
		return s, f
	}
	return scope{}, replication.FollowScope{All: true}
}
