package model

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// mark is the highest sequence that the writer ever recorded on the aggregate.
func (m *Model) mark(aggregate, client string) (mark uint64) {
	for b, e := range m.recordedBy(aggregate, client) {
		mark = max(mark, b.GetEvents()[e].GetClientSeq())
	}
	return mark
}

// recordedBy yields every event that the writer ever recorded on the aggregate as (batch,
// index), the newest batch first and within a batch in order.
func (m *Model) recordedBy(aggregate, client string) func(yield func(*pb.Batch, int) bool) {
	return func(yield func(*pb.Batch, int) bool) {
		a := m.aggregates[aggregate]
		if a == nil {
			return
		}
		for _, b := range slices.Backward(a.batches[a.forgotten:]) {
			for i := range b.GetEvents() {
				if b.GetClientId() == client && !yield(b, i) {
					return
				}
			}
		}
	}
}

// find is the newest batch of the writer that recorded seq, and the first event there that
// did; n is how many events did in all.
func (m *Model) find(aggregate, client string, seq uint64) (found *pb.Batch, index, n int) {
	for b, i := range m.recordedBy(aggregate, client) {
		if b.GetEvents()[i].GetClientSeq() != seq {
			continue
		}
		if n++; n == 1 {
			found, index = b, i
		}
	}
	return found, index, n
}

// holder is who recorded seq (2.4); nil = no committed batch did.
func (m *Model) holder(aggregate, client string, seq uint64) *pb.Holder {
	b, i, n := m.find(aggregate, client, seq)
	if b == nil {
		return nil
	}
	var seqs []uint64
	for _, e := range b.GetEvents() {
		seqs = append(seqs, e.GetClientSeq())
	}
	return &pb.Holder{
		Version: b.GetVersion(), Incarnation: b.GetIncarnation(), Position: b.GetPosition(), CommittedAt: b.GetCommittedAt(),
		ClientSeq: seq, EventId: b.GetEvents()[i].GetEventId(),
		FirstClientSeq: slices.Min(seqs), LastClientSeq: slices.Max(seqs), EventCount: uint32(len(seqs)),
		Trimmed: m.trimmed(b.GetAggregate(), b.GetIncarnation(), b.GetVersion()), Others: n > 1,
	}
}

// trimmed says that a batch is not readable any more, by a trim or a delete.
func (m *Model) trimmed(k *pb.AggregateKey, incarnation uint32, version uint64) bool {
	a := m.aggregates[name(k)]
	return a.deleted || incarnation != a.incarnation || version < a.floor
}

func (m *Model) at(aggregate string, position uint64) *pb.Batch {
	i := slices.IndexFunc(m.aggregates[aggregate].batches, func(b *pb.Batch) bool { return b.GetPosition() == position })
	return m.aggregates[aggregate].batches[i]
}

// Read answers a read with all its batches and how it ends, or with a code and its detail.
func (m *Model) Read(req *pb.ReadRequest) ([]*pb.Batch, *pb.ReadEnd, pb.ErrorCode, *pb.VersionUnavailable) {
	if inverted(req.GetFilter()) {
		return nil, nil, pb.ErrorCode_ERROR_CODE_INVALID_REQUEST, nil
	}
	a := m.aggregates[name(req.GetAggregate())]
	if a == nil || a.deleted {
		return nil, nil, pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND, nil
	}
	// The versions asked for, lowest and highest, 0 = open; then walk them in the direction.
	backward := req.GetDirection() == pb.Direction_DIRECTION_BACKWARD
	low, high := req.GetFromVersion(), req.GetToVersion()
	if backward {
		low, high = high, low
	}
	for _, named := range []uint64{req.GetFromVersion(), req.GetToVersion()} {
		if named != 0 && named < a.floor {
			return nil, nil, pb.ErrorCode_ERROR_CODE_UNAVAILABLE_VERSION,
				&pb.VersionUnavailable{Requested: named, FirstVersion: a.floor, CurrentVersion: a.version}
		}
	}
	low = max(low, a.floor)
	if high == 0 || high > a.version {
		high = a.version
	}
	var out []*pb.Batch
	next := low
	if backward {
		next = high
	}
	for next >= low && next <= high && (req.GetLimit() == 0 || uint32(len(out)) < req.GetLimit()) {
		i := slices.IndexFunc(a.batches, func(b *pb.Batch) bool { return b.GetVersion() == next && b.GetIncarnation() == a.incarnation })
		if b := filtered(req.GetFilter(), a.batches[i]); b != nil {
			out = append(out, b)
		}
		if next++; backward {
			next -= 2
		}
	}
	if backward && next < a.floor {
		next = 0
	}
	return out, &pb.ReadEnd{NextVersion: next, CurrentVersion: a.version, Position: m.position, Timeline: m.Timeline}, 0, nil
}

