package server

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/record"
)

// filter is a pb.Filter in the form in which stored batches are tested: most of what a
// narrow read looks at is passed over, so nothing is decoded before it has passed.
type filter struct {
	// Of the batch. A nil set passes everything.
	clients, notClients        map[string]struct{}
	committedMin, committedMax int64 // Unix nanoseconds, inclusive

	// Of an event.
	perEvent                 bool // whether any of what follows is set
	types, ids               map[string]struct{}
	seqMin, seqMax           uint64
	occurredMin, occurredMax *timestamppb.Timestamp // nil = open
}

func newFilter(f *pb.Filter) *filter {
	out := &filter{
		clients:      setOf(f.GetClientIds()),
		notClients:   setOf(f.GetExcludeClientIds()),
		committedMin: math.MinInt64,
		committedMax: math.MaxInt64,
		types:        setOf(f.GetEventTypes()),
		ids:          setOf(f.GetEventIds()),
		seqMin:       f.GetClientSeqFrom(),
		seqMax:       f.GetClientSeqTo(),
		occurredMin:  f.GetOccurredFrom(),
		occurredMax:  f.GetOccurredTo(),
	}
	if t := f.GetCommittedFrom(); t != nil {
		out.committedMin = nanosOf(t)
	}
	if t := f.GetCommittedTo(); t != nil {
		out.committedMax = nanosOf(t)
	}
	out.perEvent = out.types != nil || out.ids != nil || out.seqMin != 0 || out.seqMax != 0 ||
		out.occurredMin != nil || out.occurredMax != nil
	if out.seqMax == 0 {
		out.seqMax = math.MaxUint64
	}
	return out
}

// nanosOf is t in Unix nanoseconds, or the end of their range that t lies beyond.
func nanosOf(t *timestamppb.Timestamp) int64 {
	const edge = math.MaxInt64 / int64(time.Second) // seconds that fit, both ways, with any nanos
	switch s := t.GetSeconds(); {
	case s >= edge:
		return math.MaxInt64
	case s <= -edge:
		return math.MinInt64
	default:
		return s*int64(time.Second) + int64(t.GetNanos())
	}
}

func setOf(list []string) map[string]struct{} {
	if len(list) == 0 {
		return nil
	}
	set := make(map[string]struct{}, len(list))
	for _, s := range list {
		set[s] = struct{}{}
	}
	return set
}

// passesBatch tests what all events of a batch share.
func (f *filter) passesBatch(h *record.BatchHeader) bool {
	if h.CommittedAt < f.committedMin || h.CommittedAt > f.committedMax {
		return false
	}
	if f.clients != nil {
		if _, in := f.clients[h.ClientID]; !in {
			return false
		}
	}
	_, out := f.notClients[h.ClientID]
	return !out
}

// passesEvent tests one event. An event without occurred_at lies in no range of times.
func (f *filter) passesEvent(v *record.EventView) bool {
	if v.ClientSeq < f.seqMin || v.ClientSeq > f.seqMax {
		return false
	}
	if f.types != nil {
		if _, in := f.types[string(v.Type)]; !in {
			return false
		}
	}
	if f.ids != nil {
		if _, in := f.ids[string(v.EventID)]; !in {
			return false
		}
	}
	if f.occurredMin == nil && f.occurredMax == nil {
		return true
	}
	return v.HasOccurredAt &&
		(f.occurredMin == nil || compareTime(v.Seconds, v.Nanos, f.occurredMin) >= 0) &&
		(f.occurredMax == nil || compareTime(v.Seconds, v.Nanos, f.occurredMax) <= 0)
}

// compareTime compares without conversion: occurred_at may lie outside what nanoseconds
// in 64 bits can hold.
func compareTime(seconds int64, nanos uint32, t *timestamppb.Timestamp) int {
	return cmp.Or(cmp.Compare(seconds, t.GetSeconds()), cmp.Compare(int64(nanos), int64(t.GetNanos())))
}

// decode returns the stored batch, which must be of the given version, with the events that
// pass, or nil if none does.
func (f *filter) decode(stored []byte, version uint64) (*pb.Batch, error) {
	h, prev, chain, events, err := record.ParseBatch(stored)
	if err != nil {
		return nil, err
	}
	if h.Version != version {
		return nil, fmt.Errorf("%w: the batch where version %d of %s was expected is version %d of %s",
			record.ErrCorrupt, version, h.Key, h.Version, h.Key)
	}
	if !f.passesBatch(&h) {
		return nil, nil
	}
	if !f.perEvent {
		return record.DecodeBatch(stored)
	}
	var out *pb.Batch
	var v record.EventView
	for i := range h.EventCount {
		if events, err = record.NextEvent(events, &v); err != nil {
			return nil, err
		}
		if !f.passesEvent(&v) {
			continue
		}
		e, _, err := record.DecodeEvent(v.Raw)
		if err != nil {
			return nil, err
		}
		e.EventNumber = h.FirstEventNumber + uint64(i)
		if out == nil {
			out = h.Message()
			out.PreviousChainHash = prev[:]
			out.ChainHash = chain[:]
		}
		out.Events = append(out.Events, e)
	}
	if len(events) != 0 {
		return nil, fmt.Errorf("%w: %d bytes after the %d events of version %d of %s",
			record.ErrCorrupt, len(events), h.EventCount, h.Version, h.Key)
	}
	return out, nil
}
