package replication

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication/peer"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

const (
	// checkpointEvery is the longest that a follower which the log passes by is not woken.
	checkpointEvery = 800 * time.Millisecond
	// tickSlots spreads those wake-ups over that time: all at once, thousands of them would
	// delay what is live.
	tickSlots = 80
)

// FollowScope says which aggregates a follower is woken for. If several fields are set, for
// those of each; All is all of them.
type FollowScope struct {
	All bool
	// Prefixes are beginnings of keys: an org with its zero byte, or an org and a type with
	// theirs.
	Prefixes []string
	Keys     []record.Key
}

// Feed hands the log, as it is applied, to those who follow it. It knows nothing of raft.
//
// Each follower is woken for its own aggregates only, and once in a while when only others
// change, so that ten thousand that wait for something else cost an append nothing. Apply's
// goroutine only leaves a token; one goroutine, Run, finds out whom the new changes concern.
type Feed struct {
	ring    *ring
	view    func() *history.View
	leader  func() string
	stopped <-chan struct{}
	kick    chan struct{} // one token: there is something new

	// dispatched is the newest position of which every follower that it concerns was told.
	dispatched atomic.Uint64
	count      atomic.Int64

	mu     sync.Mutex
	round  uint64
	all    followSet
	prefix map[string]*followSet // by org and by org and type, as in FollowScope
	key    map[record.Key]*followSet
	// order is all followers; a tick looks at the next part of it, from cursor on.
	order  []*Follower
	cursor int
}

// FeedOptions are what a Feed needs.
type FeedOptions struct {
	// RingBytes and RingChanges bound the newest changes that are kept in memory.
	RingBytes   int64
	RingChanges int
	// Last is the newest position that View holds now.
	Last uint64
	// View returns the newest view, acquired; nil after Stopped.
	View func() *history.View
	// Leader returns the client address of the leader, "" if it is this node or not known.
	Leader func() string
	// Stopped is closed when nothing is served any more.
	Stopped <-chan struct{}
}

// NewFeed makes a feed; its owner starts Run.
func NewFeed(o FeedOptions) *Feed {
	f := &Feed{
		ring: newRing(o.RingBytes, o.RingChanges, o.Last), view: o.View, leader: o.Leader, stopped: o.Stopped,
		kick: make(chan struct{}, 1), prefix: map[string]*followSet{}, key: map[record.Key]*followSet{},
	}
	f.dispatched.Store(o.Last)
	return f
}

// Publish hands over the changes of a step, which View must hold already. It never waits.
func (fs *Feed) Publish(changes []LogChange) {
	if len(changes) > 0 {
		fs.ring.add(changes)
		fs.published()
	}
}

// Reset says that View is of another node's history now, which ends at last.
func (fs *Feed) Reset(last uint64) {
	fs.ring.reset(last)
	fs.published()
}

// followSet is the followers of one scope.
type followSet struct {
	members map[*Follower]struct{}
	round   uint64 // the last in which they were told
}

// Follower follows the log from a position that its owner keeps. Its owner is one goroutine.
//
// It is told of a position by being given the first one that it does not know of yet: pending.
// While that is not taken, later ones are not noted, because who takes it reads on to the
// newest.
type Follower struct {
	feed    *Feed
	scope   FollowScope
	wake    chan struct{}
	pending atomic.Uint64 // 0 = nothing
	due     atomic.Bool
	// moved is closed when this node stops leading; nil if that does not matter.
	moved <-chan struct{}
	// place in Feed.order, and what was dispatched at the last tick. Feed.mu.
	place  int
	ticked uint64
	// between is called between the two looks of Poll by a test of their order; else nil.
	between func()
}

// Follow follows the log once this node may serve what o asks for. The first Poll finds
// everything that is there. now is the position that follows on what was committed when the
// call began. The caller must Close the follower. Errors are those of Read.
func (s *Shard) Follow(ctx context.Context, o ReadOptions, scope FollowScope) (f *Follower, now uint64, err error) {
	var moved <-chan struct{}
	if o.Consistency != pb.Consistency_CONSISTENCY_ANY {
		// Before the check: if the tenure ends in between, so does the follower at once.
		s.mu.Lock()
		if s.tenure != nil {
			moved = s.tenure.done
		}
		s.mu.Unlock()
	}
	v, err := s.Read(ctx, o)
	if err != nil {
		return nil, 0, err
	}
	now = v.Applied().Position + 1
	v.Release()
	if o.Consistency != pb.Consistency_CONSISTENCY_ANY && moved == nil {
		// It became the leader between the two looks.
		return nil, 0, api.Errorf(pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY, "this node has only just become the leader; ask again").After(retrySoon)
	}
	return s.feed.Follow(scope, moved), now, nil
}