// ReadAll answers a read of the log: of the orgs that are named, which are this model's.
func (m *Model) ReadAll(req *pb.ReadAllRequest) ([]*pb.Batch, *pb.ReadAllEnd, pb.ErrorCode) {
	if inverted(req.GetFilter()) {
		return nil, nil, pb.ErrorCode_ERROR_CODE_INVALID_REQUEST
	}
	var log []*pb.Batch
	for _, a := range m.aggregates {
		log = append(log, a.batches...)
	}
	slices.SortFunc(log, func(a, b *pb.Batch) int { return cmp.Compare(a.GetPosition(), b.GetPosition()) })
	from := req.GetFromPosition()
	backward := req.GetDirection() == pb.Direction_DIRECTION_BACKWARD
	end := &pb.ReadAllEnd{NextPosition: max(from, m.position+1), LastPosition: m.position, Timeline: m.Timeline}
	if backward {
		slices.Reverse(log)
		end.NextPosition = 0
	}
	var out []*pb.Batch
	for _, b := range log {
		p := b.GetPosition()
		if !backward && p < from || backward && from != 0 && p > from ||
			m.trimmed(b.GetAggregate(), b.GetIncarnation(), b.GetVersion()) {
			continue
		}
		if f := filtered(req.GetFilter(), b); f != nil {
			out = append(out, f)
		}
		if req.GetLimit() != 0 && len(out) == int(req.GetLimit()) {
			if end.NextPosition = p + 1; backward {
				end.NextPosition = p - 1
			}
			break
		}
	}
	return out, end, 0
}

// inverted: a range ends before it begins. The contract does not say what that is; the
// server calls it a fault of the request, which is the kinder reading.
func inverted(f *pb.Filter) bool {
	after := func(from, to *timestamppb.Timestamp) bool {
		return from != nil && to != nil && from.AsTime().After(to.AsTime())
	}
	return f.GetClientSeqTo() != 0 && f.GetClientSeqFrom() > f.GetClientSeqTo() ||
		after(f.GetCommittedFrom(), f.GetCommittedTo()) || after(f.GetOccurredFrom(), f.GetOccurredTo())
}

// filtered is the batch with the events that pass, or nil if none does.
func filtered(f *pb.Filter, b *pb.Batch) *pb.Batch {
	in := func(list []string, s string) bool { return len(list) == 0 || slices.Contains(list, s) }
	after := func(bound, t *timestamppb.Timestamp) bool {
		return bound == nil || t != nil && !t.AsTime().Before(bound.AsTime())
	}
	before := func(bound, t *timestamppb.Timestamp) bool {
		return bound == nil || t != nil && !t.AsTime().After(bound.AsTime())
	}
	if !in(f.GetClientIds(), b.GetClientId()) || slices.Contains(f.GetExcludeClientIds(), b.GetClientId()) ||
		!after(f.GetCommittedFrom(), b.GetCommittedAt()) || !before(f.GetCommittedTo(), b.GetCommittedAt()) {
		return nil
	}
	out := proto.Clone(b).(*pb.Batch)
	out.Events = slices.DeleteFunc(out.Events, func(e *pb.Event) bool {
		return !in(f.GetEventTypes(), e.GetType()) || !in(f.GetEventIds(), e.GetEventId()) ||
			e.GetClientSeq() < f.GetClientSeqFrom() || f.GetClientSeqTo() != 0 && e.GetClientSeq() > f.GetClientSeqTo() ||
			!after(f.GetOccurredFrom(), e.GetOccurredAt()) || !before(f.GetOccurredTo(), e.GetOccurredAt())
	})
	if len(out.Events) == 0 {
		return nil
	}
	return out
}

