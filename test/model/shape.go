package model

import (
	"slices"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// shape is step 1 of 2.1 as far as the random tests go wrong on purpose; every limit from
// both sides is the server's own test. A request with two faults may be told either.
func shape(req *pb.AppendRequest) pb.ErrorCode {
	seen := map[string]bool{}
	confirm := req.GetOnDuplicate() == pb.OnDuplicate_ON_DUPLICATE_CONFIRM
	for _, w := range req.GetWrites() {
		switch {
		case len(w.GetEvents()) == 0:
			return pb.ErrorCode_ERROR_CODE_EMPTY_EVENTS_LIST
		case seen[name(w.GetAggregate())],
			w.PreviousClientSeq != nil && !w.GetEnforceClientIdempotency(),
			confirm && !w.GetEnforceClientIdempotency():
			return pb.ErrorCode_ERROR_CODE_INVALID_REQUEST
		}
		seen[name(w.GetAggregate())] = true
		for i, e := range w.GetEvents() {
			switch {
			case e.GetType() == "":
				return pb.ErrorCode_ERROR_CODE_EMPTY_EVENT_TYPE
			case e.GetClientSeq() == 0, confirm && e.GetEventId() == "":
				return pb.ErrorCode_ERROR_CODE_INVALID_REQUEST
			case w.GetEnforceClientIdempotency() && i > 0 && e.GetClientSeq() <= w.GetEvents()[i-1].GetClientSeq():
				return pb.ErrorCode_ERROR_CODE_CLIENT_SEQ_NOT_INCREASING
			}
		}
	}
	return 0
}

// name is the text form of an aggregate's key.
func name(k *pb.AggregateKey) string { return k.GetOrg() + "/" + k.GetType() + "/" + k.GetId() }

func sequences(w *pb.Write) []uint64 {
	var out []uint64
	for _, e := range w.GetEvents() {
		out = append(out, e.GetClientSeq())
	}
	return out
}

func lowest(w *pb.Write) uint64  { return slices.Min(sequences(w)) }
func highest(w *pb.Write) uint64 { return slices.Max(sequences(w)) }
