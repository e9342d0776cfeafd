package server

import (
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// validAppend is a request of two writes with everything in it.
func validAppend() *pb.AppendRequest {
	return &pb.AppendRequest{
		RequestId: "r1",
		ClientId:  "writer-1",
		Writes: []*pb.Write{
			{
				Aggregate:                pbKey("1"),
				Events:                   []*pb.NewEvent{fullEvent(1), fullEvent(2)},
				AllowCreate:              true,
				ExpectedVersion:          proto.Uint64(0),
				EnforceClientIdempotency: true,
				PreviousClientSeq:        proto.Uint64(0),
			},
			{Aggregate: pbKey("2"), Events: []*pb.NewEvent{fullEvent(5), fullEvent(5)}},
		},
		OnDuplicate: pb.OnDuplicate_ON_DUPLICATE_REJECT,
		Timeline:    testTimeline,
	}
}

func fullEvent(seq uint64) *pb.NewEvent {
	return &pb.NewEvent{
		ClientSeq: seq, EventId: "e", Type: "Placed", Schema: &pb.SchemaVersion{Major: 2},
		OccurredAt: &timestamppb.Timestamp{Seconds: 1}, Payload: []byte("{}"), ContentType: "application/json",
		Metadata:   map[string]string{"trace": "1"},
		Encryption: &pb.Encryption{Scheme: "aes", KeyId: "k", Nonce: []byte{1}},
	}
}

func s(n int) string { return strings.Repeat("x", n) }

func invalid(field, text string) *api.Error { return api.Invalid(field, "%s", text) }

const partRule = "; expected 1..200 bytes of UTF-8 without control characters or '/' (found %d bytes)"

// limit is a field, a change of a valid request that stays within the field's limit, and
// one that does not.
type limit struct {
	name string
	ok   func(*pb.AppendRequest)
	over func(*pb.AppendRequest)
	want *api.Error
}

func first(r *pb.AppendRequest) *pb.NewEvent { return r.Writes[0].Events[0] }

// parts is every rule of a key part, for a field that has them.
func parts(field string, set func(*pb.AppendRequest, string)) []limit {
	var out []limit
	for _, c := range []struct{ name, ok, over, fault string }{
		{"empty", "x", "", "is empty"},
		{"length", s(200), s(201), "is too long"},
		{"length in bytes", strings.Repeat("é", 100), strings.Repeat("é", 100) + "x", "is too long"},
		{"slash", "a\\b:c", "a/b", "has a '/'"},
		{"slash after wide", "é-", "é/", "has a '/'"},
		{"NUL", " ", "a\x00", "has a control character"},
		{"C0", "\x20", "a\x1f", "has a control character"},
		{"DEL", "~", "a\x7f", "has a control character"},
		{"DEL after wide", "é~", "é\x7f", "has a control character"},
		{"C1", "\u00a0", "\u009f", "has a control character"},
		{"first C1", "é", "a\u0080", "has a control character"},
		{"UTF-8", "\ufffd", "a\xff", "is not UTF-8"},
		{"line separator is no control character", "\u2028", "a\n", "has a control character"},
	} {
		out = append(out, limit{
			name: field + " " + c.name,
			ok:   func(r *pb.AppendRequest) { set(r, c.ok) },
			over: func(r *pb.AppendRequest) { set(r, c.over) },
			want: invalid(field, c.fault+fmt.Sprintf(partRule, len(c.over))),
		})
	}
	return out
}

func metadata(n, valueBytes int) map[string]string {
	m := map[string]string{}
	for i := range n {
		m[fmt.Sprintf("%03d", i)] = s(valueBytes)
	}
	return m
}

func events(n int) []*pb.NewEvent {
	out := make([]*pb.NewEvent, n)
	for i := range out {
		out[i] = &pb.NewEvent{ClientSeq: uint64(i + 1), Type: "T"}
	}
	return out
}

func limits() []limit {
	const e0 = "writes[0].events[0]."
	all := []limit{
		{"request_id", func(r *pb.AppendRequest) { r.RequestId = s(200) }, func(r *pb.AppendRequest) { r.RequestId = s(201) },
			invalid("request_id", "has 201 bytes; the limit is 200")},
		{"no writes", func(r *pb.AppendRequest) { r.Writes = r.Writes[:1] }, func(r *pb.AppendRequest) { r.Writes = nil },
			invalid("writes", "is empty; a request needs at least one write")},
		{"writes", func(r *pb.AppendRequest) { r.Writes = manyWrites(100) }, func(r *pb.AppendRequest) { r.Writes = manyWrites(101) },
			invalid("writes", "has 101 entries; the limit is 100")},
		{"aggregate", func(r *pb.AppendRequest) {}, func(r *pb.AppendRequest) { r.Writes[1].Aggregate = nil },
			invalid("writes[1].aggregate", "is missing")},
		{"same aggregate", func(r *pb.AppendRequest) { r.Writes[1].Aggregate.Org = "other" }, func(r *pb.AppendRequest) { r.Writes[1].Aggregate = pbKey("1") },
			invalid("writes[1].aggregate", "is the aggregate of writes[0] too; a request writes an aggregate once")},
		{"events of a request", func(r *pb.AppendRequest) { r.Writes[0].Events = events(998) }, func(r *pb.AppendRequest) { r.Writes[0].Events = events(999) },
			invalid("writes[1].events", "brings the request to 1001 events or more; the limit is 1000 events a request")},
		{"events of a write", func(r *pb.AppendRequest) { r.Writes = r.Writes[:1]; r.Writes[0].Events = events(1000) },
			func(r *pb.AppendRequest) { r.Writes = r.Writes[:1]; r.Writes[0].Events = events(1001) },
			invalid("writes[0].events", "brings the request to 1001 events or more; the limit is 1000 events a request")},
		{"no events", func(r *pb.AppendRequest) { r.Writes[1].Events = events(1) }, func(r *pb.AppendRequest) { r.Writes[1].Events = nil },
			api.Errorf(pb.ErrorCode_ERROR_CODE_EMPTY_EVENTS_LIST, "writes[1].events is empty; a write needs at least one event")},
		{"client_seq 0", func(r *pb.AppendRequest) { r.Writes[1].Events[1].ClientSeq = 1 }, func(r *pb.AppendRequest) { r.Writes[1].Events[1].ClientSeq = 0 },
			invalid("writes[1].events[1].client_seq", "is 0; expected 1..9223372036854775807")},
		{"client_seq", func(r *pb.AppendRequest) { r.Writes[0].Events[1].ClientSeq = 1<<63 - 1 }, func(r *pb.AppendRequest) { r.Writes[0].Events[1].ClientSeq = 1 << 63 },
			invalid("writes[0].events[1].client_seq", "is 9223372036854775808; expected 1..9223372036854775807")},
		{"sequences", func(r *pb.AppendRequest) { r.Writes[0].Events[1].ClientSeq = 9 }, func(r *pb.AppendRequest) { r.Writes[0].Events[1].ClientSeq = 1 },
			api.Errorf(pb.ErrorCode_ERROR_CODE_CLIENT_SEQ_NOT_INCREASING,
				"writes[0].events[1].client_seq is 1 after 1; with enforce_client_idempotency the sequences of a write must be strictly increasing")},
		{"sequences without enforcement", func(r *pb.AppendRequest) { r.Writes[1].Events[1].ClientSeq = 1 },
			func(r *pb.AppendRequest) {
				r.Writes[1].Events[1].ClientSeq = 1
				r.Writes[1].EnforceClientIdempotency = true
			},
			api.Errorf(pb.ErrorCode_ERROR_CODE_CLIENT_SEQ_NOT_INCREASING,
				"writes[1].events[1].client_seq is 1 after 5; with enforce_client_idempotency the sequences of a write must be strictly increasing")},
		{"event_id", func(r *pb.AppendRequest) { first(r).EventId = s(200) }, func(r *pb.AppendRequest) { first(r).EventId = s(201) },
			invalid(e0+"event_id", "has 201 bytes; the limit is 200")},
		{"no type", func(r *pb.AppendRequest) { first(r).Type = "x" }, func(r *pb.AppendRequest) { first(r).Type = "" },
			api.Errorf(pb.ErrorCode_ERROR_CODE_EMPTY_EVENT_TYPE, "writes[0].events[0].type is empty; expected 1..200 bytes")},
		{"type", func(r *pb.AppendRequest) { first(r).Type = s(200) }, func(r *pb.AppendRequest) { first(r).Type = s(201) },
			invalid(e0+"type", "has 201 bytes; the limit is 200")},
		{"content_type", func(r *pb.AppendRequest) { first(r).ContentType = s(200) }, func(r *pb.AppendRequest) { first(r).ContentType = s(201) },
			invalid(e0+"content_type", "has 201 bytes; the limit is 200")},
		{"metadata entries", func(r *pb.AppendRequest) { first(r).Metadata = metadata(64, 0) }, func(r *pb.AppendRequest) { first(r).Metadata = metadata(65, 0) },
			invalid(e0+"metadata", "has 65 entries; the limit is 64")},
		{"metadata bytes", func(r *pb.AppendRequest) { first(r).Metadata = map[string]string{"k": s(16383)} },
			func(r *pb.AppendRequest) { first(r).Metadata = map[string]string{"k": s(16384)} },
			invalid(e0+"metadata", "has 16385 bytes of keys and values; the limit is 16384")},
		{"encryption.scheme", func(r *pb.AppendRequest) { first(r).Encryption.Scheme = s(200) }, func(r *pb.AppendRequest) { first(r).Encryption.Scheme = s(201) },
			invalid(e0+"encryption.scheme", "has 201 bytes; the limit is 200")},
		{"encryption.key_id", func(r *pb.AppendRequest) { first(r).Encryption.KeyId = s(2048) }, func(r *pb.AppendRequest) { first(r).Encryption.KeyId = s(2049) },
			invalid(e0+"encryption.key_id", "has 2049 bytes; the limit is 2048")},
		{"encryption.nonce", func(r *pb.AppendRequest) { first(r).Encryption.Nonce = make([]byte, 256) }, func(r *pb.AppendRequest) { first(r).Encryption.Nonce = make([]byte, 257) },
			invalid(e0+"encryption.nonce", "has 257 bytes; the limit is 256")},
		{"previous_client_seq", func(r *pb.AppendRequest) { r.Writes[0].PreviousClientSeq = proto.Uint64(1<<63 - 1) },
			func(r *pb.AppendRequest) { r.Writes[0].PreviousClientSeq = proto.Uint64(1 << 63) },
			invalid("writes[0].previous_client_seq", "is 9223372036854775808; expected 0..9223372036854775807")},
		{"previous_client_seq without enforcement", func(r *pb.AppendRequest) {}, func(r *pb.AppendRequest) { r.Writes[1].PreviousClientSeq = proto.Uint64(0) },
			invalid("writes[1].previous_client_seq", "is given without enforce_client_idempotency, which it needs")},
		{"confirm without event_id", confirmable, func(r *pb.AppendRequest) { confirmable(r); r.Writes[1].Events[1].EventId = "" },
			invalid("writes[1].events[1].event_id", "is empty; ON_DUPLICATE_CONFIRM needs an event_id on every event")},
		{"confirm without enforcement", confirmable, func(r *pb.AppendRequest) { confirmable(r); r.Writes[1].EnforceClientIdempotency = false },
			invalid("writes[1].enforce_client_idempotency", "is off; ON_DUPLICATE_CONFIRM needs it on every write")},
		{"on_duplicate", func(r *pb.AppendRequest) { r.OnDuplicate = 0 }, func(r *pb.AppendRequest) { r.OnDuplicate = 3 },
			invalid("on_duplicate", "is 3, which this version does not know")},
		{"timeline length", func(r *pb.AppendRequest) { r.Timeline = "" }, func(r *pb.AppendRequest) { r.Timeline = testTimeline[1:] }, badTimeline()},
		{"timeline digits", func(r *pb.AppendRequest) {}, func(r *pb.AppendRequest) { r.Timeline = "g" + testTimeline[1:] }, badTimeline()},
		{"timeline case", func(r *pb.AppendRequest) {}, func(r *pb.AppendRequest) { r.Timeline = strings.ToUpper(testTimeline) }, badTimeline()},
	}
	for _, c := range []struct{ okSeconds, overSeconds, okNanos, overNanos int64 }{
		{-62135596800, -62135596801, 0, 0}, {253402300799, 253402300800, 0, 0}, {0, 0, 999_999_999, 1_000_000_000}, {0, 0, 0, -1},
	} {
		set := func(s, n int64) func(*pb.AppendRequest) {
			return func(r *pb.AppendRequest) {
				first(r).OccurredAt = &timestamppb.Timestamp{Seconds: s, Nanos: int32(n)}
			}
		}
		all = append(all, limit{
			fmt.Sprintf("occurred_at %d %d", c.overSeconds, c.overNanos),
			set(c.okSeconds, c.okNanos), set(c.overSeconds, c.overNanos),
			invalid(e0+"occurred_at", fmt.Sprintf("is %d seconds and %d nanos; expected a time of the years 1 to 9999 and 0..999999999 nanos",
				c.overSeconds, c.overNanos)),
		})
	}
	all = append(all, parts("client_id", func(r *pb.AppendRequest, s string) { r.ClientId = s })...)
	all = append(all, parts("writes[1].aggregate.org", func(r *pb.AppendRequest, s string) { r.Writes[1].Aggregate.Org = s })...)
	all = append(all, parts("writes[1].aggregate.type", func(r *pb.AppendRequest, s string) { r.Writes[1].Aggregate.Type = s })...)
	all = append(all, parts("writes[0].aggregate.id", func(r *pb.AppendRequest, s string) { r.Writes[0].Aggregate.Id = s })...)
	return all
}

func badTimeline() *api.Error {
	return invalid("timeline", "is not a timeline; expected 32 lower-case hexadecimal digits, as answers give it")
}

func manyWrites(n int) []*pb.Write {
	out := make([]*pb.Write, n)
	for i := range out {
		out[i] = &pb.Write{Aggregate: pbKey(fmt.Sprint(i)), Events: events(10)}
	}
	return out
}

func confirmable(r *pb.AppendRequest) {
	r.OnDuplicate = pb.OnDuplicate_ON_DUPLICATE_CONFIRM
	r.Writes[1].EnforceClientIdempotency = true
	r.Writes[1].Events[1].ClientSeq = 6
}

func TestEveryLimitOfAnAppendFromBothSides(t *testing.T) {
	for _, l := range limits() {
		t.Run(l.name, func(t *testing.T) {
			ok := validAppend()
			l.ok(ok)
			if e := checkAppend(ok); e != nil {
				t.Errorf("at the limit: %v", e)
			}
			over := validAppend()
			l.over(over)
			e := checkAppend(over)
			if e == nil {
				t.Fatalf("over the limit: accepted, want %v", l.want)
			}
			wantError(t, e, l.want)
		})
	}
}

// The first fault in the request's own order is the one that is told.
func TestFaultsAreToldInRequestOrder(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*pb.AppendRequest)
		want  pb.ErrorCode
	}{
		{"2000 before a later 2001", func(r *pb.AppendRequest) { r.Writes[0].Events = nil; r.Writes[1].Events[0].Type = "" }, 2000},
		{"2001 before a later 2000", func(r *pb.AppendRequest) { r.Writes[0].Events[1].Type = ""; r.Writes[1].Events = nil }, 2001},
		{"2016 before a later 2019", func(r *pb.AppendRequest) { r.Writes[0].Events[0].ClientSeq = 0; r.Writes[0].Events[1].ClientSeq = 0 }, 2016},
		{"2019 before a later 2001", func(r *pb.AppendRequest) { r.Writes[0].Events[1].ClientSeq = 1; r.Writes[0].Events[1].Type = "" }, 2019},
		{"2001 before a later 2019", func(r *pb.AppendRequest) { r.Writes[0].Events[0].Type = ""; r.Writes[0].Events[1].ClientSeq = 1 }, 2001},
	} {
		r := validAppend()
		c.spoil(r)
		if e := checkAppend(r); e == nil || e.Code != c.want {
			t.Errorf("%s: got %v", c.name, e)
		}
	}
}

