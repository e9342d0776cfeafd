package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/leader"
)

// callError turns what a reading call failed with into the command's error. The advice is
// the code table's.
func callError(err error) error {
	if err == nil || errors.As(err, new(*exitError)) {
		return err
	}
	failure := &exitError{code: exitFailure, err: err}
	refusal, ok := api.FromStatus(err)
	if !ok {
		failure.err = plainError(err)
		return failure
	}
	failure.err = refusal
	if c, _ := api.Lookup(refusal.Code); c.GRPC == codes.NotFound {
		failure.code = exitNotFound
	}
	failure.advice = tableAdvice(refusal)
	if refusal.Code == pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND {
		failure.advice = "Check the key; \"tidemark aggregate\" tells a deleted aggregate from one that never existed."
	}
	return failure
}

// appendError turns what an append failed with into the command's error. The call was
// sent: whatever is not known to be a definite no is an unknown outcome. recorded says how
// the event compares with the one that holds its sequence and id.
func appendError(err error, req *pb.AppendRequest, recorded func(refusal error) comparison) error {
	if err == nil || errors.As(err, new(*exitError)) {
		return err
	}
	refusal, ok := api.FromStatus(err)
	if !ok {
		if status.Code(err) == codes.Unimplemented {
			return &exitError{code: exitFailure, err: plainError(err)}
		}
		return unknownOutcome(plainError(err), req)
	}
	// The command sends one write: its number says nothing.
	refusal.Message = strings.TrimPrefix(refusal.Message, "write 0, ")
	if refusal.MayHaveHappened() == api.Yes {
		return unknownOutcome(refusal, req)
	}
	failure := &exitError{code: exitFailure, err: refusal, advice: appendAdvice(refusal, req, recorded)}
	switch refusal.Code {
	case pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION:
		failure.code = exitUsed
	case pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION:
		failure.code = exitConflict
	case pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE:
		failure.code = exitInFlight
	case pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_EXISTS:
		failure.code = exitNotFound
	}
	return failure
}

// unknownOutcome says that req may or may not have landed, and how to find out.
func unknownOutcome(err error, req *pb.AppendRequest) error {
	write := req.GetWrites()[0]
	seq := write.GetEvents()[0].GetClientSeq()
	advice := fmt.Sprintf("The write may or may not have landed, and may still land. Keep --seq %d and ", seq)
	if write.GetEnforceClientIdempotency() {
		advice += "send the same again: it cannot be written twice, and the answer is final " +
			"(20 = it had landed; with --event-id and --confirm, the original result)."
	} else {
		advice += "do not send it again without --enforce: it could be written twice."
	}
	advice += fmt.Sprintf(" To look without writing: tidemark find %s %s %d (\"not found\" is final only once the call cannot be on its way any more).",
		formatAggregate(write.GetAggregate()), req.GetClientId(), seq)
	return &exitError{code: exitUnknown, err: err, mayHaveHappened: true, advice: advice}
}

// unprinted makes an answer that could not be printed the command's error: what was asked for is
// done, so the exit code is not that of a failure which has changed nothing.
func unprinted(done string, err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: exitUnknown, err: fmt.Errorf("%s, but the answer could not be printed: %w", done, err), mayHaveHappened: true}
}

// transportError is a failure of a call that carries no code of ours, in plain words.
type transportError struct {
	text  string
	cause error // the gRPC status
}

func (e *transportError) Error() string { return e.text }
func (e *transportError) Unwrap() error { return e.cause }

// plainError gives gRPC's own failures a text for people.
func plainError(err error) error {
	text := ""
	switch s := status.Convert(err); {
	case errors.As(err, new(*leader.NotTakenError)):
		text = strings.ReplaceAll(err.Error(), "\n", "; ")
	case s.Code() == codes.DeadlineExceeded && saidByServer(s):
		text = s.Message()
	case s.Code() == codes.DeadlineExceeded || errors.Is(err, context.DeadlineExceeded):
		text = "no answer came within --timeout"
	case s.Code() == codes.Canceled || errors.Is(err, context.Canceled):
		text = "interrupted before the answer came"
	case s.Code() == codes.Unavailable:
		text = "the connection was lost before the answer came: " + s.Message()
	case s.Code() == codes.Unimplemented:
		text = "the server does not know this call; is it an older version, or not Tidemark? " + s.Message()
	default:
		text = fmt.Sprintf("the call failed with %s: %s", s.Code(), s.Message())
	}
	return &transportError{text, err}
}

