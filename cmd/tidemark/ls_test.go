package main

import (
	"sync/atomic"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

func TestListWalksAllPagesUpToTheLimit(t *testing.T) {
	one := func(id string, deleted bool) *pb.GetAggregateResponse {
		key := order()
		key.Id = id
		return &pb.GetAggregateResponse{Aggregate: key, Version: 2, EventCount: 3, LastCommittedAt: at(11), Deleted: deleted}
	}
	// A list that does not stop where it should is stopped.
	var calls atomic.Int64
	tooOften := func() error {
		if calls.Add(1) > 20 {
			return status.Error(codes.FailedPrecondition, "the list goes on and on")
		}
		return nil
	}
	store := &fakeStore{
		orgs: func(req *pb.ListOrgsRequest) (*pb.ListOrgsResponse, error) {
			if err := tooOften(); err != nil {
				return nil, err
			}
			if req.GetPageToken() == "" {
				return &pb.ListOrgsResponse{Orgs: []string{"acme"}, NextPageToken: "p2"}, nil
			}
			return &pb.ListOrgsResponse{Orgs: []string{"bench"}}, nil
		},
		types: func(*pb.ListTypesRequest) (*pb.ListTypesResponse, error) {
			return &pb.ListTypesResponse{Types: []string{"claims", "orders"}}, nil
		},
		aggregates: func(req *pb.ListAggregatesRequest) (*pb.ListAggregatesResponse, error) {
			if err := tooOften(); err != nil {
				return nil, err
			}
			if req.GetPageToken() == "" {
				return &pb.ListAggregatesResponse{Aggregates: []*pb.GetAggregateResponse{one("481", false)}, NextPageToken: "p2"}, nil
			}
			return &pb.ListAggregatesResponse{Aggregates: []*pb.GetAggregateResponse{one("482", true)}, NextPageToken: "p3"}, nil
		},
	}
	server := store.start(t)
	check(t, output{exitOK, "ORG\nacme\nbench\n", ""}, "ls", "--server", server)
	check(t, output{exitOK, `{"org":"acme"}` + "\n", ""}, "ls", "--server", server, "--output", "json", "--limit", "1")
	check(t, output{exitOK, "TYPE\nclaims\norders\n", ""}, "ls", "acme/", "--server", server)
	check(t, output{exitOK, `AGGREGATE        VERSION  EVENTS  LAST COMMITTED AT         STATE
acme/orders/481  2        3       2026-01-31T11:00:00.000Z  live
acme/orders/482  2        3       2026-01-31T11:00:00.000Z  deleted for good
`, ""}, "ls", "acme/orders/48", "--server", server, "--limit", "2", "--include-deleted")
	store.asked(t,
		&pb.ListOrgsRequest{PageSize: 1000}, &pb.ListOrgsRequest{PageSize: 1000, PageToken: "p2"},
		&pb.ListOrgsRequest{PageSize: 1},
		&pb.ListTypesRequest{Org: "acme", PageSize: 1000},
		&pb.ListAggregatesRequest{Org: "acme", Type: "orders", IdPrefix: "48", IncludeDeleted: true, PageSize: 2},
		&pb.ListAggregatesRequest{Org: "acme", Type: "orders", IdPrefix: "48", IncludeDeleted: true, PageSize: 1, PageToken: "p2"})
}

func TestListOnANode(t *testing.T) {
	node := serve(t, t.TempDir()).address
	expect(t, exitOK, "", "", "ls", "--server", node)
	expect(t, exitOK, "imported 5, already there 0, refused 0\n", "", importClaims(node, "testdata/claims.csv")...)
	expect(t, exitOK, "ORG\nacme\n", "", "ls", "--server", node)
	expect(t, exitOK, "TYPE\nclaims\n", "", "ls", "acme", "--server", node)
	for _, nobody := range []string{"nope", "acme/nope", "acme/claims/x"} { // an empty answer looked like one that got lost
		expect(t, exitOK, "", "nothing under "+nobody+"\n", "ls", nobody, "--server", node)
	}
	code, stdout, _ := runCommand(t, "ls", "acme/claims", "--server", node, "--output", "json", "--limit", "1")
	if code != exitOK || len(stdout) == 0 {
		t.Errorf("exit %d, %s", code, stdout)
	}
}
