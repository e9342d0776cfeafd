package replication

import (
	"encoding/binary"
	"fmt"
	"time"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/mark"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
	"lukechampine.com/blake3"
)

// processor is Apply without raft: it is fed committed entries in log order and decides
// over every request in them, from the entry and the history alone. It uses no clock (but to
// time its look-ups), no iteration over maps and no state of the leader. One goroutine uses it.
//
// A step is: begin, entry for each entry, then the history's Commit of its batch, then end.
// Between begin and end, what the entries changed is in heads and marks; after the commit
// the caller publishes those and the new view.
type processor struct {
	shard uint32
	cache *mark.Cache // what this processor wrote or read itself, never a reader's fill
	batch *history.Batch
	// view is the committed state before the step.
	view    *history.View
	applied history.Applied

	heads   map[record.Key]*work
	order   []*work // the works in use, in order of first use
	spare   []*work
	marks   map[string]uint64
	changed []markChange
	// accepted is what the step has written so far: its rows are not in view yet.
	accepted []acceptedWrite
	// forgotten are the aggregates whose writers the step has forgotten: what view and, before
	// the given place, accepted say of their rows is over. forgets lists them once more.
	forgotten map[record.Key]int
	forgets   []record.Key

	schemas schemas

	rebuilt *rebuilt // times look-ups, for /metrics alone; nil = nobody asks

	// logged is the step's changes for the ring; created the positions of the current entry
	// that began a life, in order.
	logged  []LogChange
	created []uint64

	states  []writeState
	changes []history.Change
	scratch []byte
}

// work is the head of an aggregate that the step has touched.
type work struct {
	key   record.Key
	head  mark.Head
	dirty bool
	// accepted is one more than the place of the aggregate's newest batch in
	// processor.accepted; 0 = the step has written none.
	accepted int
}

type markChange struct {
	key    record.Key
	client string
	mark   uint64
}

// entryResult is what an entry did: one decision per request, in order.
type entryResult struct {
	index, term, ticket uint64
	digest              record.Hash // once the entry is applied
	outcomes            []outcome
}

func newProcessor(shard uint32, store *history.Store, cache *mark.Cache) *processor {
	return &processor{
		shard:   shard,
		cache:   cache,
		batch:   store.NewBatch(),
		applied: store.Applied(),
		heads:   make(map[record.Key]*work),
		marks:   make(map[string]uint64),

		forgotten: make(map[record.Key]int),
		schemas:   schemas{revisions: make(map[string]uint64), fresh: make(map[string]*history.Schema)},
	}
}

// begin starts a step on top of view, which must stay acquired until end.
func (p *processor) begin(view *history.View) {
	p.view = view
	p.batch.Reset()
}

// entry applies one committed entry. An entry at or below the applied index changes nothing
// and has no outcomes. wanted says whether somebody on this node waits for the outcomes; if
// not, none are built. An error means that the log or the history is damaged: the node must
// stop.
func (p *processor) entry(index, term uint64, data []byte, wanted func(term, ticket uint64) bool) (entryResult, error) {
	res := entryResult{index: index, term: term}
	if index <= p.applied.Index {
		return res, nil
	}
	r, err := record.ReadEntry(data)
	if err != nil {
		return res, fmt.Errorf("log entry %d of term %d: %w", index, term, err)
	}
	res.ticket = r.Ticket
	want := r.Term == term && wanted(term, r.Ticket)
	if want {
		res.outcomes = make([]outcome, 0, r.Count)
	}
	first := p.applied.Position + 1
	for {
		req, err := r.Next()
		if err != nil {
			return res, fmt.Errorf("log entry %d of term %d: %w", index, term, err)
		}
		if req == nil {
			break
		}
		out := outcome{kind: fenced}
		if r.Term == term {
			if out, err = p.request(req, want); err != nil {
				return res, fmt.Errorf("log entry %d of term %d: %w", index, term, err)
			}
		} else {
			p.digestRefusal(pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY, 0, 0, 0)
		}
		if want {
			res.outcomes = append(res.outcomes, out)
		}
	}
	p.applied.Index, p.applied.Term = index, term
	res.digest = p.applied.Digest
	if len(p.changes) > 0 {
		p.batch.PutChanges(first, p.changes)
		p.collect(first)
		p.changes = p.changes[:0]
	}
	return res, nil
}

// request decides over one request and does what it asks for.
func (p *processor) request(req *record.Request, want bool) (outcome, error) {
	switch req.Kind {
	case record.KindAppend:
		return p.append(req, want)
	case record.KindTrim:
		return p.trim(req)
	case record.KindDelete:
		return p.remove(req)
	case record.KindRegisterSchema:
		return p.register(req)
	}
	return outcome{}, fmt.Errorf("%w: requests of kind %d are not applied by this version", record.ErrCorrupt, req.Kind)
}

