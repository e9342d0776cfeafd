package importer

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"strings"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// unit is one request on its way: one row, or the lines of one exported batch.
type unit struct {
	line      int64 // of the file, where the row begins
	rows      int   // how many rows or lines it stands for
	aggregate string
	req       *pb.AppendRequest
	size      int
	// bytes of the file that were read for it.
	bytes int64
	// run is set for exported batches only.
	run *run
	// refusal is set instead of req for lines that cannot be sent.
	refusal *Refusal
}

// Refusal says why rows were not imported.
type Refusal struct {
	// Line of the file where the row begins, from 1.
	Line int64
	// Rows is how many rows (lines, for an exported batch) were refused with it.
	Rows int
	// Reason says what was found, what was expected, and what to do.
	Reason string
}

// Error makes a refusal what a source returns for a row that cannot be sent.
func (r *Refusal) Error() string { return fmt.Sprintf("line %d: %s", r.Line, r.Reason) }

// Stopped is the error of an import that cannot go on: nobody can tell which aggregate a row
// belongs to, so the ranks of the rows behind it cannot be told either. The row itself is
// counted as refused; none behind it was sent, and all before it are settled.
type Stopped struct{ Refusal }

func (s *Stopped) Error() string {
	return fmt.Sprintf("stopped at line %d: it cannot be told which aggregate the row belongs to, and a row's sequence is its rank within its aggregate; "+
		"the rows behind it were not sent", s.Line)
}

// stop gives up a row whose aggregate cannot be told, and with it the rest of the file.
func stop(line int64, format string, args ...any) *Stopped {
	return &Stopped{Refusal: *refuse(line, format, args...)}
}

func refuse(line int64, format string, args ...any) *Refusal {
	return &Refusal{Line: line, Rows: 1, Reason: fmt.Sprintf(format, args...)}
}

// row is what a CSV row or an NDJSON object holds, taken apart.
type row struct {
	line      int64
	id        string
	eventType string
	eventID   string // empty = use the hash
	time      string
	payload   []byte
	hash      string
}

// rows turns rows into requests and counts the rank of each within its aggregate.
type rows struct {
	opts  *Options
	ranks map[string]uint64
}

func newRows(opts *Options) *rows {
	return &rows{opts: opts, ranks: make(map[string]uint64)}
}

// rank counts a row of an aggregate, whether or not it can be sent: the sequence of a
// refused row stays its own, so that it can be imported once it is mended where it stands.
func (b *rows) rank(id string) uint64 {
	n, seen := b.ranks[id]
	if !seen {
		id = strings.Clone(id) // not a slice of the whole row
	}
	b.ranks[id] = n + 1
	return n + 1
}

// bad makes the unit of a row that cannot be sent although its aggregate is known. It keeps
// its rank, and goes the way of the others so that its aggregate is held back behind it and
// not before.
func (b *rows) bad(r *row, format string, args ...any) *unit {
	b.rank(r.id)
	return b.unsendable(r, format, args...)
}

// unsendable is bad for a row that was ranked already.
func (b *rows) unsendable(r *row, format string, args ...any) *unit {
	return &unit{
		line: r.line, rows: 1, aggregate: strings.Clone(r.id), size: unitOverhead,
		refusal: refuse(r.line, format, args...),
	}
}

// checkID stops the import at a row that names no aggregate.
func (b *rows) checkID(r *row) error {
	if err := checkName(r.id); err != nil {
		return stop(r.line, "column %q names the aggregate, and %s; mend the value, or choose another --id-column", b.opts.Columns.ID, err)
	}
	return nil
}

// unit makes the request of a row whose id was checked.
func (b *rows) unit(r *row) *unit {
	rank := b.rank(r.id)
	switch {
	case r.eventType == "":
		return b.unsendable(r, "column %q is empty; every event needs a type", b.opts.Columns.EventType)
	case len(r.eventType) > maxPart:
		return b.unsendable(r, "column %q: an event type has at most %d bytes, this one has %d", b.opts.Columns.EventType, maxPart, len(r.eventType))
	}
	eventID := r.eventID
	if eventID == "" {
		eventID = r.hash
	} else if len(eventID) > maxPart {
		return b.unsendable(r, "column %q: an event id has at most %d bytes, this one has %d", b.opts.Columns.EventID, maxPart, len(eventID))
	}
	occurredAt, err := parseTime(r.time)
	if err != nil {
		return b.unsendable(r, "column %q: %s", b.opts.Columns.Time, err)
	}
	write := &pb.Write{
		Aggregate: &pb.AggregateKey{Org: b.opts.Org, Type: b.opts.Type, Id: r.id},
		Events: []*pb.NewEvent{{
			ClientSeq: rank, EventId: eventID, Type: r.eventType, OccurredAt: occurredAt,
			Payload: r.payload, ContentType: jsonType,
		}},
		AllowCreate:              true,
		EnforceClientIdempotency: true,
	}
	if rank > 1 {
		write.PreviousClientSeq = proto.Uint64(rank - 1)
	}
	return &unit{
		line: r.line, rows: 1, aggregate: r.id,
		req: &pb.AppendRequest{
			ClientId: b.opts.ClientID, Writes: []*pb.Write{write},
			OnDuplicate: pb.OnDuplicate_ON_DUPLICATE_CONFIRM,
		},
		size: unitOverhead + len(r.id) + len(r.eventType) + len(eventID) + len(r.payload),
	}
}

// unitOverhead is about what a request costs in memory besides its contents.
const unitOverhead = 512

// parseTime reads a row's time; an empty one is no time.
func parseTime(text string) (*timestamppb.Timestamp, error) {
	if strings.TrimSpace(text) == "" {
		return nil, nil
	}
	t, err := ParseTime(text)
	if err != nil {
		return nil, err
	}
	ts := timestamppb.New(t)
	if err := ts.CheckValid(); err != nil {
		return nil, fmt.Errorf("%q is out of range; expected a time in the years 1 to 9999", clip(text))
	}
	return ts, nil
}

// maxPart is the most bytes of a part of an aggregate key, of an event type and of an
// event id.
const maxPart = 200

// checkName checks a part of an aggregate key or a client_id; the error reads on from the
// name of the value.
func checkName(s string) error {
	switch {
	case s == "":
		return fmt.Errorf("it is empty")
	case len(s) > maxPart:
		return fmt.Errorf("it has %d bytes, at most %d are allowed", len(s), maxPart)
	case !utf8.ValidString(s):
		return fmt.Errorf("it is not valid UTF-8: %q", s)
	}
	for _, r := range s {
		if r == '/' || unicode.IsControl(r) {
			return fmt.Errorf("%q holds %q, which is not allowed", s, r)
		}
	}
	return nil
}

// rowHash names a row by what it holds: the event id of rows that bring none. It covers the
// fields alone, so renaming a column or naming other columns on the command line does not
// change it.
type rowHash struct {
	h   hash.Hash
	buf []byte
}

func newRowHash() *rowHash { return &rowHash{h: sha256.New()} }

// add hashes one field; the length keeps "a","bc" and "ab","c" apart.
func (h *rowHash) add(field string) {
	h.buf = binary.AppendUvarint(h.buf[:0], uint64(len(field)))
	h.buf = append(h.buf, field...)
	_, _ = h.h.Write(h.buf)
}

// sum returns the hash, the first 128 bits of SHA-256, and starts the next.
func (h *rowHash) sum() string {
	h.buf = h.h.Sum(h.buf[:0])
	h.h.Reset()
	return hex.EncodeToString(h.buf[:16])
}
