package server

import (
	"fmt"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// holderIn is the holder that a batch of orders is for one of its events.
func holderIn(b *pb.Batch, index int) *pb.Holder {
	return &pb.Holder{
		Version: b.Version, Incarnation: 1, Position: b.Position, CommittedAt: b.CommittedAt,
		ClientSeq: b.Events[index].ClientSeq, EventId: b.Events[index].EventId,
		FirstClientSeq: b.Events[0].ClientSeq, LastClientSeq: b.Events[len(b.Events)-1].ClientSeq,
		EventCount: uint32(len(b.Events)),
	}
}

func TestGetAggregate(t *testing.T) {
	r := start(t, nil)
	all := orders(t, r)
	ctx := testContext(t)
	want := &pb.GetAggregateResponse{
		Aggregate: pbKey("1"), Version: 5, Incarnation: 1, FirstVersion: 1, EventCount: 6,
		CreatedAt: all[0].CommittedAt, LastCommittedAt: all[4].CommittedAt, LastClientId: "a",
		Position: 10, ChainHash: all[4].ChainHash, Timeline: testTimeline,
	}
	got, err := r.client.GetAggregate(ctx, &pb.GetAggregateRequest{Aggregate: pbKey("1")})
	if err != nil {
		t.Fatal(err)
	}
	wantMessage(t, got, want)

	r.shard.changeHead(t, testKey("1"), func(h *history.Head) { h.Floor, h.Deleted, h.Recreatable = 4, true, true })
	got, err = r.client.GetAggregate(ctx, &pb.GetAggregateRequest{Aggregate: pbKey("1")})
	if err != nil {
		t.Fatal(err)
	}
	want.FirstVersion, want.Deleted, want.AllowRecreate = 4, true, true
	wantMessage(t, got, want)

	_, err = r.client.GetAggregate(ctx, &pb.GetAggregateRequest{Aggregate: pbKey("2")})
	wantError(t, err, api.Errorf(pb.ErrorCode_ERROR_CODE_AGGREGATE_DETAILS_NOT_FOUND, "acme/orders/2 has never been written"))
}

func TestGetMark(t *testing.T) {
	r := start(t, nil)
	all := orders(t, r)
	r.shard.inFlight[string(testKey("1"))+"a"] = 9
	r.shard.inFlight[string(testKey("2"))+"z"] = 1
	for _, c := range []struct {
		id, client string
		want       *pb.GetMarkResponse
	}{
		{"1", "a", &pb.GetMarkResponse{Mark: 5, InFlightMark: proto.Uint64(9), Holder: holderIn(all[4], 0)}},
		{"1", "b", &pb.GetMarkResponse{Mark: 1, Holder: holderIn(all[2], 0)}},
		{"1", "never", &pb.GetMarkResponse{}},
		{"2", "z", &pb.GetMarkResponse{InFlightMark: proto.Uint64(1)}},
	} {
		got, err := r.client.GetMark(testContext(t), &pb.GetMarkRequest{Aggregate: pbKey(c.id), ClientId: c.client})
		if err != nil {
			t.Fatal(err)
		}
		c.want.Timeline = testTimeline
		wantMessage(t, got, c.want)
	}
}

func TestFindEvent(t *testing.T) {
	r := start(t, nil)
	all := orders(t, r)
	find := func(client string, seq uint64) *pb.FindEventResponse {
		t.Helper()
		got, err := r.client.FindEvent(testContext(t), &pb.FindEventRequest{Aggregate: pbKey("1"), ClientId: client, ClientSeq: seq})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	wantMessage(t, find("a", 3), &pb.FindEventResponse{Found: true, Holder: holderIn(all[1], 1), Batch: all[1], EventIndex: 1})
	wantMessage(t, find("b", 1), &pb.FindEventResponse{Found: true, Holder: holderIn(all[2], 0), Batch: all[2]})
	wantMessage(t, find("a", 6), &pb.FindEventResponse{})
	wantMessage(t, find("never", 1), &pb.FindEventResponse{})

	// Trimmed: the rows still answer, the batch is gone.
	r.shard.changeHead(t, testKey("1"), func(h *history.Head) { h.Floor = 3 })
	trimmed := holderIn(all[1], 1)
	trimmed.Trimmed = true
	wantMessage(t, find("a", 3), &pb.FindEventResponse{Found: true, Holder: trimmed, EventIndex: 1})
	wantMessage(t, find("b", 1), &pb.FindEventResponse{Found: true, Holder: holderIn(all[2], 0), Batch: all[2]})

	_, err := r.client.FindEvent(testContext(t), &pb.FindEventRequest{Aggregate: pbKey("1"), ClientId: "a"})
	wantError(t, err, invalid("client_seq", "is 0; expected 1..9223372036854775807"))
}

func TestListMarksInPages(t *testing.T) {
	r := start(t, nil)
	ctx := testContext(t)
	const writers = 25
	want := &pb.ListMarksResponse{}
	for i := range writers {
		client := fmt.Sprintf("w%02d", i)
		r.shard.put(t, testKey("1"), client, 50, &pb.NewEvent{ClientSeq: 7, EventId: "old", Type: "T"})
		v := r.shard.put(t, testKey("1"), client, 60, &pb.NewEvent{ClientSeq: uint64(10 + i), EventId: "new", Type: "T"})
		seq := uint64(10 + i)
		want.Marks = append(want.Marks, &pb.WriterMark{ClientId: client, Mark: seq, Holder: &pb.Holder{
			Version: v, Incarnation: 1, Position: v, CommittedAt: &timestamppb.Timestamp{Seconds: 60},
			ClientSeq: seq, EventId: "new", FirstClientSeq: seq, LastClientSeq: seq, EventCount: 1,
		}})
	}
	for _, size := range []uint32{0, 1, 7, 24, 25, 26, 1000} {
		got := &pb.ListMarksResponse{}
		token, pages := "", 0
		for {
			page, err := r.client.ListMarks(ctx, &pb.ListMarksRequest{Aggregate: pbKey("1"), PageSize: size, PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			got.Marks = append(got.Marks, page.GetMarks()...)
			pages++
			if token = page.GetNextPageToken(); token == "" {
				break
			}
			if len(page.GetMarks()) != int(size) {
				t.Fatalf("page %d has %d of %d marks and is not the last", pages, len(page.GetMarks()), size)
			}
		}
		wantMessage(t, got, want)
		most := int(size)
		if most == 0 {
			most = 1000
		}
		if wantPages := (writers + most - 1) / most; pages != wantPages {
			t.Errorf("page size %d: %d pages, want %d", size, pages, wantPages)
		}
	}
	empty, err := r.client.ListMarks(ctx, &pb.ListMarksRequest{Aggregate: pbKey("2")})
	if err != nil {
		t.Fatal(err)
	}
	wantMessage(t, empty, &pb.ListMarksResponse{})
}

func TestPageTokensOfOtherListsAreRefused(t *testing.T) {
	r := start(t, nil)
	ctx := testContext(t)
	for _, client := range []string{"a", "b"} {
		r.shard.put(t, testKey("1"), client, 50, event(1, "T"))
		r.shard.put(t, testKey("2"), client, 50, event(1, "T"))
	}
	page, err := r.client.ListMarks(ctx, &pb.ListMarksRequest{Aggregate: pbKey("1"), PageSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	token := page.GetNextPageToken()
	want := invalid("page_token", "is not a next_page_token of this list")
	_, err = r.client.ListMarks(ctx, &pb.ListMarksRequest{Aggregate: pbKey("2"), PageToken: token})
	wantError(t, err, want)
	_, err = r.client.ListAggregates(ctx, &pb.ListAggregatesRequest{PageToken: token})
	wantError(t, err, want)
	_, err = r.client.ListOrgs(ctx, &pb.ListOrgsRequest{PageToken: token})
	wantError(t, err, want)
	for _, bad := range []string{"!", "AAAA", token[:len(token)-1], token + "A", "a"} {
		_, err = r.client.ListMarks(ctx, &pb.ListMarksRequest{Aggregate: pbKey("1"), PageToken: bad})
		wantError(t, err, want)
	}
	// No token, whatever is in it, does more than move the start.
	_, err = r.client.ListMarks(ctx, &pb.ListMarksRequest{Aggregate: pbKey("1"), PageToken: token})
	if err != nil {
		t.Error(err)
	}
}

func TestLists(t *testing.T) {
	r := start(t, nil)
	ctx := testContext(t)
	keys := []record.Key{
		record.MakeKey("acme", "carts", "1"), record.MakeKey("acme", "orders", "1"), record.MakeKey("acme", "orders", "10"),
		record.MakeKey("acme", "orders", "2"), record.MakeKey("acme-b", "orders", "1"), record.MakeKey("zürich", "x", "é"),
	}
	for i, k := range keys {
		r.shard.put(t, k, "a", int64(50+i), event(1, "T"))
	}
	r.shard.changeHead(t, keys[2], func(h *history.Head) { h.Deleted = true })
	describeAll := func(indexes ...int) *pb.ListAggregatesResponse {
		out := &pb.ListAggregatesResponse{}
		for _, i := range indexes {
			h := r.shard.heads[keys[i]]
			org, typ, id, _ := keys[i].Parts()
			out.Aggregates = append(out.Aggregates, &pb.GetAggregateResponse{
				Aggregate: &pb.AggregateKey{Org: org, Type: typ, Id: id}, Version: 1, Incarnation: 1, FirstVersion: 1, EventCount: 1,
				CreatedAt: &timestamppb.Timestamp{Seconds: int64(50 + i)}, LastCommittedAt: &timestamppb.Timestamp{Seconds: int64(50 + i)},
				LastClientId: "a", Position: uint64(i + 1), Deleted: h.Deleted, ChainHash: h.Chain[:], Timeline: testTimeline,
			})
		}
		return out
	}
	for _, size := range []uint32{0, 1, 2, 3} {
		var orgs, types []string
		for token := ""; ; {
			page, err := r.client.ListOrgs(ctx, &pb.ListOrgsRequest{PageSize: size, PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			orgs = append(orgs, page.GetOrgs()...)
			if token = page.GetNextPageToken(); token == "" {
				break
			}
		}
		if fmt.Sprint(orgs) != "[acme acme-b zürich]" {
			t.Errorf("page size %d: orgs %v", size, orgs)
		}
		for token := ""; ; {
			page, err := r.client.ListTypes(ctx, &pb.ListTypesRequest{Org: "acme", PageSize: size, PageToken: token})
			if err != nil {
				t.Fatal(err)
			}
			types = append(types, page.GetTypes()...)
			if token = page.GetNextPageToken(); token == "" {
				break
			}
		}
		if fmt.Sprint(types) != "[carts orders]" {
			t.Errorf("page size %d: types %v", size, types)
		}
		for _, c := range []struct {
			req  *pb.ListAggregatesRequest
			want *pb.ListAggregatesResponse
		}{
			{&pb.ListAggregatesRequest{}, describeAll(0, 1, 3, 4, 5)},
			{&pb.ListAggregatesRequest{IncludeDeleted: true}, describeAll(0, 1, 2, 3, 4, 5)},
			{&pb.ListAggregatesRequest{Org: "acme"}, describeAll(0, 1, 3)},
			{&pb.ListAggregatesRequest{Org: "acme", Type: "orders"}, describeAll(1, 3)},
			{&pb.ListAggregatesRequest{Org: "acme", Type: "orders", IdPrefix: "1", IncludeDeleted: true}, describeAll(1, 2)},
			{&pb.ListAggregatesRequest{Org: "acm"}, describeAll()},
		} {
			got := &pb.ListAggregatesResponse{}
			req := proto.Clone(c.req).(*pb.ListAggregatesRequest)
			req.PageSize = size
			for {
				page, err := r.client.ListAggregates(ctx, req)
				if err != nil {
					t.Fatal(err)
				}
				if size > 0 && len(page.GetAggregates()) > int(size) {
					t.Errorf("a page of %d has %d", size, len(page.GetAggregates()))
				}
				got.Aggregates = append(got.Aggregates, page.GetAggregates()...)
				if req.PageToken = page.GetNextPageToken(); req.PageToken == "" {
					break
				}
			}
			wantMessage(t, got, c.want)
		}
	}
	none, err := r.client.ListTypes(ctx, &pb.ListTypesRequest{Org: "none"})
	if err != nil {
		t.Fatal(err)
	}
	wantMessage(t, none, &pb.ListTypesResponse{})
}

// A list that passes over more than its bound ends its page, and goes on where it was.
func TestListPassesOverABoundedNumber(t *testing.T) {
	r := start(t, nil)
	r.shard.batch.Reset()
	const deleted = maxPassedOver + 1
	for i := range deleted + 1 {
		h := history.Head{Version: 1, Incarnation: 1, Position: 1, Deleted: i < deleted}
		k := testKey(fmt.Sprintf("%06d", i))
		r.shard.batch.PutHead(k, &h)
	}
	r.shard.batch.SetApplied(history.Applied{Index: 1, Position: 1, Timeline: testTimeline})
	r.shard.commit(t)
	page, err := r.client.ListAggregates(testContext(t), &pb.ListAggregatesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(page.GetAggregates()) != 0 || page.GetNextPageToken() == "" {
		t.Fatalf("the first page has %d aggregates, token %q", len(page.GetAggregates()), page.GetNextPageToken())
	}
	page, err = r.client.ListAggregates(testContext(t), &pb.ListAggregatesRequest{PageToken: page.GetNextPageToken()})
	if err != nil {
		t.Fatal(err)
	}
	if len(page.GetAggregates()) != 1 || page.GetNextPageToken() != "" {
		t.Errorf("the second page has %d aggregates, token %q", len(page.GetAggregates()), page.GetNextPageToken())
	}
}
