package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// subscriber takes a subscription apart.
type subscriber struct {
	t      *testing.T
	stream grpc.ServerStreamingClient[pb.SubscribeResponse]
	cancel context.CancelFunc
}

func (r *rig) subscribe(t *testing.T, req *pb.SubscribeRequest) *subscriber {
	t.Helper()
	ctx, cancel := context.WithCancel(testContext(t))
	t.Cleanup(cancel)
	if req.GetTimeline() == "" && req.GetFromPosition() > 1 {
		req.Timeline = testTimeline
	}
	stream, err := r.client.Subscribe(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	return &subscriber{t: t, stream: stream, cancel: cancel}
}

// next is the next message.
func (s *subscriber) next() *pb.SubscribeResponse {
	s.t.Helper()
	m, err := s.stream.Recv()
	if err != nil {
		s.t.Fatal(err)
	}
	return m
}

// until collects what comes until the stream has told of position next or further, and returns
// it as lines: batches and notices in the order of positions, markers where they came.
func (s *subscriber) until(next uint64) []string {
	s.t.Helper()
	var lines []string
	told := uint64(0)
	for told < next {
		m := s.next()
		lines = append(lines, linesOf(m)...)
		for _, b := range m.GetBatches() {
			told = max(told, b.GetPosition()+1)
		}
		for _, n := range m.GetNotices() {
			told = max(told, n.GetPosition()+1)
		}
		told = max(told, m.GetCaughtUp().GetNextPosition(), m.GetCheckpoint().GetNextPosition())
	}
	return lines
}

// caughtUp collects what comes up to the marker.
func (s *subscriber) caughtUp() []string {
	s.t.Helper()
	var lines []string
	for {
		m := s.next()
		lines = append(lines, linesOf(m)...)
		if m.GetCaughtUp() != nil {
			return lines
		}
	}
}

// linesOf is a message in words: "3 a/1 Paid,Paid", "3 CREATED a 1-1", "caught up 4".
func linesOf(m *pb.SubscribeResponse) []string {
	type line struct {
		position uint64
		text     string
	}
	var lines []line
	for _, n := range m.GetNotices() {
		op := strings.TrimPrefix(n.GetOperation().String(), "OPERATION_")
		lines = append(lines, line{n.GetPosition(), fmt.Sprintf("%d %s %s %d-%d", n.GetPosition(), op, n.GetAggregate().GetId(), n.GetFromVersion(), n.GetToVersion())})
	}
	for _, b := range m.GetBatches() {
		var types []string
		for _, e := range b.GetEvents() {
			types = append(types, e.GetType())
		}
		lines = append(lines, line{b.GetPosition(), fmt.Sprintf("%d %s/%d %s", b.GetPosition(), b.GetAggregate().GetId(), b.GetVersion(), strings.Join(types, ","))})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return int(a.position) - int(b.position) })
	var out []string
	for _, l := range lines {
		out = append(out, l.text)
	}
	if c := m.GetCaughtUp(); c != nil {
		out = append(out, fmt.Sprintf("caught up %d", c.GetNextPosition()))
	}
	return out
}

// end waits for the end of the stream and returns what came before and its error.
func (s *subscriber) end() (lines []string, err error) {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return lines, err
		}
		lines = append(lines, linesOf(m)...)
	}
}

func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Fatalf("got\n  %s\nwant\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func all() *pb.SubscribeRequest {
	return &pb.SubscribeRequest{Scope: &pb.SubscribeRequest_All{All: &pb.AllScope{}}, Start: &pb.SubscribeRequest_FromPosition{FromPosition: 1}}
}

func ofAggregates(keys ...*pb.AggregateKey) *pb.SubscribeRequest {
	return &pb.SubscribeRequest{Scope: &pb.SubscribeRequest_Aggregates{Aggregates: &pb.AggregatesScope{Aggregates: keys}}}
}

// What a subscription from the start of rig.log says, whatever it is served from.
var wholeLog = []string{
	"1 CREATED a 1-1", "1 a/1 Placed", "2 CREATED b 1-1", "2 b/1 Billed,Sent", "3 a/2 Paid,Paid", "5 TRIMMED c 1-1",
	"7 c/2 Placed", "8 DELETED d 1-1", "9 a/3 Sent", "10 b/2 Paid",
}

