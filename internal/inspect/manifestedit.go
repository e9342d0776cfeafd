package inspect

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// blobFiles says which file holds the values that tables know by a number of a blob file: the
// one of that number until it is rewritten, then another. Only the MANIFEST says which.
type blobFiles map[uint64]uint64

// A record of a MANIFEST is a list of changes, each a tag and fields that the tag says, uvarints
// and byte strings with a uvarint for their length. Pebble's internal/manifest has the tags.
const (
	editComparer       = 1
	editLogNumber      = 2
	editNextFile       = 3
	editLastSequence   = 4
	editCompactPointer = 5
	editDeletedTable   = 6
	editPrevLog        = 9
	editNewTable       = 103
	editNewTableRanges = 104 // with range keys
	editNewBacking     = 105
	editRemovedBacking = 106
	editNewBlob        = 107
	editDeletedBlob    = 108

	// A new table ends with a list of fields of its own. Those below 64 are byte strings.
	tableEnd     = 1
	tableVirtual = 66
	tablePrefix  = 67
	tableSuffix  = 68
	tableBlobs   = 69
	tableUnknown = 64
)

// edit reads the fields of a record. After the first problem all it reads is 0 and empty.
type edit struct {
	b       []byte
	problem error
}

func (e *edit) number() uint64 {
	n, size := binary.Uvarint(e.b)
	if size <= 0 {
		e.fail("expected a number, found the record's end")
		return 0
	}
	e.b = e.b[size:]
	return n
}

func (e *edit) numbers(n int) {
	for range n {
		e.number()
	}
}

func (e *edit) string() {
	n := e.number()
	if n > uint64(len(e.b)) {
		e.fail(fmt.Sprintf("expected %d bytes, found %d", n, len(e.b)))
		return
	}
	e.b = e.b[n:]
}

func (e *edit) fail(text string) {
	if e.problem == nil {
		e.problem = errors.New(text)
	}
	e.b = nil
}

// apply follows one record of the MANIFEST.
func (f blobFiles) apply(record []byte) error {
	e := &edit{b: record}
	type blob struct{ id, file uint64 }
	var added, deleted []blob
	for len(e.b) > 0 {
		switch tag := e.number(); tag {
		case editComparer:
			e.string()
		case editLogNumber, editNextFile, editLastSequence, editPrevLog, editRemovedBacking:
			e.number()
		case editCompactPointer:
			e.number()
			e.string()
		case editDeletedTable, editNewBacking:
			e.numbers(2)
		case editNewTable, editNewTableRanges:
			e.table(tag == editNewTableRanges)
		case editNewBlob:
			added = append(added, blob{e.number(), e.number()})
			e.numbers(3) // size, size of the values, time
		case editDeletedBlob:
			deleted = append(deleted, blob{e.number(), e.number()})
		default:
			e.fail(fmt.Sprintf("expected a change of Pebble's format 024, found one with tag %d", tag))
		}
	}
	if e.problem != nil {
		return e.problem
	}
	// A rewritten file is deleted and added by one record.
	for _, b := range deleted {
		if f[b.id] == b.file {
			delete(f, b.id)
		}
	}
	for _, b := range added {
		f[b.id] = b.file
	}
	return nil
}

// table passes over a new table.
func (e *edit) table(ranges bool) {
	const hasPoints = 1
	e.numbers(3) // level, number, size
	points := true
	if ranges {
		points = e.number()&hasPoints != 0 // one byte, below 128
	}
	if points {
		e.string()
		e.string()
	}
	if ranges {
		e.string()
		e.string()
	}
	e.numbers(2) // smallest and largest sequence number
	for e.problem == nil {
		switch field := e.number(); {
		case field == tableEnd:
			return
		case field == tableVirtual:
			e.number()
		case field == tableBlobs:
			e.number()
			for n := e.number(); n > 0 && e.problem == nil; n-- {
				e.numbers(2)
			}
		case field < tableUnknown, field == tablePrefix, field == tableSuffix:
			e.string()
		default:
			e.fail(fmt.Sprintf("expected a field of a table of Pebble's format 024, found %d", field))
		}
	}
}
