package replication

import (
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// recorded looks for the very same request among what is committed (contract 2.5): for
// every write one whole batch with the same sequences, event ids and content, all of one
// commit that holds exactly these batches. It returns where they landed, or nil. If
// unenforced writes recorded the same again, the first of them is the original: what a
// request is told once, it is told for ever.
func recorded(v *history.View, p *pending) ([]writeResult, error) {
	first := &p.writes[0]
	var original []history.Row
	for row, err := range v.Rows(first.Key, p.client, first.Lowest) { // the newest first
		if err != nil {
			return nil, err
		}
		if row.CommitCount != uint32(len(p.writes)) {
			continue
		}
		if ok, err := sameBatch(v, p.client, first, &row); err != nil {
			return nil, err
		} else if !ok {
			continue
		}
		same := append(make([]history.Row, 0, len(p.writes)), row)
		for i := 1; i < len(p.writes); i++ {
			b, err := batchOf(v, p.client, &p.writes[i], i, &row)
			if err != nil {
				return nil, err
			}
			if b == nil {
				break
			}
			same = append(same, *b)
		}
		if len(same) == len(p.writes) {
			original = same
		}
	}
	if original == nil {
		return nil, nil
	}
	out := make([]writeResult, len(original))
	for i := range original {
		var err error
		if out[i], err = originalResult(v, p.writes[i].Key, &original[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// batchOf returns the row of the lowest sequence of w, write i of its request, in the commit
// of the row other, if the batch there is w exactly. The rows are asked for by position: a
// writer that enforces nothing may have recorded one sequence any number of times, and the
// caller walks over those already. The order of the request is tried first.
func batchOf(v *history.View, client string, w *record.Write, i int, other *history.Row) (*history.Row, error) {
	for n := range other.CommitCount {
		position := other.CommitFirst + uint64((uint32(i)+n)%other.CommitCount)
		row, ok, err := v.Row(w.Key, client, w.Lowest, position)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		same, err := sameBatch(v, client, w, &row)
		if err != nil || !same {
			return nil, err
		}
		return &row, nil // an aggregate has one batch in a commit
	}
	return nil, nil
}

// sameBatch says whether the batch of row, which is of w's lowest sequence, is w exactly. w's
// sequences increase strictly, for CONFIRM needs enforcement.
func sameBatch(v rowReader, client string, w *record.Write, row *history.Row) (bool, error) {
	if row.EventCount != w.EventCount || row.EventIndex != 0 || row.Repeated {
		return false, nil
	}
	rest := w.Events
	var ev record.EventView
	var err error
	for i := uint32(0); i < w.EventCount; i++ {
		if rest, err = record.NextEvent(rest, &ev); err != nil {
			return false, err
		}
		r := *row
		if i > 0 {
			var ok bool
			if r, ok, err = v.Row(w.Key, client, ev.ClientSeq, row.Position); err != nil || !ok {
				return false, err
			}
		}
		if r.EventIndex != i || r.EventID != string(ev.EventID) || r.Content != w.Hash(int(i)) {
			return false, nil
		}
	}
	return true, nil
}

// originalResult is the answer that the batch of row had when it landed; the chain hash is
// only known as long as the batch is.
func originalResult(v *history.View, k record.Key, row *history.Row) (writeResult, error) {
	r := writeResult{
		version: row.Version, position: row.Position, incarnation: row.Incarnation,
		firstEvent: row.EventNumber - uint64(row.EventIndex), committedAt: row.CommittedAt,
	}
	head, err := markHead(v, k)
	if err != nil {
		return r, err
	}
	r.noChain = true
	if head.Deleted || row.Position < head.FirstLive {
		return r, nil
	}
	b, ok, err := v.Batch(k, row.Incarnation, row.Version)
	if err != nil || !ok {
		return r, err
	}
	_, _, r.chain, _, err = record.ParseBatch(b)
	r.noChain = false
	return r, err
}

// markContent sets holder.content_differs: the holder's batch recorded one of the write's
// events under the same sequence and id with other content (contract 2.5).
func markContent(v rowReader, p *pending, f *pb.AppendFailure) error {
	if f.Holder == nil {
		return nil
	}
	w := &p.writes[f.WriteIndex]
	rest := w.Events
	var ev record.EventView
	var err error
	for i := uint32(0); i < w.EventCount; i++ {
		if rest, err = record.NextEvent(rest, &ev); err != nil {
			return err
		}
		r, ok, err := v.Row(w.Key, p.client, ev.ClientSeq, f.Holder.Position)
		if err != nil {
			return err
		}
		if ok && r.EventID == string(ev.EventID) && r.Content != w.Hash(int(i)) {
			f.Holder.ContentDiffers = true
			return nil
		}
	}
	return nil
}