func from(position uint64, lines []string) (out []string) {
	for _, l := range lines {
		var p uint64
		if _, err := fmt.Sscan(l, &p); err != nil || p >= position {
			out = append(out, l)
		}
	}
	return out
}

func TestSubscribeCatchesUpAndGoesOn(t *testing.T) {
	for _, ring := range []bool{false, true} {
		r := start(t, nil)
		r.log(t)
		if !ring {
			r.shard.feed.Reset(10) // nothing of it is in memory any more
		}
		for position := range uint64(14) {
			req := all()
			req.Start = &pb.SubscribeRequest_FromPosition{FromPosition: position}
			s := r.subscribe(t, req)
			wantLines(t, s.caughtUp(), append(from(position, wholeLog), fmt.Sprintf("caught up %d", max(11, position)))...)
			s.cancel()
		}
		req := all()
		req.Start = &pb.SubscribeRequest_FromNow{FromNow: true}
		s := r.subscribe(t, req)
		first := s.next()
		wantMessage(t, first, &pb.SubscribeResponse{CaughtUp: &pb.CaughtUp{NextPosition: 11}, Timeline: testTimeline})
		r.shard.put(t, testKey("a"), "w", 200, event(7, "Live"))
		r.shard.put(t, testKey("new"), "w", 200, event(8, "Live"))
		r.shard.change(t, testKey("a"), history.ChangeTrim, 3, func(h *history.Head) { h.Floor = 3 })
		wantLines(t, s.until(14), "11 a/4 Live", "12 CREATED new 1-1", "12 new/1 Live", "13 TRIMMED a 1-2")
		// A later position waits until the log has come there.
		req = all()
		req.Start = &pb.SubscribeRequest_FromPosition{FromPosition: 15}
		s = r.subscribe(t, req)
		wantLines(t, s.caughtUp(), "caught up 15")
		r.shard.put(t, testKey("a"), "w", 200, event(9, "Before"))
		r.shard.put(t, testKey("a"), "w", 200, event(10, "There"))
		wantLines(t, s.until(16), "15 a/6 There")
	}
}

// The batches are whole: what a subscription sends is what ReadAll returns.
func TestSubscribeSendsWholeBatches(t *testing.T) {
	r := start(t, nil)
	want := r.log(t)
	for _, ring := range []bool{true, false} {
		if !ring {
			r.shard.feed.Reset(10)
		}
		s := r.subscribe(t, all())
		var got []*pb.Batch
		for m := s.next(); ; m = s.next() {
			got = append(got, m.GetBatches()...)
			if m.GetCaughtUp() != nil {
				break
			}
		}
		wantBatches(t, got, want)
	}
}

