package stable

import (
	"fmt"
	"hash/fnv"
)

// This file reads a bbolt file without bbolt, which trusts its pages: a damaged one makes it
// panic, in a goroutine of its own at worst, or write over pages in use. Its format:
//
//	page    = id u64 | flags u16 | count u16 | overflow u32 | content
//	meta    = magic u32 | version u32 | page size u32 | flags u32 | root u64 | sequence u64 |
//	          freelist u64 | pages u64 | transaction u64 | FNV-1a of all before u64
//	leaf    = count x (flags u32 | pos u32 | key size u32 | value size u32), keys and values
//	branch  = count x (pos u32 | key size u32 | page u64), keys
//	bucket  = root u64 | sequence u64 | a leaf page, if root is 0   (value of a flagged leaf element)
//	free    = count x page u64; if count is 65535 the first is the count
//
// pos counts from the element's own start.
const (
	pageHeader  = 16
	metaSize    = 64
	metaMagic   = 0xED0CDAED
	metaVersion = 2
	maxPageSize = 1 << 16
	elementSize = 16
	bucketSize  = 16

	flagBranch   = 0x01
	flagLeaf     = 0x02
	flagMeta     = 0x04
	flagFreelist = 0x10

	elementBucket = 1
)

// pages is a bbolt file.
type pages struct {
	b        []byte
	pageSize uint64
	count    uint64            // pages in use or free
	used     map[uint64]string // page, and what uses it
}

// meta is what counts of a meta page.
type meta struct {
	pageSize, root, freelist, count, txid uint64
}

// parseFile checks every page of a file that is in use, and that none is also on the list of
// free ones, and returns the keys and values of the conf bucket.
//
// bbolt begins a file with two meta pages and trusts the one with the higher transaction
// that has a valid checksum. If that is damaged it takes the other, and so goes back by one
// transaction without a word; that could be the vote. A crash does not leave an invalid meta
// page: its 64 bytes are within one sector.
func parseFile(b []byte) (map[string][]byte, error) {
	var newest meta
	at := uint64(0)
	for i := range uint64(2) {
		m, err := parseMeta(b, at, i)
		if err != nil {
			return nil, err
		}
		if i == 0 || m.txid > newest.txid {
			newest = m
		}
		at = m.pageSize
	}
	if newest.count > uint64(len(b))/newest.pageSize {
		return nil, fmt.Errorf("expected %d pages of %d bytes, found a file of %d bytes", newest.count, newest.pageSize, len(b))
	}
	p := &pages{b: b, pageSize: newest.pageSize, count: newest.count, used: map[uint64]string{0: "meta", 1: "meta"}}
	found, err := p.bucket(newest.root, "the root bucket")
	if err != nil {
		return nil, err
	}
	if err := p.freelist(newest.freelist); err != nil {
		return nil, err
	}
	for k, e := range found {
		if !e.bucket {
			return nil, fmt.Errorf("expected a bucket under key %q, found a value", k)
		}
	}
	conf, ok := found[confBucket]
	if !ok {
		return nil, fmt.Errorf("expected a bucket named %s, found none", confBucket)
	}
	out := map[string][]byte{}
	for k, v := range conf.content {
		if v.bucket {
			return nil, fmt.Errorf("expected a value under key %q, found a bucket", k)
		}
		out[k] = v.b
	}
	return out, nil
}

func parseMeta(b []byte, at, id uint64) (meta, error) {
	if uint64(len(b)) < at+pageHeader+metaSize {
		return meta{}, fmt.Errorf("expected two meta pages, found a file of %d bytes", len(b))
	}
	page := b[at:]
	m := page[pageHeader : pageHeader+metaSize]
	sum := fnv.New64a()
	_, _ = sum.Write(m[:metaSize-8]) // a hash returns no error
	if u64(page) != id || u16(page[8:]) != flagMeta || u32(m) != metaMagic || u32(m[4:]) != metaVersion || u64(m[metaSize-8:]) != sum.Sum64() {
		return meta{}, fmt.Errorf("expected a sound meta page at offset %d, found another checksum or kind", at)
	}
	found := meta{pageSize: uint64(u32(m[8:])), root: u64(m[16:]), freelist: u64(m[32:]), count: u64(m[40:]), txid: u64(m[48:])}
	if found.pageSize < pageHeader+metaSize || found.pageSize > maxPageSize {
		return meta{}, fmt.Errorf("expected pages of at most %d bytes, found %d", maxPageSize, found.pageSize)
	}
	return found, nil
}

// element is a value or a bucket.
type element struct {
	bucket  bool
	b       []byte             // of a value
	content map[string]element // of a bucket
}

