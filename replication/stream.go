package replication

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// Stream is what one AppendStream call has sent (contract 5). Its requests are admitted in the
// order of Admit; chain.go holds what that means for those behind one that fails.
//
// A request costs no goroutine, unless it is refused and has to wait for a majority, or is a
// CONFIRM that waits for what it repeats. One goroutine calls Admit, one, perhaps another, Take.
type Stream struct {
	shard *Shard
	// ctx ends with Close. running counts the goroutines of single requests, which end with it.
	ctx     context.Context
	cancel  context.CancelFunc
	running sync.WaitGroup

	chains chains // guarded by Shard.mu

	mu       sync.Mutex
	answered []*StreamRequest // taken back by the next Take
	spare    []*StreamRequest // Take's
	ready    chan struct{}    // one token: answered is not empty
}

// StreamRequest is one request of a stream, from Admit to Take.
type StreamRequest struct {
	// Append is the request. Its shape is valid unless Refused is set.
	Append *pb.AppendRequest
	// Refused, if set, is why the request is not to be judged at all. The chains of what it
	// writes to break nevertheless, in its turn.
	Refused error
	// Opaque: Refused is set, and what the request writes to is not known: every chain breaks.
	Opaque bool

	// Size, Held and Arrived are the caller's own.
	Size, Held int64
	Arrived    time.Time

	// Response or Err is the answer, once Take has returned the request.
	Response *pb.AppendResponse
	Err      error

	stream *Stream
	p      *pending
	tenure *tenure // that took it in
	starts []int   // where each write begins in the encoded request
	links  []*link // of each write, while the request is on its way
	// patience is how long a CONFIRM waits; nil until it does.
	patience <-chan time.Time
	// backing of the usual request
	oneStart [1]int
	oneLink  [1]*link
}

// admitAtOnce bounds how many requests are judged while Apply and the others wait.
const admitAtOnce = 64

// OpenStream begins a stream, which the caller closes. ctx bounds its waits.
func (s *Shard) OpenStream(ctx context.Context) *Stream {
	st := &Stream{shard: s, ready: make(chan struct{}, 1)}
	st.ctx, st.cancel = context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	st.chains.open(&s.streams)
	return st
}

// Close ends the stream. What is in flight goes on, and nobody is told of it.
func (st *Stream) Close() {
	st.cancel()
	st.running.Wait()
	st.shard.mu.Lock()
	defer st.shard.mu.Unlock()
	st.chains.close()
}

// Admit judges requests, one after the other, and takes in those that pass. Each of them comes
// back from Take once. Admit waits while a request writes to an aggregate whose delete is in
// flight; what was sent behind it waits, too.
func (st *Stream) Admit(requests []*StreamRequest) {
	s := st.shard
	for _, r := range requests {
		r.stream = st
		r.links, r.starts = r.oneLink[:0], r.oneStart[:0]
		if r.Refused == nil {
			r.Refused = s.checkTimeline(r.Append.GetTimeline())
		}
		if r.Refused == nil {
			r.p = newPendingOf(r.Append, r)
		}
	}
	for len(requests) > 0 {
		n := min(len(requests), admitAtOnce)
		st.admitSome(requests[:n])
		requests = requests[n:]
	}
}

func (st *Stream) admitSome(requests []*StreamRequest) {
	st.shard.mu.Lock()
	defer st.shard.mu.Unlock()
	for _, r := range requests {
		st.admit(r)
	}
}

// admit judges the next request of the stream. Shard.mu is held, and may be let go meanwhile.
func (st *Stream) admit(r *StreamRequest) {
	st.chains.bind(r)
	if r.Refused != nil {
		r.Err = r.Refused
		st.chains.failed(r)
		st.deliver(r)
		return
	}
	a, err := st.shard.judge(st.ctx, r.p)
	switch {
	case err != nil:
		r.Err = err
		st.chains.failed(r)
		st.deliver(r)
	case a.refused == nil: // its outcome is delivered when it is known
	case r.p.confirm:
		// What comes next is judged by what this finds, so it is looked up in its turn.
		st.shard.unlocked(func() bool { st.confirm(r, a); return true })
	default:
		st.chains.failed(r)
		st.finishLater(func() { r.Response, r.Err = st.refused(r, a) }, r)
	}
}

