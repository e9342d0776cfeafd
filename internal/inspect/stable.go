package inspect

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
)

// Stable is raft's stable store.
type Stable struct {
	// Values by key, without their frames. Nothing is in it that has not its checksum.
	Values map[string][]byte
	// Transaction is the number of the newest one.
	Transaction uint64
}

// Number returns a value that is a number; 0 if it is not there.
func (s *Stable) Number(key string) uint64 {
	if v := s.Values[key]; len(v) == 8 {
		return binary.BigEndian.Uint64(v)
	}
	return 0
}

const (
	stableBucket = "conf"
	stableKeys   = "tidemark.keys"
	// stableMost bounds what is read; the file holds a handful of small values.
	stableMost = 64 << 20
)

// stableProblem is one thing wrong with the stable store.
type stableProblem struct {
	key    string
	offset int64 // -1 = not known
	text   string
}

// readStable reads a stable store; nil if there is none. What is wrong with it is no error.
func readStable(path string) (*Stable, []stableProblem, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	b, err := io.ReadAll(io.LimitReader(f, stableMost+1))
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, nil, err
	}
	s := &Stable{Values: map[string][]byte{}}
	p := &boltFile{b: b, used: map[uint64]string{}}
	values, transaction := p.read()
	s.Transaction = transaction
	if p.problem != nil {
		return s, []stableProblem{*p.problem}, nil
	}
	return s, s.unframe(values), nil
}

// unframe checks the values' checksums, and that no key is missing.
func (s *Stable) unframe(values map[string]boltValue) (problems []stableProblem) {
	for _, key := range slices.Sorted(maps.Keys(values)) {
		v := values[key]
		framed := binary.BigEndian.AppendUint32(nil, uint32(len(key)))
		framed = append(framed, key...)
		if len(v.b) >= 4 {
			framed = append(framed, v.b[4:]...)
		}
		if len(v.b) < 4 || binary.BigEndian.Uint32(v.b) != crc(framed) {
			problems = append(problems, stableProblem{key, v.offset, fmt.Sprintf("expected a value that its checksum fits, found %d bytes that it does not", len(v.b))})
			continue
		}
		s.Values[key] = v.b[4:]
	}
	c := cursor{b: s.Values[stableKeys]}
	for c.left() > 0 && c.bad == "" {
		if key := c.str(); c.bad == "" {
			if _, ok := values[key]; !ok {
				problems = append(problems, stableProblem{key, -1, "expected a value, found none"})
			}
		}
	}
	if _, ok := values[stableKeys]; !ok {
		problems = append(problems, stableProblem{stableKeys, -1, "expected the list of all keys, found none"})
	} else if c.bad != "" {
		problems = append(problems, stableProblem{stableKeys, values[stableKeys].offset, "expected a list of keys, found one that is cut short"})
	}
	return problems
}

// boltFile is a bbolt file (https://github.com/etcd-io/bbolt, version 2), read without bbolt:
//
//	page    = id u64 | flags u16 | count u16 | overflow u32 | content
//	meta    = magic u32 | version u32 | page size u32 | flags u32 | root u64 | sequence u64 |
//	          freelist u64 | pages u64 | transaction u64 | FNV-1a of all before u64
//	leaf    = count x (flags u32 | pos u32 | key size u32 | value size u32), keys and values
//	branch  = count x (pos u32 | key size u32 | page u64), keys
//	bucket  = root u64 | sequence u64 | a leaf page, if root is 0 (a value of a flagged element)
//
// pos counts from the element's own start. After the first problem everything returns nothing.
type boltFile struct {
	b           []byte
	size, pages uint64
	used        map[uint64]string
	problem     *stableProblem
}

type boltValue struct {
	b      []byte
	offset int64
	bucket bool
}

const (
	boltHeader  = 16
	boltMeta    = 64
	boltElement = 16

	boltBranch, boltLeaf, boltMetaPage, boltFree = 1, 2, 4, 16
)

var native = binary.NativeEndian

func (p *boltFile) fail(offset int64, format string, args ...any) {
	if p.problem == nil {
		p.problem = &stableProblem{offset: offset, text: fmt.Sprintf(format, args...)}
	}
}

// read returns the values of the bucket that counts. Both meta pages must be sound: bbolt would
// take the older one for a damaged newer one, and so go back by a transaction, which may be the
// vote.
func (p *boltFile) read() (values map[string]boltValue, transaction uint64) {
	var root, free uint64
	at := uint64(0)
	for i := range uint64(2) {
		if uint64(len(p.b)) < at+boltHeader+boltMeta {
			p.fail(int64(at), "expected two meta pages, found a file of %d bytes", len(p.b))
			return nil, 0
		}
		page := p.b[at:]
		m := page[boltHeader : boltHeader+boltMeta]
		sum := fnv.New64a()
		_, _ = sum.Write(m[:boltMeta-8])
		if native.Uint64(page) != i || native.Uint16(page[8:]) != boltMetaPage || native.Uint32(m) != 0xED0CDAED || native.Uint32(m[4:]) != 2 ||
			native.Uint64(m[boltMeta-8:]) != sum.Sum64() {
			p.fail(int64(at), "expected a meta page with its checksum, found another")
			return nil, 0
		}
		p.size = uint64(native.Uint32(m[8:]))
		if p.size < boltHeader+boltMeta || p.size > 1<<16 {
			p.fail(int64(at), "expected pages of at most %d bytes, found %d", 1<<16, p.size)
			return nil, 0
		}
		if t := native.Uint64(m[48:]); i == 0 || t > transaction {
			transaction, root, free, p.pages = t, native.Uint64(m[16:]), native.Uint64(m[32:]), native.Uint64(m[40:])
		}
		at = p.size
	}
	if p.pages > uint64(len(p.b))/p.size {
		p.fail(int64(len(p.b)), "expected %d pages of %d bytes, found a file of %d bytes", p.pages, p.size, len(p.b))
		return nil, transaction
	}
	p.used[0], p.used[1] = "meta", "meta"
	buckets := map[string]boltValue{}
	p.tree(root, "the root", buckets)
	values = map[string]boltValue{}
	if _, ok := buckets[stableBucket]; !ok {
		p.fail(int64(root*p.size), "expected a bucket named %s, found none", stableBucket)
	}
	for _, name := range slices.Sorted(maps.Keys(buckets)) {
		if !buckets[name].bucket {
			p.fail(buckets[name].offset, "expected a bucket under key %q, found a value", name)
		}
		// The other one is raft-boltdb's for logs, which stays empty.
		into := map[string]boltValue{}
		if name == stableBucket {
			into = values
		}
		p.bucket(buckets[name], into)
	}
	p.free(free)
	return values, transaction
}

