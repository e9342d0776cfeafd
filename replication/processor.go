package replication

import (
	"encoding/binary"
	"fmt"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/mark"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
	"lukechampine.com/blake3"
)

// processor is Apply without raft: it is fed committed entries in log order and decides
// over every request in them, from the entry and the history alone. It uses no clock, no
// iteration over maps and no state of the leader. One goroutine uses it.
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

	states  []writeState
	changes []history.Change
	scratch []byte
}

// work is the head of an aggregate that the step has touched.
type work struct {
	key   record.Key
	head  mark.Head
	dirty bool
}

type markChange struct {
	key    record.Key
	client string
	mark   uint64
}

// acceptedWrite is a write that the step accepted, kept to find its rows before they are
// committed.
type acceptedWrite struct {
	header history.Row // all but the event's own fields
	events []byte
	hashes []byte
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
		p.changes = p.changes[:0]
	}
	return res, nil
}

// request decides over one request and, if it passes, writes it.
func (p *processor) request(req *record.Request, want bool) (outcome, error) {
	p.states = p.states[:0]
	for i := range req.Writes {
		w, err := p.head(req.Writes[i].Key)
		if err != nil {
			return outcome{}, err
		}
		m, err := p.mark(w, req.ClientID)
		if err != nil {
			return outcome{}, err
		}
		p.states = append(p.states, writeState{head: w.head, mark: m})
	}
	v := decide(req.Writes, p.states)
	if v.code != 0 {
		s := &p.states[v.index]
		p.digestRefusal(v.code, v.index, s.version(), s.mark)
		if !want {
			return outcome{}, nil
		}
		ref, err := p.refusal(req, v)
		return outcome{kind: refused, refusal: ref}, err
	}
	out := outcome{kind: committed}
	if want {
		out.results = make([]writeResult, 0, len(req.Writes))
	}
	at := max(req.CommittedAt, p.applied.CommittedAt)
	p.applied.CommittedAt = at
	first := p.applied.Position + 1
	for i := range req.Writes {
		r, err := p.write(req, i, first, at)
		if err != nil {
			return outcome{}, err
		}
		if want {
			out.results = append(out.results, r)
		}
	}
	return out, nil
}

// write records write i of an accepted request.
func (p *processor) write(req *record.Request, i int, first uint64, at int64) (writeResult, error) {
	w := &req.Writes[i]
	wk, err := p.head(w.Key)
	if err != nil {
		return writeResult{}, err
	}
	h := &wk.head
	p.applied.Position++
	if !h.Exists || h.Deleted {
		beginLife(h, p.applied.Position, at)
	}
	bh := record.BatchHeader{
		Key: w.Key, Incarnation: h.Incarnation, Version: h.Version + 1, Shard: p.shard,
		Position: p.applied.Position, CommitFirst: first, CommitCount: uint32(len(req.Writes)),
		ClientID: req.ClientID, CommittedAt: at, FirstEventNumber: h.EventCount + 1, EventCount: w.EventCount,
	}
	chain := p.batch.PutBatch(&bh, h.Chain, w.Events)

	if h.LastClient != "" && h.LastClient != req.ClientID {
		p.setMark(w.Key, h.LastClient, h.LastMark)
	}
	h.LastMark = max(p.states[i].mark, w.Highest)
	h.LastClient = req.ClientID
	h.Version = bh.Version
	h.EventCount += uint64(w.EventCount)
	h.CommittedAt = at
	h.Position = bh.Position
	h.Chain = chain
	wk.dirty = true

	acc := acceptedWrite{events: w.Events, hashes: w.Hashes, header: history.Row{
		Key: w.Key, Client: req.ClientID, Position: bh.Position, Version: bh.Version, Incarnation: bh.Incarnation,
		EventNumber: bh.FirstEventNumber, CommittedAt: at, FirstSeq: w.Lowest, LastSeq: w.Highest,
		EventCount: w.EventCount, CommitFirst: first, CommitCount: bh.CommitCount,
	}}
	if err := acc.rows(func(r *history.Row, id []byte) bool { p.batch.PutRowBytes(r, id); return true }); err != nil {
		return writeResult{}, err
	}
	p.accepted = append(p.accepted, acc)
	p.changes = append(p.changes, history.Change{Key: w.Key, Incarnation: bh.Incarnation, Version: bh.Version, Kind: history.ChangeBatch})
	p.digestBatch(chain, w.Hashes)
	return writeResult{
		version: bh.Version, position: bh.Position, firstEvent: bh.FirstEventNumber,
		incarnation: bh.Incarnation, committedAt: at, chain: chain,
	}, nil
}

