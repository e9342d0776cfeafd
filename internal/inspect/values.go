package inspect

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
)

// The kinds of keys in a history (wal/history/DESIGN.md).
const (
	tagBatch    = "b/"
	tagHead     = "h/"
	tagPosition = "p/"
	tagSchema   = "s/"
	tagRow      = "w/"
	keyApplied  = "m/applied"
)

// Head describes an aggregate as of its newest change.
type Head struct {
	Aggregate   Aggregate
	Version     uint64
	Incarnation uint32
	// Floor is the first version that can be read, FirstLive the position of its batch.
	Floor, FirstLive       uint64
	EventCount             uint64
	CreatedAt, CommittedAt int64 // Unix nanoseconds
	Position               uint64
	LastClient             string
	LastMark               uint64
	Deleted                bool
	Recreatable            bool
	Restart                bool
	Chain                  Hash
}

// Row is a writer row: the permanent header of one event.
type Row struct {
	Aggregate   Aggregate
	Client      string
	ClientSeq   uint64
	Position    uint64
	Version     uint64
	Incarnation uint32
	EventIndex  uint32
	EventNumber uint64
	CommittedAt int64 // Unix nanoseconds
	FirstSeq    uint64
	LastSeq     uint64
	EventCount  uint32
	CommitFirst uint64
	CommitCount uint32
	EventID     string
	Content     Hash
	// Repeated: a later event of the same batch has the same client_seq.
	Repeated bool
}

// Change is what one position holds.
type Change struct {
	Position    uint64
	Aggregate   Aggregate
	Incarnation uint32
	Version     uint64
	Kind        ChangeKind
}

// ChangeKind is what a change did.
type ChangeKind uint8

// The kinds of changes.
const (
	ChangeBatch  ChangeKind = 1
	ChangeTrim   ChangeKind = 2
	ChangeDelete ChangeKind = 3
)

