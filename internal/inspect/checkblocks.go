package inspect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/blob"
	"github.com/cockroachdb/pebble/v2/sstable/block"
	"github.com/cockroachdb/pebble/v2/sstable/colblk"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Layout of what Pebble v2.1 writes: a block is followed by one byte that says how it is
// compressed and a checksum over both; a table and a blob file end with a footer that has a
// checksum of its own.
const (
	blockTrailer = 5
	tableFooter  = 61
	tableSumAt   = tableFooter - 8 - 4 - 4
	tableVersion = 7
	tableMagic   = "\xf0\x9f\xaa\xb3\xf0\x9f\xaa\xb3"
	blobFooter   = 38
	blobMagic    = "\xf0\x9f\xaa\xb3\xf0\x9f\xa6\x80"
	sumCRC32C    = 1
)

// masked is how Pebble stores a CRC-32C, as LevelDB does.
func masked(sum uint32) uint32 { return (sum>>15 | sum<<17) + 0xa282ead8 }

// span is a block in a file, without its trailer.
type span struct {
	kind           string
	offset, length uint64
}

// blockFile is a table or a blob file that is being checked.
type blockFile struct {
	v    *verifier
	path string
	f    vfs.File
	size int64
	buf  []byte
	bad  int
}

func (b *blockFile) damage(offset int64, format string, args ...any) {
	b.bad++
	b.v.found(Finding{Damage: true, File: b.path, Offset: offset, Text: fmt.Sprintf(format, args...)})
}

