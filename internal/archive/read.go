package archive

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"

	"lukechampine.com/blake3"
)

// ErrNotArchive is returned for what does not begin like an archive at all.
var ErrNotArchive = errors.New("this is not a backup of Tidemark")

// ErrFormat is returned for an archive of another format.
var ErrFormat = errors.New("the backup has a format that this version does not read")

// The parts of an archive that are not files, as findings name them.
const (
	PartHead     = "head"
	PartManifest = "manifest"
	PartEnd      = "end"
)

// Finding is damage: where it is, and what was found.
type Finding struct {
	// Part is the name of a file, or head, manifest or end.
	Part string `json:"part"`
	// Offset and End are the range of the archive that the damage is in, End excluded. A byte
	// that is missing is in the range that it would have.
	Offset int64 `json:"offset"`
	End    int64 `json:"end"`
	// FileOffset and FileEnd are the range of the file, if Part is one.
	FileOffset int64  `json:"file_offset"`
	FileEnd    int64  `json:"file_end"`
	Problem    string `json:"problem"`
}

func (f Finding) String() string {
	text := fmt.Sprintf("%s, bytes %d to %d of the backup", f.Part, f.Offset, f.End-1)
	if f.FileEnd > f.FileOffset {
		text += fmt.Sprintf(" (bytes %d to %d of the file)", f.FileOffset, f.FileEnd-1)
	}
	return text + ": " + f.Problem
}

// maxFindings bounds what is listed of an archive that is damaged all over.
const maxFindings = 1000

// Content is an archive that was read to its end.
type Content struct {
	// Manifest is nil if the head is damaged.
	Manifest *Manifest
	// Digest names the archive, in hex; empty if it was not found whole.
	Digest string
	// Size is how many bytes were read.
	Size int64
	// Findings is the damage, in the order of the archive; empty = it is whole. Of more than
	// a thousand, the rest is only counted.
	Findings []Finding
	Unlisted int
}

// Verify reads an archive to its end and compares every checksum. What is wrong with it are
// the findings; the error is that of r, or that this is no archive that can be judged
// (ErrNotArchive, ErrFormat). progress, if not nil, is told after each block how many bytes of
// how many are done; the total is 0 until it is known.
func Verify(r io.Reader, progress func(done, total int64)) (*Content, error) {
	return Extract(r, nil, progress)
}

// Extract is Verify which also writes the files, into what create returns, and closes that
// after each. A file that was closed was found whole. Once there is a finding nothing more is
// created, and the file at work is closed as it is. An error of a file's is returned at once.
func Extract(r io.Reader, create func(File) (io.WriteCloser, error), progress func(done, total int64)) (*Content, error) {
	x := &reader{r: r, create: create, progress: progress, content: &Content{}, block: make([]byte, blockSize+crcSize)}
	err := x.run()
	x.content.Size = x.offset
	if x.file != nil {
		err = errors.Join(err, x.file.Close())
	}
	return x.content, err
}

// ReadManifest reads the head of an archive alone. A damaged one is an error.
func ReadManifest(r io.Reader) (*Manifest, error) {
	x := &reader{r: r, content: &Content{}}
	if err := x.head(); err != nil {
		return nil, err
	}
	if len(x.content.Findings) > 0 {
		return nil, fmt.Errorf("the backup is damaged: %s", x.content.Findings[0])
	}
	return x.content.Manifest, nil
}

// reader reads one archive.
type reader struct {
	r        io.Reader
	create   func(File) (io.WriteCloser, error)
	progress func(done, total int64)
	content  *Content

	offset  int64 // in the archive
	total   int64 // as the manifest has it; 0 = not known
	head32  [digestSize]byte
	digests []byte // of the files as they were read
	ended   bool   // the archive ended before it should have
	block   []byte
	file    io.WriteCloser // being written
}

func (x *reader) run() error {
	if err := x.head(); err != nil {
		return err
	}
	if x.content.Manifest == nil {
		return x.drain()
	}
	for i := range x.content.Manifest.Files {
		if err := x.readFile(i); err != nil {
			return err
		}
		if x.ended {
			return nil
		}
	}
	if err := x.end(); err != nil || x.ended {
		return err
	}
	return x.surplus()
}

// find adds a finding, as part of the last one if it continues that.
func (x *reader) find(f Finding) {
	if n := len(x.content.Findings); n > 0 {
		last := &x.content.Findings[n-1]
		if last.Part == f.Part && last.End == f.Offset && last.Problem == f.Problem && last.FileEnd == f.FileOffset {
			last.End, last.FileEnd = f.End, f.FileEnd
			return
		}
	}
	if len(x.content.Findings) >= maxFindings {
		x.content.Unlisted++
		return
	}
	x.content.Findings = append(x.content.Findings, f)
}

