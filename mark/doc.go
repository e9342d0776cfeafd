// Package mark caches what the checks need to know: the head of an aggregate, and the mark
// of a writer on an aggregate.
//
// It owns no truth. Every value is derived from the writer rows and heads in wal/history
// and can be dropped at any time; a miss is one or two bounded seeks. It may import wal.
//
// Invariants:
//   - A Cache never answers with anything but the newest published value. A value written
//     through by Apply always wins; a value filled in by a reader carries the raft index it
//     was read at and is dropped if anything newer may have been seen, evicted values
//     included (evicting a value raises the index below which fills are refused).
//   - The head carries the mark of the last writer, so a separate mark is kept only for the
//     others, and is only meaningful while head.LastClient is somebody else.
//   - Memory is bounded in bytes; 0 bytes keeps nothing.
//
// A Cache is not safe for concurrent use but for its Stats: the owner's lock guards it. The list and map are
// our own because the limit is in bytes, the index rule sits inside eviction, and look-ups
// by a byte slice must not allocate; no library offers the three.
package mark
