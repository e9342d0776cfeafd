package inspect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// logSummary is what the tail came to.
type logSummary struct {
	// complete: nothing of it was damaged.
	complete              bool
	first, last, lastTerm uint64 // 0, 0, 0 = it is empty
	// snapshotTerm is the term of the entry at the newest snapshot's index, 0 if there is none.
	snapshotTerm uint64
}

// tail checks the log.
func (v *verifier) tail() error {
	t, err := openTail(v.d.path("tail"))
	if errors.Is(err, fs.ErrNotExist) || t == nil && err == nil {
		if v.d.Identity != nil && v.d.Identity.State == "member" && exists(v.d.path("tail")) {
			v.damage(v.d.path("tail"), "expected a directory log-N with the log, found none")
		}
		return nil
	}
	if err != nil {
		return err
	}
	if err := v.doing("%s", t.dir); err != nil {
		return err
	}
	v.log.complete = true
	if err := v.state(&t.state); err != nil {
		return err
	}
	if len(t.segments) == 0 {
		v.log.complete = false
		v.damage(t.dir, "expected segments of the log, found none")
		return nil
	}
	if first := t.segments[0].base; first > t.state.first {
		v.log.complete = false
		v.damage(t.dir, "expected a segment that holds entry %d, the first of the log, found none before entry %d", t.state.first, first)
	}
	if err := v.records(t); err != nil {
		return err
	}
	if v.log.complete && v.log.last < t.state.synced && t.state.keep == 0 && (v.log.last > 0 || t.state.synced >= t.state.first) {
		v.log.complete = false
		last := t.segments[len(t.segments)-1]
		v.found(Finding{Damage: true, File: last.path, Offset: -1, Index: v.log.last + 1, Text: "expected more entries, which had been flushed, found the log's end: the end of this file or a later segment is missing"})
	}
	return nil
}

// records checks every record and what it holds.
func (v *verifier) records(t *tail) error {
	l, snapshot := &v.log, v.d.newest()
	var before Entry
	file := ""
	torn := false
	return t.walk(func(e Entry) error {
		v.read(e.Size)
		if e.File != file {
			file = e.File
			if err := v.doing("%s", file); err != nil {
				return err
			}
		}
		v.report.Entries++
		bad := func(format string, args ...any) {
			f := Finding{Damage: true, File: e.File, Offset: e.Offset, Index: e.Index}
			f.Text = fmt.Sprintf(format, args...)
			v.found(f)
		}
		if e.Index == before.Index+1 && before.Index > 0 {
			switch {
			case e.Term < before.Term:
				bad("expected a term of at least %d, which the entry before it has, found %d", before.Term, e.Term)
			case e.Batch != before.Batch && e.Batch != e.Index:
				bad("expected a batch that begins with it, or goes on with that of the entry before it (%d), found %d", before.Batch, e.Batch)
			}
		}
		before = Entry{Index: e.Index, Term: e.Term, Batch: e.Batch}
		if err := v.entry(&e); err != nil {
			bad("%v", err)
		}
		if torn {
			// A start drops it: it is behind what was cut short.
			return nil
		}
		if e.Index >= t.state.first {
			if l.first == 0 {
				l.first = e.Index
			}
			l.last, l.lastTerm = e.Index, e.Term
			if snapshot != nil && e.Index == snapshot.Index {
				l.snapshotTerm = e.Term
			}
		}
		return nil
	}, func(b broken) error {
		f, wasTorn := t.finding(b)
		torn = torn || wasTorn
		if !wasTorn {
			l.complete = false
		}
		v.found(f)
		return nil
	})
}

// entry checks what a record holds.
func (v *verifier) entry(e *Entry) error {
	switch e.Type {
	case TypeCommand:
		c, err := parseCommand(e.Data)
		if err != nil {
			return err
		}
		return c.check()
	case TypeConfiguration:
		_, err := parseMembers(e.Data)
		return err
	case TypeNoop, TypeBarrier:
		return nil
	}
	return fmt.Errorf("expected an entry of a known type, found %s", e.Type)
}

// check compares the content hashes of an entry with its events.
func (c *Command) check() error {
	for i := range c.Requests {
		for j := range c.Requests[i].Writes {
			w := &c.Requests[i].Writes[j]
			for k := range w.Events {
				if w.Events[k].Content != w.Hashes[k] {
					return fmt.Errorf("expected event %d of write %d of request %d to have content hash %x, found %x", k, j, i, w.Hashes[k], w.Events[k].Content)
				}
			}
		}
	}
	return nil
}

// state checks the state file: both slots, and that there is nothing between them.
func (v *verifier) state(s *logState) error {
	b, err := os.ReadFile(s.path)
	if errors.Is(err, fs.ErrNotExist) {
		v.log.complete = false
		v.damage(s.path, "expected the state of the log, found no such file")
		return nil
	}
	if err != nil {
		return err
	}
	for i, sl := range s.slots {
		if sl.whole {
			continue
		}
		// A slot is within one sector, which no crash tears.
		at := int64(i * stateSecondAt)
		text := "expected a slot with its checksum, found none"
		if len(b) >= int(at)+stateSlot {
			p := b[at : at+stateSlot]
			text = fmt.Sprintf("expected a slot with magic %08x and checksum %08x, found %08x and %08x", uint32(stateMagic), crc(p[8:]), binary.BigEndian.Uint32(p), binary.BigEndian.Uint32(p[4:]))
		}
		v.found(Finding{Damage: true, File: s.path, Offset: at, Text: text})
	}
	if !s.slots[0].whole && !s.slots[1].whole {
		v.log.complete = false
	}
	for i, c := range b {
		if c != 0 && i >= stateSlot && i < stateSecondAt || i >= stateSecondAt+stateSlot {
			v.found(Finding{Damage: true, File: s.path, Offset: int64(i), Text: fmt.Sprintf("expected nothing but two slots of %d bytes, found a byte %02x", stateSlot, c)})
			break
		}
	}
	return nil
}
