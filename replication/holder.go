package replication

import (
	"iter"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/mark"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// rowReader is where writer rows come from: a view, or a view and what a step has written
// on top of it.
type rowReader interface {
	// Rows yields the rows of one sequence, newest position first.
	Rows(k record.Key, client string, seq uint64) iter.Seq2[history.Row, error]
	// Row returns the row of one sequence at one position.
	Row(k record.Key, client string, seq, position uint64) (history.Row, bool, error)
}

// holderOf returns the newest committed batch of a writer that recorded seq, or nil
// (contract 2.4). head is the aggregate's, as of the same position as rows.
func holderOf(rows rowReader, head *mark.Head, k record.Key, client string, seq uint64) (*pb.Holder, error) {
	if !head.Exists || seq == 0 {
		return nil, nil
	}
	var h *pb.Holder
	for row, err := range rows.Rows(k, client, seq) {
		if err != nil {
			return nil, err
		}
		if h != nil {
			h.Others = true
			break
		}
		h = holderMessage(&row, head)
	}
	return h, nil
}

func holderMessage(row *history.Row, head *mark.Head) *pb.Holder {
	return &pb.Holder{
		Version:        row.Version,
		Incarnation:    row.Incarnation,
		Position:       row.Position,
		CommittedAt:    record.Timestamp(row.CommittedAt),
		ClientSeq:      row.ClientSeq,
		EventId:        row.EventID,
		FirstClientSeq: row.FirstSeq,
		LastClientSeq:  row.LastSeq,
		EventCount:     row.EventCount,
		Trimmed:        head.Deleted || row.Position < head.FirstLive,
		Others:         row.Repeated,
	}
}

// stepRows reads the rows of the step in progress before those of the view under it.
type stepRows struct {
	accepted  []acceptedWrite
	forgotten map[record.Key]int // see processor
	view      *history.View
}

func (p *processor) rows() stepRows { return stepRows{p.accepted, p.forgotten, p.view} }

func (s stepRows) Rows(k record.Key, client string, seq uint64) iter.Seq2[history.Row, error] {
	return func(yield func(history.Row, error) bool) {
		from, forgotten := s.forgotten[k]
		for i := len(s.accepted) - 1; i >= from; i-- {
			a := &s.accepted[i]
			if a.header.Key != k || a.header.Client != client {
				continue
			}
			stop := false
			err := a.rows(func(r *history.Row, id []byte) bool {
				if r.ClientSeq == seq {
					found := *r
					found.EventID = string(id)
					stop = !yield(found, nil)
				}
				return !stop
			})
			if err != nil {
				yield(history.Row{}, err)
				return
			}
			if stop {
				return
			}
		}
		if forgotten {
			return
		}
		for r, err := range s.view.Rows(k, client, seq) {
			if !yield(r, err) {
				return
			}
		}
	}
}

func (s stepRows) Row(k record.Key, client string, seq, position uint64) (history.Row, bool, error) {
	for r, err := range s.Rows(k, client, seq) {
		if err != nil {
			return history.Row{}, false, err
		}
		if r.Position == position {
			return r, true, nil
		}
	}
	return history.Row{}, false, nil
}
