package tail

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// sector is the unit that a disk writes whole or not at all.
const sector = 512

// judge tells a torn append from damage. The last segment's file holds b; everything before
// off is whole, and what follows is not a whole record of the given index. synced is an
// index up to which all was flushed; if exact, nothing above it was ever acknowledged.
//
// A torn append was never flushed, so it can only be in the batch after the last that was.
// Its pages may have reached the disk in any order, or not at all: the file then ends early,
// or has zeros in place of whole sectors. Bytes that are there are right. A record that is
// complete, has no such hole, and is wrong, was damaged after it was written; unless exact
// says otherwise it may have been acknowledged, and is never cut.
//
// A hole that a failing disk made in an acknowledged record, and a record acknowledged after
// a state that a power loss brought back, look the same. wal/DESIGN.md says what remains.
func judge(b []byte, off int, index, synced uint64, exact bool) (torn bool, why string) {
	// A record does not end with a zero, so zeros at the very end are none of its bytes.
	rest := bytes.TrimRight(b[off:], "\x00")
	if index <= synced {
		return false, fmt.Sprintf("entries up to index %d had been flushed", synced)
	}
	prefix, h, found := findHeader(rest, index)
	after := 1
	if found {
		after = prefix + headerSize + int(h.length)
	}
	if at, ok := findLaterBatch(rest, after, index); ok {
		return false, fmt.Sprintf("a later batch begins at offset %d, so this record had been flushed", off+at)
	}
	switch {
	case exact:
		return true, fmt.Sprintf("nothing after index %d was acknowledged", synced)
	case found && off+after <= len(b) && endMarkLost(b[off+prefix:off+after]) && (off+after-1)%sector != 0:
		// The sector was written, and nothing but a failing disk takes one byte out of it.
		return false, "all of the record but its end mark is there, and it may have been acknowledged"
	case len(rest) < minRecordSize:
		return true, "what is there, zeros at its end apart, is shorter than any record"
	case found && len(rest) < after:
		return true, "what is there, zeros at its end apart, is shorter than the record"
	case hasHole(b, off, off+after, prefix, found):
		return true, "part of the record was never written"
	}
	return false, "the record is complete and may have been acknowledged"
}

// endMarkLost says whether a frame is what was written but for its last byte, which is zero: of
// a record whose end is zero, that is the one case in which nothing else can be missing.
func endMarkLost(frame []byte) bool {
	h, problem := parseHeader(frame)
	if problem != "" || frame[len(frame)-1] != 0 {
		return false
	}
	sum := crc32.Checksum(frame[headerSize:len(frame)-1], castagnoli())
	return crc32.Update(sum, castagnoli(), []byte{endMark}) == h.payloadCRC
}

// findHeader looks for the header of the record of the given index at the start of b,
// whatever its length prefix says. prefix is where the header begins, or would.
func findHeader(b []byte, index uint64) (prefix int, h header, found bool) {
	for n := 1; n <= prefixLen(headerSize+maxPayload) && n < len(b); n++ {
		h, problem := parseHeader(b[n:])
		if problem == "" && h.index == index && prefixLen(headerSize+int(h.length)) == n {
			return n, h, true
		}
	}
	if _, n := binary.Uvarint(b); n > 0 {
		return n, header{}, false
	}
	return 1, header{}, false
}

// findLaterBatch looks in b for the header of a record that was written in a later batch
// than the record of the given index.
func findLaterBatch(b []byte, from int, index uint64) (at int, ok bool) {
	most := index + uint64(len(b)/minRecordSize) + 1
	for ; from <= len(b)-headerSize; from++ {
		if binary.BigEndian.Uint32(b[from:]) != frameMagic {
			continue
		}
		h, problem := parseHeader(b[from:])
		if problem == "" && h.batch > index && h.index >= h.batch && h.index <= most {
			return from, true
		}
	}
	return 0, false
}

// hasHole says whether a sector's part of the record at b[off:end] is zero throughout; of
// its header, if that was not found and end is not known.
func hasHole(b []byte, off, end, prefix int, found bool) bool {
	if !found {
		end = off + prefix + headerSize
	}
	end = min(end, len(b))
	for at := off; at < end; {
		next := min(at/sector*sector+sector, end)
		if allZero(b[at:next]) {
			return true
		}
		at = next
	}
	return false
}

func allZero(b []byte) bool {
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
