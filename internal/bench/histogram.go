package bench

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// subBits sets the precision of a histogram: 128 buckets for each doubling, so that a
// quantile is at most 1/128 too high.
const subBits = 7

const subBuckets = 1 << subBits

// histogram counts durations in buckets of fixed relative width, from a nanosecond to
// centuries. It may be used from several goroutines.
type histogram struct {
	count   atomic.Uint64
	buckets [(64 - subBits) * subBuckets]atomic.Uint64
}

func (h *histogram) record(d time.Duration) {
	h.buckets[bucketOf(uint64(max(d, 0)))].Add(1)
	h.count.Add(1)
}

// bucketOf is the index of the bucket of v: below subBuckets v itself, above it the place of
// v's leading bit and the subBits bits that follow.
func bucketOf(v uint64) int {
	if v < subBuckets {
		return int(v)
	}
	shift := bits.Len64(v) - subBits - 1
	return shift<<subBits + int(v>>shift)
}

// highest is the largest value of bucket i.
func highest(i int) uint64 {
	if i < subBuckets {
		return uint64(i)
	}
	shift := i>>subBits - 1
	return (uint64(i-shift<<subBits)+1)<<shift - 1
}

// quantile is a duration that the share q of what was recorded does not exceed; 0 if
// nothing was.
func (h *histogram) quantile(q float64) time.Duration {
	rank := uint64(q * float64(h.count.Load()))
	var seen uint64
	last := 0
	for i := range h.buckets {
		n := h.buckets[i].Load()
		if n == 0 {
			continue
		}
		last = i
		if seen += n; seen > rank {
			break
		}
	}
	return time.Duration(highest(last))
}