// saidByServer tells what a server says of a wait that it ended from gRPC's own words for the
// end of the time, on either side, which say nothing to people.
func saidByServer(s *status.Status) bool {
	return s.Message() != "" && !strings.Contains(s.Message(), context.DeadlineExceeded.Error()) &&
		!strings.HasPrefix(s.Message(), "stream terminated by RST_STREAM")
}

// tableAdvice is what the code table says to do, as plain text.
func tableAdvice(refusal *api.Error) string {
	c, _ := api.Lookup(refusal.Code)
	return strings.ReplaceAll(c.Advice, "`", "")
}

// appendAdvice says what the writer of one event can do about a refusal.
func appendAdvice(refusal *api.Error, req *pb.AppendRequest, recorded func(error) comparison) string {
	detail, ok := api.DetailOf[*pb.AppendFailure](refusal)
	if !ok {
		return tableAdvice(refusal)
	}
	key, client := formatAggregate(detail.GetAggregate()), req.GetClientId()
	event := req.GetWrites()[0].GetEvents()[0]
	look := fmt.Sprintf("tidemark find %s %s %d", key, client, detail.GetAttemptedSeq())
	if holder := detail.GetHolder(); holder != nil {
		switch {
		case holder.GetOthers():
			return fmt.Sprintf("Sequence %d is recorded more than once, last in version %d: unenforced writes did that, and nobody can tell whether this event is among them. To see what was recorded: %s",
				detail.GetAttemptedSeq(), holder.GetVersion(), look)
		case event.GetEventId() == "":
			return fmt.Sprintf("Sequence %d is recorded in version %d. Without an event id of its own (--event-id) nobody can tell whether that is this event. To see what was recorded: %s",
				detail.GetAttemptedSeq(), holder.GetVersion(), look)
		case holder.GetEventId() == event.GetEventId():
			return heldAdvice(recorded(refusal), holder.GetVersion(), detail.GetAttemptedSeq(), look)
		default:
			text := fmt.Sprintf("Sequence %d belongs to another event (id %q). Yours was not written; ", detail.GetAttemptedSeq(), holder.GetEventId())
			if detail.GetMark() >= highestSeq {
				return text + usedUp(client)
			}
			return text + fmt.Sprintf("send it with a --seq above %d, if another writer does not share the name %q by mistake.", detail.GetMark(), client)
		}
	}
	switch refusal.Code {
	case pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION:
		text := fmt.Sprintf("Sequence %d was skipped, and %d was committed after it: it can no longer be used. This event was not written; ", detail.GetAttemptedSeq(), detail.GetMark())
		above := max(detail.GetMark(), detail.GetInFlightMark())
		if above >= highestSeq {
			return text + usedUp(client)
		}
		return text + fmt.Sprintf("if no earlier call can still be on its way, send it with a --seq above %d.", above)
	case pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION:
		if detail.InFlightVersion != nil || detail.InFlightMark != nil && detail.GetInFlightMark() >= detail.GetAttemptedSeq() {
			return "Nothing is decided yet: other writes are in flight. Send the same again in a moment."
		}
		expected, current := detail.GetExpectedVersion(), detail.GetCurrentVersion()
		if expected > current {
			return fmt.Sprintf("The aggregate is at version %d, below %d. Look at it (tidemark aggregate %s), decide again, and send with --expect %d.",
				current, expected, key, current)
		}
		return fmt.Sprintf("Read what happened (tidemark read %s --from %d), decide again, and send with --expect %d.",
			key, expected+1, current)
	case pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE:
		return "Keep the --seq and send the same again until the answer is another one; with --event-id and --confirm the server waits and answers with the result."
	case pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_EXISTS:
		return "To create it, add --create."
	}
	return tableAdvice(refusal)
}

// highestSeq is the highest client_seq there is.
const highestSeq = 1<<63 - 1

// usedUp says what is left to a writer whose mark is, or is about to be, the highest sequence.
func usedUp(client string) string {
	return fmt.Sprintf("there is no sequence above %d, so those of %q are used up on this aggregate: send it with another --client-id.", uint64(highestSeq), client)
}

