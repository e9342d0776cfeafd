package inspect

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// errForm is wrapped by what every decoder here returns for bytes that are not of its form.
var errForm = errors.New("not of the documented form")

// HashSize is the size of content and chain hashes and of digests (BLAKE3).
const HashSize = 32

// Hash is a BLAKE3 hash.
type Hash [HashSize]byte

// cursor takes bytes apart. After the first read past the end, or of something that is not of
// the form, bad says what, and every read returns zero.
type cursor struct {
	b   []byte
	off int
	bad string
}

func (c *cursor) fail(format string, args ...any) {
	if c.bad == "" {
		c.bad = fmt.Sprintf(format, args...)
	}
}

func (c *cursor) left() int { return len(c.b) - c.off }

func (c *cursor) take(n uint64) []byte {
	if c.bad != "" {
		return nil
	}
	if n > uint64(c.left()) {
		c.fail("expected %d bytes at offset %d, found %d", n, c.off, c.left())
		return nil
	}
	p := c.b[c.off : c.off+int(n) : c.off+int(n)]
	c.off += int(n)
	return p
}

func (c *cursor) u8() byte {
	if p := c.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (c *cursor) u32() uint32 {
	if p := c.take(4); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if p := c.take(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

func (c *cursor) i64() int64 { return int64(c.u64()) }

func (c *cursor) flag() bool {
	v := c.u8()
	if v > 1 {
		c.fail("expected a flag of 0 or 1 at offset %d, found %d", c.off-1, v)
	}
	return v == 1
}

func (c *cursor) hash() (h Hash) {
	copy(h[:], c.take(HashSize))
	return h
}

// bytes is a u32 length and that many bytes.
func (c *cursor) bytes() []byte { return c.take(uint64(c.u32())) }

func (c *cursor) str() string { return string(c.bytes()) }

// uv is a varint in its shortest form, of at most the given size.
func (c *cursor) uv(most uint64) uint64 {
	if c.bad != "" {
		return 0
	}
	v, n := binary.Uvarint(c.b[c.off:])
	switch {
	case n <= 0 || n > 1 && c.b[c.off+n-1] == 0:
		c.fail("expected a varint in its shortest form at offset %d", c.off)
		return 0
	case v > most:
		c.fail("expected at most %d at offset %d, found %d", most, c.off, v)
		return 0
	}
	c.off += n
	return v
}

// shortBytes is a varint length and that many bytes.
func (c *cursor) shortBytes() []byte { return c.take(c.uv(1 << 32)) }

// format is the first byte of what has versions.
func (c *cursor) format(want ...byte) byte {
	got := c.u8()
	for _, w := range want {
		if got == w {
			return got
		}
	}
	c.fail("expected format %v, found %d", want, got)
	return got
}

// end returns an error unless everything was read and of the form.
func (c *cursor) end(what string) error {
	if c.bad == "" && c.left() != 0 {
		c.fail("expected its end at offset %d, found %d more bytes", c.off, c.left())
	}
	if c.bad != "" {
		return fmt.Errorf("%s is %w: %s", what, errForm, c.bad)
	}
	return nil
}
