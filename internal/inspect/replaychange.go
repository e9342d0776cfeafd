package inspect

import (
	"encoding/binary"
	"fmt"
	"strings"

	"lukechampine.com/blake3"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// This file decides over trims and deletes (contract section 6).

// trim decides over a trim: existence, guard, range, and whether there is anything to do.
func (r *replay) trim(req *Request) error {
	t := req.Trim
	h, err := r.head(t.Aggregate)
	if err != nil {
		return err
	}
	switch {
	case h == nil:
		r.refuse(pb.ErrorCode_ERROR_CODE_TRIM_AGGREGATE_NOT_EXISTS, 0, 0, 0)
		return nil
	case h.Deleted:
		r.refuse(pb.ErrorCode_ERROR_CODE_TRIM_AGGREGATE_NOT_EXISTS, 0, h.Version, h.Floor)
		return nil
	case t.Expected != nil && *t.Expected != h.Version:
		r.refuse(pb.ErrorCode_ERROR_CODE_TRIM_OPTIMISTIC_CONCURRENCY_VIOLATION, 0, h.Version, h.Floor)
		return nil
	case t.KeepFrom > h.Version:
		r.refuse(pb.ErrorCode_ERROR_CODE_TRIM_INDEX_OUT_OF_RANGE, 0, h.Version, h.Floor)
		return nil
	case t.KeepFrom <= h.Floor:
		r.nothing(t.Aggregate)
		return nil
	}
	first, err := r.positionOf(t.Aggregate, h.Incarnation, t.KeepFrom)
	if err != nil {
		return err
	}
	r.advance(req.CommittedAt)
	h.Floor, h.FirstLive, h.Position = t.KeepFrom, first, r.applied.Position
	return r.change(Change{Position: h.Position, Aggregate: t.Aggregate, Incarnation: h.Incarnation, Version: t.KeepFrom, Kind: ChangeTrim}, 0)
}

// remove decides over the deletes of a request: existence of all, then the guards of all. What
// is deleted already is left alone.
func (r *replay) remove(req *Request) error {
	heads := make([]*Head, len(req.Deletes))
	for i := range req.Deletes {
		var err error
		if heads[i], err = r.head(req.Deletes[i].Aggregate); err != nil {
			return err
		}
		if heads[i] == nil {
			r.refuse(pb.ErrorCode_ERROR_CODE_DELETE_AGGREGATE_NOT_EXISTS, i, 0, 0)
			return nil
		}
	}
	for i, h := range heads {
		if expected := req.Deletes[i].Expected; expected != nil && !h.Deleted && *expected != h.Version {
			r.refuse(pb.ErrorCode_ERROR_CODE_DELETE_OPTIMISTIC_CONCURRENCY_VIOLATION, i, h.Version, h.Floor)
			return nil
		}
	}
	for i, h := range heads {
		d := &req.Deletes[i]
		if h.Deleted {
			r.nothing(d.Aggregate)
			continue
		}
		r.advance(req.CommittedAt)
		h.Deleted, h.Recreatable, h.Restart, h.Position = true, d.Recreatable, d.Restart, r.applied.Position
		flags := byte(0)
		for bit, set := range []bool{d.Recreatable, d.Restart, d.ForgetWriters} {
			if set {
				flags |= 1 << bit
			}
		}
		if d.ForgetWriters {
			r.forget(h)
		}
		if err := r.change(Change{Position: h.Position, Aggregate: d.Aggregate, Incarnation: h.Incarnation, Version: h.Version, Kind: ChangeDelete}, flags); err != nil {
			return err
		}
	}
	return nil
}

// forget makes every sequence on an aggregate one that was never used.
func (r *replay) forget(h *Head) {
	h.LastClient, h.LastMark = "", 0
	prefix := tagRow + string(h.Aggregate)
	for key := range r.marks {
		if strings.HasPrefix(key, prefix) {
			delete(r.marks, key)
		}
	}
	for key := range r.recorded {
		if strings.HasPrefix(key, prefix) {
			delete(r.recorded, key)
		}
	}
	r.forgotten[h.Aggregate] = r.applied.Position
}

// keeps says whether a batch, of base or of an entry, can still be read.
func (r *replay) keeps(b *Batch) bool {
	h := r.heads[b.Aggregate]
	return h == nil || !h.Deleted && b.Incarnation == h.Incarnation && b.Version >= h.Floor
}

// remembers says whether a row, of base or of an entry, is still there.
func (r *replay) remembers(w *Row) bool { return w.Position > r.forgotten[w.Aggregate] }

// advance assigns the next position.
func (r *replay) advance(committedAt int64) {
	r.applied.CommittedAt = max(committedAt, r.applied.CommittedAt)
	r.applied.Position++
}

// change hands on a trim or a delete, and extends the digest by it.
func (r *replay) change(ch Change, flags byte) error {
	r.changed = append(r.changed, ch.Aggregate)
	d := append(r.applied.Digest[:], byte(ch.Kind), flags)
	d = binary.BigEndian.AppendUint32(d, ch.Incarnation)
	d = binary.BigEndian.AppendUint64(d, ch.Version)
	r.applied.Digest = blake3.Sum256(append(d, ch.Aggregate...))
	if r.onChange == nil {
		return nil
	}
	return r.onChange(ch)
}

// nothing extends the digest by a trim or a delete that has nothing to do.
func (r *replay) nothing(a Aggregate) {
	d := append(r.applied.Digest[:], 4)
	r.applied.Digest = blake3.Sum256(append(d, a...))
}

// positionOf is the position of a batch, which entries have made or the history holds.
func (r *replay) positionOf(a Aggregate, incarnation uint32, version uint64) (uint64, error) {
	key := batchKey(a, incarnation, version)
	if p, ok := r.written[string(key)]; ok {
		return p, nil
	}
	var v []byte
	if r.base != nil {
		var err error
		if v, err = r.base.get(key); err != nil {
			return 0, r.base.keyError(key, err)
		}
	}
	b, err := parseBatch(v)
	if err != nil {
		return 0, fmt.Errorf("key %q: expected the batch that a trim keeps as the first: %w", key, err)
	}
	return b.Position, nil
}