func TestSubscribeScopesAndFilters(t *testing.T) {
	r := start(t, nil)
	r.log(t)
	a, b := &pb.AggregateKey{Org: "acme", Type: "orders", Id: "a"}, &pb.AggregateKey{Org: "acme", Type: "bills", Id: "b"}
	for name, c := range map[string]struct {
		change func(*pb.SubscribeRequest)
		want   []string
		next   uint64 // of the marker
	}{
		"org": {func(q *pb.SubscribeRequest) { q.Scope = &pb.SubscribeRequest_Org{Org: "beta"} },
			[]string{"5 TRIMMED c 1-1", "7 c/2 Placed", "8 DELETED d 1-1"}, 11},
		"no such org": {func(q *pb.SubscribeRequest) { q.Scope = &pb.SubscribeRequest_Org{Org: "bet"} }, nil, 11},
		"type": {func(q *pb.SubscribeRequest) {
			q.Scope = &pb.SubscribeRequest_Type{Type: &pb.TypeScope{Org: "beta", Type: "orders"}}
		}, []string{"5 TRIMMED c 1-1", "7 c/2 Placed"}, 11},
		"aggregates": {func(q *pb.SubscribeRequest) { q.Scope = ofAggregates(a, b, a).Scope },
			[]string{"1 CREATED a 1-1", "1 a/1 Placed", "2 CREATED b 1-1", "2 b/1 Billed,Sent", "3 a/2 Paid,Paid", "9 a/3 Sent", "10 b/2 Paid"}, 11},
		"events": {func(q *pb.SubscribeRequest) { q.Filter = &pb.Filter{EventTypes: []string{"Sent"}} },
			[]string{"2 CREATED b 1-1", "2 b/1 Sent", "5 TRIMMED c 1-1", "8 DELETED d 1-1", "9 a/3 Sent"}, 11},
		"clients": {func(q *pb.SubscribeRequest) {
			q.Filter = &pb.Filter{ClientIds: []string{"x"}, ClientSeqFrom: 2}
			q.Scope = &pb.SubscribeRequest_Org{Org: "acme"}
		}, []string{"3 a/2 Paid"}, 11},
		"nothing passes": {func(q *pb.SubscribeRequest) {
			q.Filter, q.Scope = &pb.Filter{EventIds: []string{"none"}}, ofAggregates(a).Scope
		}, nil, 11},
		"version": {func(q *pb.SubscribeRequest) {
			q.Scope, q.Start = ofAggregates(a).Scope, &pb.SubscribeRequest_FromVersion{FromVersion: 2}
		}, []string{"3 a/2 Paid,Paid", "9 a/3 Sent"}, 11},
		"first version": {func(q *pb.SubscribeRequest) {
			q.Scope, q.Start = ofAggregates(a).Scope, &pb.SubscribeRequest_FromVersion{}
		}, []string{"1 CREATED a 1-1", "1 a/1 Placed", "3 a/2 Paid,Paid", "9 a/3 Sent"}, 11},
		"notices": {func(q *pb.SubscribeRequest) { q.NoticesOnly = true },
			[]string{"1 CREATED a 1-1", "2 CREATED b 1-1", "3 WRITTEN a 2-2", "5 TRIMMED c 1-1", "7 WRITTEN c 2-2", "8 DELETED d 1-1", "9 WRITTEN a 3-3", "10 WRITTEN b 2-2"}, 11},
		"filtered notices": {func(q *pb.SubscribeRequest) { q.NoticesOnly, q.Filter = true, &pb.Filter{EventTypes: []string{"Paid"}} },
			[]string{"3 WRITTEN a 2-2", "5 TRIMMED c 1-1", "8 DELETED d 1-1", "10 WRITTEN b 2-2"}, 11},
	} {
		t.Run(name, func(t *testing.T) {
			for _, ring := range []bool{true, false} {
				if !ring {
					r.shard.feed.Reset(10)
				}
				req := all()
				c.change(req)
				got := r.subscribe(t, req).caughtUp()
				if req.GetNoticesOnly() {
					got = merged(got)
				}
				want := c.want
				if req.GetNoticesOnly() {
					want = merged(c.want)
				}
				wantLines(t, got, append(slices.Clone(want), fmt.Sprintf("caught up %d", c.next))...)
			}
		})
	}
}

// merged joins notices of one aggregate that follow on each other, however they were sent.
func merged(lines []string) []string {
	type open struct {
		index    int
		from, to uint64
		op       string
	}
	last := map[string]*open{}
	var out []string
	for _, l := range lines {
		var p, from, to uint64
		var op, id string
		if n, _ := fmt.Sscanf(l, "%d %s %s %d-%d", &p, &op, &id, &from, &to); n != 5 {
			out = append(out, l)
			continue
		}
		if o := last[id]; o != nil && op == "WRITTEN" && o.to+1 == from {
			out[o.index] = ""
			from, op = o.from, o.op
		}
		out = append(out, fmt.Sprintf("%d %s %s %d-%d", p, op, id, from, to))
		delete(last, id)
		if op == "WRITTEN" || op == "CREATED" {
			last[id] = &open{len(out) - 1, from, to, op}
		}
	}
	return slices.DeleteFunc(out, func(s string) bool { return s == "" })
}

