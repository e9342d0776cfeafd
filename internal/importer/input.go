package importer

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// maxRowBytes bounds a row, a line and the lines of one batch: the most that a server can be
// configured to take in one request, and what base64 and JSON add to it.
const maxRowBytes = 24 << 20

// readBuffer is how much of the file is read at a time.
const readBuffer = 256 << 10

// openText wraps a file of UTF-8 text: a byte order mark is skipped, and text that is
// plainly something else is refused before any of it is taken for data.
func openText(r io.Reader) (*bufio.Reader, error) {
	br := bufio.NewReaderSize(r, readBuffer)
	head, err := br.Peek(3)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("cannot read the input: %w", err)
	}
	switch {
	case bytes.Equal(head, []byte{0xEF, 0xBB, 0xBF}):
		_, _ = br.Discard(3)
	case bytes.HasPrefix(head, []byte{0xFF, 0xFE}), bytes.HasPrefix(head, []byte{0xFE, 0xFF}):
		return nil, errors.New("the input is UTF-16; expected UTF-8: convert it first, for example with iconv -f UTF-16 -t UTF-8")
	case bytes.HasPrefix(head, []byte{0x1F, 0x8B}):
		return nil, errors.New("the input is compressed with gzip; expected text: decompress it first, for example with gzip -dc FILE | tidemark import -")
	case bytes.HasPrefix(head, []byte("PK\x03")):
		return nil, errors.New("the input is a ZIP archive or a spreadsheet; expected text: unpack or save it as CSV first")
	}
	return br, nil
}

// errLineTooLong is returned by lineReader for a line above maxRowBytes, which is skipped.
var errLineTooLong = fmt.Errorf("the line has more than %d MiB; a request that large is never accepted: split or drop it", maxRowBytes>>20)

// lineReader cuts a file into lines, in bounded memory.
type lineReader struct {
	r    *bufio.Reader
	buf  []byte
	line int64 // number of the line that next returned last, from 1

	bytes int64 // read so far, line breaks included
}

// next returns the next line that is not blank, without its line break; the bytes are valid
// until the call after. The last line needs no line break. At the end: io.EOF.
func (l *lineReader) next() ([]byte, error) {
	for {
		text, err := l.read()
		if err != nil {
			return nil, err
		}
		if len(bytes.TrimSpace(text)) > 0 {
			return text, nil
		}
	}
}

func (l *lineReader) read() ([]byte, error) {
	l.buf = l.buf[:0]
	tooLong := false
	for {
		part, err := l.r.ReadSlice('\n')
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) && !errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("cannot read the input after line %d: %w", l.line, err)
		}
		l.bytes += int64(len(part))
		if len(l.buf)+len(part) > maxRowBytes {
			tooLong = true
			l.buf = l.buf[:0]
		}
		if !tooLong {
			l.buf = append(l.buf, part...)
		}
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if errors.Is(err, io.EOF) && len(part) == 0 && len(l.buf) == 0 && !tooLong {
			return nil, io.EOF
		}
		l.line++
		if tooLong {
			return nil, errLineTooLong
		}
		return bytes.TrimSuffix(bytes.TrimSuffix(l.buf, []byte("\n")), []byte("\r")), nil
	}
}
