package main

import (
	"fmt"
	"io"
	"strings"

	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// tailPrinter prints what a subscription brings, in the order of positions.
type tailPrinter struct {
	out   io.Writer
	table *table // nil = JSON
}

func newTailPrinter(out io.Writer, output string) *tailPrinter {
	p := &tailPrinter{out: out}
	if output == outputTable {
		p.table = newTable(out, "POSITION", "AGGREGATE", "VERSION", "EVENT", "CLIENT", "SEQ", "TYPE", "EVENT ID", "COMMITTED AT", "PAYLOAD")
		p.table.width = terminalWidth(out)
	}
	return p
}

// print prints all of a message, so that it may be counted as seen.
func (p *tailPrinter) print(m *pb.SubscribeResponse) error {
	batches := m.GetBatches()
	for _, n := range m.GetNotices() {
		for len(batches) > 0 && batches[0].GetPosition() < n.GetPosition() {
			if err := p.batch(batches[0]); err != nil {
				return err
			}
			batches = batches[1:]
		}
		if err := p.notice(n, len(batches) > 0 && batches[0].GetPosition() == n.GetPosition()); err != nil {
			return err
		}
	}
	for _, b := range batches {
		if err := p.batch(b); err != nil {
			return err
		}
	}
	if p.table != nil && len(m.GetBatches())+len(m.GetNotices()) > 0 {
		return p.table.flush()
	}
	return nil
}

func (p *tailPrinter) batch(b *pb.Batch) error {
	if p.table == nil {
		return p.json(b)
	}
	for _, e := range b.GetEvents() {
		if err := p.table.row(b.GetPosition(), formatAggregate(b.GetAggregate()), b.GetVersion(), e.GetEventNumber(), b.GetClientId(), e.GetClientSeq(),
			e.GetType(), shorten(e.GetEventId()), formatMilliseconds(b.GetCommittedAt()), formatPayload(e, payloadBytes)); err != nil {
			return err
		}
	}
	return nil
}

// notice prints a notice; with its batch, a table needs none.
func (p *tailPrinter) notice(n *pb.Notice, withBatch bool) error {
	if p.table == nil {
		return p.json(n)
	}
	if withBatch {
		return nil
	}
	versions := fmt.Sprint(n.GetToVersion())
	if n.GetFromVersion() != n.GetToVersion() {
		versions = fmt.Sprintf("%d-%d", n.GetFromVersion(), n.GetToVersion())
	}
	operation := strings.ToLower(strings.TrimPrefix(n.GetOperation().String(), "OPERATION_"))
	return p.table.row(n.GetPosition(), formatAggregate(n.GetAggregate()), versions, "", "", "", "("+operation+")", "", "", "")
}

func (p *tailPrinter) json(m proto.Message) error { return writeJSON(p.out, m) }
