package history

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidemark-db/tidemark/wal/record"
)

// The log in commit order: Positions says what changed, StoredBatches fetches the batches.

// PositionsBackward is Positions the other way round: from a position on down to the first.
// The entries' Changes stay in commit order.
func (v *View) PositionsBackward(from uint64) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		if from == 0 {
			return
		}
		lower, upper := []byte(tagPosition), upperBound(nil, []byte(tagPosition))
		// One byte more than the last key is the next possible key.
		last := append(appendPositionKey(nil, from), 0)
		err := v.scan(lower, upper, func(it *pebble.Iterator) error {
			before := uint64(0) // the first position of the entry before, in this direction
			for ok := it.SeekLT(last); ok; ok = it.Prev() {
				e, err := readEntry(it)
				if err != nil {
					return err
				}
				end := e.First + uint64(len(e.Changes))
				if before != 0 && end != before {
					return fmt.Errorf("%w: position %d comes before %d, expected %d", record.ErrCorrupt, end-1, before, before-1)
				}
				before = e.First
				if end-1 > from {
					e.Changes = e.Changes[:from+1-e.First]
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

// StoredBatches calls found with the batch of every change that is one and can still be read,
// by its index; stored is valid during the call. Batches come in the order of their keys, in
// which they lie on disk, not in that of the changes. An error of found ends it.
//
// A batch that is neither there nor trimmed nor deleted is damage.
func (v *View) StoredBatches(changes []Change, found func(i int, stored []byte) error) error {
	if v.unusable != nil {
		return v.unusable
	}
	order := make([]int, 0, len(changes))
	for i := range changes {
		if changes[i].Kind == ChangeBatch {
			order = append(order, i)
		}
	}
	if len(order) == 0 {
		return nil
	}
	slices.SortFunc(order, func(x, y int) int {
		a, b := &changes[x], &changes[y]
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Incarnation, b.Incarnation), cmp.Compare(a.Version, b.Version))
	})
	lower := []byte(tagBatch)
	var gone []int
	err := v.scan(lower, upperBound(nil, lower), func(it *pebble.Iterator) error {
		key := make([]byte, 0, keySpace)
		at := false
		var last *Change // the iterator is on its key
		for _, i := range order {
			c := &changes[i]
			key = appendBatchKey(key[:0], c.Key, c.Incarnation, c.Version)
			// The versions of one aggregate lie next to each other. Otherwise a step would be in
			// vain, and Pebble goes on from one seek to the next only if nothing is in between.
			if last != nil && c.Key == last.Key && c.Incarnation == last.Incarnation && c.Version == last.Version+1 {
				at = it.Next()
			} else {
				at = it.SeekGE(key)
			}
			last = nil // until it is found
			if !at || !bytes.Equal(it.Key(), key) {
				if err := it.Error(); err != nil {
					return err
				}
				gone = append(gone, i)
				continue
			}
			last = c
			stored, err := it.ValueAndErr()
			if err != nil {
				return err
			}
			if err := found(i, stored); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return v.checkGone(changes, gone)
}

// checkGone says whether the batches of the changes at these indexes, sorted by aggregate, are
// missing with reason.
func (v *View) checkGone(changes []Change, gone []int) error {
	var head Head
	var key record.Key
	for _, i := range gone {
		c := &changes[i]
		if c.Key != key {
			h, ok, err := v.Head(c.Key)
			if err != nil {
				return err
			}
			if !ok {
				return fmt.Errorf("%w: %s has a position and no head", record.ErrCorrupt, c.Key)
			}
			head, key = h, c.Key
		}
		if !head.Gone(c.Incarnation, c.Version) {
			return fmt.Errorf("%w: version %d of %s, incarnation %d, is missing from the history, which says it is there",
				record.ErrCorrupt, c.Version, c.Key, c.Incarnation)
		}
	}
	return nil
}

// Gone says that a batch, which the aggregate had, was trimmed or deleted.
func (h *Head) Gone(incarnation uint32, version uint64) bool {
	return h.Deleted || incarnation != h.Incarnation || version < h.Floor
}
