package inspect

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"lukechampine.com/blake3"
)

// history checks a history or a checkpoint: first its files, and if they are sound what is in
// them. sound: it was opened.
func (v *verifier) history(dir string) (applied Applied, sound bool, err error) {
	if !exists(dir) {
		v.damage(dir, "expected a history, found no such directory")
		return applied, false, nil
	}
	s, bad, err := v.files(dir)
	if err != nil || s == nil {
		return applied, false, err
	}
	defer func() { err = errors.Join(err, s.close()) }()
	if bad > 0 {
		// What is in the damaged blocks would be found missing once more, key by key.
		return applied, false, nil
	}
	if err := s.readApplied(); err != nil {
		v.found(Finding{Damage: true, File: dir, Offset: -1, Key: fmt.Sprintf("%q", keyApplied), Text: err.Error()})
		return applied, false, nil
	}
	if err := v.doing("the content of %s", dir); err != nil {
		return applied, false, err
	}
	c := &contentCheck{v: v, s: s}
	return s.applied, true, c.run()
}

// contentCheck checks what a history holds: heads, batches and rows of one aggregate after the
// other, then the positions.
type contentCheck struct {
	v *verifier
	s *store

	heads, batches, rows *scan
	live                 uint64 // batches that can be read
	// changes is the sum over the first rows of all batches of what their positions should hold.
	changes sum
}

func (c *contentCheck) damage(key []byte, format string, args ...any) {
	c.v.found(Finding{Damage: true, File: c.s.dir, Offset: -1, Key: fmt.Sprintf("%q", key), Text: fmt.Sprintf(format, args...)})
}

// sum adds up hashes: two sets are equal if their sums are, in whatever order they come.
type sum [2]uint64

func (s *sum) add(parts ...[]byte) {
	h := blake3.Sum256(bytes.Join(parts, nil))
	s[0] += binary.LittleEndian.Uint64(h[:])
	s[1] += binary.LittleEndian.Uint64(h[8:])
}

// change adds a position's change.
func (s *sum) change(position uint64, a Aggregate, incarnation uint32, version uint64) {
	k := binary.BigEndian.AppendUint64(nil, position)
	k = binary.BigEndian.AppendUint32(k, incarnation)
	s.add(binary.BigEndian.AppendUint64(k, version), []byte(a))
}

// scan goes through the keys of one kind.
type scan struct {
	tag string
	it  *pebble.Iterator
	// aggregate is that of the current key; empty = there is no more key. bad says that the key
	// is not of the form.
	aggregate Aggregate
	more      bool
}

func (c *contentCheck) scan(tag string) (*scan, error) {
	it, err := c.s.db.NewIter(&pebble.IterOptions{LowerBound: []byte(tag), UpperBound: after([]byte(tag))})
	if err != nil {
		return nil, err
	}
	s := &scan{tag: tag, it: it}
	it.First()
	c.settle(s)
	return s, nil
}

// settle finds the aggregate of the current key, and passes over keys that have none.
func (c *contentCheck) settle(s *scan) {
	for s.more = s.it.Valid(); s.more; s.more = s.it.Next() {
		a, _, _, err := keyParts(s.it.Key(), s.tag)
		if err == nil {
			s.aggregate = a
			return
		}
		c.damage(s.it.Key(), "%v", err)
	}
}

func (c *contentCheck) next(s *scan) {
	s.it.Next()
	c.settle(s)
}

func (s *scan) at(a Aggregate) bool { return s.more && s.aggregate == a }

func (c *contentCheck) run() (err error) {
	defer func() {
		if p := recover(); p != nil {
			c.v.damage(c.s.dir, "%v: %v", errPanic, p)
		}
	}()
	for _, s := range []struct {
		scan **scan
		tag  string
	}{{&c.heads, tagHead}, {&c.batches, tagBatch}, {&c.rows, tagRow}} {
		opened, openErr := c.scan(s.tag)
		if openErr != nil {
			return openErr
		}
		*s.scan = opened
		defer func() { err = errors.Join(err, c.ended(opened)) }()
	}
	for c.heads.more || c.batches.more || c.rows.more {
		if err := c.v.ctx.Err(); err != nil {
			return err
		}
		a := Aggregate("")
		for _, s := range []*scan{c.heads, c.batches, c.rows} {
			if s.more && (a == "" || s.aggregate < a) {
				a = s.aggregate
			}
		}
		if err := c.aggregate(a); err != nil {
			return err
		}
	}
	if err := c.positions(); err != nil {
		return err
	}
	if err := c.schemas(); err != nil {
		return err
	}
	return c.others()
}

