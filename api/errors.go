package api

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// Domain is google.rpc.ErrorInfo's domain in every status of Tidemark.
const Domain = "tidemark"

// CodeKey is the key of google.rpc.ErrorInfo's metadata that holds the code's number.
const CodeKey = "code"

// maxMessage bounds a status's text in bytes. The text travels twice, once of it percent
// encoded and once in base64, in a header block that some clients limit to 8 KiB, and a
// block over the limit loses the code and the details too.
const maxMessage = 1024

// Error is an answer that is not a success. It is not changed once it has been returned;
// the chaining methods are for the place that builds it.
type Error struct {
	Code pb.ErrorCode
	// Message says what was expected, what was found, and what the caller can do.
	Message string
	// Details are the typed messages that the code carries. ErrorInfo and RetryInfo are
	// not among them; they are made from the other fields.
	Details []proto.Message
	// RetryAfter, if positive, is when the server suggests to ask again.
	RetryAfter time.Duration
	// Corrupt marks an error that reports damaged data: the status is DATA_LOSS.
	Corrupt bool

	cause error
}

// Errorf makes an error. An operand of %w becomes its cause, for errors.Is and errors.As
// on this side; a client sees the text only.
func Errorf(code pb.ErrorCode, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	e := &Error{Code: code, Message: err.Error()}
	switch err.(type) {
	case interface{ Unwrap() error }, interface{ Unwrap() []error }:
		e.cause = err
	}
	return e
}

// Invalid makes a 2016 about one field, named as in the proto: "writes[2].events[0].type".
// The message is the field's name followed by the text, so that the text reads on from it.
func Invalid(field, format string, args ...any) *Error {
	text := fmt.Sprintf(format, args...)
	return &Error{
		Code:    pb.ErrorCode_ERROR_CODE_INVALID_REQUEST,
		Message: field + " " + text,
		Details: []proto.Message{&errdetails.BadRequest{
			FieldViolations: []*errdetails.BadRequest_FieldViolation{{Field: clip(field), Description: clip(text)}},
		}},
	}
}

// Corruptf makes an 11001 that reports damaged data. The text names the file and the
// offset; the damage must not be passed over.
func Corruptf(format string, args ...any) *Error {
	e := Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, format, args...)
	e.Corrupt = true
	return e
}

// With adds typed details and returns e.
func (e *Error) With(details ...proto.Message) *Error {
	e.Details = append(e.Details, details...)
	return e
}

// After sets when to ask again and returns e.
func (e *Error) After(d time.Duration) *Error {
	e.RetryAfter = d
	return e
}

// Error is "2002 ClientIdempotencyViolation: " and the message.
func (e *Error) Error() string {
	c, _ := Lookup(e.Code)
	return strconv.Itoa(int(e.Code)) + " " + c.Name + ": " + e.Message
}

// Unwrap returns the cause given to Errorf with %w, or nil.
func (e *Error) Unwrap() error {
	return e.cause
}

// MayHaveHappened says whether the write of the refused call may land.
func (e *Error) MayHaveHappened() Outcome {
	c, _ := Lookup(e.Code)
	return c.MayHaveHappened
}

// GRPCStatus makes the status that a client receives. gRPC calls it when a handler
// returns the error; it is called once per refusal, so the constant part is ready made.
func (e *Error) GRPCStatus() *status.Status {
	c, _ := Lookup(e.Code)
	st := &spb.Status{
		Code:    int32(c.GRPC),
		Message: clip(e.Error()),
		Details: make([]*anypb.Any, 0, len(e.Details)+2),
	}
	if e.Corrupt && c.GRPCCorrupt != 0 {
		st.Code = int32(c.GRPCCorrupt)
	}
	st.Details = append(st.Details, errorInfo(e.Code))
	for _, d := range e.Details {
		// A detail that cannot be encoded (a string that is not UTF-8) is left out: the
		// code and the message are worth more than an INTERNAL in their place.
		if packed, err := anypb.New(d); err == nil {
			st.Details = append(st.Details, packed)
		}
	}
	if e.RetryAfter > 0 {
		if packed, err := anypb.New(&errdetails.RetryInfo{RetryDelay: durationpb.New(e.RetryAfter)}); err == nil {
			st.Details = append(st.Details, packed)
		}
	}
	return status.FromProto(st)
}

