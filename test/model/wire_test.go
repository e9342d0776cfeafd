package model

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// refusal is an error as the contract wants it on the wire.
type refusal struct {
	code   pb.ErrorCode
	detail proto.Message
}

func refuse(code pb.ErrorCode, detail proto.Message) *refusal { return &refusal{code, detail} }

// text is the code and the detail; a detail that repeats the code says it once.
func (r *refusal) text(w *world) string {
	if r == nil {
		return ""
	}
	out := strconv.Itoa(int(r.code))
	if r.detail != nil {
		out += " " + strings.TrimPrefix(w.text(r.detail), "code="+out+" ")
	}
	return out
}

// statuses is table 4 for the codes that the model predicts.
var statuses = map[pb.ErrorCode]codes.Code{
	1000: codes.OutOfRange, 1001: codes.NotFound, 2000: codes.InvalidArgument, 2001: codes.InvalidArgument, 2002: codes.AlreadyExists,
	2003: codes.FailedPrecondition, 2011: codes.Unavailable, 2005: codes.NotFound, 2006: codes.FailedPrecondition, 2013: codes.Aborted, 2016: codes.InvalidArgument,
	2019: codes.InvalidArgument, 2030: codes.FailedPrecondition, 2031: codes.FailedPrecondition,
	3000: codes.NotFound, 3004: codes.OutOfRange, 3005: codes.FailedPrecondition,
	4000: codes.NotFound, 4001: codes.InvalidArgument, 4002: codes.FailedPrecondition, 7001: codes.NotFound,
}

// check compares an error with the refusal: the gRPC status, ErrorInfo, the typed detail, a
// BadRequest that names a field with 2016, and nothing else.
func (r *refusal) check(w *world, err error) error {
	if r == nil {
		return fmt.Errorf("refused: %s; the contract answers it", w.describe(nil, err))
	}
	st := status.Convert(err)
	if err == nil || st.Code() != statuses[r.code] {
		return fmt.Errorf("status %s of %s, not %s", st.Code(), w.describe(nil, err), statuses[r.code])
	}
	var info *errdetails.ErrorInfo
	var rest []proto.Message
	named := false
	for _, d := range st.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.BadRequest:
			named = len(d.GetFieldViolations()) > 0 && d.GetFieldViolations()[0].GetField() != ""
		case proto.Message:
			rest = append(rest, d)
		default:
			return fmt.Errorf("undecodable detail %v", d)
		}
	}
	want := &errdetails.ErrorInfo{
		Domain: "tidemark", Reason: strings.TrimPrefix(r.code.String(), "ERROR_CODE_"),
		Metadata: map[string]string{"code": strconv.Itoa(int(r.code))},
	}
	if err := same(want, info); err != nil {
		return err
	}
	if named != (r.code == pb.ErrorCode_ERROR_CODE_INVALID_REQUEST) {
		return fmt.Errorf("a field is named: %v, by %s", named, w.describe(nil, st.Err()))
	}
	switch {
	case r.detail == nil && len(rest) == 0:
		return nil
	case r.detail == nil || len(rest) != 1:
		return fmt.Errorf("%d details, not the one of %d", len(rest), r.code)
	}
	return same(r.detail, rest[0])
}

// same compares messages by every field.
func same(want, got proto.Message) error {
	if proto.Equal(want, got) {
		return nil
	}
	return fmt.Errorf("the contract says\n    %s\n  the server\n    %s", prototext.Format(want), prototext.Format(got))
}

func (w *world) describe(resp *pb.AppendResponse, err error) string {
	if err == nil {
		return "ok " + w.text(resp)
	}
	out := []string{err.Error()}
	for _, d := range status.Convert(err).Details() {
		if m, ok := d.(proto.Message); ok {
			out = append(out, w.text(m))
		}
	}
	return strings.Join(out, "; ")
}
