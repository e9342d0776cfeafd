package clients

import (
	"context"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/linear"
)

// verdict is what one answer says of the request.
type verdict int

const (
	again  verdict = iota // nothing yet: send the same bytes again
	landed                // it is there
	never                 // it is not there and never will be
)

// The codes that the recipe is about.
const (
	used        = pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION
	conflict    = pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION
	notExists   = pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_EXISTS
	notLeader   = pb.ErrorCode_ERROR_CODE_NOT_LEADER
	busy        = pb.ErrorCode_ERROR_CODE_SERVER_BUSY
	notReady    = pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY
	pressure    = pb.ErrorCode_ERROR_CODE_REPLICATION_BACKPRESSURE
	inFlight    = pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE
	outcomeOpen = pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN
	diskFull    = pb.ErrorCode_ERROR_CODE_INSUFFICIENT_DISK_SPACE
	gap         = pb.ErrorCode_ERROR_CODE_CLIENT_SEQUENCE_GAP
)

// resolve sends a request until its fate is known.
func (w *writer) resolve(r *request) {
	for attempt := 0; ; attempt++ {
		copies := 1
		if w.chance(10) {
			copies = 2
		}
		switch w.send(r, attempt, copies) {
		case landed:
			for i, a := range r.aggregates {
				w.next[a.name] = r.Writes[i].Last + 1
				w.load.marked(a, w.id, r.Writes[i].Last)
			}
			w.load.acknowledged.Add(1)
			return
		case never:
			// If an earlier attempt may still land, a higher sequence abandons it.
			for i, a := range r.aggregates {
				if r.unknown {
					w.next[a.name] = max(w.next[a.name], r.Writes[i].Last+1)
				}
			}
			return
		}
		if !w.pause(w.load.giveUp, 20*time.Millisecond) {
			w.load.problem("%s: a request does not resolve: %v", w.id, r.Request.Writes)
			return
		}
	}
}

// send sends one or two copies at once and takes their verdict: what landed, did.
func (w *writer) send(r *request, attempt, copies int) verdict {
	answers := make([]answer, copies)
	var all sync.WaitGroup
	for i := range copies {
		req, message, target := r.Request, r.message, w.target()
		if i > 0 || attempt > 0 && w.chance(20) {
			target = w.any()
		}
		if attempt > 0 && w.chance(20) && !req.Confirm {
			req = &linear.Request{Writer: req.Writer, Writes: req.Writes, Confirm: true}
			message = proto.Clone(message).(*pb.AppendRequest)
			message.OnDuplicate = pb.OnDuplicate_ON_DUPLICATE_CONFIRM
		}
		timeout := 500*time.Millisecond + time.Duration(w.rng.Int64N(int64(2*time.Second)))
		if w.chance(40) {
			timeout = 10 * time.Second // long enough to hear what a leader says that comes back
		}
		all.Go(func() { answers[i] = w.call(req, message, target, timeout) }) // ends at the timeout
	}
	all.Wait()
	result := again
	for _, a := range answers {
		switch v := w.judge(r, a); {
		case v == landed, result == again:
			result = v
		}
	}
	return result
}

// answer is what came back from one call.
type answer struct {
	linear.Op
	leader string // from a 2011
	unsent bool   // there was no connection to send it on
}

// call sends a request once and records it.
func (w *writer) call(r *linear.Request, m *pb.AppendRequest, t *Target, timeout time.Duration) answer {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	op := linear.Op{Client: w.id, Node: t.ID, Call: w.load.recorder.Now(), Kind: linear.Append, Request: r, Code: linear.Unknown}
	resp, err := pb.NewEventStoreServiceClient(t.Conn).Append(ctx, m)
	op.Return = w.load.recorder.Now()
	if err == nil {
		op.Code = 0
		for _, res := range resp.GetResults() {
			op.Results = append(op.Results, linear.Result{Version: res.GetVersion(), Position: res.GetPosition(), Already: res.GetAlreadyCommitted()})
		}
	} else if e, ok := api.FromStatus(err); ok && e.MayHaveHappened() == api.No {
		op.Code = int(e.Code)
		if f, ok := api.DetailOf[*pb.AppendFailure](err); ok {
			op.Failure = failureOf(f)
		}
	}
	if err != nil && strings.Contains(status.Convert(err).Message(), "Error while dialing") {
		// It was never sent. To take it for unknown would excuse a node that says a definite
		// no to what lands.
		return answer{unsent: true}
	}
	w.load.record(op)
	n, _ := api.DetailOf[*pb.NotLeader](err)
	return answer{Op: op, leader: n.GetLeaderAddress()}
}

