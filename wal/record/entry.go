package record

import (
	"encoding/binary"
	"fmt"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// An entry is what one raft log entry carries:
//
//	u8 format = 2 | u64 term of admission | u64 ticket | u32 n | n requests
//
//	request = u32 length of the rest | u8 kind | i64 committed_at (Unix ns, admission clock)
//	          what the kind says
//
//	append  = str client_id | u32 n | n writes
//	write   = str key (stored form) | u8 flags | u64 expected_version | u64 previous_client_seq
//	          [u64 after_seq] | [u64 schema revision] | u32 n | n content hashes (32 each)
//	          u32 length | n canonical events
//
// trim, delete and register_schema are in change.go. In brackets: only there if the flags say
// so. Format 1, which is read and not written any more, knew appends alone: its requests had
// no kind, and its writes neither of the fields in brackets.
//
// The ticket is the leader's own number for the entry within the term: it finds the callers
// that wait for it. It has no meaning on any other node.
//
// Requests are independent of each other; the writes of one land together or not at all.
const (
	entryFormat        = 2
	entryFormatAppends = 1
)

// EntryHeaderSize is the length of an entry before its requests.
const EntryHeaderSize = 1 + 8 + 8 + 4

// Kind says what a request asks for.
type Kind byte

// Kinds of requests.
const (
	KindAppend Kind = iota + 1
	KindTrim
	KindDelete
	KindRegisterSchema
)

// Flags of a write.
const (
	FlagAllowCreate = 1 << iota
	FlagEnforce
	FlagHasExpected
	FlagHasPrevious
	FlagHasAfter
	FlagHasSchema
	writeFlags        = 1<<iota - 1
	writeFlagsAppends = FlagHasAfter - 1 // of format 1
)

// Write is one write of a request as Apply reads it. Slices alias the entry.
type Write struct {
	Key      Key
	Flags    byte
	Expected uint64
	Previous uint64
	// After, with FlagHasAfter, is the sequence of this writer that must be recorded on the
	// aggregate, or the write is refused: the one admitted before it on its stream; 0 = none was.
	After uint64
	// SchemaRevision, with FlagHasSchema, is that of the aggregate's (org, type) which the
	// events were validated against.
	SchemaRevision uint64
	EventCount     uint32
	Hashes         []byte // EventCount hashes, one after the other
	Events         []byte // EventCount canonical events
	Lowest         uint64 // lowest client_seq, computed while parsing
	Highest        uint64 // highest client_seq, computed while parsing
}

// Hash is the content hash of event i.
func (w *Write) Hash(i int) Hash { return Hash(w.Hashes[i*HashSize : (i+1)*HashSize]) }

// Request is one request of an entry as Apply reads it. Of the fields behind CommittedAt only
// those of its kind are set. Slices are reused by the next call of EntryReader.Next.
type Request struct {
	Kind        Kind
	CommittedAt int64

	// KindAppend
	ClientID string
	Writes   []Write
	// KindTrim
	Trim Trim
	// KindDelete
	Deletes []Delete
	// KindRegisterSchema
	Schema Schema
}

// AppendEntryHeader starts an entry of n requests admitted in term.
func AppendEntryHeader(dst []byte, term, ticket uint64, n uint32) []byte {
	dst = append(dst, entryFormat)
	dst = binary.BigEndian.AppendUint64(dst, term)
	dst = binary.BigEndian.AppendUint64(dst, ticket)
	return binary.BigEndian.AppendUint32(dst, n)
}

// startRequest starts a request of a kind; FinishRequest completes it.
func startRequest(dst []byte, kind Kind, committedAt int64) []byte {
	dst = append(dst, 0, 0, 0, 0, byte(kind))
	return binary.BigEndian.AppendUint64(dst, uint64(committedAt))
}

// AppendRequestHeader starts an append; the caller appends its writes with EncodeWrite and
// then calls FinishRequest with the offset at which the request started.
func AppendRequestHeader(dst []byte, committedAt int64, clientID string, writes uint32) []byte {
	dst = startRequest(dst, KindAppend, committedAt)
	dst = appendString(dst, clientID)
	return binary.BigEndian.AppendUint32(dst, writes)
}

// FinishRequest fills in the length of the request that starts at dst[start].
func FinishRequest(dst []byte, start int) {
	binary.BigEndian.PutUint32(dst[start:], uint32(len(dst)-start-4))
}

// SetCommittedAt sets the admission time of the request that starts at dst[0].
func SetCommittedAt(dst []byte, ns int64) { binary.BigEndian.PutUint64(dst[5:], uint64(ns)) }

// SetAfter sets after_seq of the write to k, with FlagHasAfter, that EncodeWrite began at dst[at].
func SetAfter(dst []byte, at int, k Key, after uint64) {
	binary.BigEndian.PutUint64(dst[at+4+len(k)+1+8+8:], after)
}

// EncodeWrite appends a write, encoding and hashing its events in place; w needs its key,
// flags, guards, count and range. It returns w with Hashes and Events set to where they
// stand in the result.
func EncodeWrite(dst []byte, w *Write, events []*pb.NewEvent) ([]byte, Write) {
	be := binary.BigEndian
	out := *w
	dst = appendWriteHeader(dst, w)
	dst = be.AppendUint32(dst, uint32(len(events)))
	hashes := len(dst)
	for range events {
		dst = append(dst, zeroHash[:]...)
	}
	length := len(dst)
	dst = append(dst, 0, 0, 0, 0)
	start := len(dst)
	for i, e := range events {
		at := len(dst)
		dst = AppendEvent(dst, e)
		h := ContentHash(dst[at:])
		copy(dst[hashes+i*HashSize:], h[:])
	}
	be.PutUint32(dst[length:], uint32(len(dst)-start))
	out.EventCount = uint32(len(events))
	out.Hashes = dst[hashes:length:length]
	out.Events = dst[start:len(dst):len(dst)]
	return dst, out
}

// AppendWrite is EncodeWrite for a write whose events are encoded already: its flags and what
// they announce may have changed since.
func AppendWrite(dst []byte, w *Write) ([]byte, Write) {
	out := *w
	dst = appendWriteHeader(dst, w)
	dst = binary.BigEndian.AppendUint32(dst, w.EventCount)
	hashes := len(dst)
	dst = append(dst, w.Hashes...)
	out.Hashes = dst[hashes:len(dst):len(dst)]
	dst = appendBytes(dst, w.Events)
	out.Events = dst[len(dst)-len(w.Events) : len(dst) : len(dst)]
	return dst, out
}

// appendWriteHeader appends what comes before the number of events.
func appendWriteHeader(dst []byte, w *Write) []byte {
	be := binary.BigEndian
	dst = appendString(dst, string(w.Key))
	dst = append(dst, w.Flags)
	dst = be.AppendUint64(dst, w.Expected)
	dst = be.AppendUint64(dst, w.Previous)
	if w.Flags&FlagHasAfter != 0 {
		dst = be.AppendUint64(dst, w.After)
	}
	if w.Flags&FlagHasSchema != 0 {
		dst = be.AppendUint64(dst, w.SchemaRevision)
	}
	return dst
}

var zeroHash Hash

// EntryReader walks the requests of an entry.
type EntryReader struct {
	// Term is the term that the entry's requests were admitted in.
	Term uint64
	// Ticket is the proposing leader's number for the entry.
	Ticket uint64
	// Count is how many requests the entry holds.
	Count  uint32
	format byte
	c      cursor
	next   uint32
	req    Request
}

// ReadEntry starts reading an entry; data must not change while it is read.
func ReadEntry(data []byte) (*EntryReader, error) {
	r := &EntryReader{c: cursor{b: data}}
	if r.format = r.c.u8(); r.format != entryFormat && r.format != entryFormatAppends && !r.c.bad {
		return nil, fmt.Errorf("%w: entry format %d, this version reads %d and %d", ErrCorrupt, r.format, entryFormatAppends, entryFormat)
	}
	r.Term = r.c.u64()
	r.Ticket = r.c.u64()
	r.Count = r.c.u32()
	if r.c.bad {
		return nil, fmt.Errorf("%w: entry of %d bytes ends early", ErrCorrupt, len(data))
	}
	return r, nil
}

// Next returns the next request, or nil after the last. The request is valid until the
// following call; its byte slices alias the entry.
func (r *EntryReader) Next() (*Request, error) {
	if r.next == r.Count {
		if rest := len(r.c.b) - r.c.off; rest != 0 {
			return nil, fmt.Errorf("%w: %d bytes after the entry's %d requests", ErrCorrupt, rest, r.Count)
		}
		return nil, nil
	}
	c := cursor{b: r.c.bytes()}
	if r.c.bad {
		return nil, fmt.Errorf("%w: request %d of %d ends early", ErrCorrupt, r.next, r.Count)
	}
	req := &r.req
	*req = Request{Kind: KindAppend, Writes: req.Writes[:0], Deletes: req.Deletes[:0]}
	if r.format != entryFormatAppends {
		req.Kind = Kind(c.u8())
	}
	req.CommittedAt = int64(c.u64())
	var err error
	switch req.Kind {
	case KindAppend:
		err = r.readAppend(&c, req)
	case KindTrim:
		req.Trim, err = readTrim(&c)
	case KindDelete:
		req.Deletes, err = readDeletes(&c, req.Deletes)
	case KindRegisterSchema:
		req.Schema, err = readSchema(&c)
	default:
		if !c.bad {
			err = fmt.Errorf("%w: request %d is of kind %d, this version reads %d to %d", ErrCorrupt, r.next, req.Kind, KindAppend, KindRegisterSchema)
		}
	}
	if err != nil {
		return nil, err
	}
	if c.bad || c.off != len(c.b) {
		return nil, fmt.Errorf("%w: request %d is %d bytes long, what is in it %d", ErrCorrupt, r.next, len(c.b), c.off)
	}
	r.next++
	return req, nil
}

// readAppend reads what follows the time of an append.
func (r *EntryReader) readAppend(c *cursor, req *Request) error {
	flags := byte(writeFlags)
	if r.format == entryFormatAppends {
		flags = writeFlagsAppends
	}
	req.ClientID = c.str()
	n := c.u32()
	for i := uint32(0); i < n; i++ {
		w := Write{Key: Key(c.bytes()), Flags: c.u8(), Expected: c.u64(), Previous: c.u64()}
		if w.Flags&^flags != 0 {
			c.bad = true
		}
		if w.Flags&FlagHasAfter != 0 {
			w.After = c.u64()
		}
		if w.Flags&FlagHasSchema != 0 {
			w.SchemaRevision = c.u64()
		}
		w.EventCount = c.u32()
		if uint64(w.EventCount)*HashSize > uint64(len(c.b)) {
			c.bad = true
		}
		w.Hashes = c.take(int(w.EventCount) * HashSize)
		w.Events = c.bytes()
		if c.bad {
			return fmt.Errorf("%w: write %d of request %d ends early or has an unknown flag", ErrCorrupt, i, r.next)
		}
		if err := w.scan(); err != nil {
			return err
		}
		req.Writes = append(req.Writes, w)
	}
	return nil
}

// scan checks the events and finds the lowest and highest sequence.
func (w *Write) scan() error {
	if _, _, _, ok := w.Key.Parts(); !ok {
		return fmt.Errorf("%w: write to a malformed key of %d bytes", ErrCorrupt, len(w.Key))
	}
	if w.EventCount == 0 {
		return fmt.Errorf("%w: write without events", ErrCorrupt)
	}
	rest := w.Events
	var v EventView
	var err error
	for i := uint32(0); i < w.EventCount; i++ {
		if rest, err = NextEvent(rest, &v); err != nil {
			return err
		}
		if i == 0 || v.ClientSeq < w.Lowest {
			w.Lowest = v.ClientSeq
		}
		if v.ClientSeq > w.Highest {
			w.Highest = v.ClientSeq
		}
	}
	if len(rest) != 0 {
		return fmt.Errorf("%w: %d bytes after the write's %d events", ErrCorrupt, len(rest), w.EventCount)
	}
	return nil
}