// GetAggregate describes an aggregate; nil = it never existed (7001).
func (m *Model) GetAggregate(k *pb.AggregateKey) *pb.GetAggregateResponse {
	a := m.aggregates[name(k)]
	if a == nil {
		return nil
	}
	first, last := a.batches[0], a.batches[len(a.batches)-1]
	for _, b := range slices.Backward(a.batches) {
		if b.GetIncarnation() == a.incarnation {
			first = b
		}
	}
	lastClient := last.GetClientId()
	if a.forgotten == len(a.batches) {
		lastClient = ""
	}
	return &pb.GetAggregateResponse{
		Aggregate: k, Version: a.version, Incarnation: a.incarnation, FirstVersion: a.floor,
		EventCount: last.GetFirstEventNumber() + uint64(len(last.GetEvents())) - 1,
		CreatedAt:  first.GetCommittedAt(), LastCommittedAt: last.GetCommittedAt(), LastClientId: lastClient,
		Position: a.position, Deleted: a.deleted, AllowRecreate: a.recreatable && a.deleted, ChainHash: last.GetChainHash(), Timeline: m.Timeline,
	}
}

// GetMark is a writer's mark with its holder, and what the writer has in flight.
func (m *Model) GetMark(k *pb.AggregateKey, client string) *pb.GetMarkResponse {
	out := &pb.GetMarkResponse{Mark: m.mark(name(k), client), Timeline: m.Timeline}
	out.Holder = m.holder(name(k), client, out.Mark)
	for _, r := range m.flight {
		for _, w := range r.req.GetWrites() {
			if name(w.GetAggregate()) == name(k) && r.req.GetClientId() == client {
				out.InFlightMark = proto.Uint64(max(out.GetInFlightMark(), highest(w)))
			}
		}
	}
	return out
}

// ListMarks is the marks of all writers of an aggregate in byte order of their ids.
func (m *Model) ListMarks(k *pb.AggregateKey) []*pb.WriterMark {
	a := m.aggregates[name(k)]
	if a == nil {
		return nil
	}
	writers := map[string]bool{}
	for _, b := range a.batches[a.forgotten:] {
		writers[b.GetClientId()] = true
	}
	var out []*pb.WriterMark
	for _, client := range slices.Sorted(maps.Keys(writers)) {
		mark := m.mark(name(k), client)
		out = append(out, &pb.WriterMark{ClientId: client, Mark: mark, Holder: m.holder(name(k), client, mark)})
	}
	return out
}

// FindEvent is the newest batch of a writer that recorded seq.
func (m *Model) FindEvent(k *pb.AggregateKey, client string, seq uint64) *pb.FindEventResponse {
	out := &pb.FindEventResponse{Holder: m.holder(name(k), client, seq)}
	if out.Found = out.Holder != nil; !out.Found {
		return out
	}
	b, i, _ := m.find(name(k), client, seq)
	out.EventIndex = uint32(i)
	if !out.GetHolder().GetTrimmed() {
		out.Batch = b
	}
	return out
}

// LastCommitted is the time that the next committed_at must not be below.
func (m *Model) LastCommitted() time.Time {
	if len(m.commits) == 0 {
		return time.Time{}
	}
	return m.commits[len(m.commits)-1][0].GetCommittedAt().AsTime()
}