func TestSubscribeFromAVersion(t *testing.T) {
	r := start(t, nil)
	orders(t, r)
	version := func(id string, v uint64) *pb.SubscribeRequest {
		q := ofAggregates(pbKey(id))
		q.Start = &pb.SubscribeRequest_FromVersion{FromVersion: v}
		return q
	}
	unavailable := func(v, first, current uint64) *api.Error {
		return api.Errorf(pb.ErrorCode_ERROR_CODE_UNAVAILABLE_VERSION, "version %d of acme/orders/1 was trimmed or deleted; the first that can be read is %d", v, first).
			With(&pb.VersionUnavailable{Requested: v, FirstVersion: first, CurrentVersion: current})
	}
	// Versions that are not there yet are waited for.
	s := r.subscribe(t, version("1", 7))
	wantLines(t, s.caughtUp(), "caught up 11")
	later := r.subscribe(t, version("later", 2))
	wantLines(t, later.caughtUp(), "caught up 11")
	r.shard.put(t, testKey("1"), "a", 200, event(6, "Six"))
	r.shard.put(t, testKey("1"), "a", 200, event(7, "Seven"))
	r.shard.put(t, testKey("later"), "a", 200, event(1, "One"))
	r.shard.put(t, testKey("later"), "a", 200, event(2, "Two"))
	wantLines(t, s.until(13), "12 1/7 Seven")
	wantLines(t, later.until(15), "14 later/2 Two")

	r.shard.changeHead(t, testKey("1"), func(h *history.Head) { h.Floor = 3 })
	_, err := r.subscribe(t, version("1", 2)).end()
	wantError(t, err, unavailable(2, 3, 7))
	wantLines(t, r.subscribe(t, version("1", 0)).caughtUp(), "6 1/3 Noted", "8 1/4 Shipped", "10 1/5 Paid", "11 1/6 Six", "12 1/7 Seven", "caught up 15")

	r.shard.changeHead(t, testKey("1"), func(h *history.Head) { h.Deleted, h.Recreatable = true, true })
	_, err = r.subscribe(t, version("1", 7)).end()
	wantError(t, err, unavailable(7, 8, 7))
	wantLines(t, r.subscribe(t, version("1", 8)).caughtUp(), "caught up 15")
	r.shard.changeHead(t, testKey("1"), func(h *history.Head) { h.Restart = true })
	s = r.subscribe(t, version("1", 2))
	wantLines(t, s.caughtUp(), "caught up 15")
	again := r.shard.heads[testKey("1")]
	again.Version, again.Incarnation, again.Floor, again.Deleted, again.EventCount, again.Chain = 0, 2, 1, false, 0, record.Hash{}
	r.shard.heads[testKey("1")] = again
	r.shard.put(t, testKey("1"), "a", 300, event(8, "Born"))
	r.shard.put(t, testKey("1"), "a", 300, event(9, "Again"))
	wantLines(t, s.until(17), "16 1/2 Again")
}

