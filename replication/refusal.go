package replication

import (
	"fmt"
	"strings"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/mark"
	"github.com/tidemark-db/tidemark/wal/record"
)

// refusal is a request refused by the checks, with every field of the answer as of the one
// position that it was judged at.
type refusal struct {
	failure *pb.AppendFailure
	client  string
	// after is the sequence that was to be recorded before this write; 0 = that is not why.
	after uint64
	// broken: a request before it on its stream failed.
	broken bool
	// violated says in words how a payload does not match its schema.
	violated string
}

// newRefusal builds the refusal of a request by v; state belongs to the refused write, and
// rows is the history at the same position.
func newRefusal(client string, w *record.Write, state *writeState, v verdict, rows rowReader) (*refusal, error) {
	org, typ, id, _ := w.Key.Parts()
	f := &pb.AppendFailure{
		Code:           v.code,
		WriteIndex:     uint32(v.index),
		Aggregate:      &pb.AggregateKey{Org: org, Type: typ, Id: id},
		CurrentVersion: state.version(),
		AttemptedSeq:   w.Lowest,
		Mark:           state.mark,
	}
	if w.Flags&record.FlagHasExpected != 0 {
		// A copy: Apply reads the next request of the entry into the same memory.
		expected := w.Expected
		f.ExpectedVersion = &expected
	}
	if v.open {
		ahead := state.ahead()
		f.InFlightVersion = &ahead
	}
	if state.inFlightMark > 0 {
		m := state.inFlightMark
		f.InFlightMark = &m
	}
	var err error
	f.Holder, err = holderOf(rows, &state.head, w.Key, client, w.Lowest)
	ref := &refusal{failure: f, client: client, broken: v.broken}
	if v.after {
		ref.after = w.After
	}
	return ref, err
}

// refusal builds the refusal of a request that Apply refused in the step in progress.
func (p *processor) refusal(req *record.Request, v verdict) (*refusal, error) {
	return newRefusal(req.ClientID, &req.Writes[v.index], &p.states[v.index], v, p.rows())
}

// definite says whether a client may conclude from this refusal that its write did not land
// and act on it: then it is only sent once a majority has confirmed the term.
func (r *refusal) definite() bool {
	switch r.failure.Code {
	case pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE:
		return false
	case pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION:
		return r.failure.Holder == nil
	}
	return true
}

// confirmable says whether CONFIRM compares the request with what was recorded before this
// refusal is sent.
func (r *refusal) confirmable() bool {
	switch r.failure.Code {
	case pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION,
		pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION,
		pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_EXISTS,
		pb.ErrorCode_ERROR_CODE_AGGREGATE_RECREATE_NOT_ALLOWED,
		pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE:
		return true
	}
	return false
}

// stillInFlight is the answer to a CONFIRM whose write was still in flight when its patience
// ended: whatever the checks said of it, it is not decided.
func (r *refusal) stillInFlight() *api.Error {
	r.failure.Code = pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE
	r.failure.InFlightVersion = nil
	return r.err()
}

// err is the refusal as the caller gets it.
func (r *refusal) err() *api.Error {
	f := r.failure
	return api.Errorf(f.Code, "%s", r.text()).With(f)
}

func (r *refusal) text() string {
	f := r.failure
	var b strings.Builder
	fmt.Fprintf(&b, "write %d, %s/%s/%s: ", f.WriteIndex, f.Aggregate.Org, f.Aggregate.Type, f.Aggregate.Id)
	switch f.Code {
	case pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_EXISTS:
		b.WriteString("the aggregate does not exist and allow_create is not set")
	case pb.ErrorCode_ERROR_CODE_AGGREGATE_RECREATE_NOT_ALLOWED:
		b.WriteString("the aggregate was deleted for good")
	case pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION:
		fmt.Fprintf(&b, "expected version %d, found %d", f.GetExpectedVersion(), f.CurrentVersion)
		if f.InFlightVersion != nil {
			fmt.Fprintf(&b, "; writes up to version %d are in flight, so this is not decided: hold and ask again", *f.InFlightVersion)
		}
	case pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION:
		fmt.Fprintf(&b, "client_seq %d of writer %q is at or below its mark %d", f.AttemptedSeq, r.client, f.Mark)
	case pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE:
		fmt.Fprintf(&b, "client_seq %d of writer %q is in flight (up to %d) and not committed yet: ask again", f.AttemptedSeq, r.client, f.GetInFlightMark())
	case pb.ErrorCode_ERROR_CODE_WRITE_SCHEMA_VALIDATION_FAILED:
		b.WriteString(violationText(f.Violation, r.violated))
	case pb.ErrorCode_ERROR_CODE_CLIENT_SEQUENCE_GAP:
		if r.after > 0 {
			fmt.Fprintf(&b, "it was sent behind client_seq %d of writer %q on its stream, and that is not recorded; the mark is %d", r.after, r.client, f.Mark)
			break
		}
		if r.broken {
			fmt.Fprintf(&b, "a request of writer %q before it on this stream was not admitted or failed, so that previous_client_seq is needed: the mark is %d", r.client, f.Mark)
		} else {
			fmt.Fprintf(&b, "previous_client_seq does not match writer %q: its mark is %d", r.client, f.Mark)
		}
		if f.InFlightMark != nil {
			fmt.Fprintf(&b, ", %d with what is in flight", *f.InFlightMark)
		}
	}
	switch h := f.Holder; {
	case h != nil:
		fmt.Fprintf(&b, "; client_seq %d was recorded at version %d", h.ClientSeq, h.Version)
		if h.EventId != "" {
			fmt.Fprintf(&b, " by event %q", h.EventId)
		}
	case f.Code == pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION:
		b.WriteString("; no event recorded it: it was skipped")
	}
	return b.String()
}

// markHead is the head of a view as the checks use it.
func markHead(v viewReader, k record.Key) (mark.Head, error) {
	h, ok, err := v.Head(k)
	return mark.Head{Head: h, Exists: ok}, err
}
