package importer

import (
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// run is the consecutive batches of one aggregate in an export. The source makes it, the
// worker that sends the aggregate's batches (one at a time) fills it in.
type run struct {
	// version is the one that the newest sent batch has in the store; 0 before the first.
	version uint64
}

// batchSource reads export lines and puts the batches together again.
type batchSource struct {
	lines lineReader

	// ahead is the line read last, if it belongs to the next batch.
	ahead     *exportLine
	aheadKey  *pb.AggregateKey
	aheadSize int
	aheadLine int64

	// Of the aggregate whose batches are being read.
	aggregate string
	run       *run
	version   uint64
	// marks is each writer's highest sequence so far.
	marks map[string]uint64

	// lost says that a line could not be read, so nobody knows which batch it was.
	lost bool
}

func newBatchSource(r io.Reader) (*batchSource, error) {
	text, err := openText(r)
	if err != nil {
		return nil, err
	}
	return &batchSource{lines: lineReader{r: text}}, nil
}

func (s *batchSource) offset() int64 { return s.lines.bytes }

// read parses the next line into ahead.
func (s *batchSource) read() error {
	text, err := s.lines.next()
	if errors.Is(err, errLineTooLong) {
		s.lost = true
		return refuse(s.lines.line, "%s", err)
	}
	if err != nil {
		return err
	}
	if !utf8.Valid(text) {
		s.lost = true
		return refuse(s.lines.line, "not valid UTF-8; an export is, so the file was damaged or converted")
	}
	l, key, err := parseLine(text)
	if err != nil {
		s.lost = true
		return refuse(s.lines.line, "%s", err)
	}
	s.ahead, s.aheadKey, s.aheadSize, s.aheadLine = l, key, len(text), s.lines.line
	return nil
}

// next returns the next batch. Its lines must follow each other and be complete: a batch
// that lost a line (an export that was cut off, say) would otherwise come back as another.
func (s *batchSource) next() (*unit, error) {
	if s.ahead == nil {
		if err := s.read(); err != nil {
			return nil, err
		}
	}
	first, key, line, size := s.ahead, s.aheadKey, s.aheadLine, s.aheadSize
	s.ahead = nil
	events := []*pb.NewEvent{first.event()}
	damage := s.enter(first)
	if first.EventIndex != 0 {
		damage = fmt.Sprintf("the batch begins with event_index %d; its first lines are missing", first.EventIndex)
	}
	for count := first.EventIndex + 1; count < first.EventCount; count++ {
		if err := s.read(); err != nil {
			if bad := (*Refusal)(nil); !errors.As(err, &bad) && !errors.Is(err, io.EOF) {
				return nil, err
			} else if bad != nil {
				return s.broken(line, len(events)+1, fmt.Sprintf("line %d of the batch is damaged: %s", bad.Line, bad.Reason)), nil
			}
			damage = fmt.Sprintf("the file ends within the batch, after %d of its %d events", count, first.EventCount)
			break
		}
		l := s.ahead
		if l.Aggregate != first.Aggregate || l.Version != first.Version || l.EventIndex != count ||
			l.EventCount != first.EventCount || l.ClientID != first.ClientID {
			damage = fmt.Sprintf("the batch is not complete: line %d is not its event_index %d of %d", s.aheadLine, count, first.EventCount)
			break
		}
		s.ahead = nil
		size += s.aheadSize
		if size > maxRowBytes {
			return s.broken(line, len(events)+1, fmt.Sprintf("the batch has more than %d MiB; a request that large is never accepted", maxRowBytes>>20)), nil
		}
		events = append(events, l.event())
	}
	if damage == "" {
		damage = checkBatch(first, events)
	}
	if damage != "" {
		return s.broken(line, len(events), damage+"; export the aggregate again"), nil
	}
	return &unit{
		line: line, rows: len(events), aggregate: first.Aggregate, run: s.run,
		req: s.request(key, first.ClientID, events), size: unitOverhead*len(events) + size,
	}, nil
}

// enter moves on to a batch, beginning a run if the aggregate changes, and says what is
// missing before it. The first batch of an aggregate need not be version 1: the older ones
// may have been trimmed.
func (s *batchSource) enter(l *exportLine) (damage string) {
	previous := s.version
	s.version = l.Version
	lost := s.lost
	s.lost = false
	if s.run == nil || l.Aggregate != s.aggregate {
		s.aggregate, s.run, s.marks = l.Aggregate, &run{}, make(map[string]uint64)
		if lost && l.Version > 1 {
			return fmt.Sprintf("the aggregate begins with version %d after a line that cannot be read", l.Version)
		}
		return ""
	}
	if l.Version != previous+1 {
		return fmt.Sprintf("version %d follows version %d; what was between them is missing", l.Version, previous)
	}
	return ""
}

// broken makes a unit that refuses lines of the aggregate being read. It goes the way of the
// others, so that its worker holds back the batches behind it and none before it.
func (s *batchSource) broken(line int64, rows int, reason string) *unit {
	return &unit{
		line: line, rows: rows, aggregate: s.aggregate, run: s.run, size: unitOverhead,
		refusal: &Refusal{Line: line, Rows: rows, Reason: reason},
	}
}

// checkBatch looks for what would make the request mean something else than the export did.
func checkBatch(first *exportLine, events []*pb.NewEvent) string {
	if err := checkName(first.ClientID); err != nil {
		return fmt.Sprintf("client_id: %s", err)
	}
	for i, e := range events {
		if e.GetClientSeq() == 0 {
			return fmt.Sprintf("event_index %d has no client_seq", i)
		}
		if t := e.GetOccurredAt(); t != nil && t.CheckValid() != nil {
			return fmt.Sprintf("event_index %d: occurred_at is out of range", i)
		}
	}
	return ""
}

// request makes the write of a batch and moves its writer's mark. A batch that can be
// confirmed is: every event has an id, and the sequences are above all that the writer has
// used, in the order that enforcement wants. Any other is left to the version guard.
func (s *batchSource) request(key *pb.AggregateKey, client string, events []*pb.NewEvent) *pb.AppendRequest {
	confirm := true
	last := s.marks[client]
	for _, e := range events {
		seq := e.GetClientSeq()
		confirm = confirm && seq > last && e.GetEventId() != ""
		last = max(last, seq)
	}
	s.marks[client] = last
	req := &pb.AppendRequest{
		ClientId:    client,
		OnDuplicate: pb.OnDuplicate_ON_DUPLICATE_REJECT,
		Writes: []*pb.Write{{
			Aggregate: key, Events: events, AllowCreate: true, EnforceClientIdempotency: confirm,
		}},
	}
	if confirm {
		req.OnDuplicate = pb.OnDuplicate_ON_DUPLICATE_CONFIRM
	}
	return req
}
