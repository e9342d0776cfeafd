package history

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidemark-db/tidemark/wal/record"
)

// The sequences below hold the view while they run and need nothing closed: leaving the loop
// is enough. After an error, which comes with a zero value, they end.

// Aggregate is an aggregate and its head.
type Aggregate struct {
	Key  record.Key
	Head Head
}

// Entry is what one applied entry changed: Changes[i] has the position First+i.
type Entry struct {
	First   uint64
	Changes []Change
}

// scan runs body over the keys in [lower, upper) of the view and returns its error or that of
// the iterator.
func (v *View) scan(lower, upper []byte, body func(*pebble.Iterator) error) error {
	if v.unusable != nil {
		return v.unusable
	}
	v.Acquire()
	defer v.Release()
	it, err := v.snap.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		return v.s.storageError("read", err)
	}
	err = body(it)
	// The iterator's error is the cause of what body may have made of a value missing.
	if cause := it.Error(); cause != nil {
		err = cause
	}
	if closeErr := it.Close(); err == nil {
		err = closeErr
	}
	return v.s.storageError(fmt.Sprintf("read from %q", lower), err)
}

// errStop ends a scan whose consumer has left the loop.
var errStop = errors.New("stop")

// rows yields the rows that next positions the iterator on.
func (v *View) rows(lower, upper []byte, first func(*pebble.Iterator) bool, next func(*pebble.Iterator, *Row) bool) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		err := v.scan(lower, upper, func(it *pebble.Iterator) error {
			for ok := first(it); ok; {
				row, err := readRow(it)
				if err != nil {
					return err
				}
				if !yield(row, nil) {
					return errStop
				}
				ok = next(it, &row)
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(Row{}, err)
		}
	}
}

func readRow(it *pebble.Iterator) (Row, error) {
	row, err := parseRowKey(it.Key())
	if err != nil {
		return Row{}, err
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return Row{}, err
	}
	if err := decodeRow(value, &row); err != nil {
		return Row{}, fmt.Errorf("%w (key %q)", err, it.Key())
	}
	return row, nil
}

// failed is a sequence that holds nothing but an error.
func failed[T any](err error) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		yield(zero, err)
	}
}

// Rows yields the rows of the events that the writer recorded on the aggregate under exactly
// this client_seq, newest position first.
func (v *View) Rows(k record.Key, client string, seq uint64) iter.Seq2[Row, error] {
	if err := checkWriter(k, client); err != nil {
		return failed[Row](err)
	}
	prefix := appendWriterPrefix(nil, k, client)
	lower := binary.BigEndian.AppendUint64(prefix, ^seq)
	// The writer and its sequence are fixed, so seek by prefix: a writer never seen ends at
	// the bloom filters.
	return v.rows(lower, upperBound(nil, lower),
		func(it *pebble.Iterator) bool { return it.SeekPrefixGE(lower) },
		func(it *pebble.Iterator, _ *Row) bool { return it.Next() })
}

// Writers yields, for every writer on the aggregate whose client_id is above after, in order
// of client_id, its row with the highest sequence, and of those the newest: the sequence is
// the writer's mark. It jumps from one writer to the next.
func (v *View) Writers(k record.Key, after string) iter.Seq2[Row, error] {
	if err := checkAggregate(k); err != nil {
		return failed[Row](err)
	}
	aggregate := append([]byte(tagRow), k...)
	start := aggregate
	if after != "" {
		if err := checkWriter(k, after); err != nil {
			return failed[Row](err)
		}
		start = upperBound(nil, appendWriterPrefix(nil, k, after))
	}
	var seek []byte
	return v.rows(start, upperBound(nil, aggregate),
		func(it *pebble.Iterator) bool { return it.First() },
		func(it *pebble.Iterator, row *Row) bool {
			// The end of this writer's rows: its prefix with the terminator counted up.
			seek = appendWriterPrefix(seek[:0], k, row.Client)
			seek[len(seek)-1]++
			return it.SeekGE(seek)
		})
}

