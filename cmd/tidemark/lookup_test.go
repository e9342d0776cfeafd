package main

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// output is all that one command line gave.
type output struct {
	code           int
	stdout, stderr string
}

func check(t *testing.T, want output, args ...string) {
	t.Helper()
	code, stdout, stderr := runCommand(t, args...)
	if got := (output{code, stdout, stderr}); got != want {
		t.Errorf("%q:\nexit %d, stdout\n%s\nstderr\n%s\nwant exit %d, stdout\n%s\nstderr\n%s", args,
			got.code, got.stdout, got.stderr, want.code, want.stdout, want.stderr)
	}
}

func TestAggregate(t *testing.T) {
	answer := &pb.GetAggregateResponse{
		Aggregate: order(), Version: 9, Incarnation: 2, FirstVersion: 5, EventCount: 12, CreatedAt: at(1), LastCommittedAt: at(2),
		LastClientId: "billing", Position: 90, ChainHash: []byte{0xab}, Timeline: "t1",
	}
	store := &fakeStore{aggregate: func(*pb.GetAggregateRequest) (*pb.GetAggregateResponse, error) { return answer, nil }}
	server := store.start(t)
	const table = `aggregate          acme/orders/4821
version            9
first version      5
events             12
incarnation        2
state              STATE
created at         2026-01-31T01:00:00Z
last committed at  2026-01-31T02:00:00Z
last writer        billing
position           90
chain hash         ab
timeline           t1
`
	live := strings.Replace(table, "STATE", "live", 1)
	check(t, output{exitOK, live, ""}, "aggregate", "acme/orders/4821", "--server", server)
	check(t, output{exitOK, `{"aggregate":{"org":"acme","type":"orders","id":"4821"},"version":"9","incarnation":2,"first_version":"5","event_count":"12",` +
		`"created_at":"2026-01-31T01:00:00Z","last_committed_at":"2026-01-31T02:00:00Z","last_client_id":"billing","shard":0,"position":"90","deleted":false,` +
		`"allow_recreate":false,"chain_hash":"qw==","timeline":"t1"}` + "\n", ""},
		"aggregate", "acme/orders/4821", "--server", server, "--output", "json", "--consistency", "linearizable", "--min-position", "3", "--timeline", "t1")
	answer.Deleted = true
	check(t, output{exitOK, strings.Replace(table, "STATE", "deleted for good", 1), ""}, "aggregate", "acme/orders/4821", "--server", server)
	answer.AllowRecreate = true
	check(t, output{exitOK, strings.Replace(table, "STATE", "deleted, may be created again", 1), ""}, "aggregate", "acme/orders/4821", "--server", server)
	store.asked(t, &pb.GetAggregateRequest{Aggregate: order()},
		&pb.GetAggregateRequest{Aggregate: order(), Consistency: pb.Consistency_CONSISTENCY_LINEARIZABLE, MinPosition: 3, Timeline: "t1"},
		&pb.GetAggregateRequest{Aggregate: order()}, &pb.GetAggregateRequest{Aggregate: order()})
}

func TestAnAggregateThatNeverExistedExitsWithNotFound(t *testing.T) {
	store := &fakeStore{aggregate: func(*pb.GetAggregateRequest) (*pb.GetAggregateResponse, error) {
		return nil, api.Errorf(pb.ErrorCode_ERROR_CODE_AGGREGATE_DETAILS_NOT_FOUND, "acme/orders/4821 never existed")
	}}
	check(t, output{exitNotFound, "", "tidemark: 7001 AggregateDetailsNotFound: acme/orders/4821 never existed\nCheck the key.\n"},
		"aggregate", "acme/orders/4821", "--server", store.start(t))
}

func TestMark(t *testing.T) {
	answer := &pb.GetMarkResponse{Mark: 7, InFlightMark: proto.Uint64(8), Holder: holder(nil), Timeline: "t1"}
	store := &fakeStore{mark: func(*pb.GetMarkRequest) (*pb.GetMarkResponse, error) { return answer, nil }}
	server := store.start(t)
	check(t, output{exitOK, `mark            7
mark in flight  8
holder          version 3, position 88, sequence 7, event id "pay-77", committed 2026-01-31T11:00:00Z
timeline        t1
`, ""}, "mark", "acme/orders/4821", "billing", "--server", server)
	check(t, output{exitOK, `{"mark":"7","in_flight_mark":"8","holder":{"version":"3","incarnation":1,"position":"88","committed_at":"2026-01-31T11:00:00Z","client_seq":"7",` +
		`"event_id":"pay-77","first_client_seq":"7","last_client_seq":"7","event_count":1,"trimmed":false,"others":false,"content_differs":false},"timeline":"t1"}` + "\n", ""},
		"mark", "acme/orders/4821", "billing", "--server", server, "--output", "json")
	answer = &pb.GetMarkResponse{Timeline: "t1"}
	check(t, output{exitOK, "mark      0\nholder    none\ntimeline  t1\n", ""}, "mark", "acme/orders/4821", "billing", "--server", server, "--consistency", "leader")
	check(t, output{exitOK, `{"mark":"0","timeline":"t1"}` + "\n", ""}, "mark", "acme/orders/4821", "billing", "--server", server, "--output", "json")
	want := &pb.GetMarkRequest{Aggregate: order(), ClientId: "billing"}
	store.asked(t, want, want, &pb.GetMarkRequest{Aggregate: order(), ClientId: "billing", Consistency: pb.Consistency_CONSISTENCY_LEADER}, want)
}

