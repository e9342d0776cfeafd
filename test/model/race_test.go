package model

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc/status"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// attempt is one append of a concurrent run. begun and ended are ticks of one counter, so
// that an attempt that ended before another began is known to have come first.
type attempt struct {
	o            op
	req          *pb.AppendRequest
	resp         *pb.AppendResponse
	err          error
	begun, ended int64
}

func (a *attempt) landed() bool {
	return a.err == nil && len(a.resp.GetResults()) > 0 && !a.resp.GetResults()[0].GetAlreadyCommitted()
}

// failure is the detail of a refusal, nil if there is none.
func failure(err error) *pb.AppendFailure {
	for _, d := range status.Convert(err).Details() {
		if f, ok := d.(*pb.AppendFailure); ok {
			return f
		}
	}
	return nil
}

// racer is one goroutine's client: it shares its client_id with others, as the replicas of
// a service do, and knows of the aggregates only what answers told it.
type racer struct {
	client  string
	rand    *rand.Rand
	mark    map[string]uint64
	version map[string]uint64
	past    []op
}

func (r *racer) next() op {
	if n := len(r.past); n > 0 && r.rand.IntN(100) < 25 {
		o := r.past[n-1-r.rand.IntN(min(n, 3))]
		if !flag(o.args, "confirm") && r.rand.IntN(2) == 0 {
			o.args = append(slices.Clone(o.args), "confirm")
		}
		return o
	}
	o := op{verb: "append", args: []string{r.client}}
	first, count := r.rand.IntN(len(aggregates)), 1
	if r.rand.IntN(5) == 0 {
		count = 2
	}
	for i := range count {
		id := aggregates[(first+i)%len(aggregates)]
		lo := r.mark[id] + 1 + uint64(max(0, r.rand.IntN(10)-7))
		if r.rand.IntN(8) == 0 {
			lo = max(1, r.mark[id]-min(r.mark[id], 1))
		}
		w := []string{id, fmt.Sprintf("%d:%x", lo, r.rand.Uint32()), "create"}
		if r.rand.IntN(3) == 0 {
			w[1] += fmt.Sprintf(",%d:%x", lo+1, r.rand.Uint32())
		}
		if r.rand.IntN(2) == 0 {
			w = append(w, fmt.Sprintf("expect=%d", r.version[id]+uint64(r.rand.IntN(2))*uint64(r.rand.IntN(2))))
		}
		if r.rand.IntN(8) == 0 {
			w = append(w, fmt.Sprintf("prev=%d", lo-1))
		}
		o.writes = append(o.writes, w)
	}
	return o
}

// learn takes what an answer says about the aggregates.
func (r *racer) learn(a *attempt) {
	for i, res := range a.resp.GetResults() {
		id := res.GetAggregate().GetId()
		r.version[id] = max(r.version[id], res.GetVersion())
		r.mark[id] = max(r.mark[id], highest(a.req.GetWrites()[i]))
	}
	if f := failure(a.err); f != nil {
		id := f.GetAggregate().GetId()
		r.version[id] = max(f.GetCurrentVersion(), f.GetInFlightVersion())
		r.mark[id] = max(r.mark[id], f.GetMark(), f.GetInFlightMark())
	}
}

// race lets racers loose on a server and returns what they did.
func race(client pb.EventStoreServiceClient, org string, racers, ops int, seed uint64) []*attempt {
	var clock atomic.Int64
	all := make([][]*attempt, racers)
	var wg sync.WaitGroup
	for i := range racers {
		r := &racer{
			client: writers[i%len(writers)], rand: rand.New(rand.NewPCG(seed, uint64(i))),
			mark: map[string]uint64{}, version: map[string]uint64{},
		}
		wg.Go(func() {
			for range ops {
				o := r.next()
				a := &attempt{o: o, req: o.request(org), begun: clock.Add(1)}
				ctx, cancel := context.WithTimeout(context.Background(), patience)
				a.resp, a.err = client.Append(ctx, a.req)
				cancel()
				a.ended = clock.Add(1)
				r.past = append(r.past, o)
				r.learn(a)
				all[i] = append(all[i], a)
			}
		})
	}
	wg.Wait()
	return slices.Concat(all...)
}

