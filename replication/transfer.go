package replication

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// A snapshot goes to another node as one stream of the files of its checkpoint:
//
//	stream  = header file* trailer
//	header  = "TMX1" | files u32 | bytes u64 | n u32 | crc u32 | info [n] | crc u32
//	file    = n u16 | size u64 | name [n] | crc u32 | content [size] | crc u32
//	trailer = "TMXE" | crc u32
//
// Integers are big-endian. Each crc is a CRC-32C of what stands before it in its part, that
// of the trailer one of the contents' checksums in order. bytes is the sum of the sizes; info
// is a transferInfo in JSON. The length of a stream follows from the snapshot's meta.json and
// the sizes of its files, which never change.
const (
	streamMagic    = "TMX1"
	streamEndMagic = "TMXE"
	streamFixed    = 4 + 4 + 8 + 4
	fileFixed      = 2 + 8
	crcSize        = 4

	maxTransferFiles = 1 << 20
	maxTransferInfo  = 4 << 10
	maxFileName      = 100
)

// errBadStream is wrapped by every error about a stream that is not what was sent.
var errBadStream = errors.New("the snapshot that another node sends is damaged")

// transferInfo says what a stream holds.
type transferInfo struct {
	ClusterID string `json:"cluster_id"`
	Timeline  string `json:"timeline"`
	Index     uint64 `json:"index"` // of the snapshot
	Term      uint64 `json:"term"`
	// See snapshotMeta.
	AppliedIndex    uint64 `json:"applied_index"`
	CheckpointIndex uint64 `json:"checkpoint_index"`
}

func checksum(b []byte) uint32 { return crc32.Checksum(b, castagnoli()) }

// castagnoli returns the CRC-32C table; MakeTable answers with one shared instance.
func castagnoli() *crc32.Table { return crc32.MakeTable(crc32.Castagnoli) }

func appendChecksum(b []byte, from int) []byte {
	return binary.BigEndian.AppendUint32(b, checksum(b[from:]))
}

// checkpointFile is a file of a checkpoint.
type checkpointFile struct {
	name string
	size int64
}

// checkpointFiles lists a checkpoint's files by name.
func checkpointFiles(dir string) ([]checkpointFile, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	files := make([]checkpointFile, 0, len(entries))
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		if !info.Mode().IsRegular() || !validFileName(e.Name()) {
			return nil, fmt.Errorf("expected the files of a checkpoint in %s, found %s", dir, e.Name())
		}
		files = append(files, checkpointFile{e.Name(), info.Size()})
	}
	return files, nil
}

// validFileName allows what Pebble calls its files, and nothing that leads elsewhere.
func validFileName(name string) bool {
	if name == "" || len(name) > maxFileName || name[0] == '.' {
		return false
	}
	return strings.IndexFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '-' && r != '_'
	}) < 0
}

// streamHeader makes the header of a stream.
func streamHeader(info *transferInfo, files []checkpointFile) ([]byte, error) {
	text, err := json.Marshal(info)
	if err != nil {
		return nil, err
	}
	if len(text) > maxTransferInfo || len(files) > maxTransferFiles {
		return nil, fmt.Errorf("expected at most %d files and %d bytes about them in a snapshot, found %d and %d", maxTransferFiles, maxTransferInfo, len(files), len(text))
	}
	var bytes int64
	for _, f := range files {
		bytes += f.size
	}
	b := append(make([]byte, 0, streamFixed+crcSize+len(text)+crcSize), streamMagic...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(files)))
	b = binary.BigEndian.AppendUint64(b, uint64(bytes))
	b = binary.BigEndian.AppendUint32(b, uint32(len(text)))
	b = appendChecksum(b, 0)
	b = append(b, text...)
	return appendChecksum(b, streamFixed+crcSize), nil
}

// streamSize is the length of the stream of a header and the files it announces.
func streamSize(header []byte, files []checkpointFile) int64 {
	size := int64(len(header)) + int64(len(streamEndMagic)+crcSize)
	for _, f := range files {
		size += int64(fileFixed+len(f.name)+crcSize) + f.size + crcSize
	}
	return size
}

// snapshotStream is a snapshot being read, by raft to send it, or to restore it: then only
// its meta is used. It is not safe for concurrent use.
type snapshotStream struct {
	meta *snapshotMeta
	dir  string // of the files

	files   []checkpointFile // still to come
	pending []byte           // to be read before the file
	f       *os.File         // the file being read
	left    int64            // of it
	crc     uint32           // of it so far
	all     []byte           // the contents' checksums so far
	ended   bool             // the trailer is in pending, or was read
	onClose func()
	meter   *meter
}