func TestSubscribeRefusals(t *testing.T) {
	r := start(t, func(o *Options) { o.MaxSubscribers = 1 })
	many := make([]*pb.AggregateKey, maxScopeEntries+1)
	for i := range many {
		many[i] = pbKey("1")
	}
	bad := func(field, text string) *api.Error { return badSubscription(field, "%s", text) }
	for name, c := range map[string]struct {
		change func(*pb.SubscribeRequest)
		want   *api.Error
	}{
		"no scope":   {func(q *pb.SubscribeRequest) { q.Scope = nil }, bad("scope", "is missing; expected all, org, type or aggregates")},
		"no start":   {func(q *pb.SubscribeRequest) { q.Start = nil }, bad("start", "is missing; expected from_position, from_now or from_version")},
		"not now":    {func(q *pb.SubscribeRequest) { q.Start = &pb.SubscribeRequest_FromNow{} }, bad("from_now", "is false; name another start instead")},
		"empty org":  {func(q *pb.SubscribeRequest) { q.Scope = &pb.SubscribeRequest_Org{} }, asSubscription(badPart("org", "is empty", ""))},
		"type's org": {func(q *pb.SubscribeRequest) { q.Scope = &pb.SubscribeRequest_Type{Type: &pb.TypeScope{Type: "t"}} }, asSubscription(badPart("type.org", "is empty", ""))},
		"type": {func(q *pb.SubscribeRequest) {
			q.Scope = &pb.SubscribeRequest_Type{Type: &pb.TypeScope{Org: "o", Type: "a/b"}}
		}, asSubscription(badPart("type.type", "has a '/'", "a/b"))},
		"no aggregates":   {func(q *pb.SubscribeRequest) { q.Scope = ofAggregates().Scope }, bad("aggregates", "is empty; expected 1..1000 aggregates")},
		"many aggregates": {func(q *pb.SubscribeRequest) { q.Scope = ofAggregates(many...).Scope }, asSubscription(tooMany("aggregates", maxScopeEntries, len(many)))},
		"bad aggregate": {func(q *pb.SubscribeRequest) {
			q.Scope = ofAggregates(pbKey("1"), &pb.AggregateKey{Org: "o", Type: "t"}).Scope
		},
			asSubscription(badPart("aggregates[1].id", "is empty", ""))},
		"version of all": {func(q *pb.SubscribeRequest) { q.Start = &pb.SubscribeRequest_FromVersion{FromVersion: 1} },
			bad("from_version", "needs a scope of one aggregate, found all")},
		"version of two": {func(q *pb.SubscribeRequest) {
			q.Scope, q.Start = ofAggregates(pbKey("1"), pbKey("2")).Scope, &pb.SubscribeRequest_FromVersion{FromVersion: 1}
		}, bad("from_version", "needs a scope of one aggregate, found 2 aggregates")},
		"latency of batches": {func(q *pb.SubscribeRequest) { q.MaxLatency = durationpb.New(time.Second) }, bad("max_latency", "is set without notices_only, which it belongs to")},
		"negative latency":   {func(q *pb.SubscribeRequest) { q.NoticesOnly, q.MaxLatency = true, durationpb.New(-1) }, bad("max_latency", "is no duration, or a negative one")},
		"latency": {func(q *pb.SubscribeRequest) { q.NoticesOnly, q.MaxLatency = true, durationpb.New(maxLatency+1) },
			api.Errorf(pb.ErrorCode_ERROR_CODE_LATENCY_TOO_HIGH, "max_latency is 1m0.000000001s; the limit is 1m0s")},
		"filter":                    {func(q *pb.SubscribeRequest) { q.Filter = &pb.Filter{ClientSeqFrom: 2, ClientSeqTo: 1} }, api.Invalid("filter.client_seq_from", "is 2, above client_seq_to, which is 1")},
		"shard":                     {func(q *pb.SubscribeRequest) { q.Shard = 1 }, api.Invalid("shard", "is 1; there is one shard, 0")},
		"consistency":               {func(q *pb.SubscribeRequest) { q.Consistency = 9 }, unknownEnum("consistency", 9)},
		"position without timeline": {func(q *pb.SubscribeRequest) { q.Start = &pb.SubscribeRequest_FromPosition{FromPosition: 2} }, api.Invalid("timeline", "is empty; from_position means nothing without the timeline that it was given with")},
		"min_position":              {func(q *pb.SubscribeRequest) { q.MinPosition = 1 }, api.Invalid("timeline", "is empty; min_position means nothing without the timeline that it was given with")},
	} {
		t.Run(name, func(t *testing.T) {
			req := all()
			c.change(req)
			stream, err := r.client.Subscribe(testContext(t), req)
			if err == nil {
				_, err = stream.Recv()
			}
			wantError(t, err, c.want)
		})
	}
	moved := api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "elsewhere").With(&pb.NotLeader{LeaderId: "n2"})
	r.shard.refuseReads(moved)
	_, err := r.subscribe(t, all()).end()
	wantError(t, err, moved)
	r.shard.refuseReads(nil)

	s := r.subscribe(t, all())
	s.next()
	_, err = r.subscribe(t, all()).end()
	wantError(t, err, api.Errorf(pb.ErrorCode_ERROR_CODE_TOO_MANY_SUBSCRIBERS, "1 subscriptions are open on this node, which is its limit (max-subscribers)"))
	s.cancel()
	eventually(t, "the place is free", func() bool { return r.server.chain.subscribers.Load() == 0 })
	r.subscribe(t, all()).next()
}

// A subscription ends with where it goes on: when the node stops leading, unless any node may
// serve it, and when the server stops.
func TestSubscribeMoves(t *testing.T) {
	r := start(t, nil)
	r.log(t)
	moved := func(why string, next uint64) *api.Error {
		return api.Errorf(pb.ErrorCode_ERROR_CODE_SUBSCRIPTION_MOVED, "%s; subscribe again from position %d", why, next).
			With(&pb.SubscriptionMoved{NextPosition: next, LeaderAddress: "elsewhere:1"})
	}
	req, any := all(), all()
	any.Consistency = pb.Consistency_CONSISTENCY_ANY
	leads, stays := r.subscribe(t, req), r.subscribe(t, any)
	narrow := all()
	narrow.Scope = &pb.SubscribeRequest_Org{Org: "nobody"}
	filtered := r.subscribe(t, narrow)
	leads.caughtUp()
	stays.caughtUp()
	filtered.caughtUp()
	r.shard.put(t, record.MakeKey("acme", "orders", "a"), "w", 200, event(7, "Live"))
	leads.until(12)
	filtered.until(12) // by a checkpoint
	r.shard.loseLeadership()
	for _, s := range []*subscriber{leads, filtered} {
		_, err := s.end()
		wantError(t, err, moved("this node does not lead any more", 12))
	}
	r.shard.put(t, testKey("a"), "w", 200, event(8, "Later"))
	wantLines(t, stays.until(13), "11 a/4 Live", "12 a/5 Later")
	go func() { _ = r.server.Drain(testContext(t)) }() // ends with the subscription
	_, err := stays.end()
	wantError(t, err, moved("this node is stopping", 13))
}

