package model

import (
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// Model is what a shard has committed and what it has in flight.
type Model struct {
	Timeline   string
	aggregates map[string]*aggregate
	commits    [][]*pb.Batch // every request that landed, oldest first
	flight     []*InFlight   // admitted and not committed, in the order of admission
	position   uint64
}

// aggregate keeps every batch ever written: trimming and deleting hide, they remove nothing.
type aggregate struct {
	version, position             uint64
	incarnation                   uint32
	floor                         uint64 // first version that can be read
	deleted, recreatable, restart bool
	batches                       []*pb.Batch // of all lives, oldest first
	forgotten                     int         // so many of batches are not known to have been recorded any more
}

// InFlight is a request that was admitted and is not decided.
type InFlight struct{ req *pb.AppendRequest }

// Answer is what an append is told; exactly one field is set. Codes is for refusals that
// have no AppendFailure, and lists the ones that would do. Results is where it landed, or
// where CONFIRM found it. Wait is CONFIRM attached to the same write in flight: its answer
// is what that request's will be.
type Answer struct {
	Codes    []pb.ErrorCode
	Failure  *pb.AppendFailure
	Results  []*pb.WriteResult
	Wait     *InFlight
	Admitted *InFlight
}

// New is an empty shard.
func New() *Model { return &Model{aggregates: map[string]*aggregate{}} }

// Append judges a request as of now (2.1): shape, timeline, then existence for all writes,
// the guard for all, idempotency for all.
func (m *Model) Append(req *pb.AppendRequest) Answer {
	if faults := shape(req); len(faults) > 0 {
		return Answer{Codes: faults}
	}
	if req.GetTimeline() != "" && req.GetTimeline() != m.Timeline {
		return Answer{Codes: []pb.ErrorCode{pb.ErrorCode_ERROR_CODE_TIMELINE_MISMATCH}}
	}
	answer := m.judge(req)
	if answer == nil {
		r := &InFlight{req: proto.Clone(req).(*pb.AppendRequest)}
		m.flight = append(m.flight, r)
		return Answer{Admitted: r}
	}
	return *answer
}

// judge is steps 2 and 3 of 2.1, and 2.5; nil = the request passes.
func (m *Model) judge(req *pb.AppendRequest) *Answer {
	var failure *pb.AppendFailure
	for _, check := range []func(*standing) pb.ErrorCode{existence, guard, idempotency} {
		for i := range req.GetWrites() {
			s := m.standing(req, i)
			if code := check(s); code != 0 && failure == nil {
				failure = m.failure(code, req, i, s)
			}
		}
	}
	if failure == nil {
		return nil
	}
	// 2.5: before answering 2002, 2003, 2005, 2006 or 2013, not 2030.
	if req.GetOnDuplicate() == pb.OnDuplicate_ON_DUPLICATE_CONFIRM && failure.Code != pb.ErrorCode_ERROR_CODE_CLIENT_SEQUENCE_GAP {
		for _, commit := range m.commits {
			if original := m.original(req, commit); original != nil {
				return &Answer{Results: original}
			}
		}
		for _, r := range m.flight {
			if sameRequest(req, r.req) {
				return &Answer{Wait: r}
			}
		}
	}
	return &Answer{Failure: failure}
}

// standing is everything that the checks of one write look at, of one moment.
type standing struct {
	w                   *pb.Write
	never               bool   // nothing was ever written here
	absent              bool   // never existed, or deleted and recreatable
	forbidden           bool   // deleted and not recreatable
	committed           uint64 // C
	ahead               uint64 // how many writes are in flight on the aggregate: A = C + ahead
	lo                  uint64 // the write's lowest client_seq
	mark                uint64 // this writer's, committed
	inFlightMark        uint64 // this writer's, of what is in flight alone
	writerHasSomeFlight bool
}

func (m *Model) standing(req *pb.AppendRequest, i int) *standing {
	w := req.GetWrites()[i]
	s := &standing{w: w, lo: lowest(w), mark: m.mark(name(w.GetAggregate()), req.GetClientId())}
	if a := m.aggregates[name(w.GetAggregate())]; a == nil {
		s.never, s.absent = true, true
	} else {
		s.absent, s.forbidden = a.deleted && a.recreatable, a.deleted && !a.recreatable
		if s.committed = a.version; a.deleted && a.restart {
			s.committed = 0
		}
	}
	for _, r := range m.flight {
		for _, other := range r.req.GetWrites() {
			if name(other.GetAggregate()) != name(w.GetAggregate()) {
				continue
			}
			s.ahead++
			if r.req.GetClientId() == req.GetClientId() {
				s.writerHasSomeFlight = true
				s.inFlightMark = max(s.inFlightMark, highest(other))
			}
		}
	}
	return s
}

// existence is judged as of A: a create in flight counts.
func existence(s *standing) pb.ErrorCode {
	switch {
	case s.forbidden:
		return pb.ErrorCode_ERROR_CODE_AGGREGATE_RECREATE_NOT_ALLOWED
	case s.absent && s.ahead == 0 && !s.w.GetAllowCreate():
		return pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_EXISTS
	}
	return 0
}

// passesAfter says whether the guard would pass once the first n of what is in flight are
// committed. An absent aggregate lets only 0 pass, whatever its old version was.
func (s *standing) passesAfter(n uint64) bool {
	if n == 0 && s.absent {
		return s.w.GetExpectedVersion() == 0
	}
	return s.w.GetExpectedVersion() == s.committed+n
}

// undecided: the guard fails as of A and lies in the range that what is in flight leaves open,
// C <= expected_version < A, or is 0 while a recreation is in flight. The old version of a
// deleted aggregate is in that range, too, although no outcome makes it pass: to be told to
// hold costs a round trip, and is never wrong.
func (s *standing) undecided() bool {
	if s.w.ExpectedVersion == nil || s.ahead == 0 {
		return false
	}
	v := s.w.GetExpectedVersion()
	return s.committed <= v && v < s.committed+s.ahead || v == 0 && s.absent
}

// covered: an enforced write that the committed or the in-flight mark refuses.
func (s *standing) covered() bool {
	return s.w.GetEnforceClientIdempotency() && (s.lo <= s.mark || s.lo <= s.inFlightMark)
}

// guard lets pass what is undecided and covered: that is for the idempotency pass (2.2).
func guard(s *standing) pb.ErrorCode {
	if s.w.ExpectedVersion == nil || s.passesAfter(s.ahead) || s.undecided() && s.covered() {
		return 0
	}
	return pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION
}

func idempotency(s *standing) pb.ErrorCode {
	switch {
	case !s.w.GetEnforceClientIdempotency():
		return 0
	case s.lo <= s.mark:
		return pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION
	case s.lo <= s.inFlightMark:
		return pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE
	case s.w.PreviousClientSeq != nil && s.w.GetPreviousClientSeq() != max(s.mark, s.inFlightMark):
		return pb.ErrorCode_ERROR_CODE_CLIENT_SEQUENCE_GAP
	}
	return 0
}

// failure is the detail of a refusal (2.4).
func (m *Model) failure(code pb.ErrorCode, req *pb.AppendRequest, i int, s *standing) *pb.AppendFailure {
	f := &pb.AppendFailure{
		Code: code, WriteIndex: uint32(i), Aggregate: s.w.GetAggregate(), ExpectedVersion: s.w.ExpectedVersion,
		CurrentVersion: s.committed, AttemptedSeq: s.lo, Mark: s.mark,
		Holder: m.holder(name(s.w.GetAggregate()), req.GetClientId(), s.lo),
	}
	if code == pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION && s.undecided() {
		f.InFlightVersion = proto.Uint64(s.committed + s.ahead)
	}
	if s.writerHasSomeFlight {
		f.InFlightMark = proto.Uint64(s.inFlightMark)
	}
	if f.Holder != nil && req.GetOnDuplicate() == pb.OnDuplicate_ON_DUPLICATE_CONFIRM {
		f.Holder.ContentDiffers = m.contentDiffers(s.w, f.Holder.Position)
	}
	return f
}

// Decide applies the oldest request in flight, admitted at the given time. What counts is
// what is committed by then: it lands, unless one before it was lost that it built on.
func (m *Model) Decide(r *InFlight, at *timestamppb.Timestamp) Answer {
	if m.flight[0] != r {
		panic("the contract decides in the order of admission")
	}
	rest := m.flight[1:]
	m.flight = nil
	answer := m.judge(r.req)
	m.flight = rest
	if answer != nil {
		if f := answer.Failure; f != nil { // what stands behind it is still in flight (2.4)
			if s := m.standing(r.req, int(f.GetWriteIndex())); s.writerHasSomeFlight {
				f.InFlightMark = proto.Uint64(s.inFlightMark)
			}
		}
		return *answer
	}
	var commit []*pb.Batch
	first := m.position + 1
	for _, w := range r.req.GetWrites() {
		a := m.aggregates[name(w.GetAggregate())]
		switch {
		case a == nil:
			a = &aggregate{incarnation: 1, floor: 1}
			m.aggregates[name(w.GetAggregate())] = a
		case a.deleted: // a recreation
			if a.incarnation++; a.restart {
				a.version = 0
			}
			a.deleted, a.floor = false, a.version+1
		}
		m.position++
		a.version++
		a.position = m.position
		b := &pb.Batch{
			Aggregate: w.GetAggregate(), Version: a.version, Incarnation: a.incarnation, Position: m.position,
			CommitFirstPosition: first, CommitCount: uint32(len(r.req.GetWrites())), ClientId: r.req.GetClientId(), CommittedAt: at,
		}
		a.record(b, w.GetEvents())
		commit = append(commit, b)
	}
	m.commits = append(m.commits, commit)
	return Answer{Results: m.results(commit, r.req)}
}

// record numbers the events, seals the batch into the chain and keeps it.
func (a *aggregate) record(b *pb.Batch, events []*pb.NewEvent) {
	b.FirstEventNumber, b.PreviousChainHash = 1, make([]byte, 32)
	if n := len(a.batches); n > 0 && !(a.restart && a.batches[n-1].GetIncarnation() != b.GetIncarnation()) {
		last := a.batches[n-1]
		b.FirstEventNumber = last.GetFirstEventNumber() + uint64(len(last.GetEvents()))
		b.PreviousChainHash = last.GetChainHash()
	}
	for i, e := range events {
		b.Events = append(b.Events, recorded(e, b.FirstEventNumber+uint64(i)))
	}
	b.ChainHash = chainHash(b)
	a.batches = append(a.batches, b)
}

// Lose takes a request out of flight that is in no log.
func (m *Model) Lose(r *InFlight) {
	m.flight = slices.DeleteFunc(slices.Clone(m.flight), func(o *InFlight) bool { return o == r })
}

// results lists where the writes of req landed, in the order of the request.
func (m *Model) results(commit []*pb.Batch, req *pb.AppendRequest) []*pb.WriteResult {
	var out []*pb.WriteResult
	for _, w := range req.GetWrites() {
		b := commit[slices.IndexFunc(commit, func(b *pb.Batch) bool { return name(b.GetAggregate()) == name(w.GetAggregate()) })]
		out = append(out, &pb.WriteResult{
			Aggregate: b.Aggregate, Version: b.Version, Incarnation: b.Incarnation, Position: b.Position,
			CommittedAt: b.CommittedAt, FirstEventNumber: b.FirstEventNumber, ChainHash: b.ChainHash,
		})
	}
	return out
}

// original is the result of a commit if that is the same write as req (2.5): for every write
// one whole batch with the same sequences, ids and content, and nothing else in the commit.
func (m *Model) original(req *pb.AppendRequest, commit []*pb.Batch) []*pb.WriteResult {
	if len(commit) != len(req.GetWrites()) || commit[0].GetClientId() != req.GetClientId() {
		return nil
	}
	for _, w := range req.GetWrites() {
		a := m.aggregates[name(w.GetAggregate())]
		if !slices.ContainsFunc(commit, func(b *pb.Batch) bool {
			return name(b.GetAggregate()) == name(w.GetAggregate()) && sameEvents(w.GetEvents(), b.GetEvents()) &&
				slices.Contains(a.batches[a.forgotten:], b)
		}) {
			return nil
		}
	}
	out := m.results(commit, req)
	for _, r := range out {
		r.AlreadyCommitted = true
		if m.trimmed(r.GetAggregate(), r.GetIncarnation(), r.GetVersion()) {
			r.ChainHash = nil
		}
	}
	return out
}

// sameRequest compares a request with one in flight, by the same rule.
func sameRequest(req, other *pb.AppendRequest) bool {
	if len(req.GetWrites()) != len(other.GetWrites()) || req.GetClientId() != other.GetClientId() {
		return false
	}
	for _, w := range req.GetWrites() {
		if !slices.ContainsFunc(other.GetWrites(), func(o *pb.Write) bool {
			return name(o.GetAggregate()) == name(w.GetAggregate()) && sameEvents(w.GetEvents(), o.GetEvents())
		}) {
			return false
		}
	}
	return true
}

// contentDiffers: the holder's batch recorded one of w's events under the same sequence and
// id with other content. Of several events with one sequence it is about the first, as all
// of holder is.
func (m *Model) contentDiffers(w *pb.Write, position uint64) bool {
	b := m.at(name(w.GetAggregate()), position)
	for _, e := range w.GetEvents() {
		i := slices.IndexFunc(b.GetEvents(), func(r *pb.Event) bool { return r.GetClientSeq() == e.GetClientSeq() })
		if i >= 0 && b.GetEvents()[i].GetEventId() == e.GetEventId() && !sameEvent(e, b.GetEvents()[i]) {
			return true
		}
	}
	return false
}
