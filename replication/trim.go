package replication

import (
	"context"
	"fmt"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/mark"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// Trim makes the batches of an aggregate below keep_from_version unreadable (contract 6); the
// shape of req is valid. After an error that is 2014, or a deadline or a cancellation, it may
// have happened or may still; it may be asked for again.
func (s *Shard) Trim(ctx context.Context, req *pb.TrimRequest) (*pb.TrimResponse, error) {
	if err := s.checkTimeline(req.GetTimeline()); err != nil {
		return nil, err
	}
	a := req.GetAggregate()
	o, err := s.commitChange(ctx, newChange("trim", record.AppendTrim(nil, 0, &record.Trim{
		Key:         record.MakeKey(a.GetOrg(), a.GetType(), a.GetId()),
		HasExpected: req.ExpectedVersion != nil, Expected: req.GetExpectedVersion(),
		KeepFrom: req.GetKeepFromVersion(),
	}), nil))
	if err != nil {
		return nil, err
	}
	return &pb.TrimResponse{FirstVersion: o.changed[0].firstVersion, Position: o.changed[0].position, Timeline: s.identity().Timeline}, nil
}

// trim decides over a trim and, if it passes, does it: existence, guard, range, nothing to do.
func (p *processor) trim(req *record.Request) (outcome, error) {
	t := &req.Trim
	w, err := p.head(t.Key)
	if err != nil {
		return outcome{}, err
	}
	h := &w.head
	switch {
	case !h.Exists || h.Deleted:
		return p.refuse(api.Errorf(pb.ErrorCode_ERROR_CODE_TRIM_AGGREGATE_NOT_EXISTS,
			"trim of %s: the aggregate does not exist", t.Key), 0, h), nil
	case t.HasExpected && t.Expected != h.Version:
		return p.refuse(guardFailure(pb.ErrorCode_ERROR_CODE_TRIM_OPTIMISTIC_CONCURRENCY_VIOLATION,
			"trim", 0, t.Key, t.Expected, h.Version), 0, h), nil
	case t.KeepFrom > h.Version:
		return p.refuse(api.Errorf(pb.ErrorCode_ERROR_CODE_TRIM_INDEX_OUT_OF_RANGE,
			"trim of %s: asked to keep from version %d, found versions %d to %d; the newest batch always stays", t.Key, t.KeepFrom, h.Floor, h.Version).
			With(&pb.VersionUnavailable{Requested: t.KeepFrom, FirstVersion: h.Floor, CurrentVersion: h.Version}), 0, h), nil
	case t.KeepFrom <= h.Floor:
		p.digestNothing(t.Key)
		return outcome{kind: committed, changed: []changeResult{{firstVersion: h.Floor}}}, nil
	}
	first, err := p.positionOf(w, t.KeepFrom)
	if err != nil {
		return outcome{}, err
	}
	p.applied.CommittedAt = max(req.CommittedAt, p.applied.CommittedAt)
	p.applied.Position++
	p.batch.DropBatches(t.Key, h.Incarnation, h.Floor, t.KeepFrom)
	h.Floor, h.FirstLive, h.Position = t.KeepFrom, first, p.applied.Position
	w.dirty = true
	p.changes = append(p.changes, history.Change{Key: t.Key, Incarnation: h.Incarnation, Version: t.KeepFrom, Kind: history.ChangeTrim})
	p.digestChange(history.ChangeTrim, t.Key, h.Incarnation, t.KeepFrom, 0)
	return outcome{kind: committed, changed: []changeResult{{firstVersion: h.Floor, position: h.Position}}}, nil
}

// positionOf is the position of a batch of w's present life, which the step has written or the
// view holds.
func (p *processor) positionOf(w *work, version uint64) (uint64, error) {
	for i := w.accepted; i > 0; i = p.accepted[i-1].before {
		if a := &p.accepted[i-1]; a.header.Version == version && a.header.Incarnation == w.head.Incarnation {
			return a.header.Position, nil
		}
	}
	stored, ok, err := p.view.Batch(w.key, w.head.Incarnation, version)
	if err != nil {
		return 0, err
	}
	if !ok {
		return 0, fmt.Errorf("%w: version %d of %s is missing from the history, whose head says it has %d to %d",
			record.ErrCorrupt, version, w.key, w.head.Floor, w.head.Version)
	}
	h, _, _, _, err := record.ParseBatch(stored)
	return h.Position, err
}

// refuse is the outcome of a change that is refused about the aggregate of h.
func (p *processor) refuse(failure *api.Error, index int, h *mark.Head) outcome {
	p.digestRefusal(failure.Code, index, h.Version, h.Floor)
	return outcome{kind: refused, failure: failure}
}
