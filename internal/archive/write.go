package archive

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"lukechampine.com/blake3"
)

// The parts of the format, see DESIGN.md.
const (
	magic     = "tidemark backup\n"
	endMagic  = "tidemark ended.\n"
	format    = 1
	magicSize = 16
	fixedSize = magicSize + 4 + 4 + crcSize // of the head, before the manifest

	blockSize  = 64 << 10
	crcSize    = 4
	digestSize = 32
)

// castagnoli returns the CRC-32C table; MakeTable answers with one shared instance.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli()) }

// blockChecksum covers where a block belongs, too.
func blockChecksum(file int, offset int64, block []byte) uint32 {
	var place [12]byte
	binary.BigEndian.PutUint32(place[:], uint32(file))
	binary.BigEndian.PutUint64(place[4:], uint64(offset))
	return crc32.Update(checksum(place[:]), castagnoli(), block)
}

// Writer writes an archive. It is for one goroutine.
type Writer struct {
	w     io.Writer
	m     *Manifest
	size  int64 // of the whole archive
	next  int   // the file that comes next
	end   []byte
	block []byte
}

// NewWriter begins an archive of the files that m lists.
func NewWriter(w io.Writer, m *Manifest) (*Writer, error) {
	encoded, err := m.encode()
	if err != nil {
		return nil, err
	}
	head := make([]byte, 0, fixedSize+len(encoded)+crcSize)
	head = append(head, magic...)
	head = binary.BigEndian.AppendUint32(head, format)
	head = binary.BigEndian.AppendUint32(head, uint32(len(encoded)))
	head = binary.BigEndian.AppendUint32(head, checksum(head))
	head = append(head, encoded...)
	head = binary.BigEndian.AppendUint32(head, checksum(encoded))
	if _, err := w.Write(head); err != nil {
		return nil, err
	}
	digest := blake3.Sum256(head)
	return &Writer{
		w: w, m: m, size: m.sizeOf(len(encoded)), block: make([]byte, blockSize+crcSize),
		end: append(append(make([]byte, 0, endSize(len(m.Files))), endMagic...), digest[:]...),
	}, nil
}

// Size is how long the archive is going to be.
func (w *Writer) Size() int64 { return w.size }

// File writes the content of the next file of the manifest, which r must have exactly.
func (w *Writer) File(r io.Reader) error {
	if w.next == len(w.m.Files) {
		return errors.New("archive: all files of the manifest are written")
	}
	f := w.m.Files[w.next]
	hash := blake3.New(digestSize, nil)
	for offset := int64(0); offset < f.Size; {
		block := w.block[:min(blockSize, f.Size-offset)]
		if n, err := io.ReadFull(r, block); err != nil {
			return fmt.Errorf("archive: expected %d bytes in %s, found %d: %w", f.Size, f.Name, offset+int64(n), err)
		}
		_, _ = hash.Write(block) // a hash takes everything
		sum := blockChecksum(w.next, offset, block)
		if _, err := w.w.Write(binary.BigEndian.AppendUint32(block, sum)); err != nil {
			return err
		}
		offset += int64(len(block))
	}
	if n, err := r.Read(w.block[:1]); n > 0 {
		return fmt.Errorf("archive: expected %d bytes in %s, found more: it has changed", f.Size, f.Name)
	} else if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("archive: read %s: %w", f.Name, err)
	}
	w.end = hash.Sum(w.end)
	w.next++
	return nil
}

// Close ends the archive and returns its digest, in hex. It does not close the writer below.
func (w *Writer) Close() (digest string, err error) {
	if w.next < len(w.m.Files) {
		return "", fmt.Errorf("archive: expected %d files, found the end after %d", len(w.m.Files), w.next)
	}
	w.end = binary.BigEndian.AppendUint64(w.end, uint64(w.size))
	sum := blake3.Sum256(w.end)
	_, err = w.w.Write(binary.BigEndian.AppendUint32(w.end, checksum(w.end)))
	return hex.EncodeToString(sum[:]), err
}