// A request that is valid costs no allocation: every append passes here.
func TestCheckingAValidAppendAllocatesNothing(t *testing.T) {
	r := validAppend()
	confirmable(r)
	r.ClientId = "schreiber-é"
	if n := testing.AllocsPerRun(100, func() {
		if e := checkAppend(r); e != nil {
			t.Fatal(e)
		}
	}); n != 0 {
		t.Errorf("%v allocations a request, want none", n)
	}
}

func TestEveryLimitOfAReadFromBothSides(t *testing.T) {
	type r = pb.ReadRequest
	many := func(n, size int) []string {
		out := make([]string, n)
		for i := range out {
			out[i] = s(size)
		}
		return out
	}
	at := func(s int64) *timestamppb.Timestamp { return &timestamppb.Timestamp{Seconds: s} }
	for _, c := range []struct {
		name     string
		ok, over func(*r)
		want     *api.Error
	}{
		{"aggregate", func(*r) {}, func(q *r) { q.Aggregate = nil }, invalid("aggregate", "is missing")},
		{"aggregate.type", func(q *r) { q.Aggregate.Type = s(200) }, func(q *r) { q.Aggregate.Type = s(201) },
			invalid("aggregate.type", "is too long"+fmt.Sprintf(partRule, 201))},
		{"direction", func(q *r) { q.Direction = 2 }, func(q *r) { q.Direction = 3 }, invalid("direction", "is 3, which this version does not know")},
		{"consistency", func(q *r) { q.Consistency = 3 }, func(q *r) { q.Consistency = 4 }, invalid("consistency", "is 4, which this version does not know")},
		{"min_position", func(q *r) { q.MinPosition, q.Timeline = 1, testTimeline }, func(q *r) { q.MinPosition = 1 },
			invalid("timeline", "is empty; min_position means nothing without the timeline that it was given with")},
		{"timeline", func(q *r) { q.Timeline = testTimeline }, func(q *r) { q.Timeline = "x" }, badTimeline()},
		{"event_types", func(q *r) { q.Filter.EventTypes = many(1000, 200) }, func(q *r) { q.Filter.EventTypes = many(1001, 1) },
			invalid("filter.event_types", "has 1001 entries; the limit is 1000")},
		{"event_types entry", func(q *r) { q.Filter.EventTypes = []string{"x"} }, func(q *r) { q.Filter.EventTypes = []string{"x", ""} },
			invalid("filter.event_types[1]", "has 0 bytes; expected 1..200")},
		{"client_ids", func(q *r) { q.Filter.ClientIds = many(1000, 1) }, func(q *r) { q.Filter.ClientIds = many(1001, 1) },
			invalid("filter.client_ids", "has 1001 entries; the limit is 1000")},
		{"client_ids entry", func(q *r) { q.Filter.ClientIds = []string{s(200)} }, func(q *r) { q.Filter.ClientIds = []string{s(201)} },
			invalid("filter.client_ids[0]", "has 201 bytes; expected 1..200")},
		{"exclude_client_ids", func(q *r) { q.Filter.ExcludeClientIds = many(1000, 1) }, func(q *r) { q.Filter.ExcludeClientIds = []string{""} },
			invalid("filter.exclude_client_ids[0]", "has 0 bytes; expected 1..200")},
		{"event_ids", func(q *r) { q.Filter.EventIds = []string{"", s(200)} }, func(q *r) { q.Filter.EventIds = []string{s(201)} },
			invalid("filter.event_ids[0]", "has 201 bytes; expected 0..200")},
		{"client_seq range", func(q *r) { q.Filter.ClientSeqFrom, q.Filter.ClientSeqTo = 5, 5 }, func(q *r) { q.Filter.ClientSeqFrom, q.Filter.ClientSeqTo = 5, 4 },
			invalid("filter.client_seq_from", "is 5, above client_seq_to, which is 4")},
		{"open client_seq range", func(q *r) { q.Filter.ClientSeqFrom = 5 }, func(q *r) { q.Filter.ClientSeqFrom, q.Filter.ClientSeqTo = 2, 1 },
			invalid("filter.client_seq_from", "is 2, above client_seq_to, which is 1")},
		{"committed range", func(q *r) { q.Filter.CommittedFrom, q.Filter.CommittedTo = at(5), at(5) }, func(q *r) { q.Filter.CommittedFrom, q.Filter.CommittedTo = at(5), at(4) },
			invalid("filter.committed_from", "is after committed_to")},
		{"committed_to", func(q *r) { q.Filter.CommittedTo = at(253402300799) }, func(q *r) { q.Filter.CommittedTo = at(253402300800) },
			invalid("filter.committed_to", "is 253402300800 seconds and 0 nanos; expected a time of the years 1 to 9999 and 0..999999999 nanos")},
		{"occurred range", func(q *r) { q.Filter.OccurredTo = at(5) }, func(q *r) { q.Filter.OccurredFrom, q.Filter.OccurredTo = at(5), at(4) },
			invalid("filter.occurred_from", "is after occurred_to")},
		{"occurred_from", func(q *r) { q.Filter.OccurredFrom = at(-62135596800) }, func(q *r) { q.Filter.OccurredFrom = at(-62135596801) },
			invalid("filter.occurred_from", "is -62135596801 seconds and 0 nanos; expected a time of the years 1 to 9999 and 0..999999999 nanos")},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, over := range []bool{false, true} {
				q := &r{Aggregate: pbKey("1"), Filter: &pb.Filter{}}
				change := c.ok
				if over {
					change = c.over
				}
				change(q)
				e := checkRead(q)
				switch {
				case !over && e != nil:
					t.Errorf("at the limit: %v", e)
				case over && e == nil:
					t.Errorf("over the limit: accepted, want %v", c.want)
				case over:
					wantError(t, e, c.want)
				}
			}
		})
	}
}