// fill reads len(b) bytes. n < len(b) says that the archive has ended.
func (x *reader) fill(b []byte) (n int, err error) {
	n, err = io.ReadFull(x.r, b)
	x.offset += int64(n)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return n, nil
	}
	if x.progress != nil {
		x.progress(x.offset, x.total)
	}
	return n, err
}

// short notes that the archive ended within the part that f names, and ends.
func (x *reader) short(f Finding) {
	x.ended = true
	f.Offset = x.offset
	f.Problem = fmt.Sprintf("the backup ends here, after %d bytes: the rest is missing", x.offset)
	if x.total > 0 {
		f.Problem = fmt.Sprintf("the backup ends here, after %d of %d bytes: the rest is missing", x.offset, x.total)
	}
	x.find(f)
}

// head reads the head. The manifest stays nil if it is damaged.
func (x *reader) head() error {
	fixed := make([]byte, fixedSize)
	n, err := x.fill(fixed)
	if err != nil {
		return err
	}
	if n < fixedSize {
		if n == 0 || !bytes.HasPrefix([]byte(magic), fixed[:min(n, magicSize)]) {
			return fmt.Errorf("%w: found %d bytes", ErrNotArchive, n)
		}
		x.short(Finding{Part: PartHead, End: fixedSize})
		return nil
	}
	if sum := binary.BigEndian.Uint32(fixed[fixedSize-crcSize:]); sum != checksum(fixed[:fixedSize-crcSize]) {
		if !resembles(fixed) {
			return fmt.Errorf("%w: expected it to begin with %q, found %q", ErrNotArchive, magic, fixed[:magicSize])
		}
		x.find(Finding{Part: PartHead, End: fixedSize, Problem: "its checksum does not match; the files behind it cannot be told apart"})
		return nil
	}
	if string(fixed[:magicSize]) != magic {
		return fmt.Errorf("%w: expected it to begin with %q, found %q", ErrNotArchive, magic, fixed[:magicSize])
	}
	if f := binary.BigEndian.Uint32(fixed[magicSize:]); f != format {
		return fmt.Errorf("%w: expected format %d, found %d; use the version that made it", ErrFormat, format, f)
	}
	size := binary.BigEndian.Uint32(fixed[magicSize+4:])
	if size > maxManifest {
		return fmt.Errorf("%w: expected a manifest of at most %d bytes, found %d", ErrFormat, maxManifest, size)
	}
	return x.manifest(fixed, int(size))
}

// resembles says whether a damaged head is one of an archive at all: most of its magic is.
func resembles(fixed []byte) bool {
	same := 0
	for i := range magicSize {
		if fixed[i] == magic[i] {
			same++
		}
	}
	return same >= magicSize/2
}

func (x *reader) manifest(fixed []byte, size int) error {
	// What a damaged or a false head announces is not allocated before it is there.
	var buf bytes.Buffer
	n, err := io.Copy(&buf, io.LimitReader(x.r, int64(size+crcSize)))
	x.offset += n
	if err != nil {
		return err
	}
	if n < int64(size+crcSize) {
		x.short(Finding{Part: PartManifest, End: int64(fixedSize + size + crcSize)})
		return nil
	}
	b := buf.Bytes()
	problem := ""
	if sum := binary.BigEndian.Uint32(b[size:]); sum != checksum(b[:size]) {
		problem = "its checksum does not match; the files behind it cannot be told apart"
	} else if m, err := decodeManifest(b[:size]); err != nil {
		problem = err.Error()
	} else {
		x.content.Manifest, x.total = m, m.sizeOf(size)
		whole := blake3.New(digestSize, nil)
		_, _ = whole.Write(fixed)
		_, _ = whole.Write(b)
		whole.Sum(x.head32[:0])
		return nil
	}
	x.find(Finding{Part: PartManifest, Offset: fixedSize, End: x.offset, Problem: problem})
	return nil
}