// String names the kind.
func (k ChangeKind) String() string {
	switch k {
	case ChangeBatch:
		return "batch"
	case ChangeTrim:
		return "trim"
	case ChangeDelete:
		return "delete"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Applied says which entries a history holds.
type Applied struct {
	Index, Term uint64
	Position    uint64
	CommittedAt int64 // Unix nanoseconds
	Timeline    string
	Digest      Hash
}

func headKey(a Aggregate) []byte { return append([]byte(tagHead), a...) }

func batchKey(a Aggregate, incarnation uint32, version uint64) []byte {
	k := append([]byte(tagBatch), a...)
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint32(k, incarnation), version)
}

func writerPrefix(a Aggregate, client string) []byte {
	return append(append(append([]byte(tagRow), a...), client...), 0)
}

func rowKey(r *Row) []byte {
	k := binary.BigEndian.AppendUint64(writerPrefix(r.Aggregate, r.Client), ^r.ClientSeq)
	return binary.BigEndian.AppendUint64(k, ^r.Position)
}

// cutKey is how the history's comparer cuts a key into what bloom filters hold and the rest:
// behind the strings of the key, or at its end.
func cutKey(key []byte) int {
	if len(key) < 2 || key[1] != '/' {
		return len(key)
	}
	strs := 0
	switch string(key[:2]) {
	case tagBatch, tagHead, tagSchema:
		strs = 3
	case tagRow:
		strs = 4
	case tagPosition:
		return 2
	default:
		return len(key)
	}
	at := 2
	for range strs {
		i := bytes.IndexByte(key[at:], 0)
		if i < 0 {
			return len(key)
		}
		at += i + 1
	}
	return at
}

// nextPrefix appends the smallest prefix above the prefix a. Nothing that goes on from a whole
// one is a prefix, so that its last byte is counted up, which is a zero or a slash.
func nextPrefix(dst, a []byte) []byte {
	from := len(dst)
	dst = append(append(dst, a...), 0)
	if cutKey(dst[from:]) != len(a)+1 {
		dst = dst[:len(dst)-1]
		dst[len(dst)-1]++
	}
	return dst
}

// keyParts takes a key apart: the aggregate, the writer if it has one, and the rest.
func keyParts(key []byte, tag string) (a Aggregate, client string, rest []byte, err error) {
	n := cutKey(key)
	strs := bytes.Split(key[2:n], []byte{0})
	want := 3
	if tag == tagRow {
		want = 4
	}
	if len(strs) != want+1 || len(strs[want]) != 0 {
		return "", "", nil, fmt.Errorf("the key is %w: expected %d strings behind %q", errForm, want, tag)
	}
	for _, s := range strs[:want] {
		if len(s) == 0 {
			return "", "", nil, fmt.Errorf("the key is %w: expected no empty string in it", errForm)
		}
	}
	if want == 4 {
		client = string(strs[3])
	}
	return makeAggregate(string(strs[0]), string(strs[1]), string(strs[2])), client, key[n:], nil
}

func parseBatchKey(key []byte) (a Aggregate, incarnation uint32, version uint64, err error) {
	a, _, rest, err := keyParts(key, tagBatch)
	if err == nil && len(rest) != 12 {
		err = fmt.Errorf("the key is %w: expected 12 bytes behind the aggregate, found %d", errForm, len(rest))
	}
	if err != nil {
		return "", 0, 0, err
	}
	return a, binary.BigEndian.Uint32(rest), binary.BigEndian.Uint64(rest[4:]), nil
}

func parseHead(key, value []byte) (h Head, err error) {
	a, _, rest, err := keyParts(key, tagHead)
	if err == nil && len(rest) != 0 {
		err = fmt.Errorf("the key is %w: expected nothing behind the aggregate, found %d bytes", errForm, len(rest))
	}
	if err != nil {
		return h, err
	}
	c := cursor{b: value}
	c.format(1)
	flags := c.u8()
	if flags > 7 {
		c.fail("expected flags up to 7, found %d", flags)
	}
	h = Head{
		Aggregate: a, Deleted: flags&1 != 0, Recreatable: flags&2 != 0, Restart: flags&4 != 0,
		Version: c.uv(math.MaxUint64), Incarnation: uint32(c.uv(math.MaxUint32)), Floor: c.uv(math.MaxUint64), FirstLive: c.uv(math.MaxUint64),
		EventCount: c.uv(math.MaxUint64), CreatedAt: c.i64(), CommittedAt: c.i64(), Position: c.uv(math.MaxUint64),
		LastClient: string(c.shortBytes()), LastMark: c.uv(math.MaxUint64), Chain: c.hash(),
	}
	return h, c.end("the head")
}

func parseRow(key, value []byte) (r Row, err error) {
	a, client, rest, err := keyParts(key, tagRow)
	if err == nil && len(rest) != 16 {
		err = fmt.Errorf("the key is %w: expected 16 bytes behind the writer, found %d", errForm, len(rest))
	}
	if err != nil {
		return r, err
	}
	c := cursor{b: value}
	c.format(1)
	flags := c.u8()
	if flags > 1 {
		c.fail("expected flags up to 1, found %d", flags)
	}
	r = Row{
		Aggregate: a, Client: client, ClientSeq: ^binary.BigEndian.Uint64(rest), Position: ^binary.BigEndian.Uint64(rest[8:]),
		Repeated: flags&1 != 0, Version: c.uv(math.MaxUint64), Incarnation: uint32(c.uv(math.MaxUint32)), EventIndex: uint32(c.uv(math.MaxUint32)),
		EventNumber: c.uv(math.MaxUint64), CommittedAt: c.i64(), FirstSeq: c.uv(math.MaxUint64), LastSeq: c.uv(math.MaxUint64),
		EventCount: uint32(c.uv(math.MaxUint32)), CommitFirst: c.uv(math.MaxUint64), CommitCount: uint32(c.uv(math.MaxUint32)),
		EventID: string(c.shortBytes()), Content: c.hash(),
	}
	return r, c.end("the writer row")
}

// parseChanges reads the changes of one entry.
func parseChanges(key, value []byte) ([]Change, error) {
	if len(key) != 2+8 {
		return nil, fmt.Errorf("the key is %w: expected a position of 8 bytes behind %q, found %d bytes", errForm, tagPosition, len(key)-2)
	}
	first := binary.BigEndian.Uint64(key[2:])
	c := cursor{b: value}
	c.format(1)
	n := c.uv(math.MaxUint32)
	if n == 0 {
		c.fail("expected changes, found none")
	}
	var out []Change
	for i := range n {
		if c.bad != "" {
			break
		}
		ch := Change{Position: first + i, Aggregate: Aggregate(c.shortBytes()), Incarnation: uint32(c.uv(math.MaxUint32)), Version: c.uv(math.MaxUint64), Kind: ChangeKind(c.u8())}
		if _, _, _, ok := ch.Aggregate.parts(); !ok {
			c.fail("expected an aggregate of three strings, found %q", string(ch.Aggregate))
		}
		if ch.Kind < ChangeBatch || ch.Kind > ChangeDelete {
			c.fail("expected a kind of change from 1 to 3, found %d", ch.Kind)
		}
		out = append(out, ch)
	}
	return out, c.end("the list of changes")
}

func parseApplied(value []byte) (Applied, error) {
	c := cursor{b: value}
	c.format(1)
	a := Applied{Index: c.u64(), Term: c.u64(), Position: c.u64(), CommittedAt: c.i64(), Timeline: string(c.shortBytes()), Digest: c.hash()}
	return a, c.end(keyApplied)
}