// Who gets nothing learns how far the log is, and nothing while the log stands still.
func TestSubscribeCheckpoints(t *testing.T) {
	r := start(t, nil)
	r.shard.put(t, testKey("2"), "a", 1, event(1, "T"))
	narrow := all()
	narrow.Scope, narrow.Start = ofAggregates(pbKey("1")).Scope, &pb.SubscribeRequest_FromNow{FromNow: true}
	nothing := all()
	nothing.Filter, nothing.Start = &pb.Filter{EventTypes: []string{"None"}}, &pb.SubscribeRequest_FromNow{FromNow: true}
	subscribers := []*subscriber{r.subscribe(t, narrow), r.subscribe(t, nothing)}
	for _, s := range subscribers {
		wantMessage(t, s.next(), &pb.SubscribeResponse{CaughtUp: &pb.CaughtUp{NextPosition: 2}, Timeline: testTimeline})
	}
	for position := uint64(2); position <= 3; position++ {
		began := time.Now()
		r.shard.put(t, testKey("2"), "a", 1, event(position, "T"))
		for _, s := range subscribers {
			wantMessage(t, s.next(), &pb.SubscribeResponse{Checkpoint: &pb.Checkpoint{NextPosition: position + 1}})
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("a checkpoint came after %v", took)
			}
		}
	}
	r.shard.put(t, testKey("1"), "a", 1, event(1, "T"))
	wantLines(t, subscribers[0].until(5), "4 CREATED 1 1-1", "4 1/1 T")
}

// Notices wait for others up to max_latency, and are then one a run of versions.
func TestNoticesAreMerged(t *testing.T) {
	r := start(t, nil)
	req := all()
	req.NoticesOnly, req.MaxLatency, req.Start = true, durationpb.New(700*time.Millisecond), &pb.SubscribeRequest_FromNow{FromNow: true}
	s := r.subscribe(t, req)
	wantLines(t, s.caughtUp(), "caught up 1")
	began := time.Now()
	r.shard.put(t, testKey("a"), "w", 1, event(1, "T"))
	r.shard.put(t, testKey("a"), "w", 1, event(2, "T"))
	r.shard.put(t, testKey("b"), "w", 1, event(1, "T"))
	r.shard.put(t, testKey("a"), "w", 1, event(3, "T"))
	r.shard.change(t, testKey("c"), history.ChangeTrim, 2, func(h *history.Head) { h.Floor = 2 })
	r.shard.put(t, testKey("a"), "w", 1, event(4, "T"))
	m := s.next()
	took := time.Since(began)
	wantLines(t, linesOf(m), "3 CREATED b 1-1", "5 TRIMMED c 1-1", "6 CREATED a 1-4")
	if took < 600*time.Millisecond {
		t.Errorf("the notices came after %v", took)
	}
	wantMessage(t, m.GetNotices()[0], &pb.Notice{Aggregate: pbKey("b"), Operation: pb.Operation_OPERATION_CREATED, FromVersion: 1, ToVersion: 1, Position: 3})
}

// What a trim, a delete or another life comes between is not one run.
func TestNoticesThatAreNotMerged(t *testing.T) {
	n := &notices{}
	at := uint64(0)
	add := func(id string, kind history.ChangeKind, version uint64, created bool) {
		at++
		n.add(&replication.LogChange{Change: history.Change{Key: testKey(id), Kind: kind, Version: version}, Position: at, Created: created})
	}
	add("a", history.ChangeBatch, 1, true)
	add("a", history.ChangeBatch, 2, false)
	add("a", history.ChangeTrim, 2, false)
	add("a", history.ChangeBatch, 3, false)
	add("b", history.ChangeBatch, 7, false)
	add("a", history.ChangeDelete, 3, false)
	add("a", history.ChangeBatch, 4, true)
	add("a", history.ChangeBatch, 6, false) // the filter has left 5 out
	add("b", history.ChangeBatch, 8, false)
	if n.first != 1 {
		t.Errorf("first is %d", n.first)
	}
	wantLines(t, linesOf(&pb.SubscribeResponse{Notices: n.take()}),
		"2 CREATED a 1-2", "3 TRIMMED a 1-1", "4 WRITTEN a 3-3", "6 DELETED a 1-3", "7 CREATED a 4-4", "8 WRITTEN a 6-6", "9 WRITTEN b 7-8")
}