// Read reads on in the stream.
func (r *snapshotStream) Read(p []byte) (int, error) {
	n, err := r.read(p)
	r.meter.snapshotSentBytes.Add(uint64(n))
	return n, err
}

func (r *snapshotStream) read(p []byte) (int, error) {
	for len(p) > 0 {
		switch {
		case len(r.pending) > 0:
			n := copy(p, r.pending)
			r.pending = r.pending[n:]
			return n, nil
		case r.f != nil && r.left > 0:
			n, err := r.f.Read(p[:min(int64(len(p)), r.left)])
			r.crc = crc32.Update(r.crc, castagnoli(), p[:n])
			r.left -= int64(n)
			if n == 0 {
				return 0, fmt.Errorf("%w: snapshot %s: expected %d more bytes in %s, found %w", ErrDamaged, r.meta.ID, r.left, r.f.Name(), err)
			}
			return n, nil
		case r.f != nil:
			r.pending = binary.BigEndian.AppendUint32(r.pending[:0], r.crc)
			r.all = append(r.all, r.pending...)
			if err := r.f.Close(); err != nil {
				return 0, err
			}
			r.f = nil
		case len(r.files) > 0:
			if err := r.nextFile(); err != nil {
				return 0, err
			}
		case !r.ended:
			r.ended = true
			r.pending = append(r.pending[:0], streamEndMagic...)
			r.pending = binary.BigEndian.AppendUint32(r.pending, checksum(r.all))
		default:
			return 0, io.EOF
		}
	}
	return 0, nil
}

func (r *snapshotStream) nextFile() (err error) {
	next := r.files[0]
	r.files = r.files[1:]
	if r.f, err = os.Open(filepath.Join(r.dir, next.name)); err != nil {
		return err
	}
	r.left, r.crc = next.size, 0
	r.pending = binary.BigEndian.AppendUint16(r.pending[:0], uint16(len(next.name)))
	r.pending = binary.BigEndian.AppendUint64(r.pending, uint64(next.size))
	r.pending = append(r.pending, next.name...)
	r.pending = appendChecksum(r.pending, 0)
	return nil
}

// Close lets the snapshot go. It may be called twice.
func (r *snapshotStream) Close() error {
	if r.onClose == nil {
		return nil
	}
	r.onClose()
	r.onClose = nil
	if r.ended && len(r.pending) == 0 {
		r.meter.snapshotsSent.Add(1)
	}
	if r.f != nil {
		_ = r.f.Close() // it was only read
		r.f = nil
	}
	return nil
}

// durableFile is a file being written.
type durableFile interface {
	io.Writer
	Sync() error
	Close() error
}

// receiver takes a stream in pieces of any size, checks it, and makes its files, durably. The
// first error is its last word.
type receiver struct {
	// accept sees what the stream is about before anything is written.
	accept func(info *transferInfo, bytes int64) error
	create func(name string) (durableFile, error)

	offset int64 // of what was taken so far
	buf    []byte
	need   int                      // bytes to collect in buf
	then   func(piece []byte) error // what to do with them; nil = the stream is complete
	err    error

	files, done uint32
	bytes       int64 // that are still to come in files
	f           durableFile
	name        string
	left        int64
	crc         uint32
	all         []byte
}

func newReceiver(accept func(*transferInfo, int64) error, create func(name string) (durableFile, error)) *receiver {
	r := &receiver{accept: accept, create: create}
	r.expect(streamFixed+crcSize, r.takeHeader)
	return r
}

func (r *receiver) expect(n int, then func([]byte) error) { r.buf, r.need, r.then = r.buf[:0], n, then }

// Write takes the next piece.
func (r *receiver) Write(p []byte) (int, error) {
	if r.err == nil {
		r.err = r.take(p)
	}
	if r.err != nil {
		return 0, r.err
	}
	return len(p), nil
}

func (r *receiver) take(p []byte) error {
	for len(p) > 0 {
		if r.left > 0 {
			n, err := r.f.Write(p[:min(int64(len(p)), r.left)])
			if err != nil {
				return err
			}
			r.crc = crc32.Update(r.crc, castagnoli(), p[:n])
			r.left -= int64(n)
			r.offset += int64(n)
			p = p[n:]
			continue
		}
		if r.then == nil {
			return r.bad("the end of the stream", "more of it")
		}
		n := min(r.need-len(r.buf), len(p))
		r.buf = append(r.buf, p[:n]...)
		r.offset += int64(n)
		p = p[n:]
		if len(r.buf) < r.need {
			return nil
		}
		if err := r.then(r.buf); err != nil {
			return err
		}
	}
	return nil
}

// bad describes what is wrong with the stream before r.offset.
func (r *receiver) bad(expected, found string) error {
	return fmt.Errorf("%w: before byte %d of its stream: expected %s, found %s; it will be sent again", errBadStream, r.offset, expected, found)
}

