package replication

import (
	"slices"
	"sort"
	"sync"

	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// LogChange is one position of the log.
type LogChange struct {
	history.Change
	Position uint64
	// Stored is the batch, to be read with the functions of package record and not to be
	// changed; nil if the change is none, or the batch was trimmed or deleted.
	Stored []byte
	// Created says that the batch is the first of its aggregate's life.
	Created bool
}

// changeBytes is about what a change takes in the ring beside its batch.
const changeBytes = 192

// ring holds the newest changes of the log, for subscriptions: what is committed is in memory
// already, and those that keep up need no store. It is bounded in bytes and in changes; what
// falls out is read from the store instead, so nothing in it is needed.
//
// Apply's goroutine adds to it and never waits: the lock is held for as long as it takes to
// find and copy references. What is in a step never changes, so it is read without the lock.
type ring struct {
	maxBytes   int64
	maxChanges int

	mu    sync.RWMutex
	steps []ringStep // without gaps, oldest first
	// last is the newest position that is published; all of them are in the ring or below it.
	last  uint64
	bytes int64
	count int
	// gone is the newest trim or delete, in the ring, of each aggregate that has one: a batch
	// before it is not read any more, although the ring still holds it.
	gone map[record.Key]LogChange
}

// ringStep is the changes of one step of Apply.
type ringStep struct {
	changes []LogChange
	bytes   int64
}

func (s *ringStep) first() uint64 { return s.changes[0].Position }

func newRing(maxBytes int64, maxChanges int, last uint64) *ring {
	return &ring{maxBytes: maxBytes, maxChanges: maxChanges, last: last, gone: map[record.Key]LogChange{}}
}

// add puts the changes of a step in, which follow on last.
func (r *ring) add(changes []LogChange) {
	if len(changes) == 0 {
		return
	}
	step := ringStep{changes: changes, bytes: int64(len(changes)) * changeBytes}
	for i := range changes {
		step.bytes += int64(len(changes[i].Stored))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.steps = append(r.steps, step)
	r.last = changes[len(changes)-1].Position
	r.bytes += step.bytes
	r.count += len(changes)
	for i := range changes {
		if c := &changes[i]; c.Kind != history.ChangeBatch {
			r.gone[c.Key] = *c
		}
	}
	drop := 0
	for drop < len(r.steps) && (r.bytes > r.maxBytes || r.count > r.maxChanges) {
		r.forget(&r.steps[drop])
		drop++
	}
	// Those that are dropped keep their memory until append moves the rest.
	clear(r.steps[:drop])
	r.steps = r.steps[drop:]
}

// forget takes a step out of the counts. mu is held.
func (r *ring) forget(step *ringStep) {
	r.bytes -= step.bytes
	r.count -= len(step.changes)
	for i := range step.changes {
		c := &step.changes[i]
		if c.Kind != history.ChangeBatch && r.gone[c.Key].Position == c.Position {
			delete(r.gone, c.Key)
		}
	}
}

// reset empties the ring: the history was replaced by another node's, which ends at last.
func (r *ring) reset(last uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.steps {
		r.forget(&r.steps[i])
	}
	r.steps, r.last = nil, last
}

// newest is the newest position that is published.
func (r *ring) newest() uint64 {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return r.last
}

// from returns steps that hold what follows from position on, at most a number of them; none
// if the ring does not hold position. The first may begin before it.
func (r *ring) from(position uint64, most int) []ringStep {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.steps) == 0 || position < r.steps[0].first() || position > r.last {
		return nil
	}
	i := sort.Search(len(r.steps), func(i int) bool { return r.steps[i].first() > position }) - 1
	return slices.Clone(r.steps[i:min(len(r.steps), i+most)])
}

// readable takes the batches away from changes that can not be read any more by now.
func (r *ring) readable(changes []LogChange) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	if len(r.gone) == 0 {
		return
	}
	for i := range changes {
		c := &changes[i]
		if g, ok := r.gone[c.Key]; ok && c.Stored != nil && c.Position < g.Position &&
			(g.Kind == history.ChangeDelete || c.Incarnation != g.Incarnation || c.Version < g.Version) {
			c.Stored = nil
		}
	}
}

// FeedStats says what a feed has in memory.
type FeedStats struct {
	Followers int64
	// Changes and Bytes are the newest changes, which are kept for followers.
	Changes, MaxChanges int
	Bytes, MaxBytes     int64
}

// Stats says what the feed has in memory.
func (fs *Feed) Stats() FeedStats {
	r := fs.ring
	r.mu.RLock()
	defer r.mu.RUnlock()
	return FeedStats{
		Followers: fs.count.Load(),
		Changes:   r.count, MaxChanges: r.maxChanges, Bytes: r.bytes, MaxBytes: r.maxBytes,
	}
}

// collect notes the changes of an entry, which begin at first, for the ring.
func (p *processor) collect(first uint64) {
	for i, c := range p.changes {
		position := first + uint64(i)
		created := len(p.created) > 0 && p.created[0] == position
		if created {
			p.created = p.created[1:]
		}
		p.logged = append(p.logged, LogChange{Change: c, Position: position, Created: created})
	}
	p.created = p.created[:0]
}

// takeLogged returns the changes of the step with copies of their batches, which it must do
// before the batch is committed.
func (p *processor) takeLogged() []LogChange {
	if len(p.logged) == 0 {
		return nil
	}
	size, n := 0, 0
	for i := range p.logged {
		if p.logged[i].Kind == history.ChangeBatch {
			size += len(p.batch.Stored(n))
			n++
		}
	}
	out, buf := slices.Clone(p.logged), make([]byte, 0, size)
	n = 0
	for i := range out {
		if out[i].Kind == history.ChangeBatch {
			at := len(buf)
			buf = append(buf, p.batch.Stored(n)...)
			out[i].Stored = buf[at:len(buf):len(buf)]
			n++
		}
	}
	clear(p.logged)
	p.logged = p.logged[:0]
	return out
}