// writeErrorText prints a failure for people: what happened, the fields of the refusal,
// and what to do.
func writeErrorText(w io.Writer, failure *exitError) {
	fmt.Fprintf(w, "tidemark: %s\n", printableLines(failure.Error()))
	if detail, ok := api.DetailOf[*pb.AppendFailure](failure.err); ok {
		_ = fields(w, appendFailureFields(detail)...)
	}
	if detail, ok := api.DetailOf[*pb.VersionUnavailable](failure.err); ok {
		_ = fields(w, "  requested version", detail.GetRequested(),
			"  first version", detail.GetFirstVersion(), "  current version", detail.GetCurrentVersion())
	}
	if refusal, ok := api.FromStatus(failure.err); ok && refusal.RetryAfter > 0 {
		_ = fields(w, "  retry after", refusal.RetryAfter)
	}
	if failure.advice != "" {
		fmt.Fprintln(w, printable(failure.advice))
	}
}

func appendFailureFields(d *pb.AppendFailure) []any {
	pairs := []any{"  aggregate", formatAggregate(d.GetAggregate())}
	if d.ExpectedVersion != nil {
		pairs = append(pairs, "  expected version", d.GetExpectedVersion())
	}
	pairs = append(pairs, "  current version", d.GetCurrentVersion())
	if d.InFlightVersion != nil {
		pairs = append(pairs, "  version in flight", d.GetInFlightVersion())
	}
	pairs = append(pairs, "  sequence sent", d.GetAttemptedSeq(), "  mark", d.GetMark())
	if d.InFlightMark != nil {
		pairs = append(pairs, "  mark in flight", d.GetInFlightMark())
	}
	return append(pairs, "  holder", formatHolder(d.GetHolder()))
}

// formatHolder describes who recorded a sequence.
func formatHolder(h *pb.Holder) string {
	if h == nil {
		return "none"
	}
	text := fmt.Sprintf("version %d, position %d, sequence %d", h.GetVersion(), h.GetPosition(), h.GetClientSeq())
	if h.GetEventId() != "" {
		text += fmt.Sprintf(", event id %q", h.GetEventId())
	}
	if h.GetEventCount() > 1 {
		text += fmt.Sprintf(", one of %d events with sequences %d to %d", h.GetEventCount(), h.GetFirstClientSeq(), h.GetLastClientSeq())
	}
	text += ", committed " + formatTime(h.GetCommittedAt())
	if h.GetTrimmed() {
		text += ", no longer readable"
	}
	if h.GetOthers() {
		text += ", recorded more than once"
	}
	return text
}

// formatMilliseconds is formatTime for tables: UTC, always as wide.
func formatMilliseconds(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().UTC().Format("2006-01-02T15:04:05.000Z")
}

func formatTime(t *timestamppb.Timestamp) string {
	if t == nil {
		return "-"
	}
	return t.AsTime().UTC().Format(time.RFC3339Nano)
}

// errorJSON is what --output json prints on stderr, under "error".
type errorJSON struct {
	// Code is the number of the code table; 0 = the failure is not an answer of Tidemark.
	Code            int               `json:"code"`
	Name            string            `json:"name,omitempty"`
	GRPCStatus      string            `json:"grpc_status,omitempty"`
	Message         string            `json:"message"`
	ExitCode        int               `json:"exit_code"`
	MayHaveHappened bool              `json:"may_have_happened"`
	Advice          string            `json:"advice,omitempty"`
	RetryAfter      string            `json:"retry_after,omitempty"`
	Details         []json.RawMessage `json:"details,omitempty"`
}

// writeErrorJSON writes a failure as one line: {"error": {...}}. Details are protojson
// with "@type".
func writeErrorJSON(w io.Writer, failure *exitError) {
	body := errorJSON{Message: failure.Error(), ExitCode: failure.code, MayHaveHappened: failure.mayHaveHappened, Advice: failure.advice}
	if refusal, ok := api.FromStatus(failure.err); ok {
		row, _ := api.Lookup(refusal.Code)
		body.Code, body.Name, body.Message = int(refusal.Code), row.Name, refusal.Message
		body.GRPCStatus = refusal.GRPCStatus().Code().String()
		if refusal.RetryAfter > 0 {
			body.RetryAfter = refusal.RetryAfter.String()
		}
		for _, d := range refusal.Details {
			packed, err := anypb.New(d)
			if err != nil {
				continue
			}
			if raw, err := appendJSON(nil, packed); err == nil {
				body.Details = append(body.Details, raw)
			}
		}
	} else if errors.As(failure.err, new(*transportError)) {
		body.GRPCStatus = status.Code(failure.err).String()
	}
	line, err := json.Marshal(struct {
		Error errorJSON `json:"error"`
	}{body})
	if err == nil {
		_, _ = w.Write(append(line, '\n'))
	}
}

// printableLines is printable for text of several lines.
func printableLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = printable(lines[i])
	}
	return strings.Join(lines, "\n")
}
