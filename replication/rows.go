package replication

import (
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// acceptedWrite is a write that the step accepted, kept to find its rows before they are
// committed.
type acceptedWrite struct {
	header history.Row // all but the event's own fields
	events []byte
	hashes []byte
	// before is one more than the place of the aggregate's batch before this one, if the step
	// has written that too; else 0.
	before int
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
