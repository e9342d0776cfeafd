package replication

// The deterministic simulation: three nodes, a few writers and an adversary, all driven from
// one goroutine by a seeded scheduler.
//
// Real is everything between a call and the log, and between the log and the answer: Shard's
// admission, decide, overlay, tenures, processor, steps, publishing, refusals and reads, on a
// history in memory (sim_node_test.go). A call is a coroutine: it runs from one wait to the
// next when the scheduler says so (sim_call_test.go). Below the log stands a model of raft's
// safety with a network that delays, drops, duplicates and reorders (sim_raft_test.go). There
// is no time: whatever a timer would do is an event (sim_event_test.go), and a seed decides
// which one comes next (sim_draw_test.go).
//
// Checked at every answer and at the end (sim_check_test.go), against the log that was
// committed and a second writing of the contract (sim_model_test.go):
//   - An OK is the state of the log: its version, position, time and chain hash.
//   - A call that was told no, in whatever words, never lands, then or later. No writer that
//     follows the recipe of contract 2.4 writes anything twice.
//   - All that a refusal says was the committed state at one moment, and if it is definite, at
//     one between the call and its answer, so not before anything a client was told earlier;
//     the same for LINEARIZABLE reads.
//   - Every judgement of admission is the contract's for what the node had published and had
//     in flight at that moment, field by field: 2013, in_flight_version and in_flight_mark too.
//   - Nodes publish what the log says and have equal digests at equal indexes.
//   - Once all is well nothing is in flight, and every request whose fate is not known to its
//     writer is resolved when it is sent again.
//
// What is found is shrunk to a script of events that still finds it. TestSimulationBites breaks
// the order of things on purpose, from outside the code under test, and wants it found.

