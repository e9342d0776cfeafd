package bench

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBucketsAreContiguousAndNarrow(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		v := rapid.OneOf(rapid.Uint64Range(0, math.MaxInt64), rapid.Uint64Range(0, 1<<20)).Draw(r, "v")
		i := bucketOf(v)
		top := highest(i)
		if top < v || float64(top-v) > float64(v)/subBuckets {
			r.Fatalf("%d is in a bucket that ends with %d; want at most 1/%d above it", v, top, subBuckets)
		}
		if bucketOf(top) != i || bucketOf(top+1) != i+1 {
			r.Fatalf("bucket %d ends with %d, but that and its successor are in %d and %d", i, top, bucketOf(top), bucketOf(top+1))
		}
	})
	var h histogram
	if i := bucketOf(math.MaxInt64); i >= len(h.buckets) {
		t.Errorf("the longest duration is in bucket %d; there are %d", i, len(h.buckets))
	}
}

func TestQuantiles(t *testing.T) {
	var h histogram
	if q := h.quantile(0.5); q != 0 {
		t.Errorf("median of nothing is %s; want 0", q)
	}
	for i := 1; i <= 1000; i++ {
		h.record(time.Duration(i) * time.Millisecond)
	}
	h.record(-time.Second) // a clock that went back
	for q, want := range map[float64]time.Duration{0: 0, 0.5: 500 * time.Millisecond, 0.99: 990 * time.Millisecond, 0.999: 999 * time.Millisecond, 1: time.Second} {
		got := h.quantile(q)
		if got < want || got > want+want/subBuckets {
			t.Errorf("quantile %g is %s; want %s or at most 1/%d more", q, got, want, subBuckets)
		}
	}
}
