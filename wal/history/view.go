package history

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidemark-db/tidemark/wal/record"
)

// View is the store as of one commit: a Pebble snapshot and the Applied that was stored with
// it. It is safe for concurrent use and counted: every Acquire, and the call that returned the
// view, needs one Release. A view that is never released keeps what is overwritten or dropped
// later on disk.
//
// A read error that matches record.ErrCorrupt is damage and names the file if that is known.
type View struct {
	s       *Store
	applied *Applied
	snap    *pebble.Snapshot
	refs    atomic.Int64
	// unusable is the answer to every read of a view that was taken too late.
	unusable error
}

// Applied says what the view holds.
func (v *View) Applied() Applied { return *v.applied }

// Acquire adds a reference; the caller must hold one.
func (v *View) Acquire() {
	if v.refs.Add(1) <= 1 {
		panic("history: Acquire of a view that was released")
	}
}

// tryAcquire adds a reference unless there is none left.
func (v *View) tryAcquire() bool {
	for {
		n := v.refs.Load()
		if n <= 0 {
			return false
		}
		if v.refs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Release drops a reference. It never waits for the disk.
func (v *View) Release() {
	switch n := v.refs.Add(-1); {
	case n < 0:
		panic("history: Release of a view that was released")
	case n == 0 && v.snap != nil:
		v.s.snapshots.retire(v.snap, v.applied.Index)
	}
}

// get reads one value; decode must not keep its argument.
func (v *View) get(key []byte, decode func([]byte) error) (bool, error) {
	if v.unusable != nil {
		return false, v.unusable
	}
	value, closer, err := v.snap.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return false, nil
	}
	if err == nil {
		err = errors.Join(decode(value), closer.Close())
	}
	if err != nil {
		return false, v.s.storageError(fmt.Sprintf("read %q", key), err)
	}
	return true, nil
}

// keySpace is enough for most keys; longer ones go to the heap.
const keySpace = 256

// first calls found with the iterator on the first key that has this prefix, if there is one.
// A prefix that no key has costs no read of a table, but for one filter in a hundred.
func (v *View) first(prefix []byte, found func(*pebble.Iterator) error) error {
	if v.unusable != nil {
		return v.unusable
	}
	// Without UseL6Filters the last level, where most keys are, is read without asking its
	// filters. A plain Get has no such option: it takes a tenth less CPU for a key that is
	// there, and, on a cold cache, three times as much for one that is not.
	it, err := v.snap.NewIter(&pebble.IterOptions{UseL6Filters: true})
	if err != nil {
		return v.s.storageError("read", err)
	}
	if it.SeekPrefixGE(prefix) {
		err = found(it)
	}
	// The iterator's error, which Close returns, is the cause of what found may have made of it.
	if cause := it.Close(); cause != nil {
		err = cause
	}
	if err != nil {
		return v.s.storageError(fmt.Sprintf("read %q", prefix), err)
	}
	return nil
}

// Head returns the head of an aggregate.
func (v *View) Head(k record.Key) (h Head, ok bool, err error) {
	if err := checkAggregate(k); err != nil {
		return Head{}, false, err
	}
	err = v.first(appendHeadKey(make([]byte, 0, keySpace), k), func(it *pebble.Iterator) error {
		value, err := it.ValueAndErr()
		if err == nil {
			h, err = decodeHead(value)
		}
		ok = err == nil
		return err
	})
	return h, ok, err
}

// Mark returns the highest client_seq of the writer's rows on the aggregate, 0 if it has
// none.
func (v *View) Mark(k record.Key, client string) (seq uint64, err error) {
	if err := checkWriter(k, client); err != nil {
		return 0, err
	}
	prefix := appendWriterPrefix(make([]byte, 0, keySpace), k, client)
	err = v.first(prefix, func(it *pebble.Iterator) error {
		suffix := it.Key()[len(prefix):]
		if len(suffix) != rowSuffix {
			_, err := parseRowKey(it.Key())
			return err
		}
		seq, _ = parseRowSuffix(suffix)
		return nil
	})
	return seq, err
}

// Row returns the row of one event, found by all of its key.
func (v *View) Row(k record.Key, client string, seq, position uint64) (Row, bool, error) {
	if err := checkWriter(k, client); err != nil {
		return Row{}, false, err
	}
	row := Row{Key: k, Client: client, ClientSeq: seq, Position: position}
	ok, err := v.get(appendRowKey(make([]byte, 0, keySpace), k, client, seq, position), func(b []byte) error {
		return decodeRow(b, &row)
	})
	if err != nil || !ok {
		return Row{}, false, err
	}
	return row, true, nil
}

// Batch returns a stored batch, to be read with the functions of package record, in memory of
// its own.
func (v *View) Batch(k record.Key, incarnation uint32, version uint64) ([]byte, bool, error) {
	if err := checkAggregate(k); err != nil {
		return nil, false, err
	}
	var out []byte
	ok, err := v.get(appendBatchKey(make([]byte, 0, keySpace), k, incarnation, version), func(b []byte) error {
		out = slices.Clone(b)
		return nil
	})
	return out, ok, err
}
