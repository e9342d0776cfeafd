package replication

import (
	"context"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// Delete deletes aggregates, all or none (contract 6); the shape of req is valid. After an
// error that is 2014, or a deadline or a cancellation, they may have been deleted or may still
// be; the same may be asked for again.
func (s *Shard) Delete(ctx context.Context, req *pb.DeleteRequest) (*pb.DeleteResponse, error) {
	if err := s.checkTimeline(req.GetTimeline()); err != nil {
		return nil, err
	}
	deletes := make([]record.Delete, len(req.GetDeletes()))
	keys := make([]record.Key, len(deletes))
	for i, d := range req.GetDeletes() {
		a := d.GetAggregate()
		keys[i] = record.MakeKey(a.GetOrg(), a.GetType(), a.GetId())
		deletes[i] = record.Delete{
			Key:         keys[i],
			HasExpected: d.ExpectedVersion != nil, Expected: d.GetExpectedVersion(),
			Recreatable: d.GetAllowRecreate(), Restart: d.GetRestartVersions(), Forget: d.GetForgetWriters(),
		}
	}
	o, err := s.commitChange(ctx, newChange("delete", record.AppendDeletes(nil, 0, deletes), keys))
	if err != nil {
		return nil, err
	}
	resp := &pb.DeleteResponse{Timeline: s.identity().Timeline, Results: make([]*pb.DeleteResult, len(deletes))}
	for i, d := range req.GetDeletes() {
		resp.Results[i] = &pb.DeleteResult{Aggregate: d.GetAggregate(), Position: o.changed[i].position}
	}
	return resp, nil
}

// remove decides over the deletes of a request and, if all pass, does them: existence for all,
// then the guard for all. What is deleted already is left alone, whatever its guard says.
func (p *processor) remove(req *record.Request) (outcome, error) {
	for i := range req.Deletes {
		d := &req.Deletes[i]
		w, err := p.head(d.Key)
		if err != nil {
			return outcome{}, err
		}
		if !w.head.Exists {
			return p.refuse(api.Errorf(pb.ErrorCode_ERROR_CODE_DELETE_AGGREGATE_NOT_EXISTS,
				"delete %d, of %s: the aggregate has never existed", i, d.Key), i, &w.head), nil
		}
	}
	for i := range req.Deletes {
		d := &req.Deletes[i]
		w, err := p.head(d.Key)
		if err != nil {
			return outcome{}, err
		}
		if h := &w.head; d.HasExpected && !h.Deleted && d.Expected != h.Version {
			return p.refuse(guardFailure(pb.ErrorCode_ERROR_CODE_DELETE_OPTIMISTIC_CONCURRENCY_VIOLATION,
				"delete", i, d.Key, d.Expected, h.Version), i, h), nil
		}
	}
	out := outcome{kind: committed, changed: make([]changeResult, len(req.Deletes))}
	for i := range req.Deletes {
		d := &req.Deletes[i]
		w, err := p.head(d.Key)
		if err != nil {
			return outcome{}, err
		}
		if w.head.Deleted {
			p.digestNothing(d.Key)
			continue
		}
		p.applied.CommittedAt = max(req.CommittedAt, p.applied.CommittedAt)
		p.applied.Position++
		p.endLife(w, d)
		out.changed[i].position = p.applied.Position
	}
	return out, nil
}

// endLife deletes the aggregate of w at the position just assigned.
func (p *processor) endLife(w *work, d *record.Delete) {
	h := &w.head
	p.batch.DropBatches(w.key, h.Incarnation, h.Floor, h.Version+1)
	h.Deleted, h.Recreatable, h.Restart = true, d.Recreatable, d.Restart
	h.Position = p.applied.Position
	w.dirty = true
	if d.Forget {
		p.forget(w)
	}
	p.changes = append(p.changes, history.Change{Key: w.key, Incarnation: h.Incarnation, Version: h.Version, Kind: history.ChangeDelete})
	var flags byte
	for bit, set := range []bool{d.Recreatable, d.Restart, d.Forget} {
		if set {
			flags |= 1 << bit
		}
	}
	p.digestChange(history.ChangeDelete, w.key, h.Incarnation, h.Version, flags)
}

// forget drops what the writers of an aggregate have recorded: from the history, from the head,
// and from what this step and the caches know. Every sequence is as if it had never been used.
func (p *processor) forget(w *work) {
	p.batch.DropRows(w.key)
	w.head.LastClient, w.head.LastMark = "", 0
	kept := p.changed[:0]
	for _, c := range p.changed {
		if c.key == w.key {
			p.scratch = append(append(p.scratch[:0], c.key...), c.client...)
			delete(p.marks, string(p.scratch))
		} else {
			kept = append(kept, c)
		}
	}
	clear(p.changed[len(kept):])
	p.changed = kept
	if _, again := p.forgotten[w.key]; !again {
		p.forgets = append(p.forgets, w.key)
	}
	p.forgotten[w.key] = len(p.accepted)
}
