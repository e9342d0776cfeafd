package tail

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"time"

	"github.com/hashicorp/raft"
)

// A record in a segment file is tidwall's length prefix (a uvarint), then our frame:
//
//	frame   = header payload
//	header  = magic u32 | headerCRC u32 | payloadCRC u32 | length u32 | index u64 | term u64 | batch u64
//	payload = type u8 | appended seconds i64 | appended nanoseconds u32 | n u32 | extensions [n] | data | end u8
//
// Integers are big-endian; both checksums are CRC-32C. The header has a checksum of its own
// so that a record's length can be trusted when its payload cannot: without that, a flipped
// bit in a length looks like an append that was cut short. batch is the index of the first
// record of the StoreLogs call that wrote this one: a later batch in the file proves that
// every earlier one had been flushed. Neither the first byte of the prefix nor the end byte
// is ever zero, so a part of a record that never reached the disk shows.
const (
	frameMagic    = 0x544d5431 // "TMT1"
	headerSize    = 40
	payloadFixed  = 1 + 8 + 4 + 4 // before the extensions
	endMark       = 0xe5
	minPayload    = payloadFixed + 1
	maxPayload    = 1 << 30
	minRecordSize = 1 + headerSize + minPayload
)

// castagnoli returns the CRC-32C table; MakeTable answers with one shared instance.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli()) }

// header is a decoded frame header.
type header struct {
	payloadCRC uint32
	length     uint32 // of the payload
	index      uint64
	term       uint64
	batch      uint64
}

// frameLen is the length of the frame that appendFrame makes of l.
func frameLen(l *raft.Log) int {
	return headerSize + minPayload + len(l.Extensions) + len(l.Data)
}

// prefixLen is the length of tidwall's prefix before a frame of n bytes.
func prefixLen(n int) int {
	size := 1
	for ; n >= 0x80; n >>= 7 {
		size++
	}
	return size
}

// appendFrame appends the frame of l, written by the batch that began at index batch.
func appendFrame(dst []byte, l *raft.Log, batch uint64) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, headerSize)...)
	dst = append(dst, byte(l.Type))
	dst = binary.BigEndian.AppendUint64(dst, uint64(l.AppendedAt.Unix()))
	dst = binary.BigEndian.AppendUint32(dst, uint32(l.AppendedAt.Nanosecond()))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(l.Extensions)))
	dst = append(dst, l.Extensions...)
	dst = append(dst, l.Data...)
	dst = append(dst, endMark)

	h, payload := dst[at:at+headerSize], dst[at+headerSize:]
	binary.BigEndian.PutUint32(h[0:], frameMagic)
	binary.BigEndian.PutUint32(h[8:], checksum(payload))
	binary.BigEndian.PutUint32(h[12:], uint32(len(payload)))
	binary.BigEndian.PutUint64(h[16:], l.Index)
	binary.BigEndian.PutUint64(h[24:], l.Term)
	binary.BigEndian.PutUint64(h[32:], batch)
	binary.BigEndian.PutUint32(h[4:], checksum(h[8:]))
	return dst
}

// parseHeader decodes the header at the start of b; problem says what is wrong with it.
func parseHeader(b []byte) (h header, problem string) {
	if len(b) < headerSize {
		return header{}, fmt.Sprintf("expected a record header of %d bytes, found %d", headerSize, len(b))
	}
	if m := binary.BigEndian.Uint32(b); m != frameMagic {
		return header{}, fmt.Sprintf("expected record magic %08x, found %08x", uint32(frameMagic), m)
	}
	if want, got := binary.BigEndian.Uint32(b[4:]), checksum(b[8:headerSize]); want != got {
		return header{}, fmt.Sprintf("expected header checksum %08x, found %08x", want, got)
	}
	h = header{
		payloadCRC: binary.BigEndian.Uint32(b[8:]),
		length:     binary.BigEndian.Uint32(b[12:]),
		index:      binary.BigEndian.Uint64(b[16:]),
		term:       binary.BigEndian.Uint64(b[24:]),
		batch:      binary.BigEndian.Uint64(b[32:]),
	}
	if h.length < minPayload || h.length > maxPayload {
		return header{}, fmt.Sprintf("expected a payload of %d to %d bytes, found a length of %d", minPayload, maxPayload, h.length)
	}
	return h, ""
}

// parseRecord checks the record at the start of b, its length prefix and both checksums
// included, and that it is the one of index want. size is its length in b. The payload is a
// part of b.
func parseRecord(b []byte, want uint64) (h header, payload []byte, size int, problem string) {
	framed, n := binary.Uvarint(b)
	if n <= 0 {
		return header{}, nil, 0, "expected a record, found no length prefix"
	}
	h, problem = parseHeader(b[n:])
	if problem != "" {
		return header{}, nil, 0, problem
	}
	frame := headerSize + int(h.length)
	if framed != uint64(frame) || n != prefixLen(frame) {
		return header{}, nil, 0, fmt.Sprintf("expected a length prefix of %d, found %d", frame, framed)
	}
	if h.index != want {
		return header{}, nil, 0, fmt.Sprintf("expected the record of index %d, found that of %d", want, h.index)
	}
	size = n + frame
	if len(b) < size {
		return header{}, nil, 0, fmt.Sprintf("expected a record of %d bytes, found %d", size, len(b))
	}
	payload = b[n+headerSize : size]
	if got := checksum(payload); got != h.payloadCRC {
		return header{}, nil, 0, fmt.Sprintf("expected payload checksum %08x, found %08x", h.payloadCRC, got)
	}
	if problem = checkPayload(payload); problem != "" {
		return header{}, nil, 0, problem
	}
	return h, payload, size, ""
}

// checkPayload checks what decodePayload relies on.
func checkPayload(p []byte) (problem string) {
	if len(p) < minPayload || p[len(p)-1] != endMark {
		return "expected a payload that ends with its end mark, found none"
	}
	if n := binary.BigEndian.Uint32(p[9:]); n >= 1e9 {
		return fmt.Sprintf("expected less than 1000000000 nanoseconds, found %d", n)
	}
	if n := binary.BigEndian.Uint32(p[13:]); uint64(n) > uint64(len(p)-minPayload) {
		return fmt.Sprintf("expected at most %d bytes of extensions, found a length of %d", len(p)-minPayload, n)
	}
	return ""
}

// decodePayload makes a raft.Log of a record that parseRecord accepted. Its byte slices are
// parts of p. An empty Data or Extensions comes back as nil, a time in UTC.
func decodePayload(h header, p []byte, out *raft.Log) {
	n := int(binary.BigEndian.Uint32(p[13:]))
	ext := p[payloadFixed : payloadFixed+n : payloadFixed+n]
	data := p[payloadFixed+n : len(p)-1 : len(p)-1]
	sec, nsec := int64(binary.BigEndian.Uint64(p[1:])), int64(binary.BigEndian.Uint32(p[9:]))
	*out = raft.Log{
		Index:      h.index,
		Term:       h.term,
		Type:       raft.LogType(p[0]),
		AppendedAt: time.Unix(sec, nsec).UTC(),
	}
	if len(data) > 0 {
		out.Data = data
	}
	if len(ext) > 0 {
		out.Extensions = ext
	}
}
