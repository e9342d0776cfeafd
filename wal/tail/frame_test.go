package tail

import (
	"encoding/binary"
	"strings"
	"testing"

	"github.com/hashicorp/raft"
)

// record makes a whole record, with tidwall's length prefix.
func record(e *raft.Log, batch uint64) []byte {
	f := appendFrame(nil, e, batch)
	return append(binary.AppendUvarint(nil, uint64(len(f))), f...)
}

// The format is fixed: a change of these bytes needs a new magic.
func TestRecordIsAsDocumented(t *testing.T) {
	t.Parallel()
	e := entry(3, 2, 4)
	e.Data, e.Extensions = []byte("data"), []byte("ex")
	want := []byte{
		0x40,                   // tidwall: the frame has 64 bytes
		0x54, 0x4d, 0x54, 0x31, // magic
		0x92, 0x45, 0x12, 0x4f, // header checksum
		0x4a, 0xd3, 0xaa, 0xea, // payload checksum
		0, 0, 0, 24, // payload length
		0, 0, 0, 0, 0, 0, 0, 3, // index
		0, 0, 0, 0, 0, 0, 0, 2, // term
		0, 0, 0, 0, 0, 0, 0, 1, // batch
		0,                               // type
		0, 0, 0, 0, 0x65, 0x53, 0xf1, 3, // seconds
		0, 0, 0, 2, // nanoseconds
		0, 0, 0, 2, // length of the extensions
		'e', 'x', 'd', 'a', 't', 'a',
		0xe5, // end
	}
	got := record(e, 1)
	mustEqual(t, "record", want, got)
	if n := frameLen(e); n != len(want)-1 || prefixLen(n) != 1 {
		t.Fatalf("want a frame of %d bytes, got %d with a prefix of %d", len(want)-1, n, prefixLen(n))
	}
}

func TestPrefixLen(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, 127, 128, 16383, 16384, 1<<21 - 1, 1 << 21, 1<<28 - 1, 1 << 28, maxPayload + headerSize} {
		if want, got := len(binary.AppendUvarint(nil, uint64(n))), prefixLen(n); want != got {
			t.Fatalf("%d: want %d, got %d", n, want, got)
		}
	}
}

// tidwall/wal has no checksum. Ours covers every bit of a record, its length prefix included.
func TestEveryFlippedBitOfARecordIsFound(t *testing.T) {
	t.Parallel()
	for _, size := range []int{0, 1, 40, 300} {
		b := record(entry(6, 2, size), 5)
		for i := range b {
			for bit := range 8 {
				b[i] ^= 1 << bit
				if _, _, _, problem := parseRecord(b, 6); problem == "" {
					t.Fatalf("size %d: a flip of bit %d of byte %d was not found", size, bit, i)
				}
				b[i] ^= 1 << bit
			}
		}
		if _, _, n, problem := parseRecord(b, 6); problem != "" || n != len(b) {
			t.Fatalf("size %d: %s", size, problem)
		}
	}
}

func TestRecordIsRefused(t *testing.T) {
	t.Parallel()
	good := record(entry(6, 2, 40), 5)
	sealed := func(change func(h, p []byte)) []byte {
		b := append([]byte(nil), good...)
		h, p := b[1:1+headerSize], b[1+headerSize:]
		change(h, p)
		binary.BigEndian.PutUint32(h[8:], checksum(p))
		binary.BigEndian.PutUint32(h[4:], checksum(h[8:]))
		return b
	}
	for name, c := range map[string]struct {
		b    []byte
		want string
	}{
		"nothing":               {nil, "expected a record, found no length prefix"},
		"no header":             {good[:headerSize], "expected a record header of 40 bytes, found 39"},
		"no payload":            {good[:1+headerSize], "expected a record of 104 bytes, found 41"},
		"of another index":      {record(entry(7, 2, 40), 5), "expected the record of index 6, found that of 7"},
		"magic":                 {sealed(func(h, p []byte) { h[3] = '2' }), "expected record magic 544d5431, found 544d5432"},
		"length of nothing":     {sealed(func(h, p []byte) { h[15] = 17 }), "expected a payload of 18 to 1073741824 bytes, found a length of 17"},
		"length without end":    {sealed(func(h, p []byte) { h[12] = 255 }), "found a length of"},
		"prefix that disagrees": {sealed(func(h, p []byte) { h[15]++ }), "expected a length prefix of 104, found 103"},
		"no end mark":           {sealed(func(h, p []byte) { p[len(p)-1] = 0 }), "expected a payload that ends with its end mark, found none"},
		"nanoseconds":           {sealed(func(h, p []byte) { p[9] = 255 }), "expected less than 1000000000 nanoseconds, found"},
		"extensions":            {sealed(func(h, p []byte) { p[16] = 200 }), "expected at most 45 bytes of extensions, found a length of 200"},
	} {
		if _, _, _, problem := parseRecord(c.b, 6); !strings.Contains(problem, c.want) || problem == "" {
			t.Errorf("%s: want %q, got %q", name, c.want, problem)
		}
	}
}

// What the decoder accepts is exactly what the encoder makes.
func FuzzParseRecord(f *testing.F) {
	for _, e := range []*raft.Log{entry(1, 1, 0), entry(3, 9, 10), entry(6, 2, 300), {Index: 1 << 40, Term: 1 << 50, Type: 255}} {
		f.Add(record(e, e.Index-1), e.Index)
	}
	f.Add(make([]byte, 100), uint64(0))
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, uint64(1))
	f.Fuzz(func(t *testing.T, b []byte, index uint64) {
		h, payload, n, problem := parseRecord(b, index)
		if problem != "" {
			return
		}
		var e raft.Log
		decodePayload(h, payload, &e)
		if e.Index != index || e.Term != h.term {
			t.Fatalf("got index %d term %d", e.Index, e.Term)
		}
		mustEqual(t, "encoded again", b[:n], record(&e, h.batch))
	})
}

// The decoder never trusts a checksum alone: here they are always right.
func FuzzDecodePayload(f *testing.F) {
	f.Add(record(entry(3, 9, 10), 3)[1+headerSize:])
	f.Add([]byte{})
	f.Add(make([]byte, minPayload))
	f.Fuzz(func(t *testing.T, p []byte) {
		if checkPayload(p) != "" {
			return
		}
		var e raft.Log
		decodePayload(header{index: 1}, p, &e)
		mustEqual(t, "encoded again", p, appendFrame(nil, &e, 1)[headerSize:])
	})
}

// Whatever the last segment holds, judging it ends, and finds acknowledged records damaged.
func FuzzJudge(f *testing.F) {
	good := append(record(entry(6, 1, 700), 6), record(entry(7, 1, 20), 7)...)
	f.Add(good, 0, false)
	f.Add(append(good[:300:300], make([]byte, 600)...), 3, true)
	f.Add(make([]byte, 5000), 100, false)
	f.Fuzz(func(t *testing.T, b []byte, off int, exact bool) {
		if off < 0 || off >= len(b) {
			return
		}
		if torn, _ := judge(b, off, 6, 6, exact); torn {
			t.Fatal("a record that was flushed was taken for torn")
		}
		judge(b, off, 6, 5, exact)
	})
}

func FuzzParseSlot(f *testing.F) {
	f.Add(state{first: 1, synced: 2, boot: [16]byte{3}}.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, ok := parseSlot(b); ok {
			mustEqual(t, "encoded again", b[:slotSize], s.append(nil))
		}
	})
}
