package replication

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// simWeights say how often the adversary does what. They change every so often, so that
// there are times of elections, of pipelines, of notices that come late and then all at once.
type simWeights struct {
	deliver, drop, duplicate, replicate, campaign, stepDown, cut, isolate, heal int
	notice, work, future, apply, ask, askTimeout, clock, crash                  int
	call, again, fresh, read, resume, cancel, impatient, refuse                 int
	back                                                                        int // in 8: a restart loses history
}

func drawWeights(rng *rand.Rand) simWeights {
	one := func(of ...int) int { return of[rng.IntN(len(of))] }
	return simWeights{
		deliver: one(300, 400, 600), drop: one(0, 2, 10), duplicate: one(0, 2, 10), replicate: one(60, 100, 150),
		campaign: one(0, 0, 0, 1, 3), stepDown: one(0, 0, 0, 1, 5), cut: one(0, 0, 0, 2, 4), isolate: one(0, 0, 0, 2, 5), heal: one(3, 6, 12),
		notice: one(3, 30, 100), work: one(100, 150, 200), future: one(5, 30, 80), apply: one(20, 80, 150), ask: one(50, 100), askTimeout: one(0, 3),
		clock: one(1, 4), crash: one(0, 0, 0, 0, 1, 2),
		call: one(15, 40), again: one(10, 30), fresh: 10, read: one(5, 15), resume: one(60, 150), cancel: one(2, 10), impatient: one(0, 5), refuse: one(0, 5, 40),
		back: one(0, 4),
	}
}

// drawConf draws what a seed decides at the start.
func drawConf(rng *rand.Rand) simConf {
	one := func(of ...int) int { return of[rng.IntN(len(of))] }
	return simConf{
		outstanding: one(1, 2, 2, 3), cacheBytes: int64(one(-1, 800, 1<<20, 1<<20)),
		maxInFlightBytes: int64(one(2500, 1<<20, 1<<20, 1<<20)),
	}
}

var (
	simClients = []string{"a", "b", "c"}
	simKeys    = []string{"1", "1", "1", "2", "2", "3"}
)

// simGenerator invents the next event from what could happen now.
type simGenerator struct {
	rng *rand.Rand
	s   *sim
	w   simWeights
	// phase is how many events the weights are still good for.
	phase int
	// slow divides what a node does by itself: applying, noticing, resolving.
	slow [simNodes]int
	// What the clients know: the last sequence sent per writer and aggregate, and the newest
	// version heard of.
	sent    map[string]uint64
	version map[string]uint64
	heard   int // answers of s.order up to here are in version
	intents int
	under   [simNodes][simNodes]int // messages per link

	events []simStep // candidates
	weight []int
	total  int
}

func newSimGenerator(rng *rand.Rand, s *sim) *simGenerator {
	return &simGenerator{rng: rng, s: s, sent: map[string]uint64{}, version: map[string]uint64{}}
}

func (g *simGenerator) offer(weight int, e simStep) {
	if weight > 0 {
		g.events, g.weight, g.total = append(g.events, e), append(g.weight, weight), g.total+weight
	}
}

func (g *simGenerator) draw() simStep {
	if g.phase--; g.phase < 0 {
		g.w, g.phase = drawWeights(g.rng), 30+g.rng.IntN(120)
		for i := range g.slow {
			g.slow[i] = 1 + 7*(g.rng.IntN(6)/5)
		}
	}
	g.events, g.weight, g.total = g.events[:0], g.weight[:0], 0
	g.offerNetwork()
	for i, n := range g.s.nodes {
		if n.up {
			g.offerNode(i, n)
		} else {
			back := 0
			if g.rng.IntN(8) < g.w.back {
				back = 1 + g.rng.IntN(20)
			}
			g.offer(30, simStep{kind: evRestart, n: i, k: back})
		}
	}
	g.offerCalls()
	x := g.rng.IntN(g.total)
	for i := range g.events {
		if x -= g.weight[i]; x < 0 {
			e := g.events[i]
			if e.kind == evCall {
				g.fill(&e)
			}
			return e
		}
	}
	panic("no event drawn")
}