// beginLife makes h the head of an aggregate that its next batch, at position, creates or
// recreates (contract 6): a recreated one goes on from its old version, event numbers and
// chain, unless the delete said restart_versions.
func beginLife(h *mark.Head, position uint64, at int64) {
	if h.Restart {
		h.Version, h.EventCount, h.Chain = 0, 0, record.Hash{}
	}
	h.Exists = true
	h.Deleted, h.Recreatable, h.Restart = false, false, false
	h.Incarnation++
	h.Floor = h.Version + 1
	h.FirstLive = position
	h.CreatedAt = at
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
		h, ok, err := p.view.Head(k)
		if err != nil {
			return nil, fmt.Errorf("head of %s: %w", k, err)
		}
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
	if m, ok := p.cache.Mark(w.key, client); ok {
		return m, nil
	}
	m, err := p.view.Mark(w.key, client)
	if err != nil {
		return 0, fmt.Errorf("mark of %q on %s: %w", client, w.key, err)
	}
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
	for _, c := range p.changed {
		p.cache.PutMark(c.key, c.client, c.mark, p.applied.Index)
	}
	clear(p.marks)
	clear(p.order)
	clear(p.changed)
	clear(p.accepted)
	p.order, p.changed, p.accepted = p.order[:0], p.changed[:0], p.accepted[:0]
	p.view = nil
}

// rows yields the writer rows of a write, one per sequence, with the event id apart. Two events of one batch may
// have one sequence, if it was not enforced; the row's key has room for one, and the first
// event has it.
func (a *acceptedWrite) rows(yield func(r *history.Row, eventID []byte) bool) error {
	uses, err := a.uses()
	if err != nil {
		return err
	}
	rest, r := a.events, a.header
	var v record.EventView
	for i := uint32(0); i < a.header.EventCount; i++ {
		if rest, err = record.NextEvent(rest, &v); err != nil {
			return err
		}
		if uses != nil {
			n := uses[v.ClientSeq]
			if n == 0 {
				continue // not the first event with this sequence
			}
			uses[v.ClientSeq] = 0
			r.Repeated = n > 1
		}
		r.ClientSeq, r.EventIndex, r.EventNumber = v.ClientSeq, i, a.header.EventNumber+uint64(i)
		r.Content = record.Hash(a.hashes[int(i)*record.HashSize : (int(i)+1)*record.HashSize])
		if !yield(&r, v.EventID) {
			return nil
		}
	}
	return nil
}

// uses counts the events per sequence; nil if the sequences increase strictly, as they do
// in every enforced write.
func (a *acceptedWrite) uses() (map[uint64]int, error) {
	if a.header.EventCount == 1 {
		return nil, nil
	}
	var v record.EventView
	var err error
	var last uint64
	strictly := true
	for rest := a.events; len(rest) > 0; last = v.ClientSeq {
		if rest, err = record.NextEvent(rest, &v); err != nil {
			return nil, err
		}
		strictly = strictly && v.ClientSeq > last
	}
	if strictly {
		return nil, nil
	}
	uses := make(map[uint64]int, a.header.EventCount)
	for rest := a.events; len(rest) > 0; {
		if rest, err = record.NextEvent(rest, &v); err != nil {
			return nil, err
		}
		uses[v.ClientSeq]++
	}
	return uses, nil
}

// digestBatch and digestRefusal extend the digest: a hash over every outcome and every
// logical change since the log began, whatever entries and steps they came in.
func (p *processor) digestBatch(chain record.Hash, hashes []byte) {
	p.scratch = append(p.scratch[:0], p.applied.Digest[:]...)
	p.scratch = append(p.scratch, 1)
	p.scratch = append(p.scratch, chain[:]...)
	p.scratch = append(p.scratch, hashes...)
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