func (p *boltFile) bucket(v boltValue, out map[string]boltValue) {
	if p.problem != nil {
		return
	}
	if len(v.b) < boltHeader {
		p.fail(v.offset, "expected a bucket, found %d bytes", len(v.b))
		return
	}
	if root := native.Uint64(v.b); root != 0 {
		p.tree(root, stableBucket, out)
		return
	}
	page := v.b[boltHeader:]
	if len(page) < boltHeader || native.Uint16(page[8:]) != boltLeaf {
		p.fail(v.offset, "expected a bucket that holds a page, found none")
		return
	}
	p.leaf(page, v.offset+boltHeader, stableBucket, out)
}

// page returns a page of one of the given kinds and where it begins, and notes its use.
func (p *boltFile) page(id uint64, use string, kinds uint16) ([]byte, int64) {
	if p.problem != nil {
		return nil, 0
	}
	if id < 2 || id >= p.pages {
		p.fail(0, "expected a page from 2 to %d for %s, found %d", p.pages-1, use, id)
		return nil, 0
	}
	at := id * p.size
	b := p.b[at:]
	kind, more := native.Uint16(b[8:]), uint64(native.Uint32(b[12:]))
	if native.Uint64(b) != id || kind&kinds == 0 || kind&^kinds != 0 || more >= p.pages-id {
		p.fail(int64(at), "expected page %d to be of %s, found another", id, use)
		return nil, 0
	}
	for i := id; i <= id+more; i++ {
		if other, ok := p.used[i]; ok {
			p.fail(int64(i*p.size), "expected page %d in one use, found it in %s and in %s", i, other, use)
			return nil, 0
		}
		p.used[i] = use
	}
	return b[:(1+more)*p.size], int64(at)
}

func (p *boltFile) tree(root uint64, use string, out map[string]boltValue) {
	b, at := p.page(root, use, boltBranch|boltLeaf)
	if b == nil {
		return
	}
	if native.Uint16(b[8:]) == boltLeaf {
		p.leaf(b, at, use, out)
		return
	}
	for i := range int(native.Uint16(b[10:])) {
		e := boltHeader + i*boltElement
		if e+boltElement > len(b) {
			p.fail(at, "expected the elements of %s within their page, found more", use)
			return
		}
		// Each page below is noted as used, so that this ends.
		p.tree(native.Uint64(b[e+8:]), use, out)
	}
}

func (p *boltFile) leaf(b []byte, at int64, use string, out map[string]boltValue) {
	before := ""
	for i := range int(native.Uint16(b[10:])) {
		e := uint64(boltHeader + i*boltElement)
		if e+boltElement > uint64(len(b)) {
			p.fail(at, "expected the elements of %s within their page, found more", use)
			return
		}
		kind, key := native.Uint32(b[e:]), e+uint64(native.Uint32(b[e+4:]))
		val := key + uint64(native.Uint32(b[e+8:]))
		end := val + uint64(native.Uint32(b[e+12:]))
		if kind > 1 || key < e+boltElement || end > uint64(len(b)) {
			p.fail(at+int64(e), "expected element %d of %s within its page, found another kind or place", i, use)
			return
		}
		name := string(b[key:val])
		if i > 0 && name <= before {
			p.fail(at+int64(e), "expected ascending keys in %s, found %q after %q", use, name, before)
			return
		}
		before = name
		out[name] = boltValue{b: b[val:end], offset: at + int64(val), bucket: kind == 1}
	}
}

// free checks that the free pages are those that are not in use.
func (p *boltFile) free(id uint64) {
	const use = "the list of free pages"
	b, at := p.page(id, use, boltFree)
	if b == nil {
		return
	}
	n, from := uint64(native.Uint16(b[10:])), uint64(boltHeader)
	if n == 0xffff {
		n, from = native.Uint64(b[from:]), from+8
	}
	if n > (uint64(len(b))-from)/8 {
		p.fail(at, "expected %s within its page, found %d pages", use, n)
		return
	}
	for i := range n {
		page := native.Uint64(b[from+8*i:])
		if other, ok := p.used[page]; ok || page >= p.pages {
			p.fail(at, "expected free pages from 2 to %d, found %d, which is in %q", p.pages-1, page, other)
			return
		}
		p.used[page] = use
	}
	if uint64(len(p.used)) != p.pages {
		p.fail(at, "expected %d pages in use or free, found %d", p.pages, len(p.used))
	}
}