// checked compares the checksum at the end of a piece.
func (r *receiver) checked(piece []byte, what string) error {
	n := len(piece) - crcSize
	return r.sums(what, binary.BigEndian.Uint32(piece[n:]), checksum(piece[:n]))
}

func (r *receiver) sums(what string, sent, got uint32) error {
	if sent != got {
		return r.bad(fmt.Sprintf("checksum %08x of %s", got, what), fmt.Sprintf("%08x", sent))
	}
	return nil
}

func (r *receiver) takeHeader(piece []byte) error {
	if magic := string(piece[:4]); magic != streamMagic {
		return r.bad(fmt.Sprintf("%q, with which a snapshot of this version begins", streamMagic), fmt.Sprintf("%q", magic))
	}
	if err := r.checked(piece, "the header"); err != nil {
		return err
	}
	files, bytes, n := binary.BigEndian.Uint32(piece[4:]), binary.BigEndian.Uint64(piece[8:]), binary.BigEndian.Uint32(piece[16:])
	if files > maxTransferFiles || bytes > math.MaxInt64 || n > maxTransferInfo {
		return r.bad(fmt.Sprintf("at most %d files and %d bytes about them", maxTransferFiles, maxTransferInfo), fmt.Sprintf("%d files of %d bytes in all, and %d", files, bytes, n))
	}
	r.files, r.bytes = files, int64(bytes)
	r.expect(int(n)+crcSize, r.takeInfo)
	return nil
}

func (r *receiver) takeInfo(piece []byte) error {
	if err := r.checked(piece, "the description"); err != nil {
		return err
	}
	var info transferInfo
	if err := json.Unmarshal(piece[:len(piece)-crcSize], &info); err != nil {
		return r.bad("a description in JSON", err.Error())
	}
	if err := r.accept(&info, r.bytes); err != nil {
		return err
	}
	r.expectFile()
	return nil
}

func (r *receiver) expectFile() {
	if r.done == r.files {
		r.expect(len(streamEndMagic)+crcSize, r.takeTrailer)
	} else {
		r.expect(fileFixed, r.takeFileHeader)
	}
}

func (r *receiver) takeFileHeader(piece []byte) error {
	n, size := int(binary.BigEndian.Uint16(piece)), binary.BigEndian.Uint64(piece[2:])
	if n > maxFileName || size > uint64(r.bytes) {
		return r.bad(fmt.Sprintf("a file name of at most %d bytes, and a file of at most %d", maxFileName, r.bytes), fmt.Sprintf("%d and %d", n, size))
	}
	head := append([]byte(nil), piece...)
	r.expect(n+crcSize, func(rest []byte) error { return r.takeFileName(append(head, rest...), int64(size)) })
	return nil
}

func (r *receiver) takeFileName(piece []byte, size int64) (err error) {
	if err := r.checked(piece, "a file's name and size"); err != nil {
		return err
	}
	r.name = string(piece[fileFixed : len(piece)-crcSize])
	if !validFileName(r.name) {
		return r.bad("a file name of letters, digits, dots and dashes", fmt.Sprintf("%q", r.name))
	}
	if r.f, err = r.create(r.name); err != nil {
		return err
	}
	r.left, r.crc = size, 0
	r.bytes -= size
	r.expect(crcSize, r.takeContentEnd)
	return nil
}

func (r *receiver) takeContentEnd(piece []byte) error {
	if err := r.sums("file "+r.name, binary.BigEndian.Uint32(piece), r.crc); err != nil {
		return err
	}
	r.all = append(r.all, piece...)
	f := r.f
	r.f = nil
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	r.done++
	r.expectFile()
	return nil
}

func (r *receiver) takeTrailer(piece []byte) error {
	if magic := string(piece[:4]); magic != streamEndMagic {
		return r.bad(fmt.Sprintf("%q, with which a stream ends", streamEndMagic), fmt.Sprintf("%q", magic))
	}
	if err := r.sums("all files", binary.BigEndian.Uint32(piece[4:]), checksum(r.all)); err != nil {
		return err
	}
	if r.bytes != 0 {
		return r.bad("files as long as the header says", fmt.Sprintf("%d bytes less", r.bytes))
	}
	r.expect(0, nil)
	return nil
}

// finish returns nil if the stream was complete. Otherwise it must be called too, to close
// what is open.
func (r *receiver) finish() error {
	if r.f != nil {
		_ = r.f.Close() // it is going to be removed
		r.f = nil
	}
	if r.err == nil && r.then != nil {
		r.err = r.bad(fmt.Sprintf("a stream of %d files", r.files), fmt.Sprintf("its end after %d of them", r.done))
	}
	return r.err
}