// Every other request has its key, client, sequence, page and freshness checked too.
func TestShapesOfTheOtherReads(t *testing.T) {
	badKey := &pb.AggregateKey{Org: "a/b", Type: "t", Id: "i"}
	slash := "has a '/'" + fmt.Sprintf(partRule, 3)
	position := invalid("timeline", "is empty; min_position means nothing without the timeline that it was given with")
	page := invalid("page_size", "is 1001; the limit is 1000")
	token := invalid("page_token", "has 1025 bytes; the limit is 1024")
	for i, c := range []struct{ got, want *api.Error }{
		{checkGetAggregate(&pb.GetAggregateRequest{Aggregate: badKey}), invalid("aggregate.org", slash)},
		{checkGetAggregate(&pb.GetAggregateRequest{Aggregate: pbKey("1"), MinPosition: 1}), position},
		{checkGetMark(&pb.GetMarkRequest{Aggregate: badKey, ClientId: "a"}), invalid("aggregate.org", slash)},
		{checkGetMark(&pb.GetMarkRequest{Aggregate: pbKey("1"), ClientId: "a/b"}), invalid("client_id", slash)},
		{checkGetMark(&pb.GetMarkRequest{Aggregate: pbKey("1"), ClientId: "a", MinPosition: 1}), position},
		{checkListMarks(&pb.ListMarksRequest{Aggregate: badKey}), invalid("aggregate.org", slash)},
		{checkListMarks(&pb.ListMarksRequest{Aggregate: pbKey("1"), PageSize: 1001}), page},
		{checkListMarks(&pb.ListMarksRequest{Aggregate: pbKey("1"), PageToken: s(1025)}), token},
		{checkListMarks(&pb.ListMarksRequest{Aggregate: pbKey("1"), PageSize: 1000, MinPosition: 1}), position},
		{checkFindEvent(&pb.FindEventRequest{Aggregate: badKey, ClientId: "a", ClientSeq: 1}), invalid("aggregate.org", slash)},
		{checkFindEvent(&pb.FindEventRequest{Aggregate: pbKey("1"), ClientSeq: 1}), invalid("client_id", "is empty"+fmt.Sprintf(partRule, 0))},
		{checkFindEvent(&pb.FindEventRequest{Aggregate: pbKey("1"), ClientId: "a"}), invalid("client_seq", "is 0; expected 1..9223372036854775807")},
		{checkFindEvent(&pb.FindEventRequest{Aggregate: pbKey("1"), ClientId: "a", ClientSeq: 1 << 63}),
			invalid("client_seq", "is 9223372036854775808; expected 1..9223372036854775807")},
		{checkFindEvent(&pb.FindEventRequest{Aggregate: pbKey("1"), ClientId: "a", ClientSeq: 1<<63 - 1, MinPosition: 1}), position},
		{checkListOrgs(&pb.ListOrgsRequest{PageSize: 1001}), page},
		{checkListOrgs(&pb.ListOrgsRequest{MinPosition: 1}), position},
		{checkListTypes(&pb.ListTypesRequest{Org: "a/b"}), invalid("org", slash)},
		{checkListTypes(&pb.ListTypesRequest{Org: "a", PageSize: 1001}), page},
		{checkListTypes(&pb.ListTypesRequest{Org: "a", MinPosition: 1}), position},
		{checkListAggregates(&pb.ListAggregatesRequest{Org: "a/b"}), invalid("org", slash)},
		{checkListAggregates(&pb.ListAggregatesRequest{Type: "a"}), invalid("type", "is given without org, which it needs")},
		{checkListAggregates(&pb.ListAggregatesRequest{Org: "a", Type: "a/b"}), invalid("type", slash)},
		{checkListAggregates(&pb.ListAggregatesRequest{Org: "a", IdPrefix: "b"}), invalid("id_prefix", "is given without type, which it needs")},
		{checkListAggregates(&pb.ListAggregatesRequest{Org: "a", Type: "t", IdPrefix: "a/b"}), invalid("id_prefix", slash)},
		{checkListAggregates(&pb.ListAggregatesRequest{PageToken: s(1025)}), token},
		{checkListAggregates(&pb.ListAggregatesRequest{MinPosition: 1}), position},
	} {
		if c.got == nil {
			t.Errorf("case %d: accepted, want %v", i, c.want)
			continue
		}
		wantError(t, c.got, c.want)
	}
	for i, e := range []*api.Error{
		checkGetAggregate(&pb.GetAggregateRequest{Aggregate: pbKey("1")}),
		checkGetMark(&pb.GetMarkRequest{Aggregate: pbKey("1"), ClientId: "a", Consistency: 3}),
		checkListMarks(&pb.ListMarksRequest{Aggregate: pbKey("1"), PageSize: 1000, PageToken: s(1024)}),
		checkFindEvent(&pb.FindEventRequest{Aggregate: pbKey("1"), ClientId: "a", ClientSeq: 1<<63 - 1}),
		checkListOrgs(&pb.ListOrgsRequest{PageSize: 1000, MinPosition: 1, Timeline: testTimeline}),
		checkListTypes(&pb.ListTypesRequest{Org: "a"}),
		checkListAggregates(&pb.ListAggregatesRequest{Org: "a", Type: "t", IdPrefix: "i"}),
	} {
		if e != nil {
			t.Errorf("valid request %d: %v", i, e)
		}
	}
}

// FuzzKeyPart holds the scan of a key part, which has fast paths, against the rule as the
// contract words it.
func FuzzKeyPart(f *testing.F) {
	for _, s := range []string{"", "a/b", "é\u0085", "\xff", "\u2028", "a\x00", s(200), s(201), "\ufffd", "é\xc3"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, part string) {
		valid := len(part) >= 1 && len(part) <= 200 && utf8.ValidString(part) && !strings.Contains(part, "/")
		for _, r := range part {
			valid = valid && !unicode.Is(unicode.Cc, r)
		}
		if fault := partFault(part); (fault == "") != valid {
			t.Fatalf("%q: fault %q, but valid by the rule: %v", part, fault, valid)
		}
	})
}
