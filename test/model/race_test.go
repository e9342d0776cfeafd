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

// attempt is one call of a concurrent run: an append, or a read if req is nil. begun and
// ended are ticks of one counter, so that an attempt that ended before another began is
// known to have come first.
type attempt struct {
	o            op
	req          *pb.AppendRequest
	resp         *pb.AppendResponse
	read         *pb.ReadResponse
	mark         *pb.GetMarkResponse
	err          error
	begun, ended int64
}

func (a *attempt) landed() bool {
	return a.err == nil && a.req != nil && len(a.resp.GetResults()) > 0 && !a.resp.GetResults()[0].GetAlreadyCommitted()
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
	if r.rand.IntN(5) == 0 {
		args := []string{aggregates[r.rand.IntN(len(aggregates))], r.client}
		if r.rand.IntN(2) == 0 {
			return op{verb: "mark", args: args}
		}
		return op{verb: "read", args: args[:1]}
	}
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

// make makes the call.
func (a *attempt) make(client pb.EventStoreServiceClient, org string) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	switch a.o.verb {
	case "append":
		a.req = a.o.request(org)
		a.resp, a.err = client.Append(ctx, a.req)
	case "mark":
		a.mark, a.err = client.GetMark(ctx, &pb.GetMarkRequest{Aggregate: key(org, a.o.args[0]), ClientId: a.o.args[1]})
	case "read":
		a.read, a.err = readAll(ctx, client, &pb.ReadRequest{Aggregate: key(org, a.o.args[0])})
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
				a := &attempt{o: o, begun: clock.Add(1)}
				a.make(client, org)
				a.ended = clock.Add(1)
				if a.req != nil {
					r.past = append(r.past, o)
					r.learn(a)
				}
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
	complain := func(a *attempt, err error) {
		wrong = append(wrong, fmt.Errorf("%s (began at %d, ended at %d): %w", a.o, a.begun, a.ended, err))
	}
	for _, a := range attempts {
		if err := plausible(w, a); err != nil {
			complain(a, err)
		}
	}
	// Nobody may be told less than was known before the call began.
	least, most := make([]map[string]uint64, len(attempts)), make([]map[string]uint64, len(attempts))
	for i, a := range attempts {
		least[i], most[i] = a.saw(w, false), a.saw(w, true)
	}
	for i, a := range attempts {
		for j, b := range attempts {
			if b.ended >= a.begun {
				continue
			}
			for id, version := range least[j] {
				if now, ok := most[i][id]; ok && (now < version || a.landed() && now == version) {
					complain(a, fmt.Errorf("as of version %d of %s, and %s had ended with version %d", now, id, b.o, version))
				}
			}
		}
	}
	return errors.Join(wrong...)
}

// saw is which version of which aggregate an answer is as of; a landing is as of its own. A
// mark does not say: it is as of the newest or oldest version at which it was so.
func (a *attempt) saw(w *world, newest bool) map[string]uint64 {
	out := map[string]uint64{}
	switch f := failure(a.err); {
	case a.mark != nil:
		k := w.key(a.o.args[0])
		for v := range w.m.GetAggregate(k).GetVersion() + 1 {
			if w.m.asOf(k, v).mark(name(k), a.o.args[1]) == a.mark.GetMark() {
				if out[a.o.args[0]] = v; !newest {
					break
				}
			}
		}
	case a.read != nil:
		out[a.o.args[0]] = a.read.GetEnd().GetCurrentVersion()
	case a.landed():
		for _, r := range a.resp.GetResults() {
			out[r.GetAggregate().GetId()] = r.GetVersion()
		}
	case f != nil:
		out[f.GetAggregate().GetId()] = f.GetCurrentVersion()
	case a.req == nil:
		out[a.o.args[0]] = 0
	}
	return out
}

// plausible checks an answer that is not a landing against the history.
func plausible(w *world, a *attempt) error {
	switch {
	case a.landed():
		return nil
	case a.req == nil:
		return plausibleRead(w, a)
	case a.err == nil:
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
	then := w.m.asOf(f.GetAggregate(), f.GetCurrentVersion())
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

// plausibleRead checks a read against the version, and the position, that it says it is as of.
func plausibleRead(w *world, a *attempt) error {
	k := w.key(a.o.args[0])
	switch {
	case a.mark != nil:
		then := w.m.asOf(k, a.saw(w, true)[k.GetId()])
		want := then.GetMark(k, a.o.args[1])
		if want.InFlightMark = a.mark.InFlightMark; a.mark.GetInFlightMark() > w.m.mark(name(k), a.o.args[1]) {
			return fmt.Errorf("in flight was mark %d, and never landed", a.mark.GetInFlightMark())
		}
		return same(want, a.mark)
	case a.read != nil:
		then := w.m.asOf(k, a.read.GetEnd().GetCurrentVersion())
		if then == nil {
			return fmt.Errorf("version %d never was", a.read.GetEnd().GetCurrentVersion())
		}
		then.position = a.read.GetEnd().GetPosition()
		if late := w.m.asOf(k, a.read.GetEnd().GetCurrentVersion()+1); late != nil && late.aggregates[name(k)].batches[a.read.GetEnd().GetCurrentVersion()].GetPosition() <= then.position {
			return fmt.Errorf("as of position %d, and without the next version, which lies below", then.position)
		}
		batches, end, _, _ := then.Read(&pb.ReadRequest{Aggregate: k})
		return same(&pb.ReadResponse{Batches: batches, End: end}, a.read)
	}
	return refuse(pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND, nil).check(w, a.err)
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
		if a.landed() || a.req == nil {
			continue
		}
		if told, err := w.run(a.o); err != nil {
			return fmt.Errorf("resent: %s: %s: %w", a.o, told, err)
		}
	}
	return nil
}
