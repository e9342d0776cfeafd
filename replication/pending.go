package replication

import (
	"bytes"
	"time"
	"unsafe"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// pending is a request on its way: encoded by the call's goroutine, admitted under the
// shard's lock, decided by Apply.
type pending struct {
	client  string
	confirm bool
	// buf is the request as it goes into the entry; writes alias it.
	buf    []byte
	writes []record.Write
	one    [1]record.Write // backs writes of the usual request
	// asked are the writes as the call brought them, until the request is admitted.
	asked     []*pb.Write
	validated validated
	// arrived is when the request came to the shard.
	arrived time.Time
	// change names a request that is no append, for texts; empty for an append.
	change string
	// deletes are the aggregates that a request deletes. gone is closed once the request is not
	// in flight any more: writes to those wait for that.
	deletes []record.Key
	gone    chan struct{}
	// sent is the request as its stream knows it; nil if it came in a call of its own.
	sent *StreamRequest
	// registers is the org and type, each followed by a zero byte, that a request registers a
	// schema for: writes to that wait for gone, too.
	registers string

	// done is closed when outcome is set. Both belong to the admitting side until then.
	done    chan struct{}
	outcome outcome
}

// outcomeKind says what became of an admitted request.
type outcomeKind int

const (
	// committed: it landed; outcome.results says where.
	committed outcomeKind = iota + 1
	// refused: Apply refused it; outcome.refusal says why. It did not land.
	refused
	// notProposed: raft or the node took it back before it was in any log. It did not land.
	notProposed
	// fenced: Apply refused it because it was appended in another term. It did not land.
	fenced
	// unknown: it may still land.
	unknown
)

type outcome struct {
	kind    outcomeKind
	results []writeResult
	refusal *refusal
	// changed says what a change did, and failure why it was refused.
	changed []changeResult
	failure *api.Error
	// schema is what a registration has come to: registered now, or already.
	schema  *history.Schema
	already bool
	// reason completes the text of notProposed and unknown.
	reason string
}

// writeResult says where one write landed.
type writeResult struct {
	version, position, firstEvent uint64
	incarnation                   uint32
	committedAt                   int64
	chain                         record.Hash
	noChain                       bool // the batch is gone, and its hash with it
}

// changeResult says what a trim, or one delete, did; position 0 = nothing.
type changeResult struct{ firstVersion, position uint64 }

// newPending encodes a request whose shape is valid.
func newPending(req *pb.AppendRequest) *pending { return newPendingOf(req, nil) }

// newPendingOf is newPending for a request on a stream, which keeps where each write begins.
func newPendingOf(req *pb.AppendRequest, sent *StreamRequest) *pending {
	p := &pending{
		sent:    sent,
		client:  req.GetClientId(),
		confirm: req.GetOnDuplicate() == pb.OnDuplicate_ON_DUPLICATE_CONFIRM,
		asked:   req.GetWrites(),
		arrived: time.Now(),
	}
	p.writes = p.one[:0]
	size := 64 + len(p.client)
	for _, w := range req.GetWrites() {
		size += 128
		for _, e := range w.GetEvents() {
			size += 160 + len(e.GetPayload()) + len(e.GetEventId()) + len(e.GetType())
		}
	}
	buf := record.AppendRequestHeader(make([]byte, 0, size), 0, p.client, uint32(len(req.GetWrites())))
	for _, w := range req.GetWrites() {
		var rw record.Write
		flags := byte(0)
		if sent != nil {
			flags = record.FlagHasAfter
			sent.starts = append(sent.starts, len(buf))
		}
		buf, rw = encodeWrite(buf, w, flags)
		p.writes = append(p.writes, rw)
	}
	record.FinishRequest(buf, 0)
	p.buf = buf
	// The slices of writes may point into an earlier allocation of buf if it grew: the bytes
	// are the same and never change, so that is only memory, and the size guess is generous.
	return p
}

func encodeWrite(buf []byte, w *pb.Write, flags byte) ([]byte, record.Write) {
	a := w.GetAggregate()
	rw := record.Write{
		Key:        record.MakeKey(a.GetOrg(), a.GetType(), a.GetId()),
		EventCount: uint32(len(w.GetEvents())),
		Expected:   w.GetExpectedVersion(),
		Previous:   w.GetPreviousClientSeq(),
		Flags:      flags,
	}
	if w.GetAllowCreate() {
		rw.Flags |= record.FlagAllowCreate
	}
	if w.GetEnforceClientIdempotency() {
		rw.Flags |= record.FlagEnforce
	}
	if w.ExpectedVersion != nil {
		rw.Flags |= record.FlagHasExpected
	}
	if w.PreviousClientSeq != nil {
		rw.Flags |= record.FlagHasPrevious
	}
	rw.Lowest = ^uint64(0)
	for _, e := range w.GetEvents() {
		rw.Lowest = min(rw.Lowest, e.GetClientSeq())
		rw.Highest = max(rw.Highest, e.GetClientSeq())
	}
	return record.EncodeWrite(buf, &rw, w.GetEvents())
}

// sameContent says whether two requests of one writer are the same by contract 2.5: the
// same aggregates, and for each the same sequences, event ids and content. Guards and flags
// are not compared; neither is the order of the writes.
func (p *pending) sameContent(q *pending) bool {
	if len(p.writes) != len(q.writes) || p.client != q.client {
		return false
	}
	for i := range p.writes {
		w := &p.writes[i]
		j := i
		if q.writes[j].Key != w.Key {
			for j = range q.writes {
				if q.writes[j].Key == w.Key {
					break
				}
			}
		}
		o := &q.writes[j]
		// Equal hashes of whole events cover sequences and ids.
		if o.Key != w.Key || o.EventCount != w.EventCount || !bytes.Equal(o.Hashes, w.Hashes) {
			return false
		}
	}
	return true
}

// bytes is what the request counts against the limit of bytes in flight.
func (p *pending) bytes() int64 {
	return int64(len(p.buf)) + int64(unsafe.Sizeof(*p)) + 512
}

// finish sets the outcome and wakes who waits. It is called once.
func (p *pending) finish(o outcome) {
	p.outcome = o
	close(p.done)
	if p.sent != nil {
		p.sent.stream.deliver(p.sent)
	}
}

// leave wakes the writes that wait for a delete or a registration. It may be called more than
// once, by the holder of Shard.mu.
func (p *pending) leave() {
	if p.gone != nil {
		close(p.gone)
		p.gone = nil
	}
}
