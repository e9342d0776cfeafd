package replication

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/tidemark-db/tidemark/mark"
	"github.com/tidemark-db/tidemark/wal/history"
)

// simTimeline is the timeline of every simulated cluster.
const simTimeline = "0123456789abcdef0123456789abcdef"

func simNodeName(id int) string { return fmt.Sprint("n", id+1) }

// simNode is a node: the model of its raft, and the real Shard without what Open starts.
type simNode struct {
	id    int
	s     *sim
	raft  *simRaft
	up    bool
	sh    *Shard
	store *history.Store
	clock int64

	cur     *simTenure
	old     []*simTenure // ended ones that still have something to propose
	futures []*simFuture // not yet delivered
	// next collects callers of confirm, running is the round under way.
	next, running *simRound
	// proposing is what propose is called with; refusal, if not nil, is raft's answer at once.
	proposing *simProposal
	refuse    error

	// seen is the highest position that a read has shown here since the node started.
	seen uint64
	// early and late are requests that a broken order of publishing shows at the wrong time.
	early, late []*pending
	earlyCount  int
}

// simTenure is what the simulation knows of a tenure.
type simTenure struct {
	t           *tenure
	admitted    []*simOp // in order
	taken       *simProposal
	outstanding int
	barrier     bool // under way
}

// simGroup is the group of a simulated node.
type simGroup struct{ n *simNode }

func (g simGroup) term() uint64 { return g.n.raft.term }

func (g simGroup) leads(term uint64) bool {
	return g.n.raft.role == simLeader && g.n.raft.term == term
}

func (g simGroup) committed() uint64 {
	if g.n.s.broken == breakNoAwait {
		return 0
	}
	r := g.n.raft
	index := r.commit
	for index > 0 && r.log[index-1].kind != raft.LogCommand {
		index--
	}
	return index
}

// simDeafGroup does not tell its shard that leadership has ended before the notice is read.
type simDeafGroup struct{ simGroup }

func (g simDeafGroup) leads(term uint64) bool {
	if c := g.n.cur; c != nil && c.t.ready {
		return c.t.term == term
	}
	return g.simGroup.leads(term)
}

func (g simGroup) leader() raft.ServerID {
	if g.n.raft.leader == nobody {
		return ""
	}
	return raft.ServerID(simNodeName(g.n.raft.leader) + "#00000001")
}

// barrier is not called: the simulation hands the barrier over itself.
func (g simGroup) barrier() error { return errors.New("the simulation steers barriers") }

func (g simGroup) propose(entry []byte) func() error {
	n := g.n
	f := &simFuture{kind: raft.LogCommand, data: entry, proposal: n.proposing, tenure: n.proposing.tenure}
	n.futures = append(n.futures, f)
	if n.refuse != nil {
		f.resolve(n.refuse)
	} else {
		n.raft.queue = append(n.raft.queue, f)
	}
	return func() error { return f.err }
}

// confirm parks the call until a round that begins after it has ended.
func (g simGroup) confirm(ctx context.Context, term uint64) error {
	n := g.n
	if !g.leads(term) {
		return errNotLeading
	}
	if n.s.broken == breakNoRound {
		return nil
	}
	round := n.next
	if n.s.broken == breakStaleRound && n.running != nil && !n.running.done {
		round = n.running
	}
	if round == nil {
		round = &simRound{term: term, from: n.id}
		n.next = round
	}
	if round.term != term {
		return errors.New("the term changed while others asked")
	}
	o := n.s.current
	o.round = round
	for !round.done && ctx.Err() == nil {
		o.yield()
	}
	o.round = nil
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case round.err != nil:
		return round.err
	case !g.leads(term):
		return errNotLeading
	}
	return nil
}