// judge takes one answer's verdict on the request.
func (w *writer) judge(r *request, op answer) verdict {
	if op.unsent {
		w.follow("")
		return again
	}
	f := op.Failure
	switch code := pb.ErrorCode(op.Code); code {
	case 0:
		if len(op.Results) != len(r.Writes) {
			w.load.problem("%s: %d results for %d writes", w.id, len(op.Results), len(r.Writes))
			return landed
		}
		for i, res := range op.Results {
			w.load.learn(r.aggregates[i], res.Version, res.Position)
		}
		return landed
	case linear.Unknown:
		r.unknown = true
		w.follow("")
		return again
	case notLeader:
		w.follow(op.leader)
		return again
	case notReady, busy, pressure, diskFull:
		return again
	case used, conflict, notExists, gap, inFlight:
		if f == nil || f.Write >= len(r.Writes) {
			w.load.problem("%s: %d without its detail", w.id, code)
			return never
		}
		return w.refused(r, code, f)
	default:
		w.load.problem("%s: unexpected answer %d to %v", w.id, code, r.Request.Writes)
		return never
	}
}

// refused takes a refusal's verdict on the request.
func (w *writer) refused(r *request, code pb.ErrorCode, f *linear.Failure) verdict {
	write, a := r.Writes[f.Write], r.aggregates[f.Write]
	w.load.learn(a, f.Current, 0)
	if f.Holder != nil && f.Holder.ID == write.ID {
		if f.Holder.First != write.First || f.Holder.Last != write.Last {
			w.load.problem("%s: holder %v is not the whole of %v", w.id, f.Holder, write)
		}
		w.load.learn(a, f.Holder.Version, f.Holder.Position)
		return landed
	}
	w.load.marked(a, w.id, f.Mark)
	switch {
	case code == inFlight:
		return again
	case code == used:
		w.load.problem("%s: 2002 (%v) about a sequence that was never used otherwise: %v", w.id, f, write)
		return never
	case code == conflict:
		if f.InFlight != nil || f.InFlightMark != nil && *f.InFlightMark >= write.First {
			return again // hold
		}
		if write.Expected == nil || f.Current <= *write.Expected {
			w.load.problem("%s: 2003 (%v) about a guard that is not passed: %v", w.id, f, write)
		}
		return never
	}
	return never
}

// failureOf is a refusal's detail as it is remembered.
func failureOf(f *pb.AppendFailure) *linear.Failure {
	return &linear.Failure{
		Write: int(f.GetWriteIndex()), Current: f.GetCurrentVersion(), InFlight: f.InFlightVersion,
		Mark: f.GetMark(), InFlightMark: f.InFlightMark, Holder: holderOf(f.GetHolder()),
	}
}

// holderOf is a holder as it is remembered. An event's id tells its request and its place.
func holderOf(h *pb.Holder) *linear.Holder {
	if h == nil {
		return nil
	}
	id, _, _ := strings.Cut(h.GetEventId(), "/")
	if eventID(id, h.GetClientSeq()-h.GetFirstClientSeq()) != h.GetEventId() || h.GetOthers() || h.GetTrimmed() || h.GetIncarnation() != 1 {
		id = h.String() // equal to none
	}
	return &linear.Holder{Version: h.GetVersion(), Position: h.GetPosition(), First: h.GetFirstClientSeq(), Last: h.GetLastClientSeq(), ID: id}
}
