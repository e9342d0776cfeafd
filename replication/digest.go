package replication

import "github.com/tidemark-db/tidemark/wal/record"

// digestRingSize is how many of the latest indexes keep their digest, for nodes to compare.
const digestRingSize = 4096

// digestRing remembers the digest after each of the latest entries.
type digestRing struct {
	indexes [digestRingSize]uint64
	digests [digestRingSize]record.Hash
}

func (r *digestRing) add(index uint64, d record.Hash) {
	r.indexes[index%digestRingSize] = index
	r.digests[index%digestRingSize] = d
}

// at returns the digest after the entry at index, if it is remembered.
func (r *digestRing) at(index uint64) (record.Hash, bool) {
	i := index % digestRingSize
	return r.digests[i], r.indexes[i] == index && index > 0
}
