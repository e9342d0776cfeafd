package history

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidemark-db/tidemark/wal/record"
)

// maxRetained is the largest buffer, in bytes, that a Batch keeps from one use to the next.
const maxRetained = 8 << 20

// maxBatch is the most that one Batch may hold, in bytes. Pebble's own limit is 4 GiB.
const maxBatch = 1 << 30

// Batch collects what one or several entries change. Make it with Store.NewBatch, fill it,
// give it to Commit, Reset it, fill it again: its buffers are reused. It is not safe for
// concurrent use. If a key is put several times, the last value counts and only that one
// reaches Pebble.
//
// A Put that cannot be stored (a malformed key, too many bytes) makes Commit fail.
type Batch struct {
	// buf holds key and value of every put, one after the other.
	buf []byte
	// One list per kind of key: within one, what all keys have in common can be left out of
	// the comparisons when they are sorted. Kinds are in key order.
	puts [kinds][]put
	size int // puts in all
	// stored are the indexes of batches that PutBatch has put among those of their kind, where
	// there are removals, too.
	stored []int
	// ranges are dropped before the puts behind them are made.
	ranges []rangeDrop
	pb     *pebble.Batch
	err    error

	applied    Applied
	hasApplied bool
}

// Kinds of keys that a Batch writes, in the order of their tags.
const (
	kindBatch = iota
	kindHead
	kindPosition
	kindSchema
	kindRow
	kinds
)

// put is one key and value in Batch.buf, or the removal of one key.
type put struct {
	// word is the eight bytes of the key behind what all keys of its kind have in common;
	// set by sort.
	word     uint64
	at       uint32 // of the key; the value follows it
	keyLen   uint32
	valueLen uint32
	drop     bool // there is no value: the key is removed
}

func (p *put) key(buf []byte) []byte { return buf[p.at : p.at+p.keyLen] }

func (p *put) value(buf []byte) []byte {
	return buf[p.at+p.keyLen : p.at+p.keyLen+p.valueLen]
}

// PutBatch stores a batch under b/ and returns its chain hash. events is the concatenation
// of h.EventCount canonical events; prev the chain hash of the aggregate's batch before.
func (b *Batch) PutBatch(h *record.BatchHeader, prev record.Hash, events []byte) record.Hash {
	if err := checkWriter(h.Key, h.ClientID); err != nil {
		b.fail(err)
		return record.Hash{}
	}
	at := len(b.buf)
	b.buf = appendBatchKey(b.buf, h.Key, h.Incarnation, h.Version)
	keyEnd := len(b.buf)
	var chain record.Hash
	b.buf, chain = record.AppendBatch(b.buf, h, prev, events)
	if n := len(b.puts[kindBatch]); b.add(kindBatch, at, keyEnd) {
		b.stored = append(b.stored, n)
	}
	return chain
}

// Stored is what PutBatch stored when it was called for the n-th time, counted from 0, since
// Reset. It is valid until the next Put, and only before Commit.
func (b *Batch) Stored(n int) []byte { return b.puts[kindBatch][b.stored[n]].value(b.buf) }

// PutHead stores an aggregate's head under h/.
func (b *Batch) PutHead(k record.Key, h *Head) {
	if err := checkAggregate(k); err != nil {
		b.fail(err)
		return
	}
	at := len(b.buf)
	b.buf = appendHeadKey(b.buf, k)
	keyEnd := len(b.buf)
	b.buf = appendHead(b.buf, h)
	b.add(kindHead, at, keyEnd)
}

// PutRow stores a writer row under w/.
func (b *Batch) PutRow(r *Row) { putRow(b, r, r.EventID) }

// PutRowBytes is PutRow with eventID in place of r.EventID, which saves Apply the copy.
func (b *Batch) PutRowBytes(r *Row, eventID []byte) { putRow(b, r, eventID) }

func putRow[S string | []byte](b *Batch, r *Row, eventID S) {
	if err := checkWriter(r.Key, r.Client); err != nil {
		b.fail(err)
		return
	}
	at := len(b.buf)
	b.buf = appendRowKey(b.buf, r.Key, r.Client, r.ClientSeq, r.Position)
	keyEnd := len(b.buf)
	b.buf = appendRow(b.buf, r, eventID)
	b.add(kindRow, at, keyEnd)
}

// PutChanges stores the changes of one entry under p/; change i has the position first+i.
func (b *Batch) PutChanges(first uint64, cs []Change) {
	if len(cs) == 0 || first == 0 || first > math.MaxUint64-uint64(len(cs)) {
		b.fail(fmt.Errorf("history: %d changes from position %d on cannot be stored: an entry without changes has no key, and positions start at 1", len(cs), first))
		return
	}
	for i := range cs {
		err := checkAggregate(cs[i].Key)
		if err == nil && (cs[i].Kind < ChangeBatch || cs[i].Kind > ChangeDelete) {
			err = fmt.Errorf("history: change of %s is of unknown kind %d", cs[i].Key, cs[i].Kind)
		}
		if err != nil {
			b.fail(err)
			return
		}
	}
	at := len(b.buf)
	b.buf = appendPositionKey(b.buf, first)
	keyEnd := len(b.buf)
	b.buf = appendChanges(b.buf, cs)
	b.add(kindPosition, at, keyEnd)
}

