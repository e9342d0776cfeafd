package history

import (
	"errors"
	"iter"
	"math"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidemark-db/tidemark/wal/record"
)

// Stored is a batch under the key that it stands at. Nothing has checked that the two belong
// together.
type Stored struct {
	Incarnation uint32
	Version     uint64
	// Value is the stored batch, valid until the next one.
	Value []byte
}

// Stored yields what stands at the keys of an aggregate's batches, of all lives, from one
// incarnation and version on, in their order, whatever is missing and whether or not it can be
// read: for whoever checks what Batches relies on.
func (v *View) Stored(k record.Key, incarnation uint32, version uint64) iter.Seq2[Stored, error] {
	if err := checkAggregate(k); err != nil {
		return failed[Stored](err)
	}
	lower := appendBatchKey(nil, k, incarnation, version)
	upper := append(appendBatchKey(nil, k, math.MaxUint32, math.MaxUint64), 0)
	return func(yield func(Stored, error) bool) {
		err := v.scan(lower, upper, func(it *pebble.Iterator) error {
			for ok := it.First(); ok; ok = it.Next() {
				_, incarnation, version, err := parseBatchKey(it.Key())
				if err != nil {
					return err
				}
				value, err := it.ValueAndErr()
				if err != nil {
					return err
				}
				if !yield(Stored{Incarnation: incarnation, Version: version, Value: value}, nil) {
					return errStop
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(Stored{}, err)
		}
	}
}

// NextAggregate is the first aggregate above after that has a head or a batch, of those whose
// stored key starts with prefix. Unlike Aggregates it finds one whose head is missing, and it
// does not read heads.
func (v *View) NextAggregate(prefix string, after record.Key) (next record.Key, ok bool, err error) {
	heads, err := v.nextKey(tagHead, prefix, after, parseHeadKey)
	if err != nil {
		return "", false, err
	}
	batches, err := v.nextKey(tagBatch, prefix, after, func(key []byte) (record.Key, error) {
		k, _, _, err := parseBatchKey(key)
		return k, err
	})
	if err != nil {
		return "", false, err
	}
	if next = heads; next == "" || batches != "" && batches < next {
		next = batches
	}
	return next, next != "", nil
}

// nextKey is the aggregate of the first key of a kind above after; "" if there is none.
func (v *View) nextKey(tag, prefix string, after record.Key, parse func([]byte) (record.Key, error)) (next record.Key, err error) {
	lower := append([]byte(tag), prefix...)
	upper := upperBound(nil, lower)
	if after != "" {
		if err := checkAggregate(after); err != nil {
			return "", err
		}
		// Nothing of another aggregate starts with a complete key.
		if past := upperBound(nil, append([]byte(tag), after...)); string(past) > string(lower) {
			lower = past
		}
	}
	err = v.scan(lower, upper, func(it *pebble.Iterator) error {
		if !it.First() {
			return nil
		}
		next, err = parse(it.Key())
		return err
	})
	return next, err
}
