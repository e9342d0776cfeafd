package server

import (
	"context"
	"errors"
	"io"
	"slices"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// readLog reads all of the log that is asked for, and returns the batches, the end and how many
// messages there were.
func readLog(ctx context.Context, r *rig, req *pb.ReadAllRequest) ([]*pb.Batch, *pb.ReadAllEnd, int, error) {
	stream, err := r.client.ReadAll(ctx, req)
	if err != nil {
		return nil, nil, 0, err
	}
	var batches []*pb.Batch
	var end *pb.ReadAllEnd
	for n := 0; ; n++ {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return batches, end, n, nil
		}
		if err == nil && end != nil {
			err = errors.New("the stream goes on after its end")
		}
		if err != nil {
			return batches, nil, n, err
		}
		batches, end = append(batches, m.GetBatches()...), m.GetEnd()
	}
}

// log is ten positions of four aggregates, of two orgs and three types, and what a read of all
// of it returns. Position 4 was trimmed, 6 deleted; 5 is the trim and 8 the delete.
func (r *rig) log(t *testing.T) []*pb.Batch {
	t.Helper()
	keys := map[string]record.Key{
		"a": record.MakeKey("acme", "orders", "a"), "b": record.MakeKey("acme", "bills", "b"),
		"c": record.MakeKey("beta", "orders", "c"), "d": record.MakeKey("beta", "notes", "d"),
	}
	var all []*pb.Batch
	put := func(name, client string, events ...*pb.NewEvent) {
		r.shard.put(t, keys[name], client, int64(100+len(all)), events...)
		h := r.shard.heads[keys[name]]
		v := r.shard.store.View()
		defer v.Release()
		stored, _, err := v.Batch(keys[name], h.Incarnation, h.Version)
		if err != nil {
			t.Fatal(err)
		}
		b, err := record.DecodeBatch(stored)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	put("a", "w", event(1, "Placed"))
	put("b", "w", event(1, "Billed"), event(2, "Sent"))
	put("a", "x", event(1, "Paid"), event(2, "Paid"))
	r.shard.vanished(t, keys["c"], "x")
	r.shard.change(t, keys["c"], history.ChangeTrim, 2, func(h *history.Head) { h.Floor = 2 })
	r.shard.vanished(t, keys["d"], "x")
	put("c", "w", event(3, "Placed"))
	r.shard.change(t, keys["d"], history.ChangeDelete, 1, func(h *history.Head) { h.Deleted = true })
	put("a", "w", event(2, "Sent"))
	put("b", "x", event(1, "Paid"))
	for i, p := range []uint64{1, 2, 3, 7, 9, 10} {
		if all[i].GetPosition() != p {
			t.Fatalf("batch %d has position %d, want %d", i, all[i].GetPosition(), p)
		}
	}
	return all
}

func TestReadAllOfTheLog(t *testing.T) {
	r := start(t, nil)
	all := r.log(t)
	pick := func(positions ...uint64) (out []*pb.Batch) {
		for _, p := range positions {
			i := slices.IndexFunc(all, func(b *pb.Batch) bool { return b.GetPosition() == p })
			out = append(out, all[i])
		}
		return out
	}
	const back = pb.Direction_DIRECTION_BACKWARD
	for name, c := range map[string]struct {
		req  *pb.ReadAllRequest
		want []*pb.Batch
		next uint64
	}{
		"all":               {&pb.ReadAllRequest{}, all, 11},
		"from the first":    {&pb.ReadAllRequest{FromPosition: 1}, all, 11},
		"from the middle":   {&pb.ReadAllRequest{FromPosition: 3}, pick(3, 7, 9, 10), 11},
		"from a gone one":   {&pb.ReadAllRequest{FromPosition: 4}, pick(7, 9, 10), 11},
		"from the last":     {&pb.ReadAllRequest{FromPosition: 10}, pick(10), 11},
		"from the end":      {&pb.ReadAllRequest{FromPosition: 11}, nil, 11},
		"from beyond":       {&pb.ReadAllRequest{FromPosition: 20}, nil, 20},
		"backward":          {&pb.ReadAllRequest{Direction: back}, pick(10, 9, 7, 3, 2, 1), 0},
		"backward from":     {&pb.ReadAllRequest{Direction: back, FromPosition: 6}, pick(3, 2, 1), 0},
		"backward beyond":   {&pb.ReadAllRequest{Direction: back, FromPosition: 20}, pick(10, 9, 7, 3, 2, 1), 0},
		"backward first":    {&pb.ReadAllRequest{Direction: back, FromPosition: 1}, pick(1), 0},
		"limit":             {&pb.ReadAllRequest{Limit: 4}, pick(1, 2, 3, 7), 8},
		"limit 1":           {&pb.ReadAllRequest{Limit: 1}, pick(1), 2},
		"limit of all":      {&pb.ReadAllRequest{Limit: 6}, all, 11},
		"limit above":       {&pb.ReadAllRequest{Limit: 7}, all, 11},
		"limit backward":    {&pb.ReadAllRequest{Limit: 3, Direction: back}, pick(10, 9, 7), 6},
		"limit to position": {&pb.ReadAllRequest{Limit: 6, Direction: back}, pick(10, 9, 7, 3, 2, 1), 0},
		"org":               {&pb.ReadAllRequest{Orgs: []string{"acme"}}, pick(1, 2, 3, 9, 10), 11},
		"orgs":              {&pb.ReadAllRequest{Orgs: []string{"acme", "beta"}}, all, 11},
		"no such org":       {&pb.ReadAllRequest{Orgs: []string{"acm"}}, nil, 11},
		"type":              {&pb.ReadAllRequest{Types: []string{"orders"}}, pick(1, 3, 7, 9), 11},
		"org and type":      {&pb.ReadAllRequest{Orgs: []string{"acme"}, Types: []string{"orders", "notes"}}, pick(1, 3, 9), 11},
		"event type":        {&pb.ReadAllRequest{Filter: &pb.Filter{EventTypes: []string{"Sent"}}}, []*pb.Batch{only(all[1], 1), all[4]}, 11},
		"part of a batch":   {&pb.ReadAllRequest{Filter: &pb.Filter{ClientSeqFrom: 2, ClientSeqTo: 2}, FromPosition: 3}, []*pb.Batch{only(all[2], 1), all[4]}, 11},
		"client":            {&pb.ReadAllRequest{Filter: &pb.Filter{ClientIds: []string{"x"}}}, pick(3, 10), 11},
		"not client":        {&pb.ReadAllRequest{Filter: &pb.Filter{ExcludeClientIds: []string{"w"}}, Limit: 1}, pick(3), 4},
		"committed":         {&pb.ReadAllRequest{Filter: &pb.Filter{CommittedFrom: &timestamppb.Timestamp{Seconds: 102}, CommittedTo: &timestamppb.Timestamp{Seconds: 103}}}, pick(3, 7), 11},
		"all of them":       {&pb.ReadAllRequest{Orgs: []string{"acme"}, Filter: &pb.Filter{ClientIds: []string{"w"}, EventTypes: []string{"Placed", "Sent"}}, Direction: back, Limit: 2}, []*pb.Batch{all[4], only(all[1], 1)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c.req.Timeline = testTimeline
			got, end, _, err := readLog(testContext(t), r, c.req)
			if err != nil {
				t.Fatal(err)
			}
			wantBatches(t, got, c.want)
			wantMessage(t, end, &pb.ReadAllEnd{NextPosition: c.next, LastPosition: 10, Timeline: testTimeline})
		})
	}
}

func TestReadAllRefusals(t *testing.T) {
	r := start(t, nil)
	long := make([]string, maxScopeEntries+1)
	for i := range long {
		long[i] = "o"
	}
	for name, c := range map[string]struct {
		req  *pb.ReadAllRequest
		want *api.Error
	}{
		"position without timeline": {&pb.ReadAllRequest{FromPosition: 2}, api.Invalid("timeline", "is empty; from_position means nothing without the timeline that it was given with")},
		"backward without timeline": {&pb.ReadAllRequest{FromPosition: 2, Direction: 2}, api.Invalid("timeline", "is empty; from_position means nothing without the timeline that it was given with")},
		"min_position":              {&pb.ReadAllRequest{MinPosition: 1}, api.Invalid("timeline", "is empty; min_position means nothing without the timeline that it was given with")},
		"timeline":                  {&pb.ReadAllRequest{Timeline: "x"}, checkTimeline("x")},
		"direction":                 {&pb.ReadAllRequest{Direction: 9}, unknownEnum("direction", 9)},
		"consistency":               {&pb.ReadAllRequest{Consistency: 9}, unknownEnum("consistency", 9)},
		"shard":                     {&pb.ReadAllRequest{Shard: 1}, api.Invalid("shard", "is 1; there is one shard, 0")},
		"org":                       {&pb.ReadAllRequest{Orgs: []string{"a", ""}}, badPart("orgs[1]", "is empty", "")},
		"type":                      {&pb.ReadAllRequest{Types: []string{"a/b"}}, badPart("types[0]", "has a '/'", "a/b")},
		"orgs":                      {&pb.ReadAllRequest{Orgs: long}, tooMany("orgs", maxScopeEntries, len(long))},
		"filter":                    {&pb.ReadAllRequest{Filter: &pb.Filter{ClientSeqFrom: 2, ClientSeqTo: 1}}, api.Invalid("filter.client_seq_from", "is 2, above client_seq_to, which is 1")},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, _, err := readLog(testContext(t), r, c.req)
			wantError(t, err, c.want)
		})
	}
	moved := api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "elsewhere").With(&pb.NotLeader{LeaderId: "n2"})
	r.shard.refuseReads(moved)
	_, _, _, err := readLog(testContext(t), r, &pb.ReadAllRequest{FromPosition: 5, MinPosition: 7, Timeline: testTimeline})
	wantError(t, err, moved)
	if got := r.shard.lastRead(); got.Consistency != pb.Consistency_CONSISTENCY_LEADER || got.MinPosition != 7 || got.Timeline != testTimeline {
		t.Errorf("read with %+v", got)
	}
}

