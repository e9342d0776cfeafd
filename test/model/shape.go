package model

import (
	"slices"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// shape is step 1 of 2.1 as far as the random tests go wrong on purpose; every limit from
// both sides is the server's own test. It lists the faults in no order: of two, a request
// may be told either.
func shape(req *pb.AppendRequest) (faults []pb.ErrorCode) {
	seen := map[string]bool{}
	confirm := req.GetOnDuplicate() == pb.OnDuplicate_ON_DUPLICATE_CONFIRM
	fault := func(is bool, code pb.ErrorCode) {
		if is && !slices.Contains(faults, code) {
			faults = append(faults, code)
		}
	}
	for _, w := range req.GetWrites() {
		enforced := w.GetEnforceClientIdempotency()
		fault(len(w.GetEvents()) == 0, pb.ErrorCode_ERROR_CODE_EMPTY_EVENTS_LIST)
		fault(seen[name(w.GetAggregate())], pb.ErrorCode_ERROR_CODE_INVALID_REQUEST)
		fault(!enforced && (confirm || w.PreviousClientSeq != nil), pb.ErrorCode_ERROR_CODE_INVALID_REQUEST)
		seen[name(w.GetAggregate())] = true
		for i, e := range w.GetEvents() {
			fault(e.GetType() == "", pb.ErrorCode_ERROR_CODE_EMPTY_EVENT_TYPE)
			fault(e.GetClientSeq() == 0 || confirm && e.GetEventId() == "", pb.ErrorCode_ERROR_CODE_INVALID_REQUEST)
			fault(enforced && i > 0 && e.GetClientSeq() <= w.GetEvents()[i-1].GetClientSeq(), pb.ErrorCode_ERROR_CODE_CLIENT_SEQ_NOT_INCREASING)
		}
	}
	return faults
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
