package server

import (
	"strconv"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// The shape of trims and deletes (contract 6); how they are judged is the shard's.
func TestShapeOfTrimAndDelete(t *testing.T) {
	k := &pb.AggregateKey{Org: "acme", Type: "orders", Id: "1"}
	other := &pb.AggregateKey{Org: "acme", Type: "orders", Id: "2"}
	bad := &pb.AggregateKey{Org: "acme", Type: "a/b", Id: "1"}
	var many []*pb.AggregateDelete
	for i := range maxWrites + 1 {
		many = append(many, &pb.AggregateDelete{Aggregate: &pb.AggregateKey{Org: "acme", Type: "orders", Id: strconv.Itoa(i)}})
	}
	for _, c := range []struct {
		name string
		req  proto.Message
		want string
	}{
		{"a trim", &pb.TrimRequest{Aggregate: k, KeepFromVersion: 3, ExpectedVersion: proto.Uint64(0)}, ""},
		{"a trim of nothing", &pb.TrimRequest{}, "2016 InvalidRequest: aggregate is missing"},
		{"a trim of a malformed key", &pb.TrimRequest{Aggregate: bad},
			"2016 InvalidRequest: aggregate.type has a '/'; expected 1..200 bytes of UTF-8 without control characters or '/' (found 3 bytes)"},
		{"a trim of a malformed timeline", &pb.TrimRequest{Aggregate: k, Timeline: "x"},
			"2016 InvalidRequest: timeline is not a timeline; expected 32 lower-case hexadecimal digits, as answers give it"},
		{"two deletes", &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{
			{Aggregate: k, AllowRecreate: true, RestartVersions: true, ForgetWriters: true}, {Aggregate: other}}}, ""},
		{"no deletes", &pb.DeleteRequest{}, "4001 DeleteEmptyDeleteList: deletes is empty; a request needs at least one aggregate to delete"},
		{"too many deletes", &pb.DeleteRequest{Deletes: many}, "2016 InvalidRequest: deletes has 101 entries; the limit is 100"},
		{"as many deletes as there may be", &pb.DeleteRequest{Deletes: many[:maxWrites]}, ""},
		{"a delete of nothing", &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{{Aggregate: k}, {}}}, "2016 InvalidRequest: deletes[1].aggregate is missing"},
		{"an aggregate twice", &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{{Aggregate: k}, {Aggregate: other}, {Aggregate: k}}},
			"2016 InvalidRequest: deletes[2].aggregate is the aggregate of deletes[0] too; a request deletes an aggregate once"},
		{"restart_versions alone", &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{{Aggregate: k, RestartVersions: true}}},
			"2016 InvalidRequest: deletes[0].restart_versions is set without allow_recreate, which it needs"},
		{"a delete of a malformed timeline", &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{{Aggregate: k}}, Timeline: "x"},
			"2016 InvalidRequest: timeline is not a timeline; expected 32 lower-case hexadecimal digits, as answers give it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := ""
			switch req := c.req.(type) {
			case *pb.TrimRequest:
				if e := checkTrim(req); e != nil {
					got = e.Error()
				}
			case *pb.DeleteRequest:
				if e := checkDelete(req); e != nil {
					got = e.Error()
				}
			}
			if got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}