// page returns a page of one of the wanted kinds, with its overflow, and marks it as used.
func (p *pages) page(id uint64, use string, kinds uint16) ([]byte, error) {
	if id < 2 || id >= p.count {
		return nil, fmt.Errorf("expected a page from 2 to %d for %s, found %d", p.count-1, use, id)
	}
	b := p.b[id*p.pageSize:]
	more := uint64(u32(b[12:]))
	if u64(b) != id || u16(b[8:])&kinds == 0 || u16(b[8:])&^kinds != 0 || more >= p.count-id {
		return nil, fmt.Errorf("expected page %d to be of %s, found another", id, use)
	}
	for i := id; i <= id+more; i++ {
		if other, ok := p.used[i]; ok {
			return nil, fmt.Errorf("expected page %d in one use, found it in %s and in %s", i, other, use)
		}
		p.used[i] = use
	}
	return b[:(1+more)*p.pageSize], nil
}

// bucket reads the pages of a bucket below the given one.
func (p *pages) bucket(root uint64, use string) (map[string]element, error) {
	b, err := p.page(root, use, flagBranch|flagLeaf)
	if err != nil {
		return nil, err
	}
	if u16(b[8:]) == flagLeaf {
		return p.leaf(b, use)
	}
	out := map[string]element{}
	for i := range int(u16(b[10:])) {
		at := pageHeader + i*elementSize
		if at+elementSize > len(b) {
			return nil, fmt.Errorf("expected the elements of %s within their page, found more", use)
		}
		// Each page below is marked as used, so that this ends.
		below, err := p.bucket(u64(b[at+8:]), use)
		if err != nil {
			return nil, err
		}
		for k, v := range below {
			out[k] = v
		}
	}
	return out, nil
}

// leaf reads a leaf page, or one within a value.
func (p *pages) leaf(b []byte, use string) (map[string]element, error) {
	out := map[string]element{}
	before := ""
	for i := range int(u16(b[10:])) {
		at := uint64(pageHeader + i*elementSize)
		if at+elementSize > uint64(len(b)) {
			return nil, fmt.Errorf("expected the elements of %s within their page, found more", use)
		}
		kind, key := u32(b[at:]), at+uint64(u32(b[at+4:]))
		val := key + uint64(u32(b[at+8:]))
		end := val + uint64(u32(b[at+12:]))
		if kind > elementBucket || key < at+elementSize || end > uint64(len(b)) {
			return nil, fmt.Errorf("expected element %d of %s within its page, found another kind or place", i, use)
		}
		name := string(b[key:val])
		if i > 0 && name <= before {
			return nil, fmt.Errorf("expected ascending keys in %s, found %q after %q", use, name, before)
		}
		before = name
		e := element{b: b[val:end]}
		if kind == elementBucket {
			content, err := p.nested(e.b, fmt.Sprintf("bucket %q", name))
			if err != nil {
				return nil, err
			}
			e = element{bucket: true, content: content}
		}
		out[name] = e
	}
	return out, nil
}

// nested reads a bucket that is the value of an element.
func (p *pages) nested(b []byte, use string) (map[string]element, error) {
	if len(b) < bucketSize {
		return nil, fmt.Errorf("expected %s to have %d bytes, found %d", use, bucketSize, len(b))
	}
	if root := u64(b); root != 0 {
		return p.bucket(root, use)
	}
	inline := b[bucketSize:]
	if len(inline) < pageHeader || u16(inline[8:]) != flagLeaf {
		return nil, fmt.Errorf("expected %s to hold a page, found none", use)
	}
	return p.leaf(inline, use)
}

// freelist reads the list of free pages. Together with those in use they are all there are.
func (p *pages) freelist(id uint64) error {
	const use = "the list of free pages"
	b, err := p.page(id, use, flagFreelist)
	if err != nil {
		return err
	}
	n, at := uint64(u16(b[10:])), uint64(pageHeader)
	if n == 0xffff {
		n, at = u64(b[at:]), at+8
	}
	if n > (uint64(len(b))-at)/8 {
		return fmt.Errorf("expected %s within its page, found %d", use, n)
	}
	for i := range n {
		free := u64(b[at+8*i:])
		if other, ok := p.used[free]; ok || free >= p.count {
			return fmt.Errorf("expected free pages from 2 to %d, found %d, which is in %s", p.count-1, free, other)
		}
		p.used[free] = use
	}
	if uint64(len(p.used)) != p.count {
		return fmt.Errorf("expected %d pages in use or free, found %d", p.count, len(p.used))
	}
	return nil
}