// head returns the work of an aggregate: touched in this step, known, or read.
func (p *processor) head(k record.Key) (*work, error) {
	if w := p.heads[k]; w != nil {
		return w, nil
	}
	var w *work
	if n := len(p.spare); n > 0 {
		w, p.spare = p.spare[n-1], p.spare[:n-1]
	} else {
		w = &work{}
	}
	*w = work{key: k}
	if h, ok := p.cache.Head(k); ok {
		w.head = *h
	} else {
		began := time.Now()
		h, ok, err := p.view.Head(k)
		if err != nil {
			return nil, fmt.Errorf("head of %s: %w", k, err)
		}
		p.rebuilt.head(began)
		w.head = mark.Head{Head: h, Exists: ok}
		p.cache.FillHead(k, w.head, p.applied.Index)
	}
	p.heads[k] = w
	p.order = append(p.order, w)
	return w, nil
}

// mark returns a writer's mark on the aggregate of w.
func (p *processor) mark(w *work, client string) (uint64, error) {
	if !w.head.Exists {
		return 0, nil
	}
	if w.head.LastClient == client {
		return w.head.LastMark, nil
	}
	p.scratch = append(append(p.scratch[:0], w.key...), client...)
	if m, ok := p.marks[string(p.scratch)]; ok {
		return m, nil
	}
	if _, ok := p.forgotten[w.key]; ok {
		return 0, nil
	}
	if m, ok := p.cache.Mark(w.key, client); ok {
		return m, nil
	}
	began := time.Now()
	m, err := p.view.Mark(w.key, client)
	if err != nil {
		return 0, fmt.Errorf("mark of %q on %s: %w", client, w.key, err)
	}
	p.rebuilt.mark(began)
	p.cache.FillMark(w.key, client, m, p.applied.Index)
	return m, nil
}

// setMark notes the mark of a writer that is no longer the aggregate's last one.
func (p *processor) setMark(k record.Key, client string, m uint64) {
	p.scratch = append(append(p.scratch[:0], k...), client...)
	p.marks[string(p.scratch)] = m
	p.changed = append(p.changed, markChange{k, client, m})
}

// finish puts the heads that changed and the applied index into the step's batch.
func (p *processor) finish() *history.Batch {
	for _, w := range p.order {
		if w.dirty {
			p.batch.PutHead(w.key, &w.head.Head)
		}
	}
	p.batch.SetApplied(p.applied)
	return p.batch
}

// end writes what changed through the processor's own cache and forgets the step. Call it
// after the batch is committed and published.
func (p *processor) end() {
	for _, w := range p.order {
		if w.dirty {
			p.cache.PutHead(w.key, w.head, p.applied.Index)
		}
		delete(p.heads, w.key)
		if len(p.spare) < maxFree {
			p.spare = append(p.spare, w)
		}
	}
	p.writeMarks(p.cache)
	clear(p.marks)
	clear(p.forgotten)
	clear(p.order)
	clear(p.changed)
	clear(p.accepted)
	clear(p.forgets)
	p.order, p.changed, p.accepted, p.forgets = p.order[:0], p.changed[:0], p.accepted[:0], p.forgets[:0]
	p.schemas.end()
	p.view = nil
}

// writeMarks writes the marks that the step has changed through a cache, behind what it has
// forgotten: the marks are what writers recorded since.
func (p *processor) writeMarks(cache *mark.Cache) {
	for _, k := range p.forgets {
		cache.Forget(k, p.applied.Index)
	}
	for _, c := range p.changed {
		cache.PutMark(c.key, c.client, c.mark, p.applied.Index)
	}
}

// digestBatch and the others extend the digest: a hash over every outcome and every
// logical change since the log began, whatever entries and steps they came in.
func (p *processor) digestBatch(chain record.Hash, hashes []byte) {
	p.scratch = append(p.scratch[:0], p.applied.Digest[:]...)
	p.scratch = append(p.scratch, 1)
	p.scratch = append(p.scratch, chain[:]...)
	p.scratch = append(p.scratch, hashes...)
	p.applied.Digest = blake3.Sum256(p.scratch)
}

// digestChange is for a trim or a delete.
func (p *processor) digestChange(kind history.ChangeKind, k record.Key, incarnation uint32, version uint64, flags byte) {
	be := binary.BigEndian
	p.scratch = append(p.scratch[:0], p.applied.Digest[:]...)
	p.scratch = append(p.scratch, byte(kind), flags)
	p.scratch = be.AppendUint32(p.scratch, incarnation)
	p.scratch = be.AppendUint64(p.scratch, version)
	p.scratch = append(p.scratch, k...)
	p.applied.Digest = blake3.Sum256(p.scratch)
}

// digestNothing is for a trim or a delete that passed and found nothing to do.
func (p *processor) digestNothing(k record.Key) {
	p.scratch = append(p.scratch[:0], p.applied.Digest[:]...)
	p.scratch = append(p.scratch, 4)
	p.scratch = append(p.scratch, k...)
	p.applied.Digest = blake3.Sum256(p.scratch)
}

func (p *processor) digestRefusal(code pb.ErrorCode, index int, version, mark uint64) {
	be := binary.BigEndian
	p.scratch = append(p.scratch[:0], p.applied.Digest[:]...)
	p.scratch = append(p.scratch, 0)
	p.scratch = be.AppendUint32(p.scratch, uint32(code))
	p.scratch = be.AppendUint32(p.scratch, uint32(index))
	p.scratch = be.AppendUint64(p.scratch, version)
	p.scratch = be.AppendUint64(p.scratch, mark)
	p.applied.Digest = blake3.Sum256(p.scratch)
}
