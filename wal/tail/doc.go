// Package tail is the newest part of Tidemark's log: raft's LogStore, in commit order, on
// tidwall/wal. A write is answered only after its record here has been flushed.
package tail
