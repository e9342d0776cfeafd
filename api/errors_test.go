package api

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

func pack(t testing.TB, m proto.Message) *anypb.Any {
	t.Helper()
	a, err := anypb.New(m)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func info(t testing.TB, reason string, number int32) *anypb.Any {
	t.Helper()
	return pack(t, &errdetails.ErrorInfo{
		Reason: reason, Domain: "tidemark",
		Metadata: map[string]string{"code": strconv.Itoa(int(number))},
	})
}

// assertStatus compares whole statuses.
func assertStatus(t *testing.T, got *status.Status, want *spb.Status) {
	t.Helper()
	if !proto.Equal(got.Proto(), want) {
		t.Errorf("status:\n got %v\nwant %v", got.Proto(), want)
	}
}

func TestStatusOfEveryCode(t *testing.T) {
	for _, r := range contractRows {
		e := Errorf(pb.ErrorCode(r.number), "found %d, expected %d", 3, 4)
		assertStatus(t, e.GRPCStatus(), &spb.Status{
			Code:    int32(r.status),
			Message: strconv.Itoa(int(r.number)) + " " + r.name + ": found 3, expected 4",
			Details: []*anypb.Any{info(t, r.reason, r.number)},
		})
	}
}

func TestStatusCarriesDetailsAndRetryInfo(t *testing.T) {
	failure := &pb.AppendFailure{
		Code:       pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE,
		WriteIndex: 2,
		Aggregate:  &pb.AggregateKey{Org: "acme", Type: "orders", Id: "4821"},
	}
	e := Errorf(pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE, "in flight").With(failure).After(1500 * time.Millisecond)
	assertStatus(t, e.GRPCStatus(), &spb.Status{
		Code:    int32(codes.Aborted),
		Message: "2013 InflightDuplicateWrite: in flight",
		Details: []*anypb.Any{
			info(t, "INFLIGHT_DUPLICATE_WRITE", 2013),
			pack(t, failure),
			pack(t, &errdetails.RetryInfo{RetryDelay: durationpb.New(1500 * time.Millisecond)}),
		},
	})
}

func TestInvalidNamesTheField(t *testing.T) {
	e := Invalid("writes[1].aggregate.org", "is %d bytes, at most %d are allowed", 201, 200)
	assertStatus(t, e.GRPCStatus(), &spb.Status{
		Code:    int32(codes.InvalidArgument),
		Message: "2016 InvalidRequest: writes[1].aggregate.org is 201 bytes, at most 200 are allowed",
		Details: []*anypb.Any{
			info(t, "INVALID_REQUEST", 2016),
			pack(t, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
				{Field: "writes[1].aggregate.org", Description: "is 201 bytes, at most 200 are allowed"},
			}}),
		},
	})
}

func TestCorruptionIsDataLoss(t *testing.T) {
	e := Corruptf("tail/00000007: record 12 at offset 4096: checksum mismatch")
	assertStatus(t, e.GRPCStatus(), &spb.Status{
		Code:    int32(codes.DataLoss),
		Message: "11001 Internal: tail/00000007: record 12 at offset 4096: checksum mismatch",
		Details: []*anypb.Any{info(t, "INTERNAL", 11001)},
	})
	if got, ok := FromStatus(e.GRPCStatus().Err()); !ok || !got.Corrupt {
		t.Errorf("parsed back: %+v, %v; want Corrupt", got, ok)
	}
	if got, ok := FromStatus(Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "a bug").GRPCStatus().Err()); !ok || got.Corrupt {
		t.Errorf("parsed back: %+v, %v; want not Corrupt", got, ok)
	}
}

func TestCodeOfANewerServer(t *testing.T) {
	e := Errorf(9999, "something new")
	assertStatus(t, e.GRPCStatus(), &spb.Status{
		Code: int32(codes.Unknown), Message: "9999 Code9999: something new",
		Details: []*anypb.Any{info(t, "9999", 9999)},
	})
	got, ok := FromStatus(e.GRPCStatus().Err())
	if !ok || got.Code != 9999 || got.Message != "something new" || got.MayHaveHappened() != Yes {
		t.Errorf("parsed back: %+v, %v", got, ok)
	}
}

// A message over the limit of a client's header block would cost it the code as well.
func TestLongMessageIsClipped(t *testing.T) {
	for _, text := range []string{strings.Repeat("x", 5000), strings.Repeat("ü", 5000), "a" + strings.Repeat("ü", 5000)} {
		st := Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "%s", text).GRPCStatus()
		if m := st.Message(); len(m) > maxMessage || len(m) < maxMessage-2 || !utf8.ValidString(m) || !strings.HasSuffix(m, "...") {
			t.Errorf("clipped to %d bytes, valid %v: %.40q", len(m), utf8.ValidString(m), m)
		}
	}
	exact := strings.Repeat("x", maxMessage-len("11001 Internal: "))
	if m := Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "%s", exact).GRPCStatus().Message(); m != "11001 Internal: "+exact {
		t.Errorf("a message of exactly the limit was changed: %d bytes", len(m))
	}
}

