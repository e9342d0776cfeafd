package audit

import (
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// rows checks that a batch has the writer rows that it makes: one for each sequence, of the
// first event that has it. What it finds is one finding, however many there are.
func (g *aggregate) rows(v *history.View, b *record.BatchView, events []record.EventView) error {
	lowest, highest := events[0].ClientSeq, uint64(0)
	uses := make(map[uint64]int, len(events))
	for i := range events {
		lowest, highest = min(lowest, events[i].ClientSeq), max(highest, events[i].ClientSeq)
		uses[events[i].ClientSeq]++
	}
	bad := 0
	var first, found history.Row
	var exists bool
	for i := range events {
		e := &events[i]
		n := uses[e.ClientSeq]
		if n == 0 {
			continue // an earlier event has the row
		}
		uses[e.ClientSeq] = 0
		want := history.Row{
			Key: g.key, Client: string(b.ClientID), ClientSeq: e.ClientSeq, Position: b.Position,
			Version: b.Version, Incarnation: b.Incarnation, EventIndex: uint32(i), EventNumber: b.FirstEventNumber + uint64(i),
			CommittedAt: b.CommittedAt, FirstSeq: lowest, LastSeq: highest, EventCount: b.EventCount,
			CommitFirst: b.CommitFirst, CommitCount: b.CommitCount,
			EventID: string(e.EventID), Content: record.ContentHash(e.Raw), Repeated: n > 1,
		}
		got, ok, err := v.Row(g.key, want.Client, want.ClientSeq, want.Position)
		if err != nil {
			return err
		}
		if ok && got == want {
			continue
		}
		if bad++; bad == 1 {
			first, found, exists = want, got, ok
		}
	}
	switch {
	case bad == 0:
	case !exists:
		g.find(pb.FindingKind_FINDING_KIND_ROW, b.Incarnation, b.Version, "expected a writer row of each of its events, found none of client_seq %d of %q, the first of %d that are missing or wrong", first.ClientSeq, first.Client, bad)
	default:
		g.find(pb.FindingKind_FINDING_KIND_ROW, b.Incarnation, b.Version, "expected the writer row of client_seq %d of %q to be %+v, found %+v, the first of %d that are missing or wrong", first.ClientSeq, first.Client, first, found, bad)
	}
	return nil
}
