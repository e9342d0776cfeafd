// Package inspect reads a node's data directory without the code that the node itself reads it
// with, and checks that everything in it is what was written and fits together.
//
// It owns a second reading of the formats that wal/DESIGN.md, wal/history/DESIGN.md and
// replication/DESIGN.md give, from those documents and not from the code: what the two
// readings agree on is a ground truth that tests, and operators, can hold a node against. It
// may import api, and internal/archive, the format of backups.
//
// Invariants:
//   - Nothing is changed: every file is opened for reading, and Pebble gets a file system that
//     refuses whatever would write. A mount that is read-only serves as well.
//   - A directory that a node has open is refused (ErrInUse), and held against nodes that start
//     meanwhile.
//   - Whatever the bytes, nothing panics and nothing is silently left out: what cannot be read
//     is an error or a finding that names the file, and the key or the offset.
//   - Memory is bounded: a segment of the tail, a batch, a block at a time; of the entries that
//     are decided over, what they are about.
//
// Files: directory.go finds what is in a directory; tail.go, judge.go read the tail; stable.go
// the stable store; record.go and entry.go batches and entries; values.go and store.go the
// history; replay*.go decide over entries; verify.go and check*.go verify, and backup.go a backup.
//
// Pebble (github.com/cockroachdb/pebble/v2) is what the history's tables, blob files and
// MANIFEST can be read with; the checksums of their blocks are computed here. bbolt is not used: it
// panics on damaged pages, in a goroutine of its own where it checks them. hashicorp/raft decodes
// configurations; lukechampine.com/blake3 is the hash of the formats.
package inspect