// A status whose text is not UTF-8 cannot be marshalled; gRPC would drop all its details.
func TestInvalidUTF8DoesNotLoseTheCode(t *testing.T) {
	st := Invalid("client_id", "is %q\xff\xfe", "a").GRPCStatus()
	if _, err := proto.Marshal(st.Proto()); err != nil {
		t.Fatal(err)
	}
	assertStatus(t, st, &spb.Status{
		Code:    int32(codes.InvalidArgument),
		Message: "2016 InvalidRequest: client_id is \"a\"\uFFFD",
		Details: []*anypb.Any{
			info(t, "INVALID_REQUEST", 2016),
			pack(t, &errdetails.BadRequest{FieldViolations: []*errdetails.BadRequest_FieldViolation{
				{Field: "client_id", Description: "is \"a\"\uFFFD"},
			}}),
		},
	})
	broken := Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "ask the leader").With(&pb.NotLeader{LeaderId: "\xff"})
	assertStatus(t, broken.GRPCStatus(), &spb.Status{
		Code: int32(codes.Unavailable), Message: "2011 NotLeader: ask the leader",
		Details: []*anypb.Any{info(t, "NOT_LEADER", 2011)},
	})
}

func TestFromStatusReturnsWhatWasSent(t *testing.T) {
	failure := &pb.AppendFailure{Code: 2003, AttemptedSeq: 7, Holder: &pb.Holder{Version: 3}}
	sent := Errorf(pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION, "expected 2, found 3: read and decide again").
		With(failure, &errdetails.Help{}).After(time.Second)
	for name, err := range map[string]error{
		"bare":    sent.GRPCStatus().Err(),
		"wrapped": fmt.Errorf("append: %w", sent.GRPCStatus().Err()),
	} {
		got, ok := FromStatus(err)
		if !ok {
			t.Fatalf("%s: not recognised", name)
		}
		if got.Code != sent.Code || got.Message != sent.Message || got.RetryAfter != time.Second || got.Corrupt || len(got.Details) != 2 {
			t.Errorf("%s: got %+v, want %+v", name, got, sent)
		}
		if d, ok := DetailOf[*pb.AppendFailure](err); !ok || !proto.Equal(d, failure) {
			t.Errorf("%s: detail %v, %v; want %v", name, d, ok, failure)
		}
		if d, ok := DetailOf[*pb.NotLeader](err); ok || d != nil {
			t.Errorf("%s: a detail that was not sent: %v", name, d)
		}
		if c := CodeOf(err); c != 2003 {
			t.Errorf("%s: CodeOf = %d", name, c)
		}
	}
}

func TestFromStatusOnTheServersSide(t *testing.T) {
	own := Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "ask n2")
	if got, ok := FromStatus(fmt.Errorf("forward: %w", own)); !ok || got != own {
		t.Errorf("got %v, %v; want the same error", got, ok)
	}
}

func TestFromStatusRefusesWhatIsNotOurs(t *testing.T) {
	foreign, err := status.New(codes.AlreadyExists, "2002 ClientIdempotencyViolation: forged").
		WithDetails(&errdetails.ErrorInfo{Domain: "elsewhere", Reason: "X", Metadata: map[string]string{"code": "2002"}})
	if err != nil {
		t.Fatal(err)
	}
	noNumber, err := status.New(codes.AlreadyExists, "x").WithDetails(&errdetails.ErrorInfo{Domain: "tidemark", Reason: "X"})
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"nil":              nil,
		"plain":            errors.New("2002 ClientIdempotencyViolation: text only"),
		"deadline":         context.DeadlineExceeded,
		"no details":       status.Error(codes.Unavailable, "connection refused"),
		"another domain":   foreign.Err(),
		"without a number": noNumber.Err(),
	} {
		if got, ok := FromStatus(err); ok || got != nil {
			t.Errorf("%s: got %+v, %v; want nil, false", name, got, ok)
		}
		if c := CodeOf(err); c != pb.ErrorCode_ERROR_CODE_UNSPECIFIED {
			t.Errorf("%s: CodeOf = %d", name, c)
		}
	}
}

func TestFromStatusPassesOverUnknownDetails(t *testing.T) {
	st := Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY, "later").GRPCStatus().Proto()
	st.Details = append(st.Details, &anypb.Any{TypeUrl: "type.googleapis.com/tidemark.v9.Newer", Value: []byte{1}})
	got, ok := FromStatus(status.ErrorProto(st))
	if !ok || got.Code != 11000 || got.Message != "later" || len(got.Details) != 0 {
		t.Errorf("got %+v, %v", got, ok)
	}
}

func TestErrorfKeepsItsCause(t *testing.T) {
	e := Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "open tail: %w", fs.ErrPermission)
	if !errors.Is(e, fs.ErrPermission) {
		t.Error("errors.Is does not see the cause")
	}
	if got, want := e.Error(), "11001 Internal: open tail: permission denied"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "open tail").Unwrap(); got != nil {
		t.Errorf("a cause out of nothing: %v", got)
	}
}

func TestStatusesDoNotShareWhatTheyReturn(t *testing.T) {
	e := Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "ask n2")
	e.GRPCStatus().Proto().Details[0].Value[0] = 0xff
	assertStatus(t, e.GRPCStatus(), &spb.Status{
		Code: int32(codes.Unavailable), Message: "2011 NotLeader: ask n2",
		Details: []*anypb.Any{info(t, "NOT_LEADER", 2011)},
	})
}

// A refusal is as hot as a success: tens of thousands a second under contention.
func BenchmarkRefusal(b *testing.B) {
	key := &pb.AggregateKey{Org: "acme", Type: "orders", Id: "4821"}
	b.ReportAllocs()
	for b.Loop() {
		e := Errorf(pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION, "client_seq %d is at or below the mark %d", 7, 9).
			With(&pb.AppendFailure{Code: 2002, Aggregate: key, CurrentVersion: 3, AttemptedSeq: 7, Mark: 9,
				Holder: &pb.Holder{Version: 3, Position: 12, ClientSeq: 7, EventId: "e-7", EventCount: 1}})
		if e.GRPCStatus().Code() != codes.AlreadyExists {
			b.Fatal("wrong status")
		}
	}
}
