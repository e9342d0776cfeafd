package replication

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/mark"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// confirmWait is how long a CONFIRM waits for a write in flight, at most.
const confirmWait = 30 * time.Second

// Append admits, replicates and applies a request whose shape is valid, and says what
// became of it. Errors are *api.Error, or a gRPC status for a deadline or a cancellation;
// whether the write may have happened is in docs/errors.md for each code, and is open for
// a deadline or a cancellation.
func (s *Shard) Append(ctx context.Context, req *pb.AppendRequest) (*pb.AppendResponse, error) {
	if err := s.checkTimeline(req.GetTimeline()); err != nil {
		return nil, err
	}
	p := newPending(req)
	results, confirmed, err := s.append(ctx, p)
	if err != nil {
		return nil, err
	}
	return s.response(req, results, confirmed), nil
}

// response is the answer to a request that landed.
func (s *Shard) response(req *pb.AppendRequest, results []writeResult, confirmed bool) *pb.AppendResponse {
	resp := &pb.AppendResponse{RequestId: req.GetRequestId(), Timeline: s.identity().Timeline, Results: make([]*pb.WriteResult, len(results))}
	for i := range results {
		r := &results[i]
		out := &pb.WriteResult{
			Aggregate: req.GetWrites()[i].GetAggregate(), Version: r.version, Incarnation: r.incarnation,
			Shard: s.opts.Shard, Position: r.position, CommittedAt: record.Timestamp(r.committedAt),
			FirstEventNumber: r.firstEvent, AlreadyCommitted: confirmed,
		}
		if !r.noChain {
			out.ChainHash = r.chain[:]
		}
		resp.Results[i] = out
	}
	return resp
}

// append drives one request to its end: admitted and decided, refused, or, with CONFIRM,
// found among what is recorded or in flight.
func (s *Shard) append(ctx context.Context, p *pending) (results []writeResult, confirmed bool, err error) {
	var patience <-chan time.Time
	for {
		a, err := s.admit(ctx, p)
		if err != nil {
			return nil, false, err
		}
		if a.refused != nil {
			results, again, err := s.answerRefusal(ctx, p, a, &patience)
			if err != nil || !again {
				return results, results != nil, err
			}
			continue
		}
		if !s.wait(ctx, p.done, nil) {
			return nil, false, ambiguous(ctx)
		}
		return s.answer(ctx, p, a.tenure)
	}
}