// park stands in for Shard.wait's select.
func (n *simNode) park(ctx context.Context, done <-chan struct{}) bool {
	o := n.s.current
	if done == nil { // a pause between reading and admitting
		o.yield()
		return true
	}
	o.waiting = done
	defer func() { o.waiting = nil }()
	for {
		o.yield()
		if isClosed(done) {
			return true
		}
		if ctx.Err() != nil || o.impatient {
			o.impatient = false
			return false
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// newStore opens an empty history in memory.
func (n *simNode) newStore() {
	store, err := history.Open(history.Options{Dir: "history", FS: vfs.NewMem(), BlockCacheBytes: 1 << 20, MemTableBytes: 128 << 10})
	if err != nil {
		panic(err)
	}
	n.store = store
}

// start makes the node's Shard on its store, as Open does.
func (n *simNode) start() {
	c := n.s.conf
	o := Options{
		NodeID: simNodeName(n.id), MinFreeDiskBytes: -1, MaxInFlightBytes: c.maxInFlightBytes, MaxOutstandingEntries: c.outstanding,
		HeadCacheBytes: c.cacheBytes, MarkCacheBytes: c.cacheBytes,
		Clock: func() time.Time { return time.Unix(0, n.clock) },
	}
	o.setDefaults()
	s := &Shard{
		meter: newMeter(), validators: newValidators(), opts: o, log: zap.NewNop(), store: n.store, view: n.store.View(),
		cache:      mark.NewCache(o.HeadCacheBytes/2, o.MarkCacheBytes/2),
		proc:       newProcessor(0, n.store, mark.NewCache(o.HeadCacheBytes/2, o.MarkCacheBytes/2)),
		leaderWait: make(chan struct{}), fatalErr: make(chan error, 1), stopped: make(chan struct{}),
		disk: &diskWatch{reserve: -1}, park: n.park,
	}
	if err := s.loadSchemas(); err != nil {
		panic(err)
	}
	s.feed = s.newFeed()
	s.ident.Store(&identity{NodeID: o.NodeID, State: stateMember, Timeline: simTimeline})
	s.proc.applied.Timeline = simTimeline
	s.lastStamp = s.proc.applied.CommittedAt
	s.group.set(simGroup{n})
	n.sh, n.up = s, true
}

// crash ends the process: calls on the node are lost with it.
func (n *simNode) crash() {
	n.up = false
	for _, o := range n.s.running() {
		if o.node == n {
			o.lost = true
			n.s.abandon(o)
		}
	}
	n.sh.view.Release()
	n.raft.restart()
	for _, r := range []*simRound{n.next, n.running} {
		if r != nil {
			r.end(errors.New("the node has ended"))
		}
	}
	*n = simNode{id: n.id, s: n.s, raft: n.raft, store: n.store, clock: n.clock}
}

// restart starts the process again; a history that had not reached the disk is back at an
// older index and takes what it lacks from the log.
func (n *simNode) restart(back int) {
	if applied := n.store.Applied().Index; back > 0 {
		_ = n.store.Abandon() // no view is held: the process that held them has ended
		n.newStore()
		n.start()
		n.applyTo(applied - min(applied, uint64(back)))
		return
	}
	n.start()
}

// applyTo applies what the log has from handed to index.
func (n *simNode) applyTo(index uint64) {
	var logs []*raft.Log
	for i := n.raft.handed; i < index; i++ {
		e := n.raft.log[i]
		if e.kind != raft.LogCommand {
			continue
		}
		data := e.data
		if n.s.broken == breakNoFence {
			data = append([]byte(nil), data...)
			binary.BigEndian.PutUint64(data[1:], e.term)
		}
		logs = append(logs, &raft.Log{Index: e.index, Term: e.term, Type: e.kind, Data: data})
		n.noteInFlightMarks(e)
	}
	(&fsm{n.sh}).ApplyBatch(logs)
	n.raft.applied(max(index, n.raft.handed))
	if n.sh.failed() {
		n.s.violated("storage failed", "%s: %v", simNodeName(n.id), <-n.sh.fatalErr)
		return
	}
	n.checkApplied()
}

// apply applies up to count entries, unless the order of publishing is broken: then a first
// turn only takes requests out of the overlay, or a next one takes out what should have left.
func (n *simNode) apply(count int) {
	switch n.s.broken {
	case breakLeaveEarly:
		if n.early == nil {
			if n.early = n.awaited(count); n.early != nil {
				n.earlyCount = count
				n.overlay(n.early, (*overlay).remove)
				return
			}
		} else {
			count = n.earlyCount
			n.overlay(n.early, (*overlay).add)
			n.early = nil
		}
	case breakLeaveLate:
		if n.late != nil {
			n.overlay(n.late, (*overlay).remove)
			n.late = nil
			return
		}
		n.late = n.awaited(count)
	}
	n.applyTo(min(n.raft.commit, n.raft.handed+uint64(count)))
	if n.late != nil {
		n.overlay(n.late, (*overlay).add)
	}
}

// awaited are the requests of the tenure in the next count entries.
func (n *simNode) awaited(count int) (ps []*pending) {
	for i := n.raft.handed; i < min(n.raft.commit, n.raft.handed+uint64(count)); i++ {
		if p := n.raft.log[i].proposal; p != nil && n.cur != nil && p.tenure == n.cur && n.cur.t.proposed[p.g.ticket] == p.g {
			ps = append(ps, p.g.requests...)
		}
	}
	return ps
}

// overlay changes the overlay behind the shard's back.
func (n *simNode) overlay(ps []*pending, change func(*overlay, *pending)) {
	for _, p := range ps {
		if o := n.s.byPending[p]; n.cur != nil && o.tenure == n.cur {
			change(n.cur.t.overlay, p)
		}
	}
}

// notice is the watcher of leadership reading raft's next notice.
func (n *simNode) notice() {
	leads := n.raft.notices[0]
	n.raft.notices = n.raft.notices[1:]
	was := n.cur
	n.sh.endTenure("leadership was lost")
	if was != nil && was.taken != nil {
		n.old = append(n.old, was)
	}
	n.cur = nil
	if n.s.broken == breakTicketsBeginAnew {
		n.sh.lastTicket = 0
	}
	if !leads {
		if n.s.broken == breakKeepOverlay {
			n.s.kept[n.id] = was
		}
		return
	}
	var g group = simGroup{n}
	if n.s.broken == breakDeaf {
		g = simDeafGroup{simGroup{n}}
	}
	n.cur = &simTenure{t: n.sh.openTenure(g)}
	if was == nil {
		was = n.s.kept[n.id]
	}
	if n.s.broken == breakKeepOverlay && was != nil {
		n.cur.t.overlay, n.cur.t.bytes = was.t.overlay, was.t.bytes
	}
	if n.s.broken == breakNoBarrier {
		n.admits(n.cur)
	}
}

func (n *simNode) admits(t *simTenure) {
	n.sh.mu.Lock()
	defer n.sh.mu.Unlock()
	n.sh.admitsFrom(t.t)
}

// barrier is makeReady handing its barrier over.
func (n *simNode) barrier() {
	f := &simFuture{kind: raft.LogBarrier, tenure: n.cur}
	n.cur.barrier = true
	n.futures = append(n.futures, f)
	n.raft.queue = append(n.raft.queue, f)
}

// take is the batcher taking what is queued.
func (n *simNode) take() {
	g := n.sh.takeNext(n.cur.t)
	if g == nil {
		return
	}
	p := &simProposal{tenure: n.cur, g: g}
	for _, r := range g.requests {
		p.ops = append(p.ops, n.s.byPending[r])
	}
	n.cur.taken = p
	n.cur.outstanding++
}

// propose is the batcher handing over what it took, now or in a tenure that has ended since.
func (n *simNode) propose(t *simTenure, refuse error) {
	n.proposing, n.refuse = t.taken, refuse
	t.t.group.propose(t.taken.g.entry(t.t.term))
	t.taken = nil
	for i := range n.old {
		if n.old[i] == t {
			n.old = append(n.old[:i], n.old[i+1:]...)
			break
		}
	}
}

// deliver tells who waits for a future what became of it.
func (n *simNode) deliver(i int) {
	f := n.futures[i]
	n.futures = append(n.futures[:i], n.futures[i+1:]...)
	if f.kind == raft.LogBarrier {
		f.tenure.barrier = false
		if f.err == nil {
			n.admits(f.tenure)
		}
		return
	}
	f.tenure.outstanding--
	err := f.err
	if errors.Is(err, raft.ErrLeadershipLost) && n.s.broken == breakLostIsNo {
		err = raft.ErrNotLeader
	}
	if err != nil && !errors.Is(err, raft.ErrLeadershipLost) {
		for _, o := range f.proposal.ops {
			o.givenBack = true
		}
	}
	n.sh.resolved(f.tenure.t, f.proposal.g, err)
	if t := f.tenure; errors.Is(err, raft.ErrLeadershipLost) && n.s.broken == breakUnknownLeaves && t == n.cur && t.t.proposed[f.proposal.g.ticket] != nil {
		delete(t.t.proposed, f.proposal.g.ticket)
		for _, p := range f.proposal.g.requests {
			t.t.leave(p)
		}
	}
}

// inFlight is what the tenure has admitted and the published state does not decide.
func (n *simNode) inFlight() (ops []*simOp) {
	if n.cur == nil {
		return nil
	}
	index := n.sh.view.Applied().Index
	for _, o := range n.cur.admitted {
		if !o.givenBack && !o.decidedBy(index) {
			ops = append(ops, o)
		}
	}
	return ops
}

// noteInFlightMarks computes, for the requests of an entry that is about to be applied, what
// their writers have in flight behind them.
func (n *simNode) noteInFlightMarks(e *simEntry) {
	if e.proposal == nil || n.cur == nil || e.proposal.tenure != n.cur {
		return
	}
	left := map[*simOp]bool{}
	for i := range e.index {
		if p := n.raft.log[i].proposal; p != nil && i+1 < e.index {
			for _, o := range p.ops {
				left[o] = true
			}
		}
	}
	for _, o := range e.proposal.ops {
		left[o] = true
		if o.refusal == nil {
			continue
		}
		var mark uint64
		for _, other := range n.cur.admitted {
			if left[other] || other.givenBack || other.client != o.client {
				continue
			}
			for _, w := range other.writes {
				if w.key == o.refusal.Aggregate.Id {
					mark = max(mark, w.hi)
				}
			}
		}
		o.markBehind = mark
	}
}

// checkApplied compares what the node has published with the model and the other nodes.
func (n *simNode) checkApplied() {
	a := n.sh.view.Applied()
	if a.Index == 0 {
		return
	}
	m := n.s.model
	if a.Position != m.positions[a.Index-1] || a.CommittedAt != m.stamps[a.Index-1] {
		n.s.violated("state is not the log's", "%s at entry %d is at position %d, committed_at %d; the log says %d, %d",
			simNodeName(n.id), a.Index, a.Position, a.CommittedAt, m.positions[a.Index-1], m.stamps[a.Index-1])
		return
	}
	if d, ok := n.s.digests[a.Index]; ok && d != a.Digest {
		n.s.violated("digests differ", "%s at entry %d differs from another node", simNodeName(n.id), a.Index)
	}
	n.s.digests[a.Index] = a.Digest
}
