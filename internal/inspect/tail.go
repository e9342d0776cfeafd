package inspect

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Sizes and marks of the tail's records (wal/DESIGN.md section 2).
const (
	recordMagic   = 0x544d5431
	recordHeader  = 40
	payloadFixed  = 1 + 8 + 4 + 4
	leastPayload  = payloadFixed + 1
	mostPayload   = 1 << 30
	leastRecord   = 1 + recordHeader + leastPayload
	endOfRecord   = 0xe5
	stateMagic    = 0x544d5331
	stateSlot     = 48
	stateSecondAt = 4096
)

func crc(b []byte) uint32 { return crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli)) }

// EntryType is raft's kind of an entry.
type EntryType uint8

// The kinds of entries that a log holds.
const (
	TypeCommand       EntryType = 0
	TypeNoop          EntryType = 1
	TypeBarrier       EntryType = 4
	TypeConfiguration EntryType = 5
)

// String names the kind.
func (t EntryType) String() string {
	switch t {
	case TypeCommand:
		return "command"
	case TypeNoop:
		return "noop"
	case TypeBarrier:
		return "barrier"
	case TypeConfiguration:
		return "configuration"
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Entry is one record of the tail.
type Entry struct {
	Index, Term uint64
	// Batch is the index of the first record that was written with this one.
	Batch      uint64
	Type       EntryType
	AppendedAt time.Time
	Data       []byte
	// File, Offset and Size say where the record is.
	File   string
	Offset int64
	Size   int
}

// tail is the log that counts.
type tail struct {
	dir      string
	segments []segment
	// leftover are segments that a deletion did not get to remove: no part of the log.
	leftover []segment
	state    logState
}

type segment struct {
	base uint64 // index of its first record
	path string
}

// logState is what the state file says.
type logState struct {
	path  string
	slots [2]slot
	// first is the lowest index that is not deleted, synced an index up to which all was
	// flushed, keep 0 or an index above which records were being deleted.
	first, synced, keep uint64
	// exact: nothing above synced was ever acknowledged.
	exact bool
}

type slot struct {
	whole               bool
	first, synced, keep uint64
	boot                [16]byte
}

// openTail finds the log that counts below root; nil if there is none.
func openTail(root string) (*tail, error) {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	newest := uint64(0)
	for _, e := range entries {
		digits, ok := strings.CutPrefix(e.Name(), "log-")
		if n, err := strconv.ParseUint(digits, 10, 64); ok && err == nil && len(digits) == 10 {
			newest = max(newest, n)
		}
	}
	if newest == 0 {
		return nil, nil
	}
	t := &tail{dir: filepath.Join(root, fmt.Sprintf("log-%010d", newest))}
	if t.state, err = readState(filepath.Join(t.dir, "state")); err != nil {
		return nil, err
	}
	return t, t.list()
}

// list finds the segments.
func (t *tail) list() error {
	entries, err := os.ReadDir(t.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if base, err := strconv.ParseUint(e.Name(), 10, 64); err == nil && len(e.Name()) == 20 {
			t.segments = append(t.segments, segment{base: base, path: filepath.Join(t.dir, e.Name())})
		}
	}
	slices.SortFunc(t.segments, func(a, b segment) int { return strings.Compare(a.path, b.path) })
	for len(t.segments) > 1 && t.segments[1].base <= t.state.first {
		t.leftover, t.segments = append(t.leftover, t.segments[0]), t.segments[1:]
	}
	for n := len(t.segments); t.state.keep > 0 && n > 1 && t.segments[n-1].base > t.state.keep; n-- {
		t.leftover, t.segments = append(t.leftover, t.segments[n-1]), t.segments[:n-1]
	}
	return nil
}

// readState reads the state of a log. That no slot is whole is not an error here.
func readState(path string) (logState, error) {
	s := logState{path: path}
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, err
	}
	b, err := io.ReadAll(io.LimitReader(f, stateSecondAt+stateSlot))
	if err = errors.Join(err, f.Close()); err != nil {
		return s, err
	}
	for i, at := range []int{0, stateSecondAt} {
		if len(b) < at+stateSlot {
			continue
		}
		p := b[at : at+stateSlot]
		be := binary.BigEndian
		if be.Uint32(p) != stateMagic || be.Uint32(p[4:]) != crc(p[8:]) {
			continue
		}
		s.slots[i] = slot{whole: true, first: be.Uint64(p[8:]), synced: be.Uint64(p[16:]), keep: be.Uint64(p[24:]), boot: [16]byte(p[32:])}
	}
	for _, sl := range s.slots {
		if sl.whole {
			s.first, s.synced, s.keep = sl.first, sl.synced, sl.keep
			break
		}
	}
	boot := bootID()
	s.exact = s.slots[0].whole && boot != [16]byte{} && boot == s.slots[0].boot
	return s, nil
}

// bootID tells this boot of the machine from others; zero if that is not known.
func bootID() (id [16]byte) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return id
	}
	_, _ = hex.Decode(id[:], []byte(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", "")))
	return id
}

// header is a record's header.
type header struct {
	sum                uint32 // of the payload
	length             uint32 // of the payload
	index, term, batch uint64
}

// parseHeader reads the header at the start of b.
func parseHeader(b []byte) (h header, problem string) {
	be := binary.BigEndian
	switch {
	case len(b) < recordHeader:
		return h, fmt.Sprintf("expected a record's header of %d bytes, found %d", recordHeader, len(b))
	case be.Uint32(b) != recordMagic:
		return h, fmt.Sprintf("expected a record's magic %08x, found %08x", uint32(recordMagic), be.Uint32(b))
	case be.Uint32(b[4:]) != crc(b[8:recordHeader]):
		return h, fmt.Sprintf("expected a header with checksum %08x, found one with %08x", be.Uint32(b[4:]), crc(b[8:recordHeader]))
	}
	h = header{sum: be.Uint32(b[8:]), length: be.Uint32(b[12:]), index: be.Uint64(b[16:]), term: be.Uint64(b[24:]), batch: be.Uint64(b[32:])}
	if h.length < leastPayload || h.length > mostPayload {
		return h, fmt.Sprintf("expected a payload of %d to %d bytes, found a length of %d", leastPayload, mostPayload, h.length)
	}
	return h, ""
}

// prefixSize is the length of the prefix before a frame of n bytes.
func prefixSize(n int) int { return len(binary.AppendUvarint(nil, uint64(n))) }

// parseRecord reads the record at the start of b, which must be the one of the given index.
func parseRecord(b []byte, index uint64) (e Entry, problem string) {
	framed, n := binary.Uvarint(b)
	if n <= 0 {
		return e, "expected a record, found no length before it"
	}
	h, problem := parseHeader(b[n:])
	if problem != "" {
		return e, problem
	}
	frame := recordHeader + int(h.length)
	switch {
	case framed != uint64(frame) || n != prefixSize(frame):
		return e, fmt.Sprintf("expected a length of %d before the header, found %d", frame, framed)
	case h.index != index:
		return e, fmt.Sprintf("expected the record of index %d, found that of %d", index, h.index)
	case h.batch > h.index:
		return e, fmt.Sprintf("expected a batch that began at index %d or before, found %d", h.index, h.batch)
	case len(b) < n+frame:
		return e, fmt.Sprintf("expected a record of %d bytes, found %d", n+frame, len(b))
	}
	p := b[n+recordHeader : n+frame]
	if got := crc(p); got != h.sum {
		return e, fmt.Sprintf("expected a payload with checksum %08x, found one with %08x", h.sum, got)
	}
	if p[len(p)-1] != endOfRecord {
		return e, fmt.Sprintf("expected the end mark %02x, found %02x", endOfRecord, p[len(p)-1])
	}
	c := cursor{b: p[:len(p)-1]}
	e = Entry{Index: h.index, Term: h.term, Batch: h.batch, Type: EntryType(c.u8()), Size: n + frame}
	sec, nsec := c.i64(), c.u32()
	if nsec >= 1e9 {
		return e, fmt.Sprintf("expected less than 1000000000 nanoseconds, found %d", nsec)
	}
	e.AppendedAt = time.Unix(sec, int64(nsec)).UTC()
	c.bytes() // extensions
	e.Data = c.take(uint64(c.left()))
	if c.bad != "" {
		return e, c.bad
	}
	return e, ""
}

// broken is a place of a segment where a record should be.
type broken struct {
	segment segment
	content []byte
	offset  int
	index   uint64 // of the record that is expected there
	problem string
	last    bool // segment is the last one
}

// walk calls record for every whole record, in order, and damaged for what is in their place
// where there is none. After damage it goes on with the next header that has its checksum. What
// an entry holds is only valid during the call.
func (t *tail) walk(record func(Entry) error, damaged func(broken) error) error {
	var buf []byte
	for i, s := range t.segments {
		b, err := readWhole(s.path, buf)
		if err != nil {
			return err
		}
		buf = b[:0]
		last := i == len(t.segments)-1
		next, err := t.walkSegment(s, b, last, record, damaged)
		if err != nil {
			return err
		}
		if !last && next != t.segments[i+1].base {
			err := damaged(broken{segment: s, content: b, offset: len(b), index: next,
				problem: fmt.Sprintf("expected the next segment to begin with index %d, found %s", next, filepath.Base(t.segments[i+1].path))})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *tail) walkSegment(s segment, b []byte, last bool, record func(Entry) error, damaged func(broken) error) (next uint64, err error) {
	index := s.base
	for at := 0; at < len(b); {
		if last && t.state.keep > 0 && index > t.state.keep {
			return index, nil // it was being cut off
		}
		e, problem := parseRecord(b[at:], index)
		if problem == "" {
			e.File, e.Offset = s.path, int64(at)
			if err := record(e); err != nil {
				return 0, err
			}
			at += e.Size
			index++
			continue
		}
		if err := damaged(broken{segment: s, content: b, offset: at, index: index, problem: problem, last: last}); err != nil {
			return 0, err
		}
		at, index = resume(b, at, index)
	}
	return index, nil
}

// resume finds the next record behind one that is not whole; len(b) if there is none.
func resume(b []byte, at int, index uint64) (int, uint64) {
	most := index + uint64(len(b)/leastRecord) + 1
	for from := at + 1; from+recordHeader <= len(b); from++ {
		if binary.BigEndian.Uint32(b[from:]) != recordMagic {
			continue
		}
		h, problem := parseHeader(b[from:])
		if problem != "" || h.index <= index || h.index > most {
			continue
		}
		if start := from - prefixSize(recordHeader+int(h.length)); start > at {
			return start, h.index
		}
	}
	return len(b), index + 1
}

// readWhole reads a file into buf, if that is large enough.
func readWhole(path string, buf []byte) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		if size := int(info.Size()); cap(buf) < size {
			buf = make([]byte, size)
		} else {
			buf = buf[:size]
		}
		_, err = io.ReadFull(f, buf)
	}
	return buf, errors.Join(err, f.Close())
}