// Aggregates yields the aggregates whose stored key starts with prefix and is above after, in
// key order, deleted ones included. prefix is the beginning of a record.Key: "" for all,
// "acme\x00" for an org.
func (v *View) Aggregates(prefix string, after record.Key) iter.Seq2[Aggregate, error] {
	lower := append([]byte(tagHead), prefix...)
	upper := upperBound(nil, lower)
	if after != "" {
		if err := checkAggregate(after); err != nil {
			return failed[Aggregate](err)
		}
		// No key continues a complete one, so this is the next possible.
		if next := append(appendHeadKey(nil, after), 0); bytes.Compare(next, lower) > 0 {
			lower = next
		}
	}
	return func(yield func(Aggregate, error) bool) {
		err := v.scan(lower, upper, func(it *pebble.Iterator) error {
			for ok := it.First(); ok; ok = it.Next() {
				k, err := parseHeadKey(it.Key())
				if err != nil {
					return err
				}
				value, err := it.ValueAndErr()
				if err != nil {
					return err
				}
				h, err := decodeHead(value)
				if err != nil {
					return fmt.Errorf("%w (of %s)", err, k)
				}
				if !yield(Aggregate{Key: k, Head: h}, nil) {
					return errStop
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(Aggregate{}, err)
		}
	}
}

// Positions yields the changes from a position on, in commit order, one entry at a time; the
// first entry is cut to start at from. A gap between entries is damage.
func (v *View) Positions(from uint64) iter.Seq2[Entry, error] {
	from = max(from, 1)
	return func(yield func(Entry, error) bool) {
		lower, upper := []byte(tagPosition), upperBound(nil, []byte(tagPosition))
		err := v.scan(lower, upper, func(it *pebble.Iterator) error {
			// The entry that holds from is the last that starts at or below it.
			var ok bool
			if from == math.MaxUint64 {
				ok = it.Last()
			} else if ok = it.SeekLT(appendPositionKey(nil, from+1)); !ok {
				ok = it.First()
			}
			for next := uint64(0); ok; ok = it.Next() {
				e, err := readEntry(it)
				if err != nil {
					return err
				}
				if next != 0 && e.First != next {
					return fmt.Errorf("%w: position %d follows %d, expected %d", record.ErrCorrupt, e.First, next-1, next)
				}
				next = e.First + uint64(len(e.Changes))
				if e.First < from {
					if next <= from {
						continue
					}
					e.Changes = e.Changes[from-e.First:]
					e.First = from
				}
				if !yield(e, nil) {
					return errStop
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(Entry{}, err)
		}
	}
}

func readEntry(it *pebble.Iterator) (Entry, error) {
	first, err := parsePositionKey(it.Key())
	if err != nil {
		return Entry{}, err
	}
	value, err := it.ValueAndErr()
	if err != nil {
		return Entry{}, err
	}
	cs, err := decodeChanges(value)
	if err != nil {
		return Entry{}, fmt.Errorf("%w (position %d)", err, first)
	}
	return Entry{First: first, Changes: cs}, nil
}

// Batches walks over the stored batches of one life of an aggregate. It holds its view until
// Close and is for one goroutine.
type Batches struct {
	v        *View
	it       *pebble.Iterator
	backward bool
	started  bool
	version  uint64
	value    []byte
	err      error
}

// Batches returns an iterator over the versions from..to of one life, both included, downwards
// if backward is set. to 0 means no upper end. The caller must Close it.
//
// Versions are dense: a gap between two that are there is damage.
func (v *View) Batches(k record.Key, incarnation uint32, from, to uint64, backward bool) *Batches {
	b := &Batches{v: v, backward: backward}
	v.Acquire()
	if b.err = checkAggregate(k); b.err == nil {
		b.err = v.unusable
	}
	if b.err != nil {
		return b
	}
	if to == 0 {
		to = math.MaxUint64
	}
	if from > to {
		return b
	}
	lower := appendBatchKey(nil, k, incarnation, from)
	// One byte more than the last key is the next possible key.
	upper := append(appendBatchKey(nil, k, incarnation, to), 0)
	it, err := v.snap.NewIter(&pebble.IterOptions{LowerBound: lower, UpperBound: upper})
	if err != nil {
		b.err = v.s.storageError("read batches of "+k.String(), err)
		return b
	}
	b.it = it
	return b
}

// Next moves to the next batch; false at the end or after an error, see Err.
func (b *Batches) Next() bool {
	b.value = nil
	if b.err != nil || b.it == nil {
		return false
	}
	var ok bool
	switch {
	case b.started && b.backward:
		ok = b.it.Prev()
	case b.started:
		ok = b.it.Next()
	case b.backward:
		ok = b.it.Last()
	default:
		ok = b.it.First()
	}
	if !ok {
		b.fail(b.it.Error())
		return false
	}
	k, incarnation, version, err := parseBatchKey(b.it.Key())
	if err != nil {
		b.fail(err)
		return false
	}
	if b.started {
		expected := b.version + 1
		if b.backward {
			expected = b.version - 1
		}
		if version != expected {
			b.fail(fmt.Errorf("%w: %s, incarnation %d: version %d comes after %d, expected %d", record.ErrCorrupt, k, incarnation, version, b.version, expected))
			return false
		}
	}
	b.started, b.version = true, version
	if b.value, err = b.it.ValueAndErr(); err != nil {
		b.fail(err)
		return false
	}
	return true
}

func (b *Batches) fail(err error) {
	if err != nil {
		b.value, b.err = nil, b.v.s.storageError("read batches", err)
	}
}

// Version is that of the batch that Next moved to.
func (b *Batches) Version() uint64 { return b.version }

// Value is the stored batch that Next moved to. It is valid until the next call of Next or
// Close and must not be changed.
func (b *Batches) Value() []byte { return b.value }

// Err is what ended the iteration, nil if it was the end.
func (b *Batches) Err() error { return b.err }

// Close lets go of the view. It may be called more than once.
func (b *Batches) Close() error {
	if b.v == nil {
		return b.err
	}
	if b.it != nil {
		b.fail(b.it.Close())
		b.it = nil
	}
	b.v.Release()
	b.v, b.value = nil, nil
	return b.err
}