// ended closes a scan. That it could not be read to its end is damage.
func (c *contentCheck) ended(s *scan) error {
	if err := s.it.Close(); err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		c.damage([]byte(s.tag), "expected to read all keys that begin so, found: %s", first)
	}
	return nil
}

// aggregate checks one aggregate.
func (c *contentCheck) aggregate(a Aggregate) error {
	var h *Head
	if c.heads.at(a) {
		c.v.report.Heads++
		value, err := c.heads.it.ValueAndErr()
		if err == nil {
			var parsed Head
			if parsed, err = parseHead(c.heads.it.Key(), value); err == nil {
				h = &parsed
			}
		}
		if err != nil {
			c.damage(c.heads.it.Key(), "%v", err)
			h = nil
		}
		c.next(c.heads)
	} else {
		c.damage(headKey(a), "expected a head, since there are batches or writer rows of %s, found none", a)
	}
	var fromBatches sum
	if err := c.batchesOf(a, h, &fromBatches); err != nil {
		return err
	}
	fromRows, err := c.rowsOf(a, h)
	if err != nil || h == nil {
		return err
	}
	if fromRows != fromBatches {
		return c.compareRows(h)
	}
	return nil
}

// batchesOf checks the batches of an aggregate against each other and its head, and adds up the
// rows that they should have.
func (c *contentCheck) batchesOf(a Aggregate, h *Head, rows *sum) error {
	var before *Batch
	next := uint64(0)
	if h != nil {
		next = h.Floor
	}
	for ; c.batches.at(a); c.next(c.batches) {
		c.v.report.Batches++
		key := c.batches.it.Key()
		_, incarnation, version, err := parseBatchKey(key)
		if err != nil {
			c.damage(key, "%v", err)
			continue
		}
		value, err := c.batches.it.ValueAndErr()
		if err != nil {
			return c.s.keyError(key, err)
		}
		c.v.read(len(value))
		b, err := parseBatch(value)
		if err != nil {
			c.damage(key, "%v", err)
			before, next = nil, version+1
			continue
		}
		c.batch(key, a, incarnation, version, &b)
		if h == nil {
			continue
		}
		if h.Deleted || incarnation != h.Incarnation || version < h.Floor {
			c.damage(key, "expected no batch that a trim or a delete took, found one")
			continue
		}
		c.live++
		if version != next {
			c.damage(key, "expected version %d next, found %d", next, version)
			before = nil
		}
		c.follows(key, h, before, &b)
		lowest, highest := b.sequences()
		for _, r := range b.rows(lowest, highest) {
			rows.add(rowKey(&r), encodeRow(&r))
		}
		before, next = &b, version+1
	}
	if h != nil {
		c.head(h, before, next)
	}
	return nil
}

// batch checks a batch in itself.
func (c *contentCheck) batch(key []byte, a Aggregate, incarnation uint32, version uint64, b *Batch) {
	switch {
	case b.Aggregate != a || b.Incarnation != incarnation || b.Version != version:
		c.damage(key, "expected the batch that the key names, found that of %s, incarnation %d, version %d", b.Aggregate, b.Incarnation, b.Version)
	case b.Computed != b.Chain:
		c.damage(key, "expected a batch with chain hash %x, found one with %x", b.Chain, b.Computed)
	case b.Position < b.CommitFirst || b.Position-b.CommitFirst >= uint64(b.CommitCount):
		c.damage(key, "expected a position from %d on, of %d, found %d", b.CommitFirst, b.CommitCount, b.Position)
	case b.Position > c.s.applied.Position || b.CommittedAt > c.s.applied.CommittedAt:
		c.damage(key, "expected nothing newer than position %d at %d, which %s says, found position %d at %d",
			c.s.applied.Position, c.s.applied.CommittedAt, keyApplied, b.Position, b.CommittedAt)
	}
}

// follows checks that a batch goes on from the one before it, nil if there is none.
func (c *contentCheck) follows(key []byte, h *Head, before, b *Batch) {
	switch {
	case before == nil && b.Version == 1 && b.Incarnation == 1 && (b.FirstEvent != 1 || b.Previous != Hash{}):
		c.damage(key, "expected the first batch to begin with event 1 and no hash, found event %d and %x", b.FirstEvent, b.Previous)
	case before == nil:
	case b.FirstEvent != before.FirstEvent+uint64(len(before.Events)):
		c.damage(key, "expected event number %d next, found %d", before.FirstEvent+uint64(len(before.Events)), b.FirstEvent)
	case b.Previous != before.Chain:
		c.damage(key, "expected the chain hash %x of the batch before it, found %x", before.Chain, b.Previous)
	case b.Position <= before.Position || b.CommittedAt < before.CommittedAt:
		c.damage(key, "expected it behind position %d at %d, found it at position %d at %d", before.Position, before.CommittedAt, b.Position, b.CommittedAt)
	}
	if b.Version == h.Floor && b.Position != h.FirstLive {
		c.damage(headKey(h.Aggregate), "expected the first live position %d, which version %d has, found %d", b.Position, b.Version, h.FirstLive)
	}
	if b.Version == 1 && b.CommittedAt != h.CreatedAt {
		c.damage(headKey(h.Aggregate), "expected it to be created at %d, when version 1 was committed, found %d", b.CommittedAt, h.CreatedAt)
	}
}

