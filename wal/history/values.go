package history

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/tidemark-db/tidemark/wal/record"
)

// Every value that this package encodes starts with the version of its form. A batch is
// stored as record.AppendBatch gives it, which has a format byte of its own. There is no
// checksum in a value: Pebble has one over every block that holds it.
const (
	headFormat      = 1
	rowFormat       = 1
	positionsFormat = 1
	appliedFormat   = 1
)

// Flags of a head.
const (
	headDeleted = 1 << iota
	headRecreatable
	headRestart
	headFlags = headDeleted | headRecreatable | headRestart
)

// Flags of a row.
const (
	rowRepeated = 1 << iota
	rowFlags    = rowRepeated
)

// appendHead:
//
//	u8 format | u8 flags | uv version | uv incarnation | uv floor | uv first live position
//	uv event count | i64 created_at | i64 committed_at | uv position | str last client_id
//	uv last mark | chain hash (32)
//
// uv is a varint in its shortest form, str a uv length and the bytes.
func appendHead(dst []byte, h *Head) []byte {
	var flags byte
	if h.Deleted {
		flags |= headDeleted
	}
	if h.Recreatable {
		flags |= headRecreatable
	}
	if h.Restart {
		flags |= headRestart
	}
	dst = append(dst, headFormat, flags)
	dst = binary.AppendUvarint(dst, h.Version)
	dst = binary.AppendUvarint(dst, uint64(h.Incarnation))
	dst = binary.AppendUvarint(dst, h.Floor)
	dst = binary.AppendUvarint(dst, h.FirstLive)
	dst = binary.AppendUvarint(dst, h.EventCount)
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.CreatedAt))
	dst = binary.BigEndian.AppendUint64(dst, uint64(h.CommittedAt))
	dst = binary.AppendUvarint(dst, h.Position)
	dst = appendStr(dst, h.LastClient)
	dst = binary.AppendUvarint(dst, h.LastMark)
	return append(dst, h.Chain[:]...)
}

func decodeHead(b []byte) (Head, error) {
	r := reader{b: b}
	r.format(headFormat)
	flags := r.u8()
	if flags&^headFlags != 0 {
		r.bad = true
	}
	h := Head{
		Deleted:     flags&headDeleted != 0,
		Recreatable: flags&headRecreatable != 0,
		Restart:     flags&headRestart != 0,
		Version:     r.uv(),
		Incarnation: r.uv32(),
		Floor:       r.uv(),
		FirstLive:   r.uv(),
		EventCount:  r.uv(),
		CreatedAt:   r.i64(),
		CommittedAt: r.i64(),
		Position:    r.uv(),
		LastClient:  string(r.str()),
		LastMark:    r.uv(),
		Chain:       r.hash(),
	}
	if err := r.end("head"); err != nil {
		return Head{}, err
	}
	return h, nil
}

// appendRow writes what a row's key does not say:
//
//	u8 format | u8 flags | uv version | uv incarnation | uv event index | uv event number
//	i64 committed_at | uv first seq | uv last seq | uv event count
//	uv commit's first position | uv commit count | str event_id | content hash (32)
//
// eventID stands for r.EventID, so that Apply need not make a string of it.
func appendRow[S string | []byte](dst []byte, r *Row, eventID S) []byte {
	var flags byte
	if r.Repeated {
		flags |= rowRepeated
	}
	dst = append(dst, rowFormat, flags)
	dst = binary.AppendUvarint(dst, r.Version)
	dst = binary.AppendUvarint(dst, uint64(r.Incarnation))
	dst = binary.AppendUvarint(dst, uint64(r.EventIndex))
	dst = binary.AppendUvarint(dst, r.EventNumber)
	dst = binary.BigEndian.AppendUint64(dst, uint64(r.CommittedAt))
	dst = binary.AppendUvarint(dst, r.FirstSeq)
	dst = binary.AppendUvarint(dst, r.LastSeq)
	dst = binary.AppendUvarint(dst, uint64(r.EventCount))
	dst = binary.AppendUvarint(dst, r.CommitFirst)
	dst = binary.AppendUvarint(dst, uint64(r.CommitCount))
	dst = appendStr(dst, eventID)
	return append(dst, r.Content[:]...)
}

// decodeRow fills the fields of row that appendRow wrote.
func decodeRow(b []byte, row *Row) error {
	r := reader{b: b}
	r.format(rowFormat)
	flags := r.u8()
	if flags&^rowFlags != 0 {
		r.bad = true
	}
	row.Repeated = flags&rowRepeated != 0
	row.Version = r.uv()
	row.Incarnation = r.uv32()
	row.EventIndex = r.uv32()
	row.EventNumber = r.uv()
	row.CommittedAt = r.i64()
	row.FirstSeq = r.uv()
	row.LastSeq = r.uv()
	row.EventCount = r.uv32()
	row.CommitFirst = r.uv()
	row.CommitCount = r.uv32()
	row.EventID = string(r.str())
	row.Content = r.hash()
	return r.end("writer row")
}

