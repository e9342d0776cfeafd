package model

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"pgregory.net/rapid"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// TestRaces lets several clients of each writer loose on three aggregates at once: fresh
// and stale guards, sequences that collide, verbatim resends with and without CONFIRM,
// requests on two aggregates. What landed must be a history that the contract allows, and
// every answer must be true of a moment of it; then every refused call is made again, now
// that nothing is in flight, and all reads are compared.
func TestRaces(t *testing.T) {
	h := newHost(t)
	rapid.Check(t, func(rt *rapid.T) {
		seed, racers, ops := rapid.Uint64().Draw(rt, "seed"), 3+below(rt, 10), 5+below(rt, 10)
		w := h.world()
		attempts := race(h.n.Client(), w.org, racers, ops, seed)
		err := judge(w, attempts)
		if err == nil {
			err = errors.Join(resendAll(w, attempts), w.finish())
		}
		if err != nil { // not rapid's to shrink: a race seldom comes twice
			t.Fatalf("seed %d, %d clients, %d calls each:\n%v", seed, racers, ops, err)
		}
	})
}

// sixteen is how many make the same call at once.
const sixteen = 16

// atOnce makes one call each from sixteen goroutines that start together.
func atOnce(client pb.EventStoreServiceClient, req func(i int) *pb.AppendRequest) []*attempt {
	calls := make([]*attempt, sixteen)
	begin := make(chan struct{})
	var wg sync.WaitGroup
	for i := range calls {
		calls[i] = &attempt{req: req(i)}
		wg.Go(func() {
			<-begin
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			calls[i].resp, calls[i].err = client.Append(ctx, calls[i].req)
		})
	}
	close(begin)
	wg.Wait()
	return calls
}

// tell counts answers: "ok", "confirmed", or the code.
func tell(calls []*attempt) map[string]int {
	out := map[string]int{}
	for _, c := range calls {
		switch {
		case c.landed():
			out["ok"]++
		case c.err == nil:
			out["confirmed"]++
		default:
			out[fmt.Sprint(int(failure(c.err).GetCode()))]++
		}
	}
	return out
}

// parse is parseOp for lines that are known to be right.
func parse(t *testing.T, line string) op {
	t.Helper()
	o, err := parseOp(line)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// settled judges sixteen calls against the model, in which only one of them may have landed,
// and makes each again: the answers are then definite.
func settled(t *testing.T, w *world, calls []*attempt, want func(told map[string]int) bool) {
	t.Helper()
	told := tell(calls)
	if !want(told) {
		t.Fatalf("answers: %v", told)
	}
	if err := judge(w, calls); err != nil {
		t.Fatal(err)
	}
	for _, c := range calls {
		if _, err := w.append(t.Context(), c.req); err != nil {
			t.Fatalf("made again: %v", err)
		}
	}
	if err := w.finish(); err != nil {
		t.Fatal(err)
	}
}

// rounds is how often each of the tests with sixteen is tried: a race needs luck.
const rounds = 30

func TestSixteenUnguardedResendsOfOneWrite(t *testing.T) {
	h := newHost(t)
	for range rounds {
		w := h.world()
		if _, err := w.run(parse(t, "append a A 1 create")); err != nil {
			t.Fatal(err)
		}
		again := parse(t, "append a A 2,3")
		calls := atOnce(h.n.Client(), func(int) *pb.AppendRequest { return again.request(w.org) })
		settled(t, w, calls, func(told map[string]int) bool {
			return told["ok"] == 1 && told["2002"]+told["2013"] == sixteen-1
		})
		if events := w.m.GetAggregate(w.key("A")).GetEventCount(); events != 3 {
			t.Fatalf("%d events, not the first and the two of one write", events)
		}
	}
}

func TestSixteenGuardedWritersOnOneVersion(t *testing.T) {
	h := newHost(t)
	for range rounds {
		w := h.world()
		if _, err := w.run(parse(t, "append a A 1 create")); err != nil {
			t.Fatal(err)
		}
		calls := atOnce(h.n.Client(), func(i int) *pb.AppendRequest {
			return parse(t, fmt.Sprintf("append w%d A 1:id%d expect=1", i, i)).request(w.org)
		})
		for _, c := range calls {
			if f := failure(c.err); f != nil && (f.InFlightVersion == nil) != (f.GetCurrentVersion() == 2) {
				t.Fatalf("a conflict is definite exactly when the winner is committed: %s", w.text(f))
			}
		}
		settled(t, w, calls, func(told map[string]int) bool { return told["ok"] == 1 && told["2003"] == sixteen-1 })
	}
}

func TestSixteenConfirmedResendsOfOneWrite(t *testing.T) {
	h := newHost(t)
	for range rounds {
		w := h.world()
		if _, err := w.run(parse(t, "append b A 1 create + B 1 create")); err != nil {
			t.Fatal(err)
		}
		again := parse(t, "append a confirm A 1,2 expect=1 + B 7 expect=1")
		calls := atOnce(h.n.Client(), func(int) *pb.AppendRequest { return again.request(w.org) })
		settled(t, w, calls, func(told map[string]int) bool { return told["ok"] == 1 && told["confirmed"] == sixteen-1 })
		// The same ids with other content, and a part of it, are no resends.
		for _, line := range []string{"append a confirm A 1:e1:2,2 expect=1 + B 7 expect=1", "append a confirm A 1,2 expect=1"} {
			if told, err := w.run(parse(t, line)); err != nil || told[:4] != "2003" {
				t.Fatalf("%s: %s, %v", line, told, err)
			}
		}
	}
}
