package inspect

import (
	"bytes"
	"fmt"
)

// compareRows finds which rows and batches of an aggregate do not belong to each other, once it
// is known that some do not.
func (c *contentCheck) compareRows(h *Head) error {
	before := c.v.report.Damage
	err := c.s.each(append([]byte(tagBatch), h.Aggregate...), func(key, value []byte) error {
		b, err := parseBatch(value)
		if err != nil || b.Incarnation != h.Incarnation || b.Version < h.Floor {
			return nil // told already, or not to be read any more
		}
		lowest, highest := b.sequences()
		for _, r := range b.rows(lowest, highest) {
			want := encodeRow(&r)
			got, err := c.s.get(rowKey(&r))
			if err != nil {
				return err
			}
			if got == nil {
				c.damage(rowKey(&r), "expected a writer row of event %d of version %d, found none", r.EventIndex, r.Version)
			} else if !bytes.Equal(got, want) {
				found, _ := parseRow(rowKey(&r), got)
				c.damage(rowKey(&r), "expected the writer row that the batch of version %d makes, %+v, found %+v", r.Version, r, found)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	err = c.s.each(append([]byte(tagRow), h.Aggregate...), func(key, value []byte) error {
		r, err := parseRow(key, value)
		if err != nil || r.Position < h.FirstLive {
			return nil
		}
		v, err := c.s.get(batchKey(h.Aggregate, r.Incarnation, r.Version))
		if err != nil {
			return err
		}
		b, err := parseBatch(v)
		if err != nil || b.Position != r.Position || int(r.EventIndex) >= len(b.Events) || b.Events[r.EventIndex].ClientSeq != r.ClientSeq || b.Client != r.Client {
			c.damage(key, "expected a batch of version %d at position %d that it is of, found none", r.Version, r.Position)
		}
		return nil
	})
	if err == nil && c.v.report.Damage == before {
		c.damage(headKey(h.Aggregate), "expected the writer rows that its batches make, found others")
	}
	return err
}

// positions checks that every position holds one change, and that it is the one whose batch, or
// row, has the position.
func (c *contentCheck) positions() error {
	if err := c.v.doing("the positions of %s", c.s.dir); err != nil {
		return err
	}
	next := uint64(1)
	var sum sum
	err := c.eachChange(func(key []byte, ch Change, first bool) error {
		if first && ch.Position != next {
			c.damage(key, "expected position %d next, found %d", next, ch.Position)
		}
		next = ch.Position + 1
		c.v.report.Positions++
		if ch.Kind == ChangeBatch {
			sum.change(ch.Position, ch.Aggregate, ch.Incarnation, ch.Version)
		}
		return nil
	}, true)
	if err != nil {
		return err
	}
	if next-1 != c.s.applied.Position {
		c.damage([]byte(keyApplied), "expected the last position %d, which the positions have, found %d", next-1, c.s.applied.Position)
	}
	if sum == c.changes {
		return nil
	}
	return c.comparePositions()
}

// eachChange calls fn for every position; first says that a key begins with it.
func (c *contentCheck) eachChange(fn func(key []byte, ch Change, first bool) error, tell bool) error {
	return c.s.each([]byte(tagPosition), func(key, value []byte) error {
		list, err := parseChanges(key, value)
		if err != nil {
			if tell {
				c.damage(key, "%v", err)
			}
			return nil
		}
		for i, ch := range list {
			if err := fn(key, ch, i == 0); err != nil {
				return err
			}
		}
		return nil
	})
}

// comparePositions finds which positions and batches do not belong to each other.
func (c *contentCheck) comparePositions() error {
	live := uint64(0)
	err := c.eachChange(func(key []byte, ch Change, _ bool) error {
		if ch.Kind != ChangeBatch {
			return nil
		}
		h, err := c.headOf(ch.Aggregate)
		if err != nil {
			return err
		}
		switch {
		case h == nil:
			c.damage(key, "expected a head of %s, which position %d is of, found none", ch.Aggregate, ch.Position)
			return nil
		case h.Deleted || ch.Incarnation < h.Incarnation || ch.Incarnation == h.Incarnation && ch.Version < h.Floor:
			return nil // trimmed or deleted
		}
		v, err := c.s.get(batchKey(ch.Aggregate, ch.Incarnation, ch.Version))
		if err != nil {
			return err
		}
		b, err := parseBatch(v)
		if err != nil || b.Position != ch.Position {
			c.damage(key, "expected %s, incarnation %d, version %d to be at position %d, found it at %d", ch.Aggregate, ch.Incarnation, ch.Version, ch.Position, b.Position)
			return nil
		}
		live++
		return nil
	}, false)
	if err == nil && live != c.live {
		c.v.damage(c.s.dir, "expected %d positions of batches that can be read, found %d", c.live, live)
	}
	return err
}

func (c *contentCheck) headOf(a Aggregate) (*Head, error) {
	key := headKey(a)
	v, err := c.s.get(key)
	if err != nil || v == nil {
		return nil, err
	}
	h, err := parseHead(key, v)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", c.s.dir, err)
	}
	return &h, nil
}

// others finds keys of no known kind.
func (c *contentCheck) others() error {
	known := [][]byte{[]byte(tagBatch), []byte(tagHead), []byte(keyApplied), []byte(tagPosition), []byte(tagSchema), []byte(tagRow)}
	for i := range len(known) + 1 {
		var from, to []byte
		if i > 0 {
			from = after(known[i-1])
			if string(known[i-1]) == keyApplied {
				from = append(bytes.Clone(known[i-1]), 0)
			}
		}
		if i < len(known) {
			to = known[i]
		}
		err := c.s.between(from, to, func(key, _ []byte) error {
			c.damage(key, "expected a key of a known kind, found another")
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