// finishLater runs f, which answers r, beside the stream. It ends with the stream at the latest.
func (st *Stream) finishLater(f func(), r *StreamRequest) {
	st.running.Add(1)
	go func() {
		defer st.running.Done()
		defer func() {
			if p := recover(); p != nil { // as it would be in a call of its own
				r.Response, r.Err = nil, st.shard.damaged(fmt.Errorf("bug: the answer to an append on a stream panicked: %v\n%s", p, debug.Stack()))
			}
			if r.Response != nil || r.Err != nil {
				st.deliver(r)
			}
		}()
		f()
	}()
}

// refused is the answer to a request that admission refused.
func (st *Stream) refused(r *StreamRequest, a admitted) (*pb.AppendResponse, error) {
	ref, _, err := a.refused.inspect(r.p)
	if err != nil {
		return nil, st.shard.damaged(err)
	}
	return nil, st.shard.sendRefusal(st.ctx, ref, a.tenure)
}

// confirm looks for a request that admission refused among what is recorded and in flight. It
// is attached to what it finds.
func (st *Stream) confirm(r *StreamRequest, a admitted) {
	s := st.shard
	ref, results, err := a.refused.inspect(r.p)
	same := a.refused.same
	attaches := err == nil && (results != nil || same != nil && ref.confirmable())
	s.mu.Lock()
	if attaches {
		st.chains.attached(r)
		if results != nil {
			st.chains.leave(r)
		}
	} else {
		st.chains.failed(r)
	}
	s.mu.Unlock()
	switch {
	case err != nil:
		r.Err = s.damaged(err)
	case results != nil:
		r.Response = s.response(r.Append, results, true)
	case same == nil || !ref.confirmable():
		st.finishLater(func() { r.Err = s.sendRefusal(st.ctx, ref, a.tenure) }, r)
		return
	default:
		st.finishLater(func() { st.await(r, same, ref) }, r)
		return
	}
	st.deliver(r)
}

// await waits for the request in flight that r is attached to. If that was rolled back, r is
// judged afresh, behind all that the stream has sent since.
func (st *Stream) await(r *StreamRequest, same *pending, ref *refusal) {
	s := st.shard
	results, again, err := s.attached(st.ctx, r.p, same, ref, &r.patience)
	for again {
		var a admitted
		if a, err = s.admit(st.ctx, r.p); err != nil {
			break
		}
		if a.refused == nil {
			return // its outcome is delivered like any other's
		}
		results, again, err = s.answerRefusal(st.ctx, r.p, a, &r.patience)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.Err = err; err != nil {
		st.chains.failed(r)
		return
	}
	r.Response = s.response(r.Append, results, true)
	st.chains.leave(r)
}

// deliver hands an answer, or the outcome that it is made of, to Take.
func (st *Stream) deliver(r *StreamRequest) {
	st.add(r)
	st.signal()
}

// deliverAll delivers what became of requests, and wakes their streams once they have all of it,
// so that they send it together.
func deliverAll(finished []*pending) {
	var last *Stream
	for _, p := range finished {
		if p.sent == nil {
			continue
		}
		if st := p.sent.stream; st != last {
			if last != nil {
				last.signal()
			}
			last = st
		}
		last.add(p.sent)
	}
	if last != nil {
		last.signal()
	}
}

func (st *Stream) add(r *StreamRequest) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.answered = append(st.answered, r)
}

func (st *Stream) signal() {
	select {
	case st.ready <- struct{}{}:
	default:
	}
}

// Ready has a token when there is something for Take.
func (st *Stream) Ready() <-chan struct{} { return st.ready }

// Take returns the requests that have an answer since the last Take, perhaps none, in dst.
func (st *Stream) Take(dst []*StreamRequest) []*StreamRequest {
	st.mu.Lock()
	got := st.answered
	st.answered = st.spare
	st.mu.Unlock()
	for _, r := range got {
		if r.Response == nil && r.Err == nil && !st.finish(r) {
			continue
		}
		dst = append(dst, r)
	}
	clear(got)
	st.spare = got[:0]
	return dst
}

// finish makes the answer of an outcome; false if that takes a while, and is delivered again.
func (st *Stream) finish(r *StreamRequest) bool {
	s, p := st.shard, r.p
	switch {
	case p.outcome.kind == committed:
		r.Response = s.response(r.Append, p.outcome.results, false)
		return true
	case p.outcome.kind == refused:
		st.finishLater(func() {
			results, confirmed, err := s.answer(st.ctx, p, r.tenure)
			if r.Err = err; err == nil {
				r.Response = s.response(r.Append, results, confirmed)
			}
		}, r)
		return false
	}
	_, _, r.Err = s.answer(st.ctx, p, r.tenure)
	return true
}
