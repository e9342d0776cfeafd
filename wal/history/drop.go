package history

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidemark-db/tidemark/wal/record"
)

const (
	// dropSingly is how many batches are dropped key by key, at most; more are dropped by one
	// range tombstone, however many they are. Tombstones of keys cost a read nothing; those of
	// ranges are looked through by every read that comes across their memtable or table, and
	// most trims and deletes are of few batches.
	dropSingly = 32

	// maxRangeDrops is how many range tombstones one memtable gets before it is flushed. Pebble
	// sorts all of a memtable's again after each one, so their number must not grow with the
	// memtable's size.
	maxRangeDrops = 1000
)

// rangeDrop removes the keys of one kind in [lower, upper) that were there before it, those put
// earlier in its own Batch included.
type rangeDrop struct {
	kind     int
	at       uint32 // of lower in Batch.buf; upper follows it. What is put later stands behind
	lowerLen uint32
	upperLen uint32
}

func (r *rangeDrop) lower(buf []byte) []byte { return buf[r.at : r.at+r.lowerLen] }

func (r *rangeDrop) upper(buf []byte) []byte {
	return buf[r.at+r.lowerLen : r.at+r.lowerLen+r.upperLen]
}

// DropBatches removes the batches of one life of an aggregate from version from up to, and
// without, version to. The work does not depend on their number. None of them may be put again.
func (b *Batch) DropBatches(k record.Key, incarnation uint32, from, to uint64) {
	if err := checkAggregate(k); err != nil {
		b.fail(err)
		return
	}
	if from >= to {
		b.fail(fmt.Errorf("history: no batches of %s to drop from version %d to %d", k, from, to))
		return
	}
	if to-from > dropSingly {
		at := len(b.buf)
		b.buf = appendBatchKey(b.buf, k, incarnation, from)
		lowerEnd := len(b.buf)
		b.buf = appendBatchKey(b.buf, k, incarnation, to)
		b.addRange(kindBatch, at, lowerEnd)
		return
	}
	for v := from; v < to; v++ {
		at := len(b.buf)
		b.buf = appendBatchKey(b.buf, k, incarnation, v)
		if n := len(b.puts[kindBatch]); b.add(kindBatch, at, len(b.buf)) {
			b.puts[kindBatch][n].drop = true
		}
	}
}

// DropRows removes all writer rows of an aggregate: the marks of its writers are 0 afterwards,
// and nothing tells what they have recorded.
func (b *Batch) DropRows(k record.Key) {
	if err := checkAggregate(k); err != nil {
		b.fail(err)
		return
	}
	at := len(b.buf)
	b.buf = append(append(b.buf, tagRow...), k...)
	lowerEnd := len(b.buf)
	b.buf = upperBound(b.buf, b.buf[at:lowerEnd])
	b.addRange(kindRow, at, lowerEnd)
}

// addRange records the range whose lower end is buf[at:lowerEnd] and whose upper end is the
// rest of buf.
func (b *Batch) addRange(kind, at, lowerEnd int) {
	if !b.fits(at) {
		return
	}
	b.ranges = append(b.ranges, rangeDrop{
		kind: kind, at: uint32(at), lowerLen: uint32(lowerEnd - at), upperLen: uint32(len(b.buf) - lowerEnd),
	})
	b.size++
}

// emitRanges writes the range tombstones into the Pebble batch. They come first there: a later
// operation of a batch counts for more than an earlier one, and rows may be put again after
// they were dropped. What was put before its range is left out by emit.
func (b *Batch) emitRanges() error {
	for i := range b.ranges {
		r := &b.ranges[i]
		if err := b.pb.DeleteRange(r.lower(b.buf), r.upper(b.buf), pebble.NoSync); err != nil {
			return err
		}
	}
	return nil
}

// coveringRanges are disjoint and in key order.
type coveringRanges []rangeDrop

// rangesOf returns the ranges of a kind. Those of batches are disjoint, because no version is
// dropped twice; those of rows are disjoint or the same, and then the last one counts.
func (b *Batch) rangesOf(kind int) coveringRanges {
	var rs coveringRanges
	for _, r := range b.ranges {
		if r.kind == kind {
			rs = append(rs, r)
		}
	}
	slices.SortStableFunc(rs, func(x, y rangeDrop) int { return bytes.Compare(x.lower(b.buf), y.lower(b.buf)) })
	kept := rs[:0]
	for i, r := range rs {
		if i+1 == len(rs) || !bytes.Equal(r.lower(b.buf), rs[i+1].lower(b.buf)) {
			kept = append(kept, r)
		}
	}
	return kept
}

// dropped says whether a put was dropped after it was made.
func (rs coveringRanges) dropped(buf []byte, p *put, key []byte) bool {
	if len(rs) == 0 {
		return false
	}
	i, found := slices.BinarySearchFunc(rs, key, func(r rangeDrop, key []byte) int { return bytes.Compare(r.lower(buf), key) })
	if !found {
		if i == 0 {
			return false
		}
		i--
	}
	return rs[i].at > p.at && bytes.Compare(key, rs[i].upper(buf)) < 0
}
