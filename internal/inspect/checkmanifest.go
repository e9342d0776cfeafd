package inspect

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// markers checks the files whose names say which MANIFEST is the current one and which format
// the files have, and returns the MANIFEST's name, empty if that is not known.
func (v *verifier) markers(dir string, names []string) (manifest string) {
	values := map[string]string{}
	newest := map[string]uint64{}
	for _, name := range names {
		rest, ok := strings.CutPrefix(name, "marker.")
		if !ok {
			continue
		}
		path := filepath.Join(dir, name)
		parts := strings.SplitN(rest, ".", 3)
		if len(parts) != 3 {
			v.damage(path, "expected a name of the form marker.WHAT.NUMBER.VALUE, found another")
			continue
		}
		n, err := strconv.ParseUint(parts[1], 10, 64)
		if err != nil {
			v.damage(path, "expected a name of the form marker.WHAT.NUMBER.VALUE, found another")
			continue
		}
		if info, err := os.Lstat(path); err == nil && info.Size() != 0 {
			v.damage(path, "expected a file with nothing in it, found %d bytes", info.Size())
		}
		if _, ok := values[parts[0]]; !ok || n > newest[parts[0]] {
			values[parts[0]], newest[parts[0]] = parts[2], n
		}
	}
	if format, ok := values["format-version"]; !ok {
		v.damage(dir, "expected a file marker.format-version.*, found none")
	} else if format != "024" {
		v.damage(dir, "expected files of Pebble's format 024, found a marker for %q", format)
	}
	manifest, ok := values["manifest"]
	switch {
	case !ok:
		v.damage(dir, "expected a file marker.manifest.*, found none")
	case !exists(filepath.Join(dir, manifest)):
		v.damage(filepath.Join(dir, manifest), "expected the MANIFEST that the marker names, found no such file")
		manifest = ""
	}
	return manifest
}

// A MANIFEST is made of blocks of 32 KiB, and those of chunks, none of which goes over a block's
// end: u32 checksum, u16 length, u8 kind, length bytes. A record is one full chunk, or a first,
// middle ones and a last. What is left at a block's end and too short for a chunk is zero.
const (
	manifestBlock = 32 << 10
	chunkHeader   = 4 + 2 + 1
	chunkLeast    = 11 // what is shorter, and zero, at a block's end is skipped

	chunkFull, chunkFirst, chunkMiddle, chunkLast = 1, 2, 3, 4
)

// manifest checks every record of a MANIFEST, and returns where it says that values are.
func (v *verifier) manifest(path string) (blobFiles, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	blobs := blobFiles{}
	var record []byte
	v.read(len(b))
	inRecord := int64(-1) // where the record begins that is not complete yet
	for at := 0; at < len(b); {
		end := min(at/manifestBlock*manifestBlock+manifestBlock, len(b))
		if end-at < chunkLeast && end%manifestBlock == 0 && len(bytes.Trim(b[at:end], "\x00")) == 0 {
			at = end
			continue
		}
		kind, size, problem := chunk(b[at:end])
		begins := kind == chunkFull || kind == chunkFirst
		if problem == "" && begins == (inRecord >= 0) {
			problem = "expected the next part of a record, found another"
			if inRecord < 0 {
				problem = "expected the beginning of a record, found another part of one"
			}
		}
		if problem != "" {
			v.manifestBroken(path, b, at, end, problem)
			return blobs, nil
		}
		if begins {
			inRecord, record = int64(at), record[:0]
		}
		record = append(record, b[at+chunkHeader:at+size]...)
		if kind == chunkFull || kind == chunkLast {
			if err := blobs.apply(record); err != nil {
				v.found(Finding{Damage: true, File: path, Offset: inRecord, Text: err.Error()})
				return blobs, nil
			}
			inRecord = -1
		}
		at += size
	}
	if inRecord >= 0 {
		v.found(Finding{File: path, Offset: inRecord, Text: "expected a whole record, found the file's end: a crash cut it short; the next start uses the state before it"})
	}
	if len(b) == 0 {
		v.damage(path, "expected records, found an empty file")
	}
	return blobs, nil
}

// manifestBroken tells the end that a crash cut short from damage: where the record is all
// there, or another one follows, it was on disk.
func (v *verifier) manifestBroken(path string, b []byte, at, end int, problem string) {
	f := Finding{Damage: true, File: path, Offset: int64(at), Text: problem}
	short := len(b)-at < chunkHeader || end == len(b) && at+chunkHeader+int(binary.LittleEndian.Uint16(b[at+4:])) > len(b)
	if (short || hole(b, at, len(b))) && !later(b, at+1) && !wholeAs(b[at:end]) {
		f.Damage = false
		f.Text += "; the file ends before the record does: a crash cut it short, and the next start uses the state before it"
	}
	v.found(f)
}

// later says whether a record begins somewhere behind an offset.
func later(b []byte, from int) bool {
	for ; from < len(b); from++ {
		end := min(from/manifestBlock*manifestBlock+manifestBlock, len(b))
		if kind, _, problem := chunk(b[from:end]); problem == "" && (kind == chunkFull || kind == chunkFirst) {
			return true
		}
	}
	return false
}

// wholeAs says whether b is a chunk whose length alone is wrong.
func wholeAs(b []byte) bool {
	return len(b) > chunkHeader && masked(crc(b[6:])) == binary.LittleEndian.Uint32(b)
}

// chunk checks the chunk at the beginning of b.
func chunk(b []byte) (kind byte, size int, problem string) {
	if len(b) < chunkHeader {
		return 0, 0, fmt.Sprintf("expected a chunk's header of %d bytes, found %d", chunkHeader, len(b))
	}
	kind = b[6]
	size = chunkHeader + int(binary.LittleEndian.Uint16(b[4:]))
	switch {
	case kind < chunkFull || kind > chunkLast:
		return kind, size, fmt.Sprintf("expected a chunk of kind %d to %d, found %d", chunkFull, chunkLast, kind)
	case size > len(b):
		return kind, size, fmt.Sprintf("expected a chunk of %d bytes, found %d", size, len(b))
	case masked(crc(b[6:size])) != binary.LittleEndian.Uint32(b):
		return kind, size, fmt.Sprintf("expected a chunk with checksum %08x, found one with %08x", binary.LittleEndian.Uint32(b), masked(crc(b[6:size])))
	}
	return kind, size, ""
}