func (g *simGenerator) offerNetwork() {
	s, w := g.s, g.w
	g.under = [simNodes][simNodes]int{}
	links := &g.under
	open := 0
	for _, m := range s.net {
		links[m.from][m.to]++
	}
	for from := range links {
		for to, n := range links[from] {
			if n > 0 && !s.cut[from][to] {
				open++
			}
		}
	}
	for from := range links {
		for to, n := range links[from] {
			if n == 0 {
				continue
			}
			k := 0
			if g.rng.IntN(4) == 0 {
				k = g.rng.IntN(n) // out of order
			}
			if !s.cut[from][to] {
				g.offer(w.deliver/open, simStep{kind: evDeliver, n: from, m: to, k: k})
			}
			if drop := w.drop; n > 8 {
				g.offer(100, simStep{kind: evDrop, n: from, m: to, k: k}) // nothing grows without bounds
			} else if g.rng.IntN(3) == 0 {
				g.offer(drop, simStep{kind: evDrop, n: from, m: to, k: k})
				g.offer(w.duplicate, simStep{kind: evDuplicate, n: from, m: to, k: k})
			}
		}
	}
	a := g.rng.IntN(simNodes)
	g.offer(w.cut, simStep{kind: evCut, n: a, m: (a + 1 + g.rng.IntN(simNodes-1)) % simNodes})
	if a = g.rng.IntN(simNodes); g.rng.IntN(3) > 0 {
		for i, n := range s.nodes {
			if n.raft.role == simLeader {
				a = i
			}
		}
	}
	g.offer(w.isolate, simStep{kind: evCut, n: a, m: a})
	if s.cut != [simNodes][simNodes]bool{} {
		g.offer(w.heal, simStep{kind: evHeal})
	}
}

func (g *simGenerator) offerNode(i int, n *simNode) {
	w, r := g.w, n.raft
	w.apply, w.notice, w.future = slower(w.apply, g.slow[i]), slower(w.notice, g.slow[i]), slower(w.future, g.slow[i])
	if r.role == simLeader {
		for to := range simNodes {
			if to != i {
				weight := w.replicate / 8
				if r.match[to] < uint64(len(r.log)) || g.s.nodes[to].raft.commit < r.commit {
					weight = w.replicate
				}
				if g.under[i][to] > 0 {
					weight /= 10
				}
				g.offer(weight, simStep{kind: evReplicate, n: i, m: to})
			}
		}
		g.offer(w.stepDown, simStep{kind: evStepDown, n: i})
	} else {
		weight := w.campaign
		if g.leaderless() && !g.voting() && g.reaches(i) {
			weight = 40
		}
		g.offer(weight, simStep{kind: evCampaign, n: i})
	}
	if len(r.queue) > 0 {
		g.offer(w.work, simStep{kind: evLoop, n: i})
	}
	if len(r.notices) > 0 {
		g.offer(w.notice, simStep{kind: evNotice, n: i})
	}
	if t := n.cur; t != nil {
		if !t.t.ready && !t.barrier {
			g.offer(w.work, simStep{kind: evBarrier, n: i})
		}
		if t.t.ready && !t.t.lost && t.taken == nil && len(t.t.queue) > 0 && t.outstanding < g.s.conf.outstanding {
			g.offer(w.work, simStep{kind: evTake, n: i})
		}
		if t.taken != nil {
			g.offer(w.work, simStep{kind: evPropose, n: i})
			g.offer(w.refuse, simStep{kind: evPropose, n: i, err: simNever[g.rng.IntN(len(simNever))]})
		}
	}
	for k := range n.old {
		g.offer(w.work/4, simStep{kind: evPropose, n: i, k: k + 1})
	}
	for k, f := range n.futures {
		if f.resolved {
			weight := w.future
			if f.kind != 0 {
				weight = w.work
			}
			g.offer(weight, simStep{kind: evFuture, n: i, k: k})
		}
	}
	if r.commit > r.handed || n.early != nil || n.late != nil {
		g.offer(w.apply, simStep{kind: evApply, n: i, k: 1 + g.rng.IntN(6)})
	}
	if n.next != nil && (n.running == nil || n.running.done) {
		g.offer(w.ask, simStep{kind: evAsk, n: i})
	}
	if n.running != nil && !n.running.done {
		g.offer(w.askTimeout, simStep{kind: evAskTimeout, n: i})
	}
	g.offer(w.clock, simStep{kind: evClock, n: i, at: n.clock + int64(g.rng.IntN(2000)) - 700})
	g.offer(w.crash, simStep{kind: evCrash, n: i})
}