// blocks checks a table or a blob file, and returns how much is wrong with it; what is one
// under several names is checked once.
func (v *verifier) blocks(path string) (bad int, err error) {
	if err := v.doing("%s", path); err != nil {
		return 0, err
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	if id, ok := identify(info); ok {
		if bad, done := v.checked[id]; done {
			return bad, nil
		}
		defer func() { v.checked[id] = bad }()
	}
	f, err := readOnlyFS{vfs.Default}.Open(path)
	if err != nil {
		return 0, err
	}
	b := &blockFile{v: v, path: path, f: f, size: info.Size()}
	var spans []span
	if strings.HasSuffix(path, ".blob") {
		spans, err = b.blobSpans()
	} else {
		spans, err = b.tableSpans()
	}
	if err == nil && spans != nil {
		err = b.check(spans)
	}
	return b.bad, errors.Join(err, f.Close())
}

// at reads n bytes from an offset, into memory that the next call uses again.
func (b *blockFile) at(offset int64, n int) ([]byte, error) {
	b.buf = slices.Grow(b.buf[:0], n)[:n]
	_, err := b.f.ReadAt(b.buf, offset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return b.buf, err
}

// check compares the checksum of every block, and that the blocks are all that there is before
// the footer.
func (b *blockFile) check(spans []span) error {
	slices.SortFunc(spans, func(x, y span) int { return int(int64(x.offset) - int64(y.offset)) })
	next := uint64(0)
	for _, s := range spans {
		if s.kind == "footer" {
			if s.offset != next {
				b.damage(int64(next), "expected blocks up to the footer at offset %d, found %d bytes of no block", s.offset, s.offset-next)
			}
			return nil
		}
		if s.offset != next {
			b.damage(int64(next), "expected a block, found the next one at offset %d", s.offset)
		}
		if _, err := b.block(s); err != nil {
			return err
		}
		next = s.offset + s.length + blockTrailer
	}
	return nil
}

// block checks one block.
func (b *blockFile) block(s span) (ok bool, err error) {
	if s.offset+s.length+blockTrailer > uint64(b.size) {
		b.damage(int64(s.offset), "expected a block (%s) of %d bytes, found the end of the file", s.kind, s.length)
		return false, nil
	}
	p, err := b.at(int64(s.offset), int(s.length)+blockTrailer)
	if err != nil {
		return false, err
	}
	b.v.read(len(p))
	b.v.report.Blocks++
	want, got := binary.LittleEndian.Uint32(p[s.length+1:]), masked(crc(p[:s.length+1]))
	if want != got {
		b.damage(int64(s.offset), "expected a block (%s, %d bytes) with checksum %08x, found one with %08x", s.kind, s.length, want, got)
		return false, nil
	}
	return true, nil
}

// mismatch finds the block in an error of Pebble's.
var mismatch = regexp.MustCompile(`block (\d+)/(\d+): .*checksum mismatch`)

// failed is a finding about an error of Pebble's, if it is about what the file holds.
func (b *blockFile) failed(offset int64, err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return err
	}
	if m := mismatch.FindStringSubmatch(err.Error()); m != nil {
		if at, parseErr := strconv.ParseInt(m[1], 10, 64); parseErr == nil {
			offset = at
		}
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	b.damage(offset, "expected a file that can be read, found: %s", first)
	return nil
}

// tableSpans returns the blocks of a table, nil after damage that hides them.
func (b *blockFile) tableSpans() (spans []span, err error) {
	footerAt := b.size - tableFooter
	if footerAt < 0 {
		b.damage(0, "expected a table, found a file of %d bytes", b.size)
		return nil, nil
	}
	p, err := b.at(footerAt, tableFooter)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	sum := crc(slices.Concat(p[:tableSumAt], p[tableSumAt+4:]))
	if string(p[tableFooter-8:]) != tableMagic || le.Uint32(p[tableFooter-12:]) != tableVersion || p[0] != sumCRC32C || le.Uint32(p[tableSumAt:]) != masked(sum) {
		b.damage(footerAt, "expected the footer of a table of version %d with its checksum, found another", tableVersion)
		return nil, nil
	}
	defer func() {
		if p := recover(); p != nil {
			spans, err = nil, b.failed(-1, fmt.Errorf("%w: %v", errPanic, p))
		}
	}()
	readable, err := sstable.NewSimpleReadable(noClose{b.f})
	if err != nil {
		return nil, err
	}
	r, err := sstable.NewReader(context.Background(), readable, pebbleReaderOptions())
	if err != nil {
		return nil, b.failed(footerAt, err)
	}
	l, err := r.Layout()
	if err != nil {
		return nil, errors.Join(b.failed(footerAt, err), r.Close())
	}
	add := func(kind string, h block.Handle) {
		// A table of range deletions alone has an index without a byte, and its trailer.
		if h.Length > 0 || h.Offset > 0 {
			spans = append(spans, span{kind, h.Offset, h.Length})
		}
	}
	for i := range l.Data {
		add("data", l.Data[i].Handle)
	}
	for _, h := range l.Index {
		add("index", h)
	}
	for i := range l.Filter {
		add("filter", l.Filter[i].Handle)
	}
	for _, h := range l.ValueBlock {
		add("values", h)
	}
	add("top index", l.TopIndex)
	add("range deletions", l.RangeDel)
	add("range keys", l.RangeKey)
	add("value index", l.ValueIndex)
	add("properties", l.Properties)
	add("metaindex", l.MetaIndex)
	add("blob references", l.BlobReferenceIndex)
	return append(spans, span{"footer", uint64(footerAt), tableFooter}), r.Close()
}

// blobSpans returns the blocks of a blob file, nil after damage that hides them.
func (b *blockFile) blobSpans() (spans []span, err error) {
	footerAt := b.size - blobFooter
	p, err := b.footerOfBlob()
	if err != nil || p == nil {
		if err == nil {
			b.damage(max(footerAt, 0), "expected the footer of a blob file with its checksum, found another")
		}
		return nil, err
	}
	index := span{"index", binary.LittleEndian.Uint64(p[4:]), binary.LittleEndian.Uint64(p[12:])}
	if ok, err := b.block(index); err != nil || !ok {
		return nil, err
	}
	b.v.report.Blocks-- // it comes again
	defer func() {
		if p := recover(); p != nil {
			spans, err = nil, b.failed(int64(index.offset), fmt.Errorf("%w: %v", errPanic, p))
		}
	}()
	readable, err := sstable.NewSimpleReadable(noClose{b.f})
	if err != nil {
		return nil, err
	}
	r, err := blob.NewFileReader(context.Background(), readable, blob.FileReaderOptions{})
	if err != nil {
		return nil, b.failed(footerAt, err)
	}
	h, err := r.ReadIndexBlock(context.Background(), block.NoReadEnv, nil)
	if err != nil {
		return nil, errors.Join(b.failed(int64(index.offset), err), r.Close())
	}
	// Two columns behind four bytes: where blocks of a file that this one replaces are now, and
	// where each block of this one begins, and the last one ends.
	var d colblk.BlockDecoder
	d.Init(h.BlockData(), 4)
	rows := d.Rows()
	colblk.DecodeColumn(&d, 0, int(binary.LittleEndian.Uint32(h.BlockData())), colblk.DataTypeUint, colblk.DecodeUnsafeUints)
	offsets := colblk.DecodeColumn(&d, 1, rows+1, colblk.DataTypeUint, colblk.DecodeUnsafeUints)
	for i := range rows {
		from, to := offsets.At(i), offsets.At(i+1)
		if to < from+blockTrailer {
			b.damage(int64(index.offset), "expected an index of ascending offsets, found %d before %d", from, to)
			break
		}
		spans = append(spans, span{"values", from, to - from - blockTrailer})
	}
	h.Release()
	return append(spans, index, span{"footer", uint64(footerAt), blobFooter}), r.Close()
}

// footerOfBlob returns the footer of a blob file, nil if there is none with its checksum.
func (b *blockFile) footerOfBlob() ([]byte, error) {
	if b.size < blobFooter {
		return nil, nil
	}
	p, err := b.at(b.size-blobFooter, blobFooter)
	if err != nil {
		return nil, err
	}
	if string(p[30:]) != blobMagic || p[20] != sumCRC32C || p[21] != 1 || binary.LittleEndian.Uint32(p) != masked(crc(p[4:])) {
		return nil, nil
	}
	return slices.Clone(p), nil
}

// noClose leaves a file to whoever opened it.
type noClose struct{ vfs.File }

// Close does nothing.
func (noClose) Close() error { return nil }

func pebbleReaderOptions() sstable.ReaderOptions {
	o := pebbleOptions()
	o.EnsureDefaults()
	return o.MakeReaderOptions()
}