// readFile reads the content of one file.
func (x *reader) readFile(number int) error {
	f := x.content.Manifest.Files[number]
	if x.create != nil && len(x.content.Findings) == 0 {
		var err error
		if x.file, err = x.create(f); err != nil {
			return err
		}
	}
	before := len(x.content.Findings) + x.content.Unlisted
	sum := blake3.New(digestSize, nil)
	for offset := int64(0); offset < f.Size; offset += blockSize {
		if err := x.readBlock(number, offset, sum); err != nil {
			return err
		}
		if x.ended {
			return nil
		}
	}
	x.digests = sum.Sum(x.digests)
	if len(x.content.Findings)+x.content.Unlisted > before {
		// Its digest is that of other bytes; the blocks are named already.
		clear(x.digests[len(x.digests)-digestSize:])
	}
	return x.closeFile()
}

func (x *reader) closeFile() error {
	file := x.file
	x.file = nil
	if file == nil {
		return nil
	}
	return file.Close()
}

func (x *reader) readBlock(number int, offset int64, sum hash.Hash) error {
	f := x.content.Manifest.Files[number]
	size := min(blockSize, f.Size-offset)
	began := x.offset
	piece := x.block[:size+crcSize]
	n, err := x.fill(piece)
	if err != nil {
		return err
	}
	if n < len(piece) {
		x.short(Finding{Part: f.Name, End: began + f.contentSize() - contentSize(offset), FileOffset: offset, FileEnd: f.Size})
		return nil
	}
	block := piece[:size]
	if binary.BigEndian.Uint32(piece[size:]) != blockChecksum(number, offset, block) {
		x.find(Finding{
			Part: f.Name, Offset: began, End: x.offset, FileOffset: offset, FileEnd: offset + size,
			Problem: "the checksum of the block does not match",
		})
		return x.closeFile()
	}
	_, _ = sum.Write(block)
	if x.file == nil {
		return nil
	}
	_, err = x.file.Write(block)
	return err
}

// end reads the end and compares the digests.
func (x *reader) end() error {
	m := x.content.Manifest
	began := x.offset
	b := make([]byte, endSize(len(m.Files)))
	n, err := x.fill(b)
	if err != nil {
		return err
	}
	if n < len(b) {
		x.short(Finding{Part: PartEnd, End: began + int64(len(b))})
		return nil
	}
	body := b[:len(b)-crcSize]
	if binary.BigEndian.Uint32(b[len(body):]) != checksum(body) {
		x.find(Finding{Part: PartEnd, Offset: began, End: x.offset, Problem: "its checksum does not match"})
		return nil
	}
	if string(body[:magicSize]) != endMagic || binary.BigEndian.Uint64(body[len(body)-8:]) != uint64(x.total) {
		x.find(Finding{Part: PartEnd, Offset: began, End: x.offset, Problem: fmt.Sprintf("expected the end of a backup of %d bytes, found another one's", x.total)})
		return nil
	}
	x.compareDigests(body[magicSize:len(body)-8], began)
	if len(x.content.Findings) == 0 {
		digest := blake3.Sum256(body)
		x.content.Digest = hex.EncodeToString(digest[:])
	}
	return nil
}

// compareDigests compares those of the head and of the files that passed until here.
func (x *reader) compareDigests(recorded []byte, end int64) {
	m := x.content.Manifest
	if !bytes.Equal(recorded[:digestSize], x.head32[:]) {
		x.find(Finding{Part: PartHead, End: x.headSize(end), Problem: "the end of the backup has another digest of it: they are of different backups"})
	}
	offset := x.headSize(end)
	var none [digestSize]byte
	for i, f := range m.Files {
		read := x.digests[i*digestSize : (i+1)*digestSize]
		if !bytes.Equal(read, none[:]) && !bytes.Equal(read, recorded[(i+1)*digestSize:(i+2)*digestSize]) {
			x.find(Finding{
				Part: f.Name, Offset: offset, End: offset + f.contentSize(), FileEnd: f.Size,
				Problem: "its digest does not match the one at the end of the backup",
			})
		}
		offset += f.contentSize()
	}
}

// headSize is the length of the head of an archive whose end begins at end.
func (x *reader) headSize(end int64) int64 {
	for _, f := range x.content.Manifest.Files {
		end -= f.contentSize()
	}
	return end
}

// surplus finds what stands behind the end.
func (x *reader) surplus() error {
	began := x.offset
	if err := x.drain(); err != nil || x.offset == began {
		return err
	}
	x.content.Digest = ""
	x.find(Finding{Part: PartEnd, Offset: began, End: x.offset, Problem: fmt.Sprintf("expected the backup to end here, found %d more bytes", x.offset-began)})
	return nil
}

// drain reads what is left.
func (x *reader) drain() error {
	n, err := io.Copy(io.Discard, x.r)
	x.offset += n
	return err
}