// wait returns true once done is closed, false if the call, its patience or the shard ends
// first.
func (s *Shard) wait(ctx context.Context, done <-chan struct{}, patience <-chan time.Time) bool {
	if s.park != nil {
		return s.park(ctx, done)
	}
	select {
	case <-done:
		return true
	case <-patience:
	case <-ctx.Done():
	case <-s.stopped: // everything in flight was answered before
	}
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// admitted is what admission made of a request: in flight (refused is nil), or refused.
type admitted struct {
	tenure  *tenure
	refused *refusedAt
}

// refusedAt is a refusal by admission before its details are looked up.
type refusedAt struct {
	verdict verdict
	state   writeState
	view    *history.View // as of the judgement; to be released
	same    *pending      // in flight with the same content, if the request is CONFIRM
}

// admit judges a request against the committed state and what is in flight, of one moment,
// and takes it in if it passes. An error is a definite no: nothing is left behind.
func (s *Shard) admit(ctx context.Context, p *pending) (admitted, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.judge(ctx, p)
}

// judge is admit for who holds s.mu, which is let go while something is waited for or read.
func (s *Shard) judge(ctx context.Context, p *pending) (admitted, error) {
	if err := ctx.Err(); err != nil {
		return admitted{}, status.FromContextError(err).Err()
	}
	var one [1]writeState
	states := one[:]
	if len(p.writes) > 1 {
		states = make([]writeState, len(p.writes))
	}
	var v verdict
	for warmed := false; ; {
		if err := s.leading(); err != nil {
			return admitted{}, err
		}
		if d := s.tenure.overlay.inTheWay(p); d != nil {
			if gone := d.gone; !s.unlocked(func() bool { return s.wait(ctx, gone, nil) }) {
				return admitted{}, s.notAdmitted(ctx)
			}
			continue
		}
		known, err := s.states(p, states, warmed)
		if err != nil {
			return admitted{}, s.damaged(err)
		}
		if known {
			p.sent.chains(states)
			v = decide(p.writes, states)
			if v.code != 0 || s.current(p) {
				break
			}
			// Validation takes its time, too: outside the lock, then judge again.
			view, revisions := s.acquireView(), s.revisionsOf(p)
			s.unlocked(func() bool {
				err = s.validate(ctx, view, revisions, p)
				view.Release()
				if err == nil && s.park != nil {
					s.park(ctx, nil)
				}
				return err == nil
			})
			if err != nil {
				return admitted{}, err
			}
			continue
		}
		// Cold look-ups never stall the others: read outside the lock, then start again.
		var fills []fill
		view := s.acquireView()
		index := view.Applied().Index
		s.unlocked(func() bool {
			fills, err = s.readStates(view, p)
			view.Release()
			if err == nil && s.park != nil {
				s.park(ctx, nil) // other calls run here
			}
			return err == nil
		})
		if err != nil {
			return admitted{}, s.damaged(err)
		}
		s.fillCache(p, fills, index)
		warmed = true
	}
	t := s.tenure
	if v.code == 0 && p.validated.violation != nil {
		v = verdict{code: pb.ErrorCode_ERROR_CODE_WRITE_SCHEMA_VALIDATION_FAILED, index: p.validated.index}
	}
	if v.code != 0 {
		r := &refusedAt{verdict: v, state: states[v.index], view: s.acquireView()}
		if p.confirm {
			r.same = t.overlay.same(p)
		}
		return admitted{tenure: t, refused: r}, nil
	}
	if err := s.room(t, p); err != nil {
		return admitted{}, err
	}
	p.sent.admitted(t)
	p.asked = nil
	s.enqueue(p)
	return admitted{tenure: t}, nil
}

// unlocked runs f without s.mu, which is held again afterwards, even if f panics.
func (s *Shard) unlocked(f func() bool) bool {
	s.mu.Unlock()
	defer s.mu.Lock()
	return f()
}

// enqueue takes a request in. s.mu is held.
func (s *Shard) enqueue(p *pending) {
	s.lastStamp = max(s.lastStamp, s.opts.Clock().UnixNano())
	record.SetCommittedAt(p.buf, s.lastStamp)
	p.done = make(chan struct{})
	s.tenure.enqueue(p)
}

// notAdmitted is the answer to a call that ended while it waited for a delete or a registration:
// nothing of it is left behind.
func (s *Shard) notAdmitted(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return status.FromContextError(err).Err()
	}
	return s.notLeader("this node is stopping")
}

// leading answers 2011 or 2015 unless this node leads and is ready. s.mu is held.
//
// The tenure may outlive leadership until raft's notice of its end is read. Meanwhile this
// node applies what the next leader commits, perhaps before that leader does: whoever was
// told of it here could be told the contrary there. So raft is asked, too. It knows of a new
// term before it hands over anything of that term.
func (s *Shard) leading() error {
	switch {
	case s.identity().State != stateMember:
		return s.notMember()
	case s.stopping || s.tenure == nil || !s.tenure.group.leads(s.tenure.term):
		return s.notLeader("this node is not the leader")
	case !s.tenure.ready:
		return api.Errorf(pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY,
			"this node has just become the leader and is still committing what it inherited: nothing was done, ask again").After(retrySoon)
	}
	return nil
}

