package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// appendArgs is the shortest append, and what a test adds.
func appendArgs(server string, extra ...string) []string {
	return append([]string{"append", "acme/orders/4821", "--server", server,
		"--client-id", "billing", "--seq", "7", "--event-type", "OrderPaid", "--data", `{"total":12}`}, extra...)
}

// appendRequest is what appendArgs sends.
func appendRequest() *pb.AppendRequest {
	return &pb.AppendRequest{
		ClientId: "billing", OnDuplicate: pb.OnDuplicate_ON_DUPLICATE_REJECT,
		Writes: []*pb.Write{{
			Aggregate: order(), EnforceClientIdempotency: true,
			Events: []*pb.NewEvent{{ClientSeq: 7, Type: "OrderPaid", Payload: []byte(`{"total":12}`), ContentType: "application/json"}},
		}},
	}
}

func appendAnswer() *pb.AppendResponse {
	return &pb.AppendResponse{RequestId: "r1", Timeline: "00112233445566778899aabbccddeeff", Results: []*pb.WriteResult{{
		Aggregate: order(), Version: 4, Incarnation: 1, Position: 90, CommittedAt: at(12), FirstEventNumber: 5, ChainHash: []byte{0xab, 0xcd},
	}}}
}

// refuse makes a store that refuses every append.
func refuse(err error) *fakeStore {
	return &fakeStore{append: func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) { return nil, err }}
}

func TestAppend(t *testing.T) {
	store := &fakeStore{append: func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) { return appendAnswer(), nil }}
	server := store.start(t)

	code, stdout, stderr := runCommand(t, appendArgs(server)...)
	want := `result        written
aggregate     acme/orders/4821
version       4
position      90
event number  5
committed at  2026-01-31T12:00:00Z
chain hash    abcd
`
	if code != exitOK || stdout != want || stderr != "" {
		t.Errorf("exit %d, stdout\n%s\nstderr %q; want 0, and\n%s", code, stdout, stderr, want)
	}

	code, stdout, stderr = runCommand(t, appendArgs(server, "--output", "json")...)
	want = `{"request_id":"r1","results":[{"aggregate":{"org":"acme","type":"orders","id":"4821"},"version":"4","incarnation":1,"shard":0,"position":"90",` +
		`"committed_at":"2026-01-31T12:00:00Z","first_event_number":"5","chain_hash":"q80=","already_committed":false}],"timeline":"00112233445566778899aabbccddeeff"}` + "\n"
	if code != exitOK || stdout != want || stderr != "" {
		t.Errorf("exit %d, stdout\n%s\nstderr %q; want 0, and\n%s", code, stdout, stderr, want)
	}
	store.asked(t, appendRequest(), appendRequest())
}

func TestAppendConfirmed(t *testing.T) {
	store := &fakeStore{append: func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) {
		answer := appendAnswer()
		answer.Results[0].AlreadyCommitted = true
		return answer, nil
	}}
	code, stdout, _ := runCommand(t, appendArgs(store.start(t), "--confirm", "--event-id", "e7")...)
	if first, _, _ := strings.Cut(stdout, "\n"); code != exitOK || first != "result        had landed already; this is the original result" {
		t.Errorf("exit %d, first line %q", code, first)
	}
	want := appendRequest()
	want.OnDuplicate = pb.OnDuplicate_ON_DUPLICATE_CONFIRM
	want.Writes[0].Events[0].EventId = "e7"
	store.asked(t, want)
}