// appendChanges:
//
//	u8 format | uv n | n times (str aggregate | uv incarnation | uv version | u8 kind)
func appendChanges(dst []byte, cs []Change) []byte {
	dst = append(dst, positionsFormat)
	dst = binary.AppendUvarint(dst, uint64(len(cs)))
	for i := range cs {
		c := &cs[i]
		dst = appendStr(dst, c.Key)
		dst = binary.AppendUvarint(dst, uint64(c.Incarnation))
		dst = binary.AppendUvarint(dst, c.Version)
		dst = append(dst, byte(c.Kind))
	}
	return dst
}

// minChange is the least that one change takes: a one-byte length, a six-byte aggregate,
// incarnation, version and kind.
const minChange = 1 + 6 + 1 + 1 + 1

func decodeChanges(b []byte) ([]Change, error) {
	r := reader{b: b}
	r.format(positionsFormat)
	n := r.uv()
	// A lying count must not allocate more than a small multiple of the input.
	if n == 0 || n > uint64(len(b)/minChange) {
		r.bad = true
	}
	if err := r.check("list of changes"); err != nil {
		return nil, err
	}
	cs := make([]Change, 0, n)
	for range n {
		c := Change{Key: record.Key(r.str()), Incarnation: r.uv32(), Version: r.uv(), Kind: ChangeKind(r.u8())}
		if _, _, _, ok := c.Key.Parts(); !ok || c.Kind < ChangeBatch || c.Kind > ChangeDelete {
			r.bad = true
		}
		if r.bad {
			break
		}
		cs = append(cs, c)
	}
	if err := r.end("list of changes"); err != nil {
		return nil, err
	}
	return cs, nil
}

// appendApplied:
//
//	u8 format | u64 index | u64 term | u64 position | i64 committed_at | str timeline
//	digest (32)
func appendApplied(dst []byte, a *Applied) []byte {
	be := binary.BigEndian
	dst = append(dst, appliedFormat)
	dst = be.AppendUint64(dst, a.Index)
	dst = be.AppendUint64(dst, a.Term)
	dst = be.AppendUint64(dst, a.Position)
	dst = be.AppendUint64(dst, uint64(a.CommittedAt))
	dst = appendStr(dst, a.Timeline)
	return append(dst, a.Digest[:]...)
}

func decodeApplied(b []byte) (Applied, error) {
	r := reader{b: b}
	r.format(appliedFormat)
	a := Applied{
		Index:       r.u64(),
		Term:        r.u64(),
		Position:    r.u64(),
		CommittedAt: r.i64(),
		Timeline:    string(r.str()),
		Digest:      r.hash(),
	}
	if err := r.end("m/applied"); err != nil {
		return Applied{}, err
	}
	return a, nil
}

func appendStr[S ~string | ~[]byte](dst []byte, s S) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}

// reader takes values apart. After the first read past the end, or of something that no
// encoder here writes, bad is set and every read returns zero.
type reader struct {
	b      []byte
	off    int
	bad    bool
	wanted byte // the format expected, if another one was found
}

func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.b)-r.off {
		r.bad = true
		return nil
	}
	p := r.b[r.off : r.off+n]
	r.off += n
	return p
}

func (r *reader) format(want byte) {
	if got := r.u8(); got != want && !r.bad {
		r.bad, r.wanted = true, want
	}
}

func (r *reader) u8() byte {
	if p := r.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (r *reader) u64() uint64 {
	if p := r.take(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

func (r *reader) i64() int64 { return int64(r.u64()) }

// uv reads a varint and refuses a longer form than needed, so that a value has one encoding.
func (r *reader) uv() uint64 {
	if r.bad {
		return 0
	}
	v, n := binary.Uvarint(r.b[r.off:])
	if n <= 0 || (n > 1 && r.b[r.off+n-1] == 0) {
		r.bad = true
		return 0
	}
	r.off += n
	return v
}

func (r *reader) uv32() uint32 {
	v := r.uv()
	if v > math.MaxUint32 {
		r.bad = true
		return 0
	}
	return uint32(v)
}

func (r *reader) str() []byte {
	n := r.uv()
	if n > uint64(len(r.b)) {
		r.bad = true
		return nil
	}
	return r.take(int(n))
}

func (r *reader) hash() (h record.Hash) {
	copy(h[:], r.take(record.HashSize))
	return h
}

func (r *reader) check(what string) error {
	switch {
	case r.wanted != 0:
		return fmt.Errorf("%w: %s of format %d, this version reads %d", record.ErrCorrupt, what, r.b[0], r.wanted)
	case r.bad:
		return fmt.Errorf("%w: %s of %d bytes ends early or holds a value out of range", record.ErrCorrupt, what, len(r.b))
	}
	return nil
}

// end is check for a value that must have been read to its last byte.
func (r *reader) end(what string) error {
	if err := r.check(what); err != nil {
		return err
	}
	if rest := len(r.b) - r.off; rest != 0 {
		return fmt.Errorf("%w: %d bytes after a %s", record.ErrCorrupt, rest, what)
	}
	return nil
}