// room answers 2012 or 2018 if a request that passed the checks cannot be taken in. Trims and
// deletes go on below the reserve: they are what makes room. s.mu is held.
func (s *Shard) room(t *tenure, p *pending) error {
	if n := t.bytes + p.bytes(); n > s.opts.MaxInFlightBytes && t.bytes > 0 {
		return api.Errorf(pb.ErrorCode_ERROR_CODE_REPLICATION_BACKPRESSURE,
			"%d bytes are in flight and the limit is %d: nothing was written, ask again later", t.bytes, s.opts.MaxInFlightBytes).After(retryBusy)
	}
	if s.diverged.undecided {
		return api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL,
			"nodes hold different data at log entry %d and none of it is known to be a majority's: nothing was written; bring all nodes up, then see docs/cluster.md", s.diverged.index)
	}
	if free := s.disk.low(); free >= 0 && (p.change == "" || p.registers != "") {
		return api.Errorf(pb.ErrorCode_ERROR_CODE_INSUFFICIENT_DISK_SPACE,
			"%d bytes are free in the data directory and %d are kept in reserve: nothing was written; free space on the server; reads, trims and deletes go on", free, s.opts.MinFreeDiskBytes)
	}
	return nil
}

// states fills in what is known of each write; false if something must be read first. With
// read, what is missing is read at once, under s.mu, which is held.
func (s *Shard) states(p *pending, states []writeState, read bool) (bool, error) {
	for i := range p.writes {
		w, st := &p.writes[i], &states[i]
		if h, ok := s.cache.Head(w.Key); ok {
			st.head = *h
		} else if !read {
			return false, nil
		} else {
			var err error
			if st.head, err = markHead(s.view, w.Key); err != nil {
				return false, err
			}
		}
		switch {
		case !st.head.Exists:
			st.mark = 0
		case st.head.LastClient == p.client:
			st.mark = st.head.LastMark
		default:
			m, ok := s.cache.Mark(w.Key, p.client)
			if !ok && !read {
				return false, nil
			}
			if !ok {
				var err error
				if m, err = s.view.Mark(w.Key, p.client); err != nil {
					return false, err
				}
			}
			st.mark = m
		}
		s.tenure.overlay.fill(st, w.Key, p.client)
	}
	return true, nil
}

// fill is what a reader offers the cache for one write.
type fill struct {
	head    mark.Head
	mark    uint64
	hasMark bool
}

func (s *Shard) readStates(view *history.View, p *pending) ([]fill, error) {
	fills := make([]fill, len(p.writes))
	for i := range p.writes {
		w, f := &p.writes[i], &fills[i]
		var err error
		began := time.Now()
		if f.head, err = markHead(view, w.Key); err != nil {
			return nil, err
		}
		s.meter.admissionRebuilt.head(began)
		if f.head.Exists && f.head.LastClient != p.client {
			f.hasMark = true
			began = time.Now()
			if f.mark, err = view.Mark(w.Key, p.client); err != nil {
				return nil, err
			}
			s.meter.admissionRebuilt.mark(began)
		}
	}
	return fills, nil
}

func (s *Shard) fillCache(p *pending, fills []fill, index uint64) {
	for i, f := range fills {
		s.cache.FillHead(p.writes[i].Key, f.head, index)
		if f.hasMark {
			s.cache.FillMark(p.writes[i].Key, p.client, f.mark, index)
		}
	}
}

// answerRefusal turns a refusal by admission into the answer. With CONFIRM it first looks
// for the request among what is recorded and in flight; again says that it must be judged
// afresh.
func (s *Shard) answerRefusal(ctx context.Context, p *pending, a admitted, patience *<-chan time.Time) (results []writeResult, again bool, err error) {
	ref, results, err := a.refused.inspect(p)
	switch {
	case err != nil:
		return nil, false, s.damaged(err)
	case results != nil:
		return results, false, nil
	case a.refused.same == nil || !ref.confirmable():
		return nil, false, s.sendRefusal(ctx, ref, a.tenure)
	}
	return s.attached(ctx, p, a.refused.same, ref, patience)
}

// attached waits for the request in flight that is the same as p, and answers as it.
func (s *Shard) attached(ctx context.Context, p, same *pending, ref *refusal, patience *<-chan time.Time) (results []writeResult, again bool, err error) {
	if *patience == nil {
		*patience = time.After(confirmWait)
	}
	if !s.wait(ctx, same.done, *patience) {
		return nil, false, ref.stillInFlight()
	}
	switch o := &same.outcome; o.kind {
	case committed:
		return reorder(p, same, o.results), false, nil
	case unknown:
		return nil, false, unknownOutcome(o.reason)
	}
	return nil, true, nil
}