// SetApplied says how far the history is once this batch is in. Commit refuses a batch
// without: what is stored must always be the state at exactly m/applied.
func (b *Batch) SetApplied(a Applied) { b.applied, b.hasApplied = a, true }

// Len is the number of puts so far, overwritten ones included.
func (b *Batch) Len() int { return b.size }

// Bytes is how much the batch holds so far, overwritten puts included.
func (b *Batch) Bytes() int { return len(b.buf) }

// Reset empties the batch and keeps its buffers, unless they have grown out of proportion.
func (b *Batch) Reset() {
	if cap(b.buf) > maxRetained {
		b.buf = nil
	}
	b.buf = b.buf[:0]
	for i := range b.puts {
		b.puts[i] = b.puts[i][:0]
	}
	b.stored, b.ranges = b.stored[:0], b.ranges[:0]
	b.size, b.err = 0, nil
	b.applied, b.hasApplied = Applied{}, false
	b.pb.Reset()
}

func (b *Batch) fail(err error) {
	if b.err == nil {
		b.err = err
	}
}

// add records the put whose key is buf[at:keyEnd] and whose value is the rest of buf; false if
// the batch has no room for it.
func (b *Batch) add(kind, at, keyEnd int) bool {
	if !b.fits(at) {
		return false
	}
	b.puts[kind] = append(b.puts[kind], put{
		at: uint32(at), keyLen: uint32(keyEnd - at), valueLen: uint32(len(b.buf) - keyEnd),
	})
	b.size++
	return true
}

// fits refuses what was appended to buf from at on if that is more than a batch may hold.
func (b *Batch) fits(at int) bool {
	if len(b.buf) <= maxBatch {
		return true
	}
	b.fail(fmt.Errorf("history: a batch holds more than %d bytes; commit in smaller steps", maxBatch))
	b.buf = b.buf[:at]
	return false
}

// build writes the puts into the Pebble batch in key order: Pebble's memtable then finds the
// place of each key next to the one before.
func (b *Batch) build() error {
	if b.err != nil {
		return b.err
	}
	if !b.hasApplied {
		return fmt.Errorf("history: batch of %d puts without m/applied; call SetApplied before Commit", b.size)
	}
	b.pb.Reset()
	if err := b.emitRanges(); err != nil {
		return err
	}
	b.emit(kindBatch)
	b.emit(kindHead)
	if err := b.emitApplied(); err != nil {
		return err
	}
	b.emit(kindPosition)
	b.emit(kindSchema)
	b.emit(kindRow)
	return nil
}

func (b *Batch) emitApplied() error {
	at := len(b.buf)
	b.buf = appendApplied(b.buf, &b.applied)
	err := b.pb.Set([]byte(keyApplied), b.buf[at:], nil)
	b.buf = b.buf[:at]
	return err
}

func (b *Batch) emit(kind int) {
	puts := b.puts[kind]
	sortPuts(b.buf, puts)
	ranges := b.rangesOf(kind)
	for i := range puts {
		p := &puts[i]
		key := p.key(b.buf)
		if i+1 < len(puts) && puts[i+1].word == p.word && bytes.Equal(key, puts[i+1].key(b.buf)) {
			continue // overwritten by the next
		}
		if ranges.dropped(b.buf, p, key) {
			continue
		}
		if p.drop {
			copy(b.pb.DeleteDeferred(len(key)).Key, key)
			continue
		}
		op := b.pb.SetDeferred(len(key), int(p.valueLen))
		copy(op.Key, key)
		copy(op.Value, p.value(b.buf))
	}
}

// sortPuts sorts by key, and puts of the same key by age. Most keys of a kind differ within
// eight bytes behind their common prefix, so those are compared first, as one integer.
func sortPuts(buf []byte, puts []put) {
	if len(puts) < 2 {
		return
	}
	common := puts[0].key(buf)
	for i := 1; i < len(puts); i++ {
		common = common[:commonPrefix(common, puts[i].key(buf))]
	}
	for i := range puts {
		puts[i].word = bigEndianWord(puts[i].key(buf)[len(common):])
	}
	slices.SortFunc(puts, func(x, y put) int {
		if x.word != y.word {
			return cmp.Compare(x.word, y.word)
		}
		if c := bytes.Compare(x.key(buf), y.key(buf)); c != 0 {
			return c
		}
		return cmp.Compare(x.at, y.at)
	})
}

// bigEndianWord reads up to eight bytes so that the order of words is that of the bytes,
// except that keys of which one ends early may have equal words.
func bigEndianWord(b []byte) uint64 {
	if len(b) >= 8 {
		return binary.BigEndian.Uint64(b)
	}
	var w [8]byte
	copy(w[:], b)
	return binary.BigEndian.Uint64(w[:])
}

func commonPrefix(a, b []byte) int {
	n := min(len(a), len(b))
	i := 0
	for ; i+8 <= n; i += 8 {
		if binary.LittleEndian.Uint64(a[i:]) != binary.LittleEndian.Uint64(b[i:]) {
			break
		}
	}
	for i < n && a[i] == b[i] {
		i++
	}
	return i
}