import (
	"flag"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

var (
	simSeed    = flag.Uint64("sim.seed", 0, "replay this seed of the simulation, and shrink what it finds; 0 = run many")
	simSeeds   = flag.Int("sim.seeds", simDefaultSeeds, "how many seeds of the simulation to run")
	simFirst   = flag.Uint64("sim.first", 1, "the first of them")
	simSteps   = flag.Int("sim.steps", 800, "how many events a seed has")
	simOutside = flag.Bool("sim.outside", false, "check only what clients see and what the log says")
	simBroke   = flag.String("sim.break", "", "break this on purpose; see simBreaks for the names")
)

func TestSimulation(t *testing.T) {
	broken, ok := breakOf(*simBroke)
	if !ok {
		t.Fatalf("-sim.break %s: not one of %v", *simBroke, simBreaks)
	}
	if *simSeed != 0 {
		conf, script, v := runSeed(*simSeed, *simSteps, broken, *simOutside)
		if v != nil {
			t.Fatal(simReport(*simSeed, conf, broken, script, v))
		}
		t.Logf("seed %d: %d events, nothing found", *simSeed, len(script))
		return
	}
	seed, v := findViolation(*simFirst, *simSeeds, *simSteps, broken, *simOutside)
	if v != nil {
		conf, script, v := runSeed(seed, *simSteps, broken, *simOutside)
		if v == nil {
			t.Fatalf("seed %d was in violation and is not when it is run again: the simulation is not deterministic", seed)
		}
		t.Fatal(simReport(seed, conf, broken, script, v))
	}
}

// What keeps the invariants of this package is missed when it is taken out. Each of these
// takes a few seeds, so a hundred times as many that find nothing mean that the simulation
// has gone blind.
func TestSimulationBites(t *testing.T) {
	for _, b := range []struct {
		broken simBreak
		seeds  int
		why    string
	}{
		{breakKeepOverlay, 400, "a tenure begins with what an earlier one had in flight"},
		{breakNoRound, 1000, "definite refusals and LINEARIZABLE reads without a majority asked after the call"},
		{breakNoFence, 400, "an entry takes effect in another term than it was admitted in"},
		{breakLeaveEarly, 400, "requests leave the overlay before their step is published"},
		{breakLeaveLate, 400, "requests leave the overlay after their step is published"},
		{breakNoBarrier, 400, "a leader admits before it has applied what it inherited"},
		{breakLostIsNo, 400, "ErrLeadershipLost is taken for a definite no"},
		{breakUnknownLeaves, 400, "what may still land leaves the overlay before the term ends"},
		{breakNoAwait, 1000, "LINEARIZABLE reads do not wait for what is committed and not applied"},
		{breakVoteCheck, 400, "votes without looking at the log, which is the model's own affair"},
	} {
		t.Run(b.broken.String(), func(t *testing.T) {
			seed, v := findViolation(1, b.seeds, *simSteps, b.broken, false)
			if v == nil {
				t.Fatalf("%d seeds found nothing, although %s", b.seeds, b.why)
			}
			t.Logf("seed %d: %s\n%s", seed, v.kind, v.text)
		})
	}
}

// One seed is one run, however often.
func TestSimulationIsDeterministic(t *testing.T) {
	for seed := range uint64(10) {
		conf, script, v := runSeed(seed, *simSteps, breakNothing, false)
		_, again, _ := runSeed(seed, *simSteps, breakNothing, false)
		if v != nil || len(script) != len(again) {
			t.Fatalf("seed %d: %d and %d events, %v", seed, len(script), len(again), v)
		}
		var first, second []string
		replay(conf, breakNothing, script, &first)
		replay(conf, breakNothing, again, &second)
		for i := range max(len(first), len(second)) {
			if i >= len(first) || i >= len(second) || first[i] != second[i] {
				t.Fatalf("seed %d differs from line %d on:\n%s", seed, i, traceText(first[:min(len(first), i+1)]))
			}
		}
	}
}

// findViolation runs seeds on all cores until one finds something; the lowest such seed is
// returned.
func findViolation(first uint64, seeds, steps int, broken simBreak, outsideOnly bool) (seed uint64, v *simViolation) {
	var next atomic.Uint64
	next.Store(first)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for {
				n := next.Add(1) - 1
				mu.Lock()
				stop := v != nil && seed < n
				mu.Unlock()
				if stop || n >= first+uint64(seeds) {
					return
				}
				if _, _, found := runSeed(n, steps, broken, outsideOnly); found != nil {
					mu.Lock()
					if v == nil || n < seed {
						seed, v = n, found
					}
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return seed, v
}

// simReport shrinks a script that finds something and writes down what is left.
func simReport(seed uint64, conf simConf, broken simBreak, script []simStep, v *simViolation) string {
	small := shrink(conf, broken, script, v.kind)
	var trace []string
	if found := replay(conf, broken, small, &trace); found != nil {
		v = found
	}
	run := fmt.Sprintf("go test ./replication -run '^TestSimulation$' -sim.seed %d -sim.steps %d", seed, *simSteps)
	if broken != breakNothing {
		run += " -sim.break " + broken.String()
	}
	return fmt.Sprintf("seed %d: %s\n%s\n\n%d events, shrunk to %d:\n%s\nagain: %s", seed, v.kind, v.text, len(script), len(small), traceText(trace), run)
}

// shrink leaves out events as long as a violation of the same kind is found.
func shrink(conf simConf, broken simBreak, script []simStep, kind string) []simStep {
	budget := 3000
	bad := func(s []simStep) bool {
		budget--
		v := replay(conf, broken, s, nil)
		return v != nil && v.kind == kind
	}
	if !bad(script) {
		return script
	}
	for size := len(script) / 2; size > 0 && budget > 0; {
		removed := false
		for at := len(script) - size; at >= 0 && budget > 0; at -= size {
			rest := append(append([]simStep(nil), script[:at]...), script[at+size:]...)
			if bad(rest) {
				script, removed = rest, true
			}
		}
		if !removed || size > 1 {
			size /= 2
		}
	}
	return script
}

// simBreak is something that the simulation takes out of the code under test, by calling it
// otherwise: the code itself has no switch for it.
type simBreak int

const (
	breakNothing simBreak = iota
	breakKeepOverlay
	breakNoRound
	breakNoFence
	breakLeaveEarly
	breakLeaveLate
	breakStaleRound
	breakNoBarrier
	breakLostIsNo
	breakUnknownLeaves
	breakTicketsBeginAnew
	breakVoteCheck
	breakOldTermCommit
	breakNoAwait
	breakDeaf
)

var simBreaks = []string{
	"", "keep-overlay", "no-round", "no-fence", "leave-early", "leave-late", "stale-round", "no-barrier",
	"lost-is-no", "unknown-leaves", "tickets-begin-anew", "vote-check", "old-term-commit", "no-await", "deaf",
}

func (b simBreak) String() string { return simBreaks[b] }

func breakOf(name string) (simBreak, bool) {
	for i, n := range simBreaks {
		if n == name {
			return simBreak(i), true
		}
	}
	return 0, false
}