// What a position says is there, and is neither trimmed nor deleted, is damage if it is missing.
func TestReadAllOfALogWithAHole(t *testing.T) {
	r := start(t, nil)
	r.log(t)
	r.shard.vanished(t, testKey("hole"), "w")
	want := api.Corruptf("corrupt record: version 1 of acme/orders/hole, incarnation 1, is missing from the history, which says it is there")
	_, _, _, err := readLog(testContext(t), r, &pb.ReadAllRequest{})
	wantError(t, err, want)
	_, _, _, err = readLog(testContext(t), r, &pb.ReadAllRequest{Direction: pb.Direction_DIRECTION_BACKWARD})
	wantError(t, err, want)
	got, _, _, err := readLog(testContext(t), r, &pb.ReadAllRequest{Orgs: []string{"beta"}})
	if err != nil || len(got) != 1 {
		t.Errorf("out of the scope: %d batches, %v", len(got), err)
	}
}

func TestReadAllMessagesAreBounded(t *testing.T) {
	r := start(t, nil)
	const size, n, largest = 10_000, 200, 4 << 20
	for i := range n {
		if i%50 == 25 {
			r.shard.put(t, testKey("huge"), "a", 100, &pb.NewEvent{ClientSeq: uint64(i + 1), Type: "T", Payload: make([]byte, largest)})
		}
		r.shard.put(t, testKey(string(rune('a'+i%7))), "a", 100, &pb.NewEvent{ClientSeq: uint64(i + 1), Type: "T", Payload: make([]byte, size)})
	}
	for _, backward := range []bool{false, true} {
		req := &pb.ReadAllRequest{}
		if backward {
			req.Direction = pb.Direction_DIRECTION_BACKWARD
		}
		got, end, messages, err := readLog(testContext(t), r, req)
		if err != nil {
			t.Fatal(err)
		}
		for i, b := range got {
			want := uint64(i + 1)
			if backward {
				want = uint64(n + 4 - i)
			}
			if b.GetPosition() != want {
				t.Fatalf("batch %d is position %d, want %d", i, b.GetPosition(), want)
			}
		}
		if len(got) != n+4 || messages < n*size/messageBytes+4 || messages > 60 {
			t.Errorf("%d batches in %d messages", len(got), messages)
		}
		next := uint64(n + 5)
		if backward {
			next = 0
		}
		wantMessage(t, end, &pb.ReadAllEnd{NextPosition: next, LastPosition: n + 4, Timeline: testTimeline})
	}
	if use := r.server.chain.budget.use(); use.bytes != 0 {
		t.Errorf("%d bytes are still held", use.bytes)
	}
}
