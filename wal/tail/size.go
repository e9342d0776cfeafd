package tail

import "sort"

// SizeFrom is how many bytes the entries from index on take in the segment files.
func (l *Log) SizeFrom(index uint64) int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	index = max(index, l.first)
	if index > l.last {
		return 0
	}
	var size int64
	for i := len(l.segs) - 1; i >= 0; i-- {
		s := l.segs[i]
		if s.base > index {
			size += s.size
			continue
		}
		if k := int(index - s.base); k < len(s.offsets) {
			size += s.size - int64(s.offsets[k])
		}
		break
	}
	return size
}

// Newest returns the lowest index from which on the entries take at most so many bytes; the
// index behind the last one if not even that fits.
func (l *Log) Newest(bytes int64) uint64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	for i := len(l.segs) - 1; i >= 0; i-- {
		s := l.segs[i]
		if s.size <= bytes && i > 0 {
			bytes -= s.size
			continue
		}
		k := sort.Search(len(s.offsets), func(k int) bool { return s.size-int64(s.offsets[k]) <= bytes })
		return max(l.first, s.base+uint64(k))
	}
	return l.first
}
