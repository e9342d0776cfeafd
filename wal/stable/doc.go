// Package stable keeps raft's current term and vote: a raft.StableStore on raft-boltdb.
package stable