func TestMarksWalksAllPages(t *testing.T) {
	store := &fakeStore{marks: func(req *pb.ListMarksRequest) (*pb.ListMarksResponse, error) {
		if req.GetPageToken() == "" {
			return &pb.ListMarksResponse{NextPageToken: "p2", Marks: []*pb.WriterMark{{ClientId: "audit", Mark: 3}}}, nil
		}
		return &pb.ListMarksResponse{Marks: []*pb.WriterMark{{ClientId: "billing", Mark: 7, Holder: holder(nil)}}}, nil
	}}
	server := store.start(t)
	check(t, output{exitOK, `CLIENT   MARK  VERSION  POSITION  EVENT ID  COMMITTED AT
audit    3     0        0                   -
billing  7     3        88        pay-77    2026-01-31T11:00:00.000Z
`, ""}, "marks", "acme/orders/4821", "--server", server)
	code, stdout, _ := runCommand(t, "marks", "acme/orders/4821", "--server", server, "--output", "json")
	lines := strings.Split(stdout, "\n")
	if code != exitOK || len(lines) != 3 || lines[0] != `{"client_id":"audit","mark":"3"}` || !strings.HasPrefix(lines[1], `{"client_id":"billing","mark":"7","holder":{"version":"3",`) {
		t.Errorf("exit %d, stdout\n%s", code, stdout)
	}
	first, second := &pb.ListMarksRequest{Aggregate: order()}, &pb.ListMarksRequest{Aggregate: order(), PageToken: "p2"}
	store.asked(t, first, second, first, second)
}

func TestFind(t *testing.T) {
	answer := &pb.FindEventResponse{Found: true, Holder: holder(nil), Batch: batch(3, event(6, "A", "a"), event(7, "OrderPaid", `{"total":12}`)), EventIndex: 1}
	answer.Batch.Events[1].ContentType = "application/json"
	store := &fakeStore{find: func(*pb.FindEventRequest) (*pb.FindEventResponse, error) { return answer, nil }}
	server := store.start(t)
	args := []string{"find", "acme/orders/4821", "billing", "7", "--server", server}
	check(t, output{exitOK, `holder        version 3, position 88, sequence 7, event id "pay-77", committed 2026-01-31T11:00:00Z
event number  7
type          OrderPaid
event id      e7
occurred at   -
content type  application/json
payload       {"total":12}
`, ""}, args...)
	answer = &pb.FindEventResponse{Found: true, Holder: holder(func(h *pb.Holder) { h.Trimmed = true })}
	check(t, output{exitOK, "holder  version 3, position 88, sequence 7, event id \"pay-77\", committed 2026-01-31T11:00:00Z, no longer readable\n", ""}, args...)
	answer = &pb.FindEventResponse{}
	check(t, output{exitNotFound, "", "tidemark: writer \"billing\" has no committed event with sequence 7 on acme/orders/4821\n"}, args...)
	check(t, output{exitNotFound, `{"found":false,"event_index":0}` + "\n",
		`{"error":{"code":0,"message":"writer \"billing\" has no committed event with sequence 7 on acme/orders/4821","exit_code":24,"may_have_happened":false}}` + "\n"},
		append(args, "--output", "json")...)
	want := &pb.FindEventRequest{Aggregate: order(), ClientId: "billing", ClientSeq: 7}
	store.asked(t, want, want, want, want)
	check(t, output{exitUsage, "", "tidemark: SEQ: expected a whole number from 1, found \"seven\"\nSee \"tidemark find --help\".\n"}, "find", "acme/orders/4821", "billing", "seven")
}

func TestVersionAsJSON(t *testing.T) {
	code, stdout, stderr := runCommand(t, "version", "--output", "json")
	for _, name := range []string{`"version":"`, `"commit":"`, `"go":"go1.`, `"system":"`} {
		if !strings.Contains(stdout, name) {
			t.Errorf("no %s in %s", name, stdout)
		}
	}
	if code != exitOK || stderr != "" {
		t.Errorf("exit %d, %s", code, stderr)
	}
}
