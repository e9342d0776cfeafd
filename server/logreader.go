package server

import (
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc/mem"

	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

const (
	// leastAtOnce and mostAtOnce bound how many changes of the scope are looked up together.
	// Positions are in the order of commits and batches in that of aggregates: the more at
	// once, the more of them lie next to each other.
	leastAtOnce, mostAtOnce = 32, 2048
	// passedAtOnce is how many changes may be passed over in one go.
	passedAtOnce = 16384

	fieldBatches = 1 // of ReadAllResponse and SubscribeResponse
)

// logReader reads the log, a window of changes at a time, and turns its batches into bytes of
// a message. A window's batches take no more room than is allowed, and the memory comes from
// and goes back to a pool: between two windows it holds nothing.
type logReader struct {
	scope  scope
	filter *filter
	// Batches of this life of the only aggregate are passed over below this version.
	incarnation uint32
	version     uint64
	// creations says that Created is wanted.
	creations bool

	atOnce  int
	items   []replication.LogChange
	changes []history.Change
}

// errRoom ends a window whose batches take more room than there is.
var errRoom = errors.New("no room for the batch")

// load fills items with what the scope holds of the positions from next to last, both
// included, in the direction of reading, and returns the position that follows on what was
// looked at. The batches are in arena. need is not 0 if the next batch alone needs more room
// than that.
func (r *logReader) load(v *history.View, next, last uint64, backward bool, arena []byte) (after uint64, need int, err error) {
	r.atOnce = max(r.atOnce, leastAtOnce)
	if after, err = r.list(v, next, last, backward); err != nil {
		return next, 0, err
	}
	for {
		used, batches := 0, 0
		err := v.StoredBatches(r.changes, func(i int, stored []byte) error {
			batches++
			if need = len(stored); used+need > len(arena) {
				return errRoom
			}
			r.items[i].Stored = arena[used : used+need : used+need]
			used += copy(arena[used:], stored)
			return nil
		})
		switch {
		case err == nil:
			if used < len(arena)/3 {
				r.atOnce = min(2*r.atOnce, mostAtOnce)
			}
			return after, 0, r.findCreations(v)
		case !errors.Is(err, errRoom):
			return next, 0, err
		case len(r.items) == 1:
			return next, need, nil
		}
		// Fewer, then; they are looked up again, because not the first ones were found first.
		n := max(1, len(r.items)/2)
		r.atOnce = max(n, 1)
		r.items, r.changes = r.items[:n], r.changes[:n]
		for i := range r.items {
			r.items[i].Stored = nil
		}
		if after = r.items[n-1].Position + 1; backward {
			after -= 2
		}
	}
}

// list fills items with changes, without their batches.
func (r *logReader) list(v *history.View, next, last uint64, backward bool) (after uint64, err error) {
	r.items, r.changes = r.items[:0], r.changes[:0]
	after = next
	looked := 0
	// take says whether to go on.
	take := func(position uint64, c *history.Change) bool {
		if after = position + 1; backward {
			after -= 2
		}
		if r.wants(c) {
			r.items = append(r.items, replication.LogChange{Change: *c, Position: position})
			r.changes = append(r.changes, *c)
		}
		looked++
		return len(r.items) < r.atOnce && looked < passedAtOnce && position != last
	}
	if backward {
		for e, err := range v.PositionsBackward(next) {
			if err != nil {
				return next, err
			}
			for i, c := range slices.Backward(e.Changes) {
				if !take(e.First+uint64(i), &c) {
					return after, nil
				}
			}
		}
		return after, nil
	}
	for e, err := range v.Positions(next) {
		if err != nil {
			return next, err
		}
		for i := range e.Changes {
			if !take(e.First+uint64(i), &e.Changes[i]) {
				return after, nil
			}
		}
	}
	return after, nil
}

// wants says whether the reader is about the change.
func (r *logReader) wants(c *history.Change) bool {
	return r.scope.holds(c.Key) &&
		(r.version == 0 || c.Kind != history.ChangeBatch || c.Incarnation != r.incarnation || c.Version >= r.version)
}

// findCreations sets Created where it is true. A version 1 begins a life. Another version does
// if the aggregate was recreated and went on counting: then it was written when the life began,
// and the version before it is not of this life.
func (r *logReader) findCreations(v *history.View) error {
	if !r.creations {
		return nil
	}
	for i := range r.items {
		c := &r.items[i]
		if c.Kind != history.ChangeBatch || c.Stored == nil {
			continue
		}
		if c.Created = c.Version == 1; c.Created || c.Incarnation == 1 {
			continue
		}
		head, ok, err := v.Head(c.Key)
		if err != nil {
			return err
		}
		var b record.BatchView
		if err := record.ViewBatch(c.Stored, &b); err != nil {
			return err
		}
		if !ok || head.CreatedAt != b.CommittedAt {
			continue
		}
		_, before, err := v.Batch(c.Key, c.Incarnation, c.Version-1)
		if err != nil {
			return err
		}
		c.Created = !before
	}
	return nil
}

// appendBatch appends the batch of a change, with the events that pass the filter, as a field
// of a message; nothing if none does.
func (r *logReader) appendBatch(dst []byte, c *replication.LogChange) (_ []byte, passed bool, err error) {
	var b record.BatchView
	if err := record.ViewBatch(c.Stored, &b); err != nil {
		return nil, false, err
	}
	if b.Position != c.Position || b.Version != c.Version {
		return nil, false, fmt.Errorf("%w: the batch where position %d, version %d of %s was expected is position %d, version %d",
			record.ErrCorrupt, c.Position, c.Version, c.Key, b.Position, b.Version)
	}
	if !r.filter.passesView(&b) {
		return dst, false, nil
	}
	begin := len(dst)
	dst, field := record.OpenMessage(dst, fieldBatches, len(c.Stored))
	dst = record.AppendBatchMessage(dst, &b)
	rest := b.Events
	var e record.EventView
	for i := range b.EventCount {
		if rest, err = record.NextEvent(rest, &e); err != nil {
			return nil, false, err
		}
		if r.filter.perEvent && !r.filter.passesEvent(&e) {
			continue
		}
		if dst, err = record.AppendEventMessage(dst, e.Raw, b.FirstEventNumber+uint64(i)); err != nil {
			return nil, false, err
		}
		passed = true
	}
	if len(rest) != 0 {
		return nil, false, fmt.Errorf("%w: %d bytes after the %d events of version %d of %s",
			record.ErrCorrupt, len(rest), b.EventCount, b.Version, c.Key)
	}
	if !passed {
		return dst[:begin], false, nil
	}
	return record.CloseMessage(dst, field), true, nil
}

// passesView is passesBatch for a batch that is read in place.
func (f *filter) passesView(b *record.BatchView) bool {
	if b.CommittedAt < f.committedMin || b.CommittedAt > f.committedMax {
		return false
	}
	if f.clients != nil {
		if _, in := f.clients[string(b.ClientID)]; !in {
			return false
		}
	}
	_, out := f.notClients[string(b.ClientID)]
	return !out
}

// messageBuffer is a message that is being written, in a buffer of the pool.
type messageBuffer struct {
	pool    mem.BufferPool
	backing *[]byte
	b       []byte
}

// buffer takes a buffer for about size bytes.
func (c *callReads) buffer(size int) *messageBuffer {
	backing := c.budget.pool.Get(size)
	return &messageBuffer{pool: c.budget.pool, backing: backing, b: (*backing)[:0]}
}

// free gives a buffer back that is not sent.
func (m *messageBuffer) free() {
	if m.backing != nil {
		m.pool.Put(m.backing)
		m.backing = nil
	}
}

// ship is encode for a message that is bytes already. The buffer is the call's no more.
func (c *callReads) ship(m *messageBuffer) *outbound {
	if len(m.b) > 0 && cap(m.b) != cap(*m.backing) { // it has outgrown its buffer
		m.free()
		m.backing = &m.b
	}
	backing := m.backing
	m.backing = nil
	if mem.IsBelowBufferPoolingThreshold(len(m.b)) {
		small := slices.Clone(m.b)
		m.pool.Put(backing)
		c.abandon()
		return &outbound{mem.BufferSlice{mem.SliceBuffer(small)}}
	}
	return c.parcel(backing, m.b)
}
