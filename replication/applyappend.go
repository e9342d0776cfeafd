package replication

import (
	"github.com/tidemark-db/tidemark/mark"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// append decides over an append and, if it passes, writes it.
func (p *processor) append(req *record.Request, want bool) (outcome, error) {
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
		state := writeState{head: w.head, mark: m}
		if state.afterMissing, err = p.afterMissing(&req.Writes[i], &w.head, req.ClientID, m); err != nil {
			return outcome{}, err
		}
		p.states = append(p.states, state)
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
	if i := p.schemaMismatch(req); i >= 0 {
		return p.refuseMismatch(req, i), nil
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
		p.created = append(p.created, p.applied.Position)
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
	acc.before = wk.accepted
	p.accepted = append(p.accepted, acc)
	wk.accepted = len(p.accepted)
	p.changes = append(p.changes, history.Change{Key: w.Key, Incarnation: bh.Incarnation, Version: bh.Version, Kind: history.ChangeBatch})
	p.digestBatch(chain, w.Hashes)
	return writeResult{
		version: bh.Version, position: bh.Position, firstEvent: bh.FirstEventNumber,
		incarnation: bh.Incarnation, committedAt: at, chain: chain,
	}, nil
}

// afterMissing says whether the sequence that a write was sent after is not recorded (contract
// 5, AppendStream). m is the writer's mark, which is recorded itself.
func (p *processor) afterMissing(w *record.Write, head *mark.Head, client string, m uint64) (bool, error) {
	if w.Flags&record.FlagHasAfter == 0 || w.After == 0 || w.After == m {
		return false, nil
	}
	if w.After > m {
		return true, nil
	}
	h, err := holderOf(p.rows(), head, w.Key, client, w.After)
	return h == nil, err
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
