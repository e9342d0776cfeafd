package history

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/atomicfs"
)

// Pebble takes the first record of its MANIFEST that it cannot read for the file's end, and
// opens the state before it. That is right after a power loss in the middle of the last write,
// and silently wrong after damage anywhere else: the files of the newer states are deleted.
// checkManifest tells the two apart: Pebble flushes every record before it writes the next
// one, so where a record follows an unreadable one, that one had been on disk, whole.

// A MANIFEST is made of blocks of 32 KiB, and those of chunks, none of which goes over a
// block's end: u32 checksum, u16 length, u8 kind, length bytes. What is left of a block and
// too short for a header is zero. A record is one full chunk, or a first one, middle ones and
// a last one.
const (
	manifestBlock = 32 << 10
	chunkHeader   = 4 + 2 + 1
	// zeroHeader is how much zero at a block's end Pebble skips, whatever its headers' size.
	zeroHeader = 11

	chunkFull, chunkFirst, chunkMiddle, chunkLast = 1, 2, 3, 4
)

// manifest is the MANIFEST that a directory is opened by, as far as it was looked at.
type manifest struct {
	path string // "" = there is none
	// torn is where a record begins that ends early; -1 = none does.
	torn int64
}

// hint says what a torn end may have to do with what is wrong with the directory.
func (m manifest) hint() string {
	if m.torn < 0 {
		return ""
	}
	return fmt.Sprintf("; %s ends in the middle of a record, at offset %d, and may be what is damaged", m.path, m.torn)
}

// checkManifest reads the current MANIFEST of dir through and refuses it if it is damaged.
func checkManifest(fs vfs.FS, dir string) (manifest, error) {
	m := manifest{torn: -1}
	name, err := atomicfs.ReadMarker(fs, dir, "manifest")
	if err != nil || name == "" {
		return m, err
	}
	m.path = fs.PathJoin(dir, name)
	f, err := fs.Open(m.path)
	if err != nil {
		return m, err
	}
	torn, next, err := walkManifest(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return m, fmt.Errorf("read %s: %w", m.path, err)
	}
	m.torn = torn
	if next >= 0 {
		return m, &damage{text: fmt.Sprintf("%s: expected a record at offset %d, found bytes without its checksum, and a later record at offset %d", m.path, torn, next)}
	}
	return m, nil
}

// walkManifest returns where the first record begins that is not whole, and where a record
// begins behind that; -1 for none.
func walkManifest(r io.Reader) (torn, next int64, err error) {
	torn, next = -1, -1
	block := make([]byte, manifestBlock)
	record := int64(-1) // where the record begins that is not complete yet
	for start := int64(0); ; start += manifestBlock {
		n, err := io.ReadFull(r, block)
		if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
			return torn, next, err
		}
		b, at := block[:n], 0
		for torn < 0 && at < n && !zeroEnd(b, at) {
			kind, size := chunk(b[at:])
			switch kind {
			case chunkFull, chunkFirst:
				record = start + int64(at)
			case 0:
				if torn = record; torn < 0 {
					torn = start + int64(at)
				}
				size = 1
			}
			if kind == chunkFull || kind == chunkLast {
				record = -1
			}
			at += size
		}
		for ; torn >= 0 && at < n; at++ {
			if kind, _ := chunk(b[at:]); kind == chunkFull || kind == chunkFirst {
				return torn, start + int64(at), nil
			}
		}
		if n < manifestBlock {
			if torn < 0 {
				torn = record
			}
			return torn, next, nil
		}
	}
}

// zeroEnd says whether what is left of a whole block is the zeros at its end.
func zeroEnd(b []byte, at int) bool {
	return len(b) == manifestBlock && len(b)-at < zeroHeader && strings.Trim(string(b[at:]), "\x00") == ""
}

// chunk returns the kind and the size of the chunk at the beginning of b; kind 0 = there is no
// whole one with its checksum.
func chunk(b []byte) (kind byte, size int) {
	if len(b) < chunkHeader || b[6] < chunkFull || b[6] > chunkLast {
		return 0, 0
	}
	size = chunkHeader + int(binary.LittleEndian.Uint16(b[4:]))
	if size > len(b) {
		return 0, 0
	}
	// Pebble stores the checksum masked, as LevelDB does.
	sum := crc32.Checksum(b[6:size], crc32.MakeTable(crc32.Castagnoli))
	if sum = (sum>>15 | sum<<17) + 0xa282ead8; sum != binary.LittleEndian.Uint32(b) {
		return 0, 0
	}
	return b[6], size
}