// Something newer hides what a trim or a delete took away, also from the ring.
func TestSubscribeAfterATrimOfWhatIsRecent(t *testing.T) {
	r := start(t, nil)
	for i := range uint64(3) {
		r.shard.put(t, testKey("1"), "a", 1, event(i+1, "T"))
		r.shard.put(t, testKey("2"), "a", 1, event(i+1, "T"))
	}
	r.shard.change(t, testKey("1"), history.ChangeTrim, 3, func(h *history.Head) { h.Floor = 3 })
	r.shard.change(t, testKey("2"), history.ChangeDelete, 3, func(h *history.Head) { h.Deleted = true })
	wantLines(t, r.subscribe(t, all()).caughtUp(), "5 1/3 T", "7 TRIMMED 1 1-2", "8 DELETED 2 1-3", "caught up 9")
}

// A subscriber that does not read costs what one message takes, and nobody waits for it.
func TestSubscribersThatDoNotRead(t *testing.T) {
	r := start(t, nil)
	const size, n = 100_000, 60
	put := func(i int) {
		r.shard.put(t, testKey("1"), "a", 1, &pb.NewEvent{ClientSeq: uint64(i + 1), Type: "T", Payload: make([]byte, size)})
	}
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	const stuck = 20
	for range stuck {
		conn := dial(t, r.conn.Target(), grpc.WithInitialWindowSize(1<<16), grpc.WithInitialConnWindowSize(1<<16))
		if _, err := pb.NewEventStoreServiceClient(conn).Subscribe(ctx, all()); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all have subscribed", func() bool { return r.server.chain.subscribers.Load() == stuck })
	s := r.subscribe(t, all())
	for i := range n {
		put(i)
	}
	got := s.until(n + 1)
	if len(got) < n+1 {
		t.Fatalf("%d lines of %d batches", len(got), n)
	}
	if use := r.use(); use.bytes > stuck*buildFactor*2*messageBytes {
		t.Errorf("%d bytes are held for %d that do not read", use.bytes, stuck)
	}
	cancel()
	eventually(t, "all is given back", func() bool { return r.use().bytes == 0 && r.server.chain.subscribers.Load() == 1 })
}

// A batch larger than a message, live and from the history.
func TestSubscribeToLargeBatches(t *testing.T) {
	r := start(t, nil)
	s := r.subscribe(t, all())
	s.next()
	for i := range 6 {
		r.shard.put(t, testKey("1"), "a", 1, &pb.NewEvent{ClientSeq: uint64(i + 1), Type: "T", Payload: make([]byte, 3<<20>>(i%2*10))})
	}
	want := []string{"1 CREATED 1 1-1", "1 1/1 T", "2 1/2 T", "3 1/3 T", "4 1/4 T", "5 1/5 T", "6 1/6 T"}
	wantLines(t, s.until(7), want...)
	r.shard.feed.Reset(6)
	wantLines(t, r.subscribe(t, all()).caughtUp(), append(want, "caught up 7")...)
	s.cancel()
	if _, err := s.end(); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("a cancelled stream ends with %v", err)
	}
	eventually(t, "all is given back", func() bool { return r.use().bytes == 0 })
}

// linesAgree keeps the test's own reading of messages honest.
func TestLinesOfAMessage(t *testing.T) {
	m := &pb.SubscribeResponse{
		Batches: []*pb.Batch{{Aggregate: pbKey("x"), Version: 2, Position: 7, Events: []*pb.Event{{Type: "A"}, {Type: "B"}}}},
		Notices: []*pb.Notice{{Aggregate: pbKey("x"), Operation: pb.Operation_OPERATION_CREATED, FromVersion: 2, ToVersion: 2, Position: 7}},
	}
	wantLines(t, linesOf(proto.Clone(m).(*pb.SubscribeResponse)), "7 CREATED x 2-2", "7 x/2 A,B")
}
