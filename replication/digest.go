package replication

import (
	"sync"

	"github.com/tidemark-db/tidemark/wal/record"
)

const (
	// digestsKept is how many of the newest entries' digests a node keeps for comparison.
	digestsKept = 4096
	// maxDigestsAsked bounds one question for digests.
	maxDigestsAsked = 64
)

// digestRing keeps the digest as of each of the newest entries.
type digestRing struct {
	mu   sync.Mutex
	ring [digestsKept]digestAt
	next int // where the next one goes
}

// digestAt is the digest once the entry at index is applied; index 0 = none.
type digestAt struct {
	index  uint64
	digest record.Hash
}

// addAll notes the digests of the next entries; indexes grow. An entry that was applied
// before has none.
func (r *digestRing) addAll(results []entryResult) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range results {
		if e := &results[i]; e.digest != (record.Hash{}) {
			r.ring[r.next] = digestAt{e.index, e.digest}
			r.next = (r.next + 1) % digestsKept
		}
	}
}

// at returns the digest as of an index, if an entry is there and it is kept.
func (r *digestRing) at(index uint64) (record.Hash, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	// The entries are in order from next on, those that are not there yet (index 0) first.
	lo, hi := 0, digestsKept
	for lo < hi {
		mid := (lo + hi) / 2
		if r.ring[(r.next+mid)%digestsKept].index < index {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	if lo == digestsKept || index == 0 {
		return record.Hash{}, false
	}
	d := r.ring[(r.next+lo)%digestsKept]
	return d.digest, d.index == index
}

// bounds returns the oldest and the newest index kept; 0, 0 = none.
func (r *digestRing) bounds() (first, last uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range digestsKept {
		if d := r.ring[(r.next+i)%digestsKept]; d.index > 0 {
			first = d.index
			break
		}
	}
	return first, r.ring[(r.next+digestsKept-1)%digestsKept].index
}

// reset forgets everything: the history was replaced.
func (r *digestRing) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ring = [digestsKept]digestAt{}
}
