package inspect

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

const diskSector = 512

// judge says whether what is wrong at the end of the log may be an append that a crash cut
// short, by the table in wal/DESIGN.md ("A torn append, and damage at the very end").
func (t *tail) judge(w broken) (torn bool, why string) {
	if !w.last {
		return false, "a later segment follows, so this one had been flushed whole"
	}
	if w.index <= t.state.synced {
		return false, fmt.Sprintf("entries up to index %d had been flushed", t.state.synced)
	}
	// A record does not end with a zero.
	rest := bytes.TrimRight(w.content[w.offset:], "\x00")
	size, headerAt, sound := announced(rest, w.index)
	if at, ok := laterBatch(rest, size, w.index); ok {
		return false, fmt.Sprintf("a batch that was written later begins at offset %d, so this record had been flushed", w.offset+at)
	}
	switch {
	case t.state.exact:
		return true, fmt.Sprintf("the machine has run since, and nothing after index %d was acknowledged", t.state.synced)
	case sound && w.offset+size <= len(w.content) && (w.offset+size-1)%diskSector != 0 && endMarkLost(w.content[w.offset+headerAt:w.offset+size]):
		return false, "all of the record but its end mark is there, and it may have been acknowledged"
	case len(rest) < leastRecord:
		return true, "what is there is shorter than any record"
	case sound && len(rest) < size:
		return true, "what is there is shorter than the record"
	}
	end := w.offset + size
	if !sound {
		end = w.offset + headerAt + recordHeader
	}
	if hole(w.content, w.offset, min(end, len(w.content))) {
		return true, "part of the record was never written"
	}
	return false, "the record is complete, and may have been acknowledged"
}

// endMarkLost says whether a zero in place of the end mark is all that is wrong with a record,
// whose sector was written therefore.
func endMarkLost(frame []byte) bool {
	h, problem := parseHeader(frame)
	if problem != "" || frame[len(frame)-1] != 0 {
		return false
	}
	payload := bytes.Clone(frame[recordHeader:])
	payload[len(payload)-1] = endOfRecord
	return crc(payload) == h.sum
}

// announced looks for the header of a record at the start of b, whatever the length before it
// says, and returns the size that the record should have.
func announced(b []byte, index uint64) (size, headerAt int, sound bool) {
	for n := 1; n <= 5 && n < len(b); n++ {
		h, problem := parseHeader(b[n:])
		if frame := recordHeader + int(h.length); problem == "" && h.index == index && prefixSize(frame) == n {
			return n + frame, n, true
		}
	}
	if _, n := binary.Uvarint(b); n > 0 {
		return 1, n, false
	}
	return 1, 1, false
}

// laterBatch looks for a record of a later StoreLogs call, which proves that the one before it
// had been flushed.
func laterBatch(b []byte, from int, index uint64) (at int, ok bool) {
	most := index + uint64(len(b)/leastRecord) + 1
	for ; from+recordHeader <= len(b); from++ {
		if binary.BigEndian.Uint32(b[from:]) != recordMagic {
			continue
		}
		if h, problem := parseHeader(b[from:]); problem == "" && h.batch > index && h.index >= h.batch && h.index <= most {
			return from, true
		}
	}
	return 0, false
}

// hole says whether a sector's part of b[at:end] is zero throughout.
func hole(b []byte, at, end int) bool {
	for at < end {
		next := min(at/diskSector*diskSector+diskSector, end)
		if len(bytes.Trim(b[at:next], "\x00")) == 0 {
			return true
		}
		at = next
	}
	return false
}