// FromStatus returns the error that a call failed with: an *Error in err's chain, or one
// parsed from a gRPC status. False means that the answer is not Tidemark's (a lost
// connection, a deadline, a proxy): whether a write landed is then unknown. Details whose
// type this program does not know are left out.
func FromStatus(err error) (*Error, bool) {
	var own *Error
	if errors.As(err, &own) {
		return own, true
	}
	st, ok := status.FromError(err)
	if !ok || err == nil {
		return nil, false
	}
	e := &Error{}
	found := false
	for _, packed := range st.Proto().GetDetails() {
		detail, err := packed.UnmarshalNew()
		if err != nil {
			continue
		}
		switch d := detail.(type) {
		case *errdetails.ErrorInfo:
			n, err := strconv.ParseInt(d.GetMetadata()[CodeKey], 10, 32)
			if d.GetDomain() == Domain && err == nil {
				e.Code, found = pb.ErrorCode(n), true
			}
		case *errdetails.RetryInfo:
			e.RetryAfter = d.GetRetryDelay().AsDuration()
		default:
			e.Details = append(e.Details, detail)
		}
	}
	if !found {
		return nil, false
	}
	c, _ := Lookup(e.Code)
	e.Corrupt = c.GRPCCorrupt != 0 && st.Code() == c.GRPCCorrupt
	// A wrapped status has the wrapper's text around the server's.
	_, text, cut := strings.Cut(st.Message(), strconv.Itoa(int(e.Code))+" "+c.Name+": ")
	if !cut {
		text = st.Message()
	}
	e.Message = text
	return e, true
}

// CodeOf returns the code that err carries, on either side of the wire, or
// ERROR_CODE_UNSPECIFIED if it carries none.
func CodeOf(err error) pb.ErrorCode {
	e, ok := FromStatus(err)
	if !ok {
		return pb.ErrorCode_ERROR_CODE_UNSPECIFIED
	}
	return e.Code
}

// DetailOf returns the first detail of type M that err carries.
func DetailOf[M proto.Message](err error) (M, bool) {
	if e, ok := FromStatus(err); ok {
		for _, d := range e.Details {
			if m, ok := d.(M); ok {
				return m, true
			}
		}
	}
	var none M
	return none, false
}

// infos holds the packed ErrorInfo of every row of the table, in the table's order. They
// are shared by all statuses and never changed: status.FromProto copies.
var infos = sync.OnceValue(func() []*anypb.Any {
	packed := make([]*anypb.Any, len(table))
	for i, c := range table {
		packed[i] = packInfo(c)
	}
	return packed
})

func errorInfo(code pb.ErrorCode) *anypb.Any {
	if i, found := index(code); found {
		return infos()[i]
	}
	c, _ := Lookup(code)
	return packInfo(c)
}

func packInfo(c Code) *anypb.Any {
	packed, err := anypb.New(&errdetails.ErrorInfo{
		Reason:   c.Reason(),
		Domain:   Domain,
		Metadata: map[string]string{CodeKey: strconv.Itoa(int(c.Code))},
	})
	if err != nil {
		panic(fmt.Sprintf("api: pack ErrorInfo of %d: %v", c.Code, err)) // constant ASCII strings
	}
	return packed
}

// clip makes s fit into a status: valid UTF-8, at most maxMessage bytes.
func clip(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	if len(s) <= maxMessage {
		return s
	}
	const ellipsis = "..."
	cut := maxMessage - len(ellipsis)
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + ellipsis
}
