package replication

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"strings"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/record"
)

// simConf is what a seed decides before the first event.
type simConf struct {
	outstanding      int
	cacheBytes       int64
	maxInFlightBytes int64
	// outsideOnly leaves out the comparison of every judgement with the model: what is left
	// is what clients see and what the log says.
	outsideOnly bool
}

// sim is one run.
type sim struct {
	conf   simConf
	broken simBreak
	nodes  [simNodes]*simNode
	net    []*simMsg // under way, in the order of sending
	cut    [simNodes][simNodes]bool
	log    []*simEntry // what is committed: the truth
	model  *simModel

	ops       map[int]*simOp
	order     []*simOp
	byPending map[*pending]*simOp
	current   *simOp
	tried     map[int][]simWrite // by intent, with the sequences tried last
	// floor is the highest position that an answer has vouched for, and shown the highest that
	// any read has shown, on whatever node.
	floor, shown uint64
	digests      map[uint64]record.Hash
	chains       map[uint64]record.Hash // by position, as told first
	kept         [simNodes]*simTenure   // for breakKeepOverlay

	at        int // number of the event
	violation *simViolation
	// notes collects what events did, for a trace; nil = nobody reads them.
	notes *[]string
}

func (s *sim) note(format string, args ...any) {
	if s.notes != nil {
		*s.notes = append(*s.notes, fmt.Sprintf(format, args...))
	}
}

func newSim(conf simConf, broken simBreak) *sim {
	s := &sim{
		conf: conf, broken: broken, model: newSimModel(), ops: map[int]*simOp{}, byPending: map[*pending]*simOp{},
		tried: map[int][]simWrite{}, digests: map[uint64]record.Hash{}, chains: map[uint64]record.Hash{},
	}
	for i := range s.nodes {
		n := &simNode{id: i, s: s, clock: 1_000_000}
		n.raft = &simRaft{id: i, s: s, vote: nobody, leader: nobody}
		n.newStore()
		n.start()
		s.nodes[i] = n
	}
	return s
}

// close ends what still runs and gives everything back.
func (s *sim) close() {
	s.notes = nil
	for _, o := range s.running() {
		s.abandon(o)
	}
	for _, n := range s.nodes {
		if n.up {
			n.sh.view.Release()
		}
		if err := n.store.Abandon(); err != nil {
			s.violated("views held", "%s: %v", simNodeName(n.id), err)
		}
	}
}

// step makes one event happen; a panic of the code under test is a violation.
func (s *sim) step(e *simStep) (done bool) {
	defer func() {
		if r := recover(); r != nil {
			s.current = nil
			s.violated("panic", "%v\n%s", r, debug.Stack())
		}
	}()
	return s.do(e)
}

// runSeed makes a run of up to steps events that the seed decides, and returns the events.
func runSeed(seed uint64, steps int, broken simBreak, outsideOnly bool) (conf simConf, script []simStep, v *simViolation) {
	rng := rand.New(rand.NewPCG(seed, 1))
	conf = drawConf(rng)
	conf.outsideOnly = outsideOnly
	s := newSim(conf, broken)
	g := newSimGenerator(rng, s)
	for s.at = 0; s.at < steps && s.violation == nil; s.at++ {
		e := g.draw()
		if s.step(&e) {
			script = append(script, e)
		}
	}
	v = s.finishRun()
	return conf, script, v
}

// replay makes a run of given events; trace, if not nil, collects what happens.
func replay(conf simConf, broken simBreak, script []simStep, trace *[]string) *simViolation {
	s := newSim(conf, broken)
	s.notes = trace
	for i := range script {
		if s.violation != nil {
			break
		}
		s.at = i
		s.note("> %s", script[i].String())
		if !s.step(&script[i]) {
			s.note("(nothing to do)")
		}
	}
	s.note("> the end: all links and nodes are well, one node is elected, everything is answered")
	return s.finishRun()
}

// finishRun ends the adversary's reign, checks that everything resolves and that all nodes
// hold what the log says, and closes the run.
func (s *sim) finishRun() *simViolation {
	func() {
		defer func() {
			if r := recover(); r != nil {
				s.current = nil
				s.violated("panic", "%v\n%s", r, debug.Stack())
			}
		}()
		if s.violation == nil {
			s.settle()
		}
	}()
	if v := s.violation; v == nil || v.kind != "panic" {
		s.close()
	}
	return s.violation
}

func (s *sim) settle() {
	s.cut = [simNodes][simNodes]bool{}
	s.net = nil
	for _, n := range s.nodes {
		if !n.up {
			n.restart(0)
		}
		if n.running != nil {
			n.running.end(fmt.Errorf("gave up"))
		}
	}
	s.elect()
	s.pump()
	if s.violation != nil {
		return
	}
	for _, o := range s.running() {
		s.violated("a call that never ends", "%s", o)
		return
	}
	s.resolveAll()
	if s.violation != nil {
		return
	}
	for _, n := range s.nodes {
		s.checkState(n)
		if n.sh.store.Applied().Digest != s.nodes[0].sh.store.Applied().Digest {
			s.violated("digests differ", "%s and n1 at the end", simNodeName(n.id))
		}
	}
}

