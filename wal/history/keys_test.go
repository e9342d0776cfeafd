package history

import (
	"bytes"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/tidemark-db/tidemark/wal/record"
)

// TestKeyLayout pins every key byte by byte, and where it is cut for bloom filters ('|').
func TestKeyLayout(t *testing.T) {
	k := record.MakeKey("acme", "orders", "4821")
	for _, c := range []struct{ got, want []byte }{
		{
			appendBatchKey(nil, k, 2, 258),
			[]byte("b/acme\x00orders\x004821\x00|\x00\x00\x00\x02\x00\x00\x00\x00\x00\x00\x01\x02"),
		},
		{appendHeadKey(nil, k), []byte("h/acme\x00orders\x004821\x00|")},
		{[]byte(keyApplied), []byte("m/applied|")},
		{appendPositionKey(nil, 1<<40), []byte("p/|\x00\x00\x01\x00\x00\x00\x00\x00")},
		{
			appendRowKey(nil, k, "svc", 1, 1<<40+3),
			[]byte("w/acme\x00orders\x004821\x00svc\x00|\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xfe\xff\xff\xff\xff\xfc"),
		},
		{
			appendRowKey(nil, k, "svc", math.MaxUint64, 1<<63),
			[]byte("w/acme\x00orders\x004821\x00svc\x00|\x00\x00\x00\x00\x00\x00\x00\x00\x7f\xff\xff\xff\xff\xff\xff\xff"),
		},
		{appendWriterPrefix(nil, k, "svc"), []byte("w/acme\x00orders\x004821\x00svc\x00|")},
		{
			[]byte("s/acme\x00orders\x00Placed\x00\x00\x00\x00\x01\x00\x00\x00\x02"),
			[]byte("s/acme\x00orders\x00Placed\x00|\x00\x00\x00\x01\x00\x00\x00\x02"),
		},
		{[]byte("w/cut\x00sho"), []byte("w/cut\x00sho|")},
		{[]byte("x"), []byte("x|")},
		{nil, []byte("|")},
	} {
		cut := prefixLen(c.got)
		equalBytes(t, "key", slices.Concat(c.got[:cut], []byte("|"), c.got[cut:]), c.want)
	}
}

// TestSplitAgreesWithOrder checks what Pebble requires of a Split, for keys, for pieces of
// keys and for noise: prefixes order keys before suffixes do, and a prefix is its own.
func TestSplitAgreesWithOrder(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	var keys [][]byte
	for _, k := range awkwardAggregates()[:20] {
		keys = append(keys, appendHeadKey(nil, k), appendBatchKey(nil, k, 1, 0), appendBatchKey(nil, k, 0, 1<<56))
		for _, client := range awkwardWriters()[:4] {
			keys = append(keys, appendWriterPrefix(nil, k, client), appendRowKey(nil, k, client, 0, 5), appendRowKey(nil, k, client, 1<<63, 0))
		}
	}
	for range 300 {
		k := keys[rng.IntN(len(keys))]
		cut := slices.Clone(k[:rng.IntN(len(k)+1)])
		noise := make([]byte, rng.IntN(12))
		for i := range noise {
			noise[i] = "\x00\x01/bhmpsw\xff"[rng.IntN(10)]
		}
		keys = append(keys, cut, noise, append(cut, noise...), append([]byte("w/"), noise...), append([]byte("p/"), noise...))
	}
	for _, a := range keys {
		pa := a[:prefixLen(a)]
		if prefixLen(pa) != len(pa) {
			t.Fatalf("prefix %q of %q has prefix %q", pa, a, pa[:prefixLen(pa)])
		}
		next := nextPrefix(nil, pa)
		if prefixLen(next) != len(next) || bytes.Compare(pa, next) >= 0 {
			t.Fatalf("behind prefix %q comes %q, which is no prefix above it", pa, next)
		}
		for _, b := range keys {
			pb := b[:prefixLen(b)]
			if c := bytes.Compare(pa, pb); c == 0 && bytes.Compare(b, next) >= 0 || c < 0 && bytes.Compare(next, pb) > 0 {
				t.Fatalf("behind prefix %q comes %q, but there is %q", pa, next, b)
			}
			byPrefix := bytes.Compare(pa, pb)
			if byPrefix == 0 {
				byPrefix = bytes.Compare(a[len(pa):], b[len(pb):])
			}
			if byPrefix != bytes.Compare(a, b) {
				t.Fatalf("%q and %q: bytes say %d, prefix and suffix say %d", a, b, bytes.Compare(a, b), byPrefix)
			}
		}
	}
}

func TestUpperBound(t *testing.T) {
	for in, want := range map[string]string{"a": "b", "a\xff": "b", "a\xff\xff": "b", "w/x\x00": "w/x\x01", "h/": "h0"} {
		if got := upperBound(nil, []byte(in)); string(got) != want {
			t.Errorf("upperBound(%q) = %q, want %q", in, got, want)
		}
	}
}

// TestSortPuts: by key, then by age, for keys that are equal, prefixes of each other, or
// differ anywhere.
func TestSortPuts(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 3))
	for range 300 {
		var buf []byte
		var puts []put
		common := bytes.Repeat([]byte("c"), rng.IntN(20))
		for range rng.IntN(40) {
			at := len(buf)
			buf = append(buf, common...)
			for range rng.IntN(14) {
				buf = append(buf, "\x00a\xff"[rng.IntN(3)])
			}
			puts = append(puts, put{at: uint32(at), keyLen: uint32(len(buf) - at)})
		}
		want := slices.Clone(puts)
		slices.SortStableFunc(want, func(a, b put) int { return bytes.Compare(a.key(buf), b.key(buf)) })
		sortPuts(buf, puts)
		for i := range puts {
			if puts[i].at != want[i].at {
				t.Fatalf("place %d has %q of %d, want %q of %d", i, puts[i].key(buf), puts[i].at, want[i].key(buf), want[i].at)
			}
		}
	}
}

// FuzzKeys: no parser of keys panics, and what one accepts is what its encoder writes.
func FuzzKeys(f *testing.F) {
	for _, k := range awkwardAggregates()[:3] {
		f.Add(appendHeadKey(nil, k))
		f.Add(appendBatchKey(nil, k, 7, 1<<60))
		f.Add(appendRowKey(nil, k, "writer", 1<<63, 9))
	}
	f.Add(appendPositionKey(nil, 77))
	f.Add([]byte(keyApplied))
	f.Add([]byte("w/\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if n := prefixLen(b); n < 0 || n > len(b) || prefixLen(b[:n]) != n {
			t.Fatalf("prefixLen(%q) = %d", b, n)
		}
		accept := func(err error, again func() []byte) {
			if err == nil {
				equalBytes(t, "encoded again", again(), b)
			} else {
				corrupt(t, err)
			}
		}
		k, err := parseHeadKey(b)
		accept(err, func() []byte { return appendHeadKey(nil, k) })
		k, incarnation, version, err := parseBatchKey(b)
		accept(err, func() []byte { return appendBatchKey(nil, k, incarnation, version) })
		first, err := parsePositionKey(b)
		accept(err, func() []byte { return appendPositionKey(nil, first) })
		r, err := parseRowKey(b)
		accept(err, func() []byte { return appendRowKey(nil, r.Key, r.Client, r.ClientSeq, r.Position) })
	})
}