func slower(weight, by int) int { return max(1, weight/by) }

// leaderless says whether no leader of the newest term reaches a majority.
func (g *simGenerator) leaderless() bool {
	var term, led uint64
	for i, n := range g.s.nodes {
		term = max(term, n.raft.term)
		if n.raft.role == simLeader && n.up && g.reaches(i) {
			led = max(led, n.raft.term)
		}
	}
	return led < term || led == 0
}

// reaches says whether a node reaches another one.
func (g *simGenerator) reaches(i int) bool {
	for to, n := range g.s.nodes {
		if to != i && n.up && !g.s.cut[i][to] {
			return true
		}
	}
	return false
}

// voting says whether votes for the newest term are under way.
func (g *simGenerator) voting() bool {
	var term uint64
	for _, n := range g.s.nodes {
		term = max(term, n.raft.term)
	}
	for _, m := range g.s.net {
		if (m.kind == simAskVote || m.kind == simVote) && m.term == term && !g.s.cut[m.from][m.to] {
			return true
		}
	}
	return false
}

func (g *simGenerator) offerCalls() {
	w := g.w
	if !slices.ContainsFunc(g.s.nodes[:], func(n *simNode) bool { return n.cur != nil && n.cur.t.ready }) {
		w.call, w.again, w.fresh, w.read = 2, 2, 1, 1
	}
	running := g.s.running()
	if len(running) < 12 {
		g.offer(w.call, simStep{kind: evCall, k: 0})
		g.offer(w.again, simStep{kind: evCall, k: 1})
		g.offer(w.fresh, simStep{kind: evCall, k: 2})
		g.offer(w.read, simStep{kind: evCall, k: 3})
	}
	ready := 0
	for _, o := range running {
		if o.resumable() {
			ready++
		}
	}
	for _, o := range running {
		if o.resumable() {
			g.offer(max(1, w.resume/ready), simStep{kind: evResume, op: o.id})
		}
		if o.ctx.Err() == nil {
			g.offer(w.cancel/4, simStep{kind: evCancel, op: o.id})
		}
		if o.attached() {
			g.offer(w.impatient, simStep{kind: evImpatient, op: o.id})
		}
	}
}

// node draws where a call goes: mostly to a node that takes itself for the leader.
func (g *simGenerator) node() int {
	var leaders []int
	for i, n := range g.s.nodes {
		if n.up && n.cur != nil && n.cur.t.ready {
			leaders = append(leaders, i)
		}
	}
	if len(leaders) > 0 && g.rng.IntN(10) > 0 {
		return leaders[g.rng.IntN(len(leaders))]
	}
	return g.rng.IntN(simNodes)
}

// fill completes a call: 0 a new write, 1 one sent again, 2 one under a fresh sequence, 3 a
// read. What there is none of becomes a new write.
func (g *simGenerator) fill(e *simStep) {
	g.hear()
	what := e.k
	e.k, e.n, e.op = 0, g.node(), len(g.s.order)+1
	if what == 3 {
		e.client, e.key = simClients[g.rng.IntN(2)], simKeys[g.rng.IntN(len(simKeys))]
		e.read = []pb.Consistency{pb.Consistency_CONSISTENCY_LINEARIZABLE, pb.Consistency_CONSISTENCY_LINEARIZABLE, pb.Consistency_CONSISTENCY_LEADER, pb.Consistency_CONSISTENCY_ANY}[g.rng.IntN(4)]
		if e.read == pb.Consistency_CONSISTENCY_ANY {
			e.n = g.rng.IntN(simNodes)
		}
		return
	}
	if o := g.earlier(); o != nil && what > 0 {
		e.client, e.req, e.intent = o.client, o.req, o.intent
		if what == 1 {
			if g.rng.IntN(6) == 0 && o.enforced() {
				e.req = proto.Clone(o.req).(*pb.AppendRequest)
				e.req.OnDuplicate = pb.OnDuplicate_ON_DUPLICATE_CONFIRM
			}
			return
		}
		if g.s.gaveUp(o.intent) {
			e.req, e.fresh = proto.Clone(o.req).(*pb.AppendRequest), true
			for _, w := range e.req.Writes {
				for _, ev := range w.Events {
					ev.ClientSeq = g.fresh(o.client, w.Aggregate.Id, 1)
				}
				if w.ExpectedVersion != nil {
					v := g.version[w.Aggregate.Id]
					w.ExpectedVersion = &v
				}
				w.PreviousClientSeq = nil
			}
			return
		}
	}
	g.intents++
	e.intent = g.intents
	e.client = simClients[min(g.rng.IntN(5)/2, 2)]
	e.req = g.request(e.client, e.intent)
}

