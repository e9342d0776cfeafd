package tail

import (
	"testing"

	"github.com/hashicorp/raft"
)

// SizeFrom and Newest are each other's inverse, over segments and after deletions at the
// front, and agree with the lengths of the records.
func TestSizesOfTheNewestEntries(t *testing.T) {
	l, err := Open(Options{Dir: t.TempDir(), SegmentSize: 1000})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}()
	if got := l.Newest(1 << 30); got != 1 || l.SizeFrom(0) != 0 {
		t.Fatalf("empty: newest %d, size %d; want 1, 0", got, l.SizeFrom(0))
	}
	const n = 40
	size := func(e *raft.Log) int64 {
		frame := frameLen(e)
		return int64(prefixLen(frame) + frame)
	}
	entry := func(i uint64) *raft.Log { return &raft.Log{Index: i, Term: 1, Data: make([]byte, 37*(i%9))} }
	for i := uint64(1); i <= n; i++ {
		if err := l.StoreLog(entry(i)); err != nil {
			t.Fatal(err)
		}
	}
	for _, first := range []uint64{1, 5, 23, n} {
		if first > 1 {
			if err := l.DeleteRange(1, first-1); err != nil {
				t.Fatal(err)
			}
		}
		var want int64
		for i := uint64(n); i >= first; i-- {
			want += size(entry(i))
			if got := l.SizeFrom(i); got != want {
				t.Fatalf("log from %d: size from %d is %d, want %d", first, i, got, want)
			}
			if got := l.Newest(want); got != i {
				t.Fatalf("log from %d: newest in %d bytes begin at %d, want %d", first, want, got, i)
			}
			if got := l.Newest(want - 1); got != i+1 {
				t.Fatalf("log from %d: newest in %d bytes begin at %d, want %d", first, want-1, got, i+1)
			}
		}
		if got := l.SizeFrom(0); got != want {
			t.Fatalf("log from %d: size of all is %d, want %d", first, got, want)
		}
		if got := l.Newest(1 << 40); got != first {
			t.Fatalf("log from %d: all begin at %d", first, got)
		}
	}
	if got := l.SizeFrom(n + 1); got != 0 {
		t.Fatalf("size behind the end is %d", got)
	}
}
