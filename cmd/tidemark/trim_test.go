package main

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// trimmer answers trims and deletes, and keeps the last request.
type trimmer struct {
	*fakeStore
	err  error
	last proto.Message
}

func (s *trimmer) Trim(_ context.Context, req *pb.TrimRequest) (*pb.TrimResponse, error) {
	s.last = req
	return &pb.TrimResponse{FirstVersion: 7, Position: req.GetKeepFromVersion(), Timeline: "t"}, s.err
}

func (s *trimmer) Delete(_ context.Context, req *pb.DeleteRequest) (*pb.DeleteResponse, error) {
	s.last = req
	resp := &pb.DeleteResponse{Timeline: "t"}
	for i, d := range req.GetDeletes() {
		resp.Results = append(resp.Results, &pb.DeleteResult{Aggregate: d.GetAggregate(), Position: uint64(i)})
	}
	return resp, s.err
}

func TestTrimAndDelete(t *testing.T) {
	s := &trimmer{fakeStore: &fakeStore{}}
	server := s.startAs(t, s)
	k, k2 := &pb.AggregateKey{Org: "a", Type: "b", Id: "c"}, &pb.AggregateKey{Org: "a", Type: "b", Id: "d"}
	for _, c := range []struct {
		args []string
		sent proto.Message
		err  error
		want output
	}{
		{[]string{"trim", "a/b/c", "--keep-from", "9"}, &pb.TrimRequest{Aggregate: k, KeepFromVersion: 9}, nil,
			output{exitOK, "aggregate      a/b/c\nresult         trimmed\nfirst version  7\nposition       9\ntimeline       t\n", ""}},
		{[]string{"trim", "a/b/c", "--keep-from", "0", "--expect", "0", "--timeline", "x"},
			&pb.TrimRequest{Aggregate: k, ExpectedVersion: proto.Uint64(0), Timeline: "x"}, nil,
			output{exitOK, "aggregate      a/b/c\nresult         nothing to trim\nfirst version  7\nposition       0\ntimeline       t\n", ""}},
		{[]string{"delete", "a/b/c", "a/b/d", "--expect", "3", "--allow-recreate", "--restart-versions", "--forget-writers", "--timeline", "x", "--yes"},
			&pb.DeleteRequest{Timeline: "x", Deletes: []*pb.AggregateDelete{
				{Aggregate: k, ExpectedVersion: proto.Uint64(3), AllowRecreate: true, RestartVersions: true, ForgetWriters: true},
				{Aggregate: k2, ExpectedVersion: proto.Uint64(3), AllowRecreate: true, RestartVersions: true, ForgetWriters: true},
			}}, nil,
			output{exitOK, "a/b/c was deleted already\na/b/d deleted at position 1\n", ""}},
		{[]string{"delete", "a/b/c"}, &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{{Aggregate: k}}},
			api.Errorf(4002, "delete 0 of a/b/c: expected version 1, found 2").GRPCStatus().Err(),
			output{exitConflict, "", "tidemark: 4002 DeleteOptimisticConcurrencyViolation: delete 0 of a/b/c: expected version 1, found 2\nRead the aggregate and decide again.\n"}},
		{[]string{"trim", "a/b/c", "--keep-from", "1"}, &pb.TrimRequest{Aggregate: k, KeepFromVersion: 1},
			api.Errorf(3000, "trim of a/b/c: the aggregate does not exist").GRPCStatus().Err(),
			output{exitNotFound, "", "tidemark: 3000 TrimAggregateNotExists: trim of a/b/c: the aggregate does not exist\nCheck the key.\n"}},
		{[]string{"trim", "a/b/c", "--keep-from", "1"}, &pb.TrimRequest{Aggregate: k, KeepFromVersion: 1},
			api.Errorf(2014, "leadership was lost").GRPCStatus().Err(),
			output{exitUnknown, "", "tidemark: 2014 WriteOutcomeUnknown: leadership was lost\nThe trim may or may not have happened, and may still. Giving the same command again does no harm.\n"}},
		{[]string{"delete", "a/b/c"}, &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{{Aggregate: k}}}, status.Error(codes.Unknown, "who knows"),
			output{exitUnknown, "", "tidemark: the call failed with Unknown: who knows\nThe delete may or may not have happened, and may still. Giving the same command again does no harm.\n"}},
		{[]string{"delete", "a/b/c", "--allow-recreate"}, &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{{Aggregate: k, AllowRecreate: true}}}, status.Error(codes.Unavailable, "reset"),
			output{exitUnknown, "", "tidemark: the connection was lost before the answer came: reset\nThe delete may or may not have happened, and may still. Before giving the same command again, look whether they were created again meanwhile (\"tidemark aggregate\"): then it would delete their new lives.\n"}},
		{[]string{"delete"}, nil, nil, output{exitUsage, "", "tidemark: ORG/TYPE/ID: missing\nSee \"tidemark delete --help\".\n"}},
		{[]string{"delete", "a/b/c", "--restart-versions"}, nil, nil,
			output{exitUsage, "", "tidemark: --restart-versions needs --allow-recreate: what cannot be created again has no next version\nSee \"tidemark delete --help\".\n"}},
		{[]string{"trim", "a/b/c"}, nil, nil, output{exitUsage, "", "tidemark: required flag(s) \"keep-from\" not set\nSee \"tidemark trim --help\".\n"}},
	} {
		s.err, s.last = c.err, nil
		args := c.args
		if c.sent != nil {
			args = append(args, "--server", server)
		}
		check(t, c.want, args...)
		if c.sent != nil && !proto.Equal(s.last, c.sent) {
			t.Errorf("%q sent %v, want %v", args, s.last, c.sent)
		}
	}
}