func TestAppendSendsWhatTheFlagsSay(t *testing.T) {
	dir := t.TempDir()
	binary, document := filepath.Join(dir, "payload.bin"), filepath.Join(dir, "payload.JSON")
	for _, name := range []string{binary, document} {
		if err := os.WriteFile(name, []byte("\x00\xff not JSON"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	store := &fakeStore{append: func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) { return appendAnswer(), nil }}
	server := store.start(t)
	base := []string{"append", "acme/orders/4821", "--server", server, "--client-id", "billing", "--seq", "7", "--event-type", "OrderPaid"}

	var want []proto.Message
	try := func(change func(*pb.AppendRequest), args ...string) {
		t.Helper()
		code, _, stderr := runCommand(t, append(append([]string{}, base...), args...)...)
		if code != exitOK || stderr != "" {
			t.Errorf("%q: exit %d, %s", args, code, stderr)
		}
		req := appendRequest()
		change(req)
		want = append(want, req)
	}
	write := func(r *pb.AppendRequest) *pb.Write { return r.Writes[0] }
	event := func(r *pb.AppendRequest) *pb.NewEvent { return r.Writes[0].Events[0] }
	data := []string{"--data", `{"total":12}`}

	try(func(r *pb.AppendRequest) { write(r).ExpectedVersion = proto.Uint64(0) }, append(data, "--expect", "0")...)
	try(func(r *pb.AppendRequest) { write(r).ExpectedVersion = proto.Uint64(3) }, append(data, "--expect", "3")...)
	try(func(r *pb.AppendRequest) { write(r).AllowCreate = true }, append(data, "--create")...)
	try(func(r *pb.AppendRequest) { write(r).EnforceClientIdempotency = false }, append(data, "--enforce=false")...)
	try(func(r *pb.AppendRequest) { write(r).PreviousClientSeq = proto.Uint64(0) }, append(data, "--previous-seq", "0")...)
	try(func(r *pb.AppendRequest) { write(r).PreviousClientSeq = proto.Uint64(6) }, append(data, "--previous-seq", "6")...)
	try(func(r *pb.AppendRequest) { r.RequestId, r.Timeline = "r9", "aa" }, append(data, "--request-id", "r9", "--timeline", "aa")...)
	try(func(r *pb.AppendRequest) {
		event(r).Metadata = map[string]string{"trace": "a=b,c", "empty": ""}
		event(r).OccurredAt = at(9)
		event(r).ContentType = "application/vnd.order+json"
	}, append(data, "--metadata", "trace=a=b,c", "--metadata", "empty=", "--occurred-at", "2026-01-31T10:00:00+01:00", "--content-type", "application/vnd.order+json")...)
	try(func(r *pb.AppendRequest) {
		event(r).Payload, event(r).ContentType = []byte("\x00\xff not JSON"), "application/octet-stream"
	}, "--file", binary)
	try(func(r *pb.AppendRequest) { event(r).Payload = []byte("\x00\xff not JSON") }, "--file", document)
	try(func(r *pb.AppendRequest) {
		event(r).Payload, event(r).ContentType = []byte{}, "application/octet-stream"
	}, "--file", "-")
	try(func(r *pb.AppendRequest) { event(r).Payload = []byte(`"text"`) }, "--data", `"text"`)
	store.asked(t, want...)
}

func TestAppendMistakesAreFoundBeforeAnythingIsSent(t *testing.T) {
	store := &fakeStore{}
	server := store.start(t)
	base := []string{"append", "acme/orders/4821", "--server", server, "--client-id", "billing", "--seq", "7", "--event-type", "OrderPaid"}
	large := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(large, make([]byte, largestFile+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		want string
	}{
		{base, "expected the payload, as --data JSON or --file FILE, found neither"},
		{append(base, "--data", "{}", "--file", "x"), "expected the payload once, as --data JSON or --file FILE, found both"},
		{append(base, "--data", "{total: 12}"), `--data: expected JSON, found "{total: 12}" (invalid character 't' looking for beginning of object key string); to send bytes of any kind use --file`},
		{append(base, "--data", ""), `--data: expected JSON, found "" (unexpected end of JSON input); to send bytes of any kind use --file`},
		{append(base, "--file", "/does/not/exist"), "--file: open /does/not/exist: no such file or directory"},
		{append(base, "--file", large), fmt.Sprintf("--file: expected at most 16777216 bytes, the largest request that any server accepts; %s is larger", large)},
		{append(base, "--data", "{}", "--metadata", "x"), `--metadata: expected KEY=VALUE, found "x"`},
		{append(base, "--data", "{}", "--metadata", "x=1", "--metadata", "x=2"), `--metadata: expected every key once, found "x" twice`},
		{append(base, "--data", "{}", "--occurred-at", "yesterday"), `--occurred-at: expected a time such as 2026-01-31T12:00:00Z (RFC 3339), found "yesterday"`},
		{append(base, "--data", "{}", "--expect", "-1"), `--expect: expected a whole number from 0 to 18446744073709551615, found "-1"`},
		{[]string{"append", "acme/orders", "--server", server, "--client-id", "b", "--seq", "1", "--event-type", "T", "--data", "{}"},
			`expected an aggregate written org/type/id, such as acme/orders/4821; found "acme/orders"`},
		{[]string{"append", "acme/orders/1"}, `required flag(s) "client-id", "seq", "event-type" not set`},
		{append(base, "--data", "{}", "--server", "nowhere"), `--server: expected host:port, found "nowhere"`},
		{append(base, "--data", "{}", "--server", " , "), `--server: expected one or more host:port, found none`},
	} {
		code, stdout, stderr := runCommand(t, c.args...)
		want := "tidemark: " + c.want + "\nSee \"tidemark append --help\".\n"
		if code != exitUsage || stdout != "" || stderr != want {
			t.Errorf("%q:\nexit %d, stdout %q, stderr %q\nwant 2, nothing, %q", c.args, code, stdout, stderr, want)
		}
	}
	store.asked(t)
}

func failureDetail(code pb.ErrorCode, change func(*pb.AppendFailure)) *pb.AppendFailure {
	d := &pb.AppendFailure{Code: code, Aggregate: order(), CurrentVersion: 3, AttemptedSeq: 7, Mark: 7}
	if change != nil {
		change(d)
	}
	return d
}

func holder(change func(*pb.Holder)) *pb.Holder {
	h := &pb.Holder{Version: 3, Incarnation: 1, Position: 88, CommittedAt: at(11), ClientSeq: 7, EventId: "pay-77", FirstClientSeq: 7, LastClientSeq: 7, EventCount: 1}
	if change != nil {
		change(h)
	}
	return h
}

func TestAppendRefusalsSayWhatWasFoundAndWhatToDo(t *testing.T) {
	const (
		used     = pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION
		conflict = pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION
		inFlight = pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE
		missing  = pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_EXISTS
		gap      = pb.ErrorCode_ERROR_CODE_CLIENT_SEQUENCE_GAP
	)
	refusal := func(code pb.ErrorCode, change func(*pb.AppendFailure)) error {
		return api.Errorf(code, "the server's text").With(failureDetail(code, change))
	}
	const held = "version 3, position 88, sequence 7, event id \"pay-77\", committed 2026-01-31T11:00:00Z"
	for _, c := range []struct {
		name string
		args []string
		err  error
		code int
		want string
	}{
		{"2002, mine", []string{"--event-id", "pay-77"},
			refusal(used, func(d *pb.AppendFailure) { d.Holder = holder(nil) }), exitUsed,
			`tidemark: 2002 ClientIdempotencyViolation: the server's text
  aggregate        acme/orders/4821
  current version  3
  sequence sent    7
  mark             7
  holder           ` + held + `
An event with this id and sequence landed as version 3; its content could not be read to compare it. To have the server compare, send the same again with --confirm. To see what is left of it: tidemark find acme/orders/4821 billing 7
`},
		{"2002, another's", []string{"--event-id", "pay-78"},
			refusal(used, func(d *pb.AppendFailure) { d.Mark = 9; d.Holder = holder(nil) }), exitUsed,
			`tidemark: 2002 ClientIdempotencyViolation: the server's text
  aggregate        acme/orders/4821
  current version  3
  sequence sent    7
  mark             9
  holder           ` + held + `
Sequence 7 belongs to another event (id "pay-77"). Yours was not written; send it with a --seq above 9, if another writer does not share the name "billing" by mistake.
`},
		{"2002, no id of my own, one of several", nil,
			refusal(used, func(d *pb.AppendFailure) {
				d.Holder = holder(func(h *pb.Holder) {
					h.EventId, h.EventCount, h.FirstClientSeq, h.LastClientSeq, h.Trimmed = "", 3, 5, 9, true
				})
			}), exitUsed,
			`tidemark: 2002 ClientIdempotencyViolation: the server's text
  aggregate        acme/orders/4821
  current version  3
  sequence sent    7
  mark             7
  holder           version 3, position 88, sequence 7, one of 3 events with sequences 5 to 9, committed 2026-01-31T11:00:00Z, no longer readable
Sequence 7 is recorded in version 3. Without an event id of its own (--event-id) nobody can tell whether that is this event. To see what was recorded: tidemark find acme/orders/4821 billing 7
`},
		{"2002, recorded more than once", []string{"--event-id", "pay-77"},
			refusal(used, func(d *pb.AppendFailure) { d.Holder = holder(func(h *pb.Holder) { h.Others = true }) }), exitUsed,
			`tidemark: 2002 ClientIdempotencyViolation: the server's text
  aggregate        acme/orders/4821
  current version  3
  sequence sent    7
  mark             7
  holder           ` + held + `, recorded more than once
Sequence 7 is recorded more than once, last in version 3: unenforced writes did that, and nobody can tell whether this event is among them. To see what was recorded: tidemark find acme/orders/4821 billing 7
`},
		{"2002, other content", []string{"--event-id", "pay-77", "--confirm"},
			refusal(used, func(d *pb.AppendFailure) {
				d.Holder = holder(func(h *pb.Holder) { h.ContentDiffers = true })
			}), exitUsed,
			`tidemark: 2002 ClientIdempotencyViolation: the server's text
  aggregate        acme/orders/4821
  current version  3
  sequence sent    7
  mark             7
  holder           ` + held + `
Sequence 7 was recorded in version 3 with this event id and other content. Yours was not written. To see what was: tidemark find acme/orders/4821 billing 7
`},
		{"2002, skipped", nil,
			refusal(used, func(d *pb.AppendFailure) { d.Mark = 9; d.InFlightMark = proto.Uint64(12) }), exitUsed,
			`tidemark: 2002 ClientIdempotencyViolation: the server's text
  aggregate        acme/orders/4821
  current version  3
  sequence sent    7
  mark             9
  mark in flight   12
  holder           none
Sequence 7 was skipped, and 9 was committed after it: it can no longer be used. This event was not written; if no earlier call can still be on its way, send it with a --seq above 12.
`},
		{"2002, skipped, and none is left", nil,
			refusal(used, func(d *pb.AppendFailure) { d.Mark = 9; d.InFlightMark = proto.Uint64(math.MaxInt64) }), exitUsed,
			`tidemark: 2002 ClientIdempotencyViolation: the server's text
  aggregate        acme/orders/4821
  current version  3
  sequence sent    7
  mark             9
  mark in flight   9223372036854775807
  holder           none
Sequence 7 was skipped, and 9 was committed after it: it can no longer be used. This event was not written; there is no sequence above 9223372036854775807, so those of "billing" are used up on this aggregate: send it with another --client-id.
`},
		{"2002, another's, and none is left", []string{"--event-id", "pay-78"},
			refusal(used, func(d *pb.AppendFailure) { d.Mark = math.MaxInt64; d.Holder = holder(nil) }), exitUsed,
			`tidemark: 2002 ClientIdempotencyViolation: the server's text
  aggregate        acme/orders/4821
  current version  3
  sequence sent    7
  mark             9223372036854775807
  holder           ` + held + `
Sequence 7 belongs to another event (id "pay-77"). Yours was not written; there is no sequence above 9223372036854775807, so those of "billing" are used up on this aggregate: send it with another --client-id.
`},
		{"2003", []string{"--expect", "1"},
			refusal(conflict, func(d *pb.AppendFailure) { d.ExpectedVersion = proto.Uint64(1); d.Mark = 6 }), exitConflict,
			`tidemark: 2003 OptimisticConcurrencyViolation: the server's text
  aggregate         acme/orders/4821
  expected version  1
  current version   3
  sequence sent     7
  mark              6
  holder            none
Read what happened (tidemark read acme/orders/4821 --from 2), decide again, and send with --expect 3.
`},
		{"2003, above what there is", []string{"--expect", "18446744073709551615"},
			refusal(conflict, func(d *pb.AppendFailure) { d.ExpectedVersion = proto.Uint64(math.MaxUint64); d.Mark = 6 }), exitConflict,
			`tidemark: 2003 OptimisticConcurrencyViolation: the server's text
  aggregate         acme/orders/4821
  expected version  18446744073709551615
  current version   3
  sequence sent     7
  mark              6
  holder            none
The aggregate is at version 3, below 18446744073709551615. Look at it (tidemark aggregate acme/orders/4821), decide again, and send with --expect 3.
`},
		{"2003 about a write that landed", []string{"--expect", "2", "--event-id", "pay-77"},
			refusal(conflict, func(d *pb.AppendFailure) { d.ExpectedVersion = proto.Uint64(2); d.Holder = holder(nil) }), exitConflict,
			`tidemark: 2003 OptimisticConcurrencyViolation: the server's text
  aggregate         acme/orders/4821
  expected version  2
  current version   3
  sequence sent     7
  mark              7
  holder            ` + held + `
An event with this id and sequence landed as version 3; its content could not be read to compare it. To have the server compare, send the same again with --confirm. To see what is left of it: tidemark find acme/orders/4821 billing 7
`},
		{"2003, not decided", []string{"--expect", "3"},
			refusal(conflict, func(d *pb.AppendFailure) {
				d.ExpectedVersion, d.InFlightVersion, d.Mark = proto.Uint64(3), proto.Uint64(4), 6
			}), exitConflict,
			`tidemark: 2003 OptimisticConcurrencyViolation: the server's text
  aggregate          acme/orders/4821
  expected version   3
  current version    3
  version in flight  4
  sequence sent      7
  mark               6
  holder             none
Nothing is decided yet: other writes are in flight. Send the same again in a moment.
`},
		{"2003, mine in flight", []string{"--expect", "2"},
			refusal(conflict, func(d *pb.AppendFailure) {
				d.ExpectedVersion, d.InFlightMark, d.Mark = proto.Uint64(2), proto.Uint64(7), 6
			}), exitConflict,
			`tidemark: 2003 OptimisticConcurrencyViolation: the server's text
  aggregate         acme/orders/4821
  expected version  2
  current version   3
  sequence sent     7
  mark              6
  mark in flight    7
  holder            none
Nothing is decided yet: other writes are in flight. Send the same again in a moment.
`},
		{"2013", nil,
			refusal(inFlight, func(d *pb.AppendFailure) { d.Mark = 6; d.InFlightMark = proto.Uint64(7) }), exitInFlight,
			`tidemark: 2013 InflightDuplicateWrite: the server's text
  aggregate        acme/orders/4821
  current version  3
  sequence sent    7
  mark             6
  mark in flight   7
  holder           none
Keep the --seq and send the same again until the answer is another one; with --event-id and --confirm the server waits and answers with the result.
`},
		{"2005", nil,
			refusal(missing, func(d *pb.AppendFailure) { d.CurrentVersion, d.Mark = 0, 0 }), exitNotFound,
			`tidemark: 2005 AggregateNotExists: the server's text
  aggregate        acme/orders/4821
  current version  0
  sequence sent    7
  mark             0
  holder           none
To create it, add --create.
`},
		{"2030", nil,
			refusal(gap, func(d *pb.AppendFailure) { d.Mark = 5 }), exitFailure,
			`tidemark: 2030 ClientSequenceGap: the server's text
  aggregate        acme/orders/4821
  current version  3
  sequence sent    7
  mark             5
  holder           none
Find out what became of the write before this one, starting from the detail's mark.
`},
		{"2016", nil, api.Invalid("client_id", "expected 1 to 200 bytes, found 0"), exitFailure,
			`tidemark: 2016 InvalidRequest: client_id expected 1 to 200 bytes, found 0
Correct the field that the detail names.
`},
		{"2012, with a time", nil, api.Errorf(pb.ErrorCode_ERROR_CODE_REPLICATION_BACKPRESSURE, "full").After(250 * time.Millisecond), exitFailure,
			`tidemark: 2012 ReplicationBackpressure: full
  retry after  250ms
Wait as long as RetryInfo says, then send the same again.
`},
		{"control characters in the server's text", nil, api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY, "clear\x1b[2Jscreen"), exitFailure,
			`tidemark: 11000 ServerBusy: clear\u001b[2Jscreen
Wait as long as RetryInfo says, then send the same again.
`},
		{"a server without appends", nil, status.Error(codes.Unimplemented, "unknown service"), exitFailure,
			"tidemark: the server does not know this call; is it an older version, or not Tidemark? unknown service\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			store := refuse(c.err)
			code, stdout, stderr := runCommand(t, appendArgs(store.start(t), c.args...)...)
			if code != c.code || stdout != "" || stderr != c.want {
				t.Errorf("exit %d, stdout %q, stderr\n%s\nwant exit %d, nothing, stderr\n%s", code, stdout, stderr, c.code, c.want)
			}
			sent := 0
			for _, r := range store.all() {
				if _, ok := r.(*pb.AppendRequest); ok {
					sent++
				}
			}
			if sent != 1 {
				t.Errorf("sent %d times, want once", sent)
			}
		})
	}
}

func TestAppendErrorsAsJSON(t *testing.T) {
	detail := failureDetail(pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION, func(d *pb.AppendFailure) {
		d.ExpectedVersion, d.Mark = proto.Uint64(1), 6
	})
	store := refuse(api.Errorf(pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION, "the server's text").With(detail).After(time.Second))
	code, stdout, stderr := runCommand(t, appendArgs(store.start(t), "--output", "json", "--expect", "1")...)
	want := `{"error":{"code":2003,"name":"OptimisticConcurrencyViolation","grpc_status":"FailedPrecondition","message":"the server's text","exit_code":21,"may_have_happened":false,` +
		`"advice":"Read what happened (tidemark read acme/orders/4821 --from 2), decide again, and send with --expect 3.","retry_after":"1s",` +
		`"details":[{"@type":"type.googleapis.com/tidemark.v1.AppendFailure","code":"ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION","write_index":0,` +
		`"aggregate":{"org":"acme","type":"orders","id":"4821"},"expected_version":"1","current_version":"3","attempted_seq":"7","mark":"6"}]}}` + "\n"
	if code != exitConflict || stdout != "" || stderr != want {
		t.Errorf("exit %d, stdout %q, stderr\n%s\nwant 21, nothing,\n%s", code, stdout, stderr, want)
	}

	code, _, stderr = runCommand(t, appendArgs(refuse(status.Error(codes.Unavailable, "reset")).start(t), "--output", "json")...)
	if want := `{"error":{"code":0,"grpc_status":"Unavailable","message":"the connection was lost before the answer came: reset","exit_code":23,"may_have_happened":true,"advice":`; code != exitUnknown || !strings.HasPrefix(stderr, want) {
		t.Errorf("exit %d, stderr %s, want 23, %s", code, stderr, want)
	}

	code, _, stderr = runCommand(t, appendArgs("nowhere", "--output", "json")...)
	if want := `{"error":{"code":0,"message":"--server: expected host:port, found \"nowhere\"","exit_code":2,"may_have_happened":false}}` + "\n"; code != exitUsage || stderr != want {
		t.Errorf("exit %d, stderr %s, want 2, %s", code, stderr, want)
	}
}