func (s *Shard) newFeed() *Feed {
	return NewFeed(FeedOptions{
		RingBytes: s.opts.RingBytes, RingChanges: s.opts.RingChanges, Last: s.proc.applied.Position,
		View: s.currentView, Leader: s.leaderElsewhere, Stopped: s.stopped,
	})
}

// leaderElsewhere is the client address of the leader, "" if it is this node or not known.
func (s *Shard) leaderElsewhere() string {
	if g := s.group.get(); g != nil {
		if id := g.leader(); peer.NodeID(id) != s.opts.NodeID {
			return s.clientAddress(id)
		}
	}
	return ""
}

// Follow makes a follower, which ends when moved, unless it is nil, is closed.
func (fs *Feed) Follow(scope FollowScope, moved <-chan struct{}) *Follower {
	f := &Follower{feed: fs, scope: scope, wake: make(chan struct{}, 1), moved: moved}
	f.pending.Store(1)
	fs.register(f)
	return f
}

// Close ends it.
func (f *Follower) Close() { f.feed.remove(f) }

// Wake has a token when Poll may find something new.
func (f *Follower) Wake() <-chan struct{} { return f.wake }

// Moved is closed when this node is not the leader any more that the follower began with;
// nil if that does not matter.
func (f *Follower) Moved() <-chan struct{} { return f.moved }

// Stopped is closed when the shard stops.
func (f *Follower) Stopped() <-chan struct{} { return f.feed.stopped }

// Due says, once each time, that the follower has been woken because it is time to tell how
// far the log is.
func (f *Follower) Due() bool { return f.due.Swap(false) }

// Poll is told where the owner is, which has seen everything below next, and says what it has
// to look at: everything from from to to, both included; if to is below from there is nothing,
// and nothing concerns it below from.
func (f *Follower) Poll(next uint64) (from, to uint64) {
	fs := f.feed
	// In this order: everything up to dispatched was noted in pending before.
	dispatched := fs.dispatched.Load()
	if f.between != nil {
		f.between()
	}
	first := f.pending.Swap(0)
	if first == 0 {
		return max(next, dispatched+1), 0
	}
	// Whatever was not noted because pending was taken is in the ring by now, or below it.
	return max(next, first), fs.ring.newest()
}

// Recent returns what the ring holds from position on: the changes up to and including to
// that keep says yes to, until their batches have size bytes together, and the position that
// follows on what was looked at. ok is false if the ring does not hold position: then a View
// does.
func (f *Follower) Recent(dst []LogChange, position, to uint64, size int, keep func(*history.Change) bool) (_ []LogChange, next uint64, ok bool) {
	const atOnce = 64
	begin := len(dst)
	for next = position; next <= to; {
		steps := f.feed.ring.from(next, atOnce)
		if steps == nil {
			break
		}
		for i := range steps {
			for _, c := range steps[i].changes[max(next, steps[i].first())-steps[i].first():] {
				if c.Position > to || size <= 0 {
					f.feed.ring.readable(dst[begin:])
					return dst, next, true
				}
				next = c.Position + 1
				if keep(&c.Change) {
					dst = append(dst, c)
					size -= len(c.Stored) + changeBytes/2
				}
			}
		}
	}
	f.feed.ring.readable(dst[begin:])
	return dst, next, next > position
}

// View returns the newest view, which holds everything that Poll has told of; the caller
// releases it. It is nil once the shard has stopped.
func (f *Follower) View() *history.View { return f.feed.view() }

// Leader is the client address of the leader, "" if it is this node or not known.
func (f *Follower) Leader() string { return f.feed.leader() }

// tell notes that position concerns the follower.
func (f *Follower) tell(position uint64) {
	if f.pending.CompareAndSwap(0, position) {
		f.token()
	}
}

func (f *Follower) token() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (fs *Feed) register(f *Follower) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if len(fs.order) == 0 {
		// Nobody was told of anything meanwhile, and f looks at everything first.
		fs.dispatched.Store(fs.ring.newest())
	}
	fs.eachSet(f, func(s *followSet) { s.members[f] = struct{}{} })
	f.place = len(fs.order)
	f.ticked = fs.dispatched.Load()
	fs.order = append(fs.order, f)
	fs.count.Add(1)
	fs.published() // starts the ticks
}