// elect makes the node with the best log stand for election in a new term.
func (s *sim) elect() {
	best := s.nodes[0]
	term := uint64(0)
	for _, n := range s.nodes {
		i, t := n.raft.last()
		bi, bt := best.raft.last()
		if t > bt || t == bt && i > bi {
			best = n
		}
		term = max(term, n.raft.term)
	}
	best.raft.stepDown(term)
	best.raft.campaign()
}

// pump lets everything happen that can, in order, until nothing is left to do.
func (s *sim) pump() {
	for range 1000 {
		busy := false
		try := func(e simStep) {
			if s.violation == nil && s.do(&e) {
				busy = true
			}
		}
		for len(s.net) > 0 && s.violation == nil {
			try(simStep{kind: evDeliver, n: s.net[0].from, m: s.net[0].to})
		}
		for i, n := range s.nodes {
			for len(n.raft.notices) > 0 && s.violation == nil {
				try(simStep{kind: evNotice, n: i})
			}
			for k := len(n.old); k > 0; k-- {
				try(simStep{kind: evPropose, n: i, k: k})
			}
			try(simStep{kind: evBarrier, n: i})
			try(simStep{kind: evTake, n: i})
			try(simStep{kind: evPropose, n: i})
			try(simStep{kind: evLoop, n: i})
			try(simStep{kind: evAsk, n: i})
			try(simStep{kind: evApply, n: i, k: 1000})
			for k := len(n.futures) - 1; k >= 0; k-- {
				try(simStep{kind: evFuture, n: i, k: k})
			}
			for to := range s.nodes {
				if r := n.raft; r.role == simLeader && to != i && (r.match[to] < uint64(len(r.log)) || s.nodes[to].raft.commit < r.commit) {
					try(simStep{kind: evReplicate, n: i, m: to})
				}
			}
		}
		for _, o := range s.running() {
			try(simStep{kind: evResume, op: o.id})
		}
		if s.violation != nil || !busy {
			return
		}
	}
	s.bug("there is no end to it")
}

// resolveAll sends every request whose fate a client does not know once more, verbatim: now
// that all is well, it must be told.
func (s *sim) resolveAll() {
	leader := nobody
	for i, n := range s.nodes {
		if n.cur != nil && n.cur.t.ready {
			leader = i
		}
	}
	if leader == nobody {
		s.violated("no leader", "all links and nodes are well, and nobody leads")
		return
	}
	n := s.nodes[leader]
	if o := n.cur.t.overlay; len(o.aggregates) > 0 || len(o.writers) > 0 || n.cur.t.bytes != 0 || len(n.cur.t.proposed) > 0 || len(n.cur.t.queue) > 0 {
		if !s.conf.outsideOnly {
			s.violated("left in flight", "%s has %d aggregates, %d bytes, %d proposals and %d requests in flight, and nothing is", simNodeName(leader), len(o.aggregates), n.cur.t.bytes, len(n.cur.t.proposed), len(n.cur.t.queue))
		}
	}
	asked := map[int]bool{}
	for _, o := range append([]*simOp(nil), s.order...) {
		if o.req == nil || asked[o.intent] || !o.lost && o.code != pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN && o.code != pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE {
			continue
		}
		e := simStep{kind: evCall, n: leader, op: len(s.order) + 1_000_000, client: o.client, req: o.req, intent: o.intent}
		s.note("> %s", e.String())
		if !s.do(&e) {
			continue // given up for other sequences
		}
		asked[o.intent] = true
		s.pump()
		if s.violation != nil {
			return
		}
		again := s.ops[e.op]
		switch again.code {
		case 0, 2002, 2003, 2005, 2030:
		default:
			s.violated("it never resolves", "%s\n  %s\n  and asked again at the end\n  %s\n  %s", o, o.answer(), again, again.answer())
		}
	}
	for _, client := range simClients {
		e := simStep{kind: evCall, n: leader, op: len(s.order) + 1_000_000, client: client, read: pb.Consistency_CONSISTENCY_LINEARIZABLE, key: "1"}
		s.do(&e)
		s.pump()
		if o := s.ops[e.op]; s.violation == nil && o.err != nil {
			s.violated("no LINEARIZABLE read", "%s: %v", o, o.err)
		}
	}
}

func traceText(trace []string) string {
	var b strings.Builder
	n := 0
	for _, line := range trace {
		if text, ok := strings.CutPrefix(line, "> "); ok {
			n++
			fmt.Fprintf(&b, "%4d  %s\n", n, text)
		} else {
			fmt.Fprintf(&b, "        %s\n", strings.ReplaceAll(line, "\n", "\n        "))
		}
	}
	return b.String()
}
