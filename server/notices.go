package server

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

const (
	// mostNotices is how many notices wait before they are sent whatever their latency.
	mostNotices = 1024
	// noticeBytes is about what a notice, or what a message has around a batch, takes.
	noticeBytes = 64

	fieldNotices  = 2 // of SubscribeResponse
	fieldTimeline = 5
)

// notices are those of one subscription that wait to be sent together. What follows on each
// other in one aggregate is one notice.
type notices struct {
	latency time.Duration
	waiting []*pb.Notice
	open    map[record.Key]*pb.Notice // of those waiting: what the next batch may continue
	first   uint64                    // position of the first change of those waiting
	since   time.Time                 // when that was noted
}

func (n *notices) add(c *replication.LogChange) {
	if len(n.waiting) == 0 {
		n.first, n.since, n.open = c.Position, time.Now(), map[record.Key]*pb.Notice{}
	}
	made := noticeOf(c)
	last := n.open[c.Key]
	if last != nil && made.GetOperation() == pb.Operation_OPERATION_WRITTEN && last.GetToVersion()+1 == made.GetFromVersion() {
		last.ToVersion, last.Position = made.GetToVersion(), made.GetPosition()
		return
	}
	n.waiting = append(n.waiting, made)
	if c.Kind == history.ChangeBatch {
		n.open[c.Key] = made
	} else {
		delete(n.open, c.Key)
	}
}

// take returns what waits in the order of positions.
func (n *notices) take() []*pb.Notice {
	out := n.waiting
	slices.SortFunc(out, func(a, b *pb.Notice) int { return cmp.Compare(a.GetPosition(), b.GetPosition()) })
	n.waiting, n.open = nil, nil
	return out
}

// noticeOf is the notice of one change.
func noticeOf(c *replication.LogChange) *pb.Notice {
	org, typ, id, _ := c.Key.Parts()
	op, from, to := operationOf(c)
	return &pb.Notice{
		Aggregate: &pb.AggregateKey{Org: org, Type: typ, Id: id}, Operation: op,
		FromVersion: from, ToVersion: to, Position: c.Position,
	}
}

// operationOf is what a change did, and to which versions. The version of a trim is the first
// that stays, that of a delete the last there was.
func operationOf(c *replication.LogChange) (op pb.Operation, from, to uint64) {
	switch {
	case c.Kind == history.ChangeTrim:
		return pb.Operation_OPERATION_TRIMMED, 1, c.Version - 1
	case c.Kind == history.ChangeDelete:
		return pb.Operation_OPERATION_DELETED, 1, c.Version
	case c.Created:
		return pb.Operation_OPERATION_CREATED, c.Version, c.Version
	}
	return pb.Operation_OPERATION_WRITTEN, c.Version, c.Version
}

// appendNotice appends the notice that goes with a change to a message that has batches; a
// batch that creates nothing has none.
func appendNotice(dst []byte, c *replication.LogChange) []byte {
	op, from, to := operationOf(c)
	if op == pb.Operation_OPERATION_WRITTEN {
		return dst
	}
	varint := func(dst []byte, field protowire.Number, v uint64) []byte {
		return protowire.AppendVarint(protowire.AppendTag(dst, field, protowire.VarintType), v)
	}
	org, typ, id, _ := c.Key.Parts()
	dst, notice := record.OpenMessage(dst, fieldNotices, len(c.Key)+3*5)
	dst, key := record.OpenMessage(dst, 1, len(c.Key)+3)
	for i, part := range []string{org, typ, id} {
		dst = protowire.AppendString(protowire.AppendTag(dst, protowire.Number(i+1), protowire.BytesType), part)
	}
	dst = record.CloseMessage(dst, key)
	dst = varint(dst, 2, uint64(op))
	dst = varint(dst, 3, from)
	dst = varint(dst, 4, to)
	dst = varint(dst, 5, c.Position)
	return record.CloseMessage(dst, notice)
}

func appendTimeline(dst []byte, timeline string) []byte {
	return protowire.AppendString(protowire.AppendTag(dst, fieldTimeline, protowire.BytesType), timeline)
}

// passes says whether any event of a batch passes the filter.
func (r *logReader) passes(c *replication.LogChange) (bool, error) {
	var b record.BatchView
	if err := record.ViewBatch(c.Stored, &b); err != nil {
		return false, err
	}
	if !r.filter.passesView(&b) {
		return false, nil
	}
	rest, err := b.Events, error(nil)
	var e record.EventView
	for len(rest) > 0 {
		if rest, err = record.NextEvent(rest, &e); err != nil {
			return false, err
		}
		if !r.filter.perEvent || r.filter.passesEvent(&e) {
			return true, nil
		}
	}
	return false, nil
}