func (fs *Feed) remove(f *Follower) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	if f.place >= len(fs.order) || fs.order[f.place] != f {
		return // closed already
	}
	last := fs.order[len(fs.order)-1]
	fs.order[f.place], last.place = last, f.place
	fs.order[len(fs.order)-1] = nil
	fs.order = fs.order[:len(fs.order)-1]
	fs.eachSet(f, func(s *followSet) { delete(s.members, f) })
	for _, p := range f.scope.Prefixes {
		if s := fs.prefix[p]; s != nil && len(s.members) == 0 {
			delete(fs.prefix, p)
		}
	}
	for _, k := range f.scope.Keys {
		if s := fs.key[k]; s != nil && len(s.members) == 0 {
			delete(fs.key, k)
		}
	}
	fs.count.Add(-1)
}

// eachSet calls do with the sets that f belongs to, making those that are missing. mu is held.
func (fs *Feed) eachSet(f *Follower, do func(*followSet)) {
	if f.scope.All {
		if fs.all.members == nil {
			fs.all.members = map[*Follower]struct{}{}
		}
		do(&fs.all)
		return
	}
	for _, p := range f.scope.Prefixes {
		if fs.prefix[p] == nil {
			fs.prefix[p] = &followSet{members: map[*Follower]struct{}{}}
		}
		do(fs.prefix[p])
	}
	for _, k := range f.scope.Keys {
		if fs.key[k] == nil {
			fs.key[k] = &followSet{members: map[*Follower]struct{}{}}
		}
		do(fs.key[k])
	}
}

// published leaves a token for Run. Apply's goroutine calls it.
func (fs *Feed) published() {
	if fs.count.Load() == 0 {
		return
	}
	select {
	case fs.kick <- struct{}{}:
	default:
	}
}

// Run tells followers of what is new until the feed is stopped.
func (fs *Feed) Run() {
	tick := time.NewTicker(checkpointEvery / tickSlots)
	defer tick.Stop()
	for {
		var ticks <-chan time.Time
		if fs.count.Load() > 0 {
			ticks = tick.C
		}
		select {
		case <-fs.stopped:
			return
		case <-fs.kick:
			fs.dispatch()
		case <-ticks:
			fs.dispatch() // registered when the token for it was not left
			fs.tick()
		}
	}
}

// dispatch tells followers of what is in the ring and was not dispatched yet.
func (fs *Feed) dispatch() {
	for {
		next := fs.dispatched.Load() + 1
		newest := fs.ring.newest()
		if next > newest {
			return
		}
		steps := fs.ring.from(next, 64)
		if steps == nil {
			// It has fallen out already, or the history was replaced: everybody looks.
			fs.tellAll(next, newest)
			continue
		}
		fs.mu.Lock()
		fs.round++
		last := next
		for i := range steps {
			for j := range steps[i].changes {
				if c := &steps[i].changes[j]; c.Position >= next {
					fs.tellOf(c)
					last = c.Position
				}
			}
		}
		fs.dispatched.Store(last)
		fs.mu.Unlock()
	}
}

// tellOf tells those whom a change concerns. mu is held.
func (fs *Feed) tellOf(c *LogChange) {
	fs.tellSet(&fs.all, c.Position)
	key := string(c.Key)
	if len(fs.prefix) > 0 {
		org := strings.IndexByte(key, 0) + 1
		typ := org + strings.IndexByte(key[org:], 0) + 1
		fs.tellSet(fs.prefix[key[:org]], c.Position)
		fs.tellSet(fs.prefix[key[:typ]], c.Position)
	}
	if len(fs.key) > 0 {
		fs.tellSet(fs.key[c.Key], c.Position)
	}
}

// tellSet tells a set, once a round: who is told reads on to the newest. mu is held.
func (fs *Feed) tellSet(s *followSet, position uint64) {
	if s == nil || s.round == fs.round {
		return
	}
	s.round = fs.round
	for f := range s.members {
		f.tell(position)
	}
}

// tellAll tells every follower to look at everything from position on.
func (fs *Feed) tellAll(position, newest uint64) {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	for _, f := range fs.order {
		f.tell(position)
	}
	fs.dispatched.Store(newest)
}

// tick wakes the next part of the followers that the log has passed by since their last time.
func (fs *Feed) tick() {
	fs.mu.Lock()
	defer fs.mu.Unlock()
	dispatched := fs.dispatched.Load()
	for range min(len(fs.order), len(fs.order)/tickSlots+1) {
		if fs.cursor >= len(fs.order) {
			fs.cursor = 0
		}
		f := fs.order[fs.cursor]
		fs.cursor++
		if f.ticked != dispatched {
			f.ticked = dispatched
			f.due.Store(true)
			f.token()
		}
	}
}
