package history

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strings"

	"github.com/tidemark-db/tidemark/wal/record"
)

// Every key starts with two bytes that say what it is. Strings in keys end with a zero byte,
// which no string of the contract contains, and integers are big-endian, so byte order is
// the order of the parts. DESIGN.md shows them byte by byte.
const (
	tagBatch    = "b/" // aggregate, u32 incarnation, u64 version
	tagHead     = "h/" // aggregate
	tagMeta     = "m/" // name
	tagPosition = "p/" // u64 first position of the entry
	tagSchema   = "s/" // org, type, event type, u32 major, u32 minor
	tagRow      = "w/" // aggregate, client_id, u64 ^client_seq, u64 ^position
	tagSize     = 2

	keyApplied = tagMeta + "applied"
)

// Sizes of what follows the strings of a key.
const (
	batchSuffix    = 4 + 8
	positionSuffix = 8
	rowSuffix      = 8 + 8
)

func appendBatchKey(dst []byte, k record.Key, incarnation uint32, version uint64) []byte {
	dst = append(dst, tagBatch...)
	dst = append(dst, k...)
	dst = binary.BigEndian.AppendUint32(dst, incarnation)
	return binary.BigEndian.AppendUint64(dst, version)
}

func appendHeadKey(dst []byte, k record.Key) []byte {
	dst = append(dst, tagHead...)
	return append(dst, k...)
}

func appendPositionKey(dst []byte, first uint64) []byte {
	dst = append(dst, tagPosition...)
	return binary.BigEndian.AppendUint64(dst, first)
}

// appendWriterPrefix is what all rows of a writer on an aggregate start with, and what the
// bloom filters hold for them.
func appendWriterPrefix(dst []byte, k record.Key, client string) []byte {
	dst = append(dst, tagRow...)
	dst = append(dst, k...)
	dst = append(dst, client...)
	return append(dst, 0)
}

// appendRowKey stores sequence and position complemented: Pebble's bloom-guarded seek only
// goes forward, so the highest sequence, and of that the newest position, must come first.
func appendRowKey(dst []byte, k record.Key, client string, seq, position uint64) []byte {
	dst = appendWriterPrefix(dst, k, client)
	dst = binary.BigEndian.AppendUint64(dst, ^seq)
	return binary.BigEndian.AppendUint64(dst, ^position)
}

// upperBound is the smallest key above every key that starts with prefix, built in dst.
// prefix starts with a tag, whose bytes are below 0xff, so there is one.
func upperBound(dst, prefix []byte) []byte {
	n := len(prefix)
	for n > 0 && prefix[n-1] == math.MaxUint8 {
		n--
	}
	dst = append(dst, prefix[:n]...)
	dst[len(dst)-1]++
	return dst
}

// prefixLen is Pebble's Split: it cuts a key into the prefix that bloom filters hold and the
// suffix that they do not. The prefix ends behind a fixed number of zero bytes, or is the
// whole key, so no prefix starts another one and byte order is the order by prefix, then by
// suffix, for any bytes at all: Pebble also asks about shortened keys from index blocks.
func prefixLen(key []byte) int {
	if len(key) < tagSize || key[1] != '/' {
		return len(key)
	}
	strs := 0
	switch key[0] {
	case tagBatch[0], tagHead[0], tagSchema[0]:
		strs = 3
	case tagRow[0]:
		strs = 4
	case tagPosition[0]:
		return tagSize
	default:
		return len(key)
	}
	at := tagSize
	for ; strs > 0; strs-- {
		i := bytes.IndexByte(key[at:], 0)
		if i < 0 {
			return len(key)
		}
		at += i + 1
	}
	return at
}

// nextPrefix appends the smallest prefix above the prefix a, as Pebble asks where a look-up by
// prefix meets a range tombstone. Nothing that goes on from a whole prefix is one, so that one
// ends with a byte that can be counted up: a zero, or the slash of p/. Anything else goes on
// with a zero.
func nextPrefix(dst, a []byte) []byte {
	start := len(dst)
	dst = append(append(dst, a...), 0)
	if prefixLen(dst[start:]) == len(a)+1 {
		return dst
	}
	dst = dst[:start+len(a)]
	dst[len(dst)-1]++
	return dst
}

// checkAggregate refuses a key that would not be found again under its own parts.
func checkAggregate(k record.Key) error {
	if _, _, _, ok := k.Parts(); !ok {
		return fmt.Errorf("history: aggregate key %q is not three non-empty zero-terminated strings", string(k))
	}
	return nil
}

func checkWriter(k record.Key, client string) error {
	if client == "" || strings.IndexByte(client, 0) >= 0 {
		return fmt.Errorf("history: client_id %q is empty or holds a zero byte", client)
	}
	return checkAggregate(k)
}

// splitAggregate cuts the aggregate off the front of b; b is empty afterwards or starts with
// what follows.
func splitAggregate(b []byte) (k record.Key, rest []byte, ok bool) {
	at := 0
	for range 3 {
		i := bytes.IndexByte(b[at:], 0)
		if i <= 0 {
			return "", nil, false
		}
		at += i + 1
	}
	return record.Key(b[:at]), b[at:], true
}

func parseHeadKey(key []byte) (record.Key, error) {
	if bytes.HasPrefix(key, []byte(tagHead)) {
		if k, rest, ok := splitAggregate(key[tagSize:]); ok && len(rest) == 0 {
			return k, nil
		}
	}
	return "", corruptKey(key, "h/<aggregate>")
}

func parseBatchKey(key []byte) (k record.Key, incarnation uint32, version uint64, err error) {
	if bytes.HasPrefix(key, []byte(tagBatch)) {
		if k, rest, ok := splitAggregate(key[tagSize:]); ok && len(rest) == batchSuffix {
			return k, binary.BigEndian.Uint32(rest), binary.BigEndian.Uint64(rest[4:]), nil
		}
	}
	return "", 0, 0, corruptKey(key, "b/<aggregate>/<incarnation>/<version>")
}

func parsePositionKey(key []byte) (first uint64, err error) {
	if bytes.HasPrefix(key, []byte(tagPosition)) && len(key) == tagSize+positionSuffix {
		return binary.BigEndian.Uint64(key[tagSize:]), nil
	}
	return 0, corruptKey(key, "p/<position>")
}

// parseRowKey returns a row with the fields that are in its key.
func parseRowKey(key []byte) (r Row, err error) {
	if bytes.HasPrefix(key, []byte(tagRow)) {
		if k, rest, ok := splitAggregate(key[tagSize:]); ok {
			if i := bytes.IndexByte(rest, 0); i > 0 && len(rest) == i+1+rowSuffix {
				r.Key = k
				r.Client = string(rest[:i])
				r.ClientSeq, r.Position = parseRowSuffix(rest[i+1:])
				return r, nil
			}
		}
	}
	return Row{}, corruptKey(key, "w/<aggregate>/<client_id>/<~client_seq>/<~position>")
}

func parseRowSuffix(b []byte) (seq, position uint64) {
	return ^binary.BigEndian.Uint64(b), ^binary.BigEndian.Uint64(b[8:])
}

func corruptKey(key []byte, want string) error {
	return fmt.Errorf("%w: history key %q is not of the form %s", record.ErrCorrupt, key, want)
}
