// Package history is the second tier of the log: committed batches sorted by aggregate, with
// the heads, writer rows, positions and applied index that belong to them, on Pebble.
//
// It owns the keys, the values and the directory they are in; DESIGN.md shows them byte by
// byte. It may import api and wal/record. It knows nothing of raft, of the checks of the
// contract, or of what may be written: whoever fills a Batch decides that.
//
// Invariants:
//   - What is on disk, after whatever crash, is the state at exactly m/applied: every commit
//     is one Pebble batch that says which index it leads to, and what is flushed is a prefix
//     of what was committed. Pebble's own log is off; the raft log is the log.
//   - The mark of a writer is the first key of its rows; nothing else stores a mark, except
//     the head, which repeats that of its last writer and is written in the same batch.
//   - All reads go through a View: what is read together is of one moment.
//   - A decoder never panics, whatever the bytes; what no encoder here wrote is
//     record.ErrCorrupt.
//
// Pebble (github.com/cockroachdb/pebble/v2) because it is a maintained LSM tree in pure Go
// with prefix bloom filters, snapshots, atomic batches, hard-linked checkpoints and an
// in-memory file system that can lose what was not synced. zap
// (go.uber.org/zap) is the project's logger; Pebble's messages go there.
package history