func (o *simOp) enforced() bool {
	for _, w := range o.writes {
		if !w.enforce {
			return false
		}
	}
	return true
}

// earlier draws one of the last appends, the last ones most often.
func (g *simGenerator) earlier() *simOp {
	order := g.s.order
	for try := 0; try < 4 && len(order) > 0; try++ {
		back := min(g.rng.IntN(6), g.rng.IntN(12)) + try
		if back < len(order) {
			if o := order[len(order)-1-back]; o.req != nil {
				return o
			}
		}
	}
	return nil
}

func (g *simGenerator) fresh(client, key string, step uint64) uint64 {
	g.sent[client+key] += step
	return g.sent[client+key]
}

// hear takes in the answers since the last time.
func (g *simGenerator) hear() {
	for _, o := range g.s.order[g.heard:] {
		for i, r := range o.results {
			k := o.writes[i].key
			g.version[k] = max(g.version[k], r.version)
		}
		if f := o.failure; f != nil {
			g.version[f.Aggregate.Id] = max(g.version[f.Aggregate.Id], f.CurrentVersion)
		}
	}
	for g.heard < len(g.s.order) && g.s.order[g.heard].done {
		g.heard++
	}
}

// request invents a request, mostly a reasonable one.
func (g *simGenerator) request(client string, intent int) *pb.AppendRequest {
	chance := func(percent int) bool { return g.rng.IntN(100) < percent }
	r := &pb.AppendRequest{ClientId: client}
	confirm := chance(25)
	first := g.rng.IntN(len(simKeys))
	n := 1
	if chance(15) {
		n = 2
	}
	used := map[string]bool{}
	for i := range n {
		k := simKeys[(first+3*i)%len(simKeys)]
		if used[k] {
			continue
		}
		used[k] = true
		w := &pb.Write{Aggregate: key(k), AllowCreate: chance(90), EnforceClientIdempotency: confirm || chance(85)}
		events := 1
		if chance(15) {
			events = 2
		}
		var seq uint64
		switch last := g.sent[client+k]; {
		case last > 0 && chance(15):
			seq = 1 + g.rng.Uint64N(last)
		case chance(10):
			seq = g.fresh(client, k, 2)
		default:
			seq = g.fresh(client, k, 1)
		}
		for j := range events {
			id := fmt.Sprintf("i%d.%d.%d", intent, i, j)
			ev := &pb.NewEvent{ClientSeq: seq, EventId: id, Type: "t", Payload: []byte(id)}
			if chance(3) {
				ev.EventId = "same"
			}
			w.Events = append(w.Events, ev)
			if seq++; j+1 < events && seq > g.sent[client+k] {
				g.sent[client+k] = seq
			}
			if !w.EnforceClientIdempotency && chance(30) {
				seq = 1 + g.rng.Uint64N(g.sent[client+k])
			}
		}
		if chance(50) {
			v := g.version[k]
			switch {
			case chance(40):
				for _, o := range g.s.running() {
					for _, ow := range o.writes {
						if ow.key == k {
							v++ // pipelined
						}
					}
				}
			case chance(20):
				v = g.rng.Uint64N(v + 3)
			}
			w.ExpectedVersion = &v
		}
		if w.EnforceClientIdempotency && chance(15) {
			v := w.Events[0].ClientSeq - 1
			if chance(30) {
				v = g.rng.Uint64N(v + 2)
			}
			w.PreviousClientSeq = &v
		}
		r.Writes = append(r.Writes, w)
	}
	if confirm {
		r.OnDuplicate = pb.OnDuplicate_ON_DUPLICATE_CONFIRM
	}
	return r
}