// head checks a head against the newest batch, nil if that cannot be read; next is the version
// behind the last one.
func (c *contentCheck) head(h *Head, last *Batch, next uint64) {
	key := headKey(h.Aggregate)
	if h.Position > c.s.applied.Position {
		c.damage(key, "expected a position of at most %d, which %s says, found %d", c.s.applied.Position, keyApplied, h.Position)
	}
	if h.Deleted {
		return
	}
	if next != h.Version+1 {
		c.damage(key, "expected batches up to version %d, found the last one to be %d", h.Version, next-1)
		return
	}
	if last == nil {
		return
	}
	want := *h
	want.EventCount = last.FirstEvent + uint64(len(last.Events)) - 1
	want.LastClient, want.Chain, want.CommittedAt = last.Client, last.Chain, last.CommittedAt
	if h.Position < last.Position || h.Floor == 1 {
		want.Position = last.Position // a trim has a later one
	}
	if want != *h {
		c.damage(key, "expected, from the newest batch, event count %d, position %d, last client %q, committed at %d, chain hash %x; found %d, %d, %q, %d, %x",
			want.EventCount, want.Position, want.LastClient, want.CommittedAt, want.Chain, h.EventCount, h.Position, h.LastClient, h.CommittedAt, h.Chain)
	}
}

// rowsOf checks the writer rows of an aggregate and adds up those whose batches can be read.
func (c *contentCheck) rowsOf(a Aggregate, h *Head) (live sum, err error) {
	marked := false
	for ; c.rows.at(a); c.next(c.rows) {
		c.v.report.Rows++
		key := c.rows.it.Key()
		value, err := c.rows.it.ValueAndErr()
		if err != nil {
			return live, c.s.keyError(key, err)
		}
		r, err := parseRow(key, value)
		if err != nil {
			c.damage(key, "%v", err)
			continue
		}
		if r.ClientSeq < r.FirstSeq || r.ClientSeq > r.LastSeq || r.EventIndex >= r.EventCount || r.Position < r.CommitFirst ||
			r.Position-r.CommitFirst >= uint64(r.CommitCount) || r.Position > c.s.applied.Position {
			c.damage(key, "expected a sequence of %d to %d, an index below %d and a position from %d on, of %d, of at most %d; found %d, %d and %d",
				r.FirstSeq, r.LastSeq, r.EventCount, r.CommitFirst, r.CommitCount, c.s.applied.Position, r.ClientSeq, r.EventIndex, r.Position)
		}
		if r.EventIndex == 0 {
			c.changes.change(r.Position, a, r.Incarnation, r.Version)
		}
		if h == nil {
			continue
		}
		if !marked && r.Client == h.LastClient {
			marked = true
			if r.ClientSeq != h.LastMark {
				c.damage(headKey(a), "expected the mark %d of its last writer %q, which the writer's first row has, found %d", r.ClientSeq, r.Client, h.LastMark)
			}
		}
		if !h.Deleted && r.Position >= h.FirstLive {
			live.add(key, value)
		}
	}
	if h != nil && !h.Deleted && !marked {
		c.damage(headKey(a), "expected writer rows of its last writer %q, found none", h.LastClient)
	}
	return live, nil
}

// encodeRow is the value of a row.
func encodeRow(r *Row) []byte {
	b := []byte{1, 0}
	if r.Repeated {
		b[1] = 1
	}
	b = binary.AppendUvarint(b, r.Version)
	b = binary.AppendUvarint(b, uint64(r.Incarnation))
	b = binary.AppendUvarint(b, uint64(r.EventIndex))
	b = binary.AppendUvarint(b, r.EventNumber)
	b = binary.BigEndian.AppendUint64(b, uint64(r.CommittedAt))
	b = binary.AppendUvarint(b, r.FirstSeq)
	b = binary.AppendUvarint(b, r.LastSeq)
	b = binary.AppendUvarint(b, uint64(r.EventCount))
	b = binary.AppendUvarint(b, r.CommitFirst)
	b = binary.AppendUvarint(b, uint64(r.CommitCount))
	b = binary.AppendUvarint(b, uint64(len(r.EventID)))
	b = append(b, r.EventID...)
	return append(b, r.Content[:]...)
}