// judge replays what landed on the model in the order of the positions: each must be
// admitted there as it was, so sequences, guards, versions and positions can have been given
// out once only. Then every other answer must be true of some moment of that history, a
// moment not before the call began. It returns the model, for the reads to be compared.
func judge(w *world, attempts []*attempt) error {
	var landed []*attempt
	for _, a := range attempts {
		if a.landed() {
			landed = append(landed, a)
		}
	}
	position := func(a *attempt) uint64 { return a.resp.GetResults()[0].GetPosition() }
	slices.SortFunc(landed, func(a, b *attempt) int { return cmp.Compare(position(a), position(b)) })
	for _, a := range landed {
		answer := w.m.Append(a.req)
		if answer.Admitted == nil {
			return fmt.Errorf("%s landed at position %d, where the contract refuses it: %v", a.o, position(a), answer)
		}
		if _, err := w.decide(&call{req: a.req, answer: answer, resp: a.resp}); err != nil {
			return fmt.Errorf("%s: %w", a.o, err)
		}
	}
	var wrong []error
	for _, a := range attempts {
		if err := plausible(w, a, landed); err != nil {
			wrong = append(wrong, fmt.Errorf("%s (began at %d, ended at %d): %w", a.o, a.begun, a.ended, err))
		}
	}
	return errors.Join(wrong...)
}

// plausible checks an answer that is not a landing against the history.
func plausible(w *world, a *attempt, landed []*attempt) error {
	if a.landed() {
		return nil
	}
	if a.err == nil {
		_, err := w.settle(&call{req: a.req, resp: a.resp}, w.m.Append(a.req))
		return err
	}
	f := failure(a.err)
	if f == nil {
		return fmt.Errorf("refused without a reason: %s", w.describe(nil, a.err))
	}
	if err := refuse(f.GetCode(), f).check(w, a.err); err != nil {
		return err
	}
	id := f.GetAggregate()
	for _, l := range landed {
		for _, res := range l.resp.GetResults() {
			if name(res.GetAggregate()) == name(id) && l.ended < a.begun && res.GetVersion() > f.GetCurrentVersion() {
				return fmt.Errorf("version %d was acknowledged before, and the refusal is as of version %d", res.GetVersion(), f.GetCurrentVersion())
			}
		}
	}
	then := w.m.asOf(id, f.GetCurrentVersion())
	if then == nil {
		return fmt.Errorf("current_version %d never was", f.GetCurrentVersion())
	}
	s := then.standing(a.req, int(f.GetWriteIndex()))
	want := then.failure(f.GetCode(), a.req, int(f.GetWriteIndex()), s)
	want.InFlightVersion, want.InFlightMark = f.InFlightVersion, f.InFlightMark
	if err := same(want, f); err != nil {
		return fmt.Errorf("as of version %d %w", f.GetCurrentVersion(), err)
	}
	// What was in flight is not recorded, but all of it landed.
	if end := w.m.standing(a.req, int(f.GetWriteIndex())); f.GetInFlightVersion() > end.committed || f.GetInFlightMark() > end.mark {
		return fmt.Errorf("in flight were version %d and mark %d, and never landed: %s", f.GetInFlightVersion(), f.GetInFlightMark(), w.text(f))
	}
	s.inFlightMark, s.ahead = f.GetInFlightMark(), 0
	if f.InFlightVersion != nil {
		s.ahead = f.GetInFlightVersion() - f.GetCurrentVersion()
	}
	return s.justified(f.GetCode())
}

// justified says whether a code follows from what the detail itself says.
func (s *standing) justified(code pb.ErrorCode) error {
	ok := false
	switch code {
	case pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION:
		// A definite one may lie above the range too, whose end it does not say.
		ok = guard(s) == code && (s.ahead > 0) == s.undecided()
	case pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION, pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE, pb.ErrorCode_ERROR_CODE_CLIENT_SEQUENCE_GAP:
		ok = idempotency(s) == code
	case pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_EXISTS:
		ok = existence(s) == code
	}
	if !ok {
		return fmt.Errorf("the detail does not justify %d", code)
	}
	return nil
}

// asOf is the model as far as one aggregate had got at a version; nil if it never did.
func (m *Model) asOf(k *pb.AggregateKey, version uint64) *Model {
	out := New()
	out.Timeline = m.Timeline
	a := m.aggregates[name(k)]
	if version == 0 || a == nil {
		return out
	}
	if version > a.version {
		return nil
	}
	was := *a
	was.version, was.batches = version, a.batches[:version]
	out.aggregates[name(k)] = &was
	return out
}

// resendAll sends every refused attempt again once nothing is in flight: by now each has a
// definite answer, which the model knows.
func resendAll(w *world, attempts []*attempt) error {
	for _, a := range attempts {
		if a.landed() {
			continue
		}
		if told, err := w.run(a.o); err != nil {
			return fmt.Errorf("resent: %s: %s: %w", a.o, told, err)
		}
	}
	return nil
}