// inspect looks up the details of a refusal and, with CONFIRM, whether the request is
// recorded already, all in the view of the judgement, which it releases.
func (r *refusedAt) inspect(p *pending) (ref *refusal, results []writeResult, err error) {
	defer r.view.Release()
	ref, err = newRefusal(p.client, &p.writes[r.verdict.index], &r.state, r.verdict, r.view)
	if err == nil && r.verdict.code == pb.ErrorCode_ERROR_CODE_WRITE_SCHEMA_VALIDATION_FAILED {
		ref.withViolation(&p.validated)
	}
	if err != nil || !p.confirm || !ref.confirmable() {
		return ref, nil, err
	}
	if results, err = recorded(r.view, p); err != nil || results != nil {
		return ref, results, err
	}
	return ref, nil, markContent(r.view, p, ref.failure)
}

// reorder gives the results of q in the order of p's writes, which are the same.
func reorder(p, q *pending, results []writeResult) []writeResult {
	out := make([]writeResult, len(results))
	for i := range p.writes {
		for j := range q.writes {
			if q.writes[j].Key == p.writes[i].Key {
				out[i] = results[j]
			}
		}
	}
	return out
}

// answer turns the outcome of an admitted request into its answer.
func (s *Shard) answer(ctx context.Context, p *pending, t *tenure) (results []writeResult, confirmed bool, err error) {
	switch o := &p.outcome; o.kind {
	case committed:
		return o.results, false, nil
	case notProposed:
		return nil, false, s.notLeader(o.reason)
	case fenced:
		return nil, false, s.fencedOff()
	case unknown:
		return nil, false, unknownOutcome(o.reason)
	case refused:
		if o.failure != nil {
			return nil, false, o.failure
		}
		ref := o.refusal
		if p.confirm && ref.confirmable() {
			view := s.currentView()
			if view == nil {
				return nil, false, s.notLeader("this node has stopped before it could look the write up")
			}
			defer view.Release()
			if results, err = recorded(view, p); err != nil {
				return nil, false, s.damaged(err)
			}
			if results != nil {
				if !t.group.leads(t.term) { // see leading
					return nil, false, s.notLeader("this node is not the leader any more")
				}
				return results, true, nil
			}
			if err := markContent(view, p, ref.failure); err != nil {
				return nil, false, s.damaged(err)
			}
		}
		return nil, false, s.sendRefusal(ctx, ref, t)
	}
	return nil, false, s.damaged(fmt.Errorf("bug: a request ended with outcome %d", p.outcome.kind))
}

// sendRefusal is the last step of a refusal: what a client acts on is only said while a
// majority confirms the term that it was judged in.
func (s *Shard) sendRefusal(ctx context.Context, ref *refusal, t *tenure) error {
	if ref.definite() {
		s.meter.refusalsWaiting.Add(1)
		err := s.confirmTerm(ctx, t)
		s.meter.refusalsWaiting.Add(-1)
		if err != nil {
			return err
		}
	}
	return ref.err()
}

// fencedOff is the answer to a request that was appended in another term than it was admitted
// in.
func (s *Shard) fencedOff() error {
	return api.Errorf(pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY,
		"leadership changed hands between admission and the log: nothing was done, ask again").After(retrySoon)
}

// ambiguous is the answer to a call that ended while its write was in flight.
func ambiguous(ctx context.Context) error {
	code := codes.Canceled
	if ctx.Err() == context.DeadlineExceeded {
		code = codes.DeadlineExceeded
	}
	return status.Error(code, "the call ended while the write was in flight: it may still land; ask again with the same client_seq")
}

func unknownOutcome(reason string) error {
	return api.Errorf(pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN,
		"%s: the write may or may not land; ask again with the same client_seq", reason)
}
