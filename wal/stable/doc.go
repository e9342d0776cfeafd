// Package stable keeps what a raft node must not forget: its current term and its vote. It
// is raft's StableStore, on raft-boltdb, in one small file, which one process at a time can
// have open.
//
// It owns that file. It may import nothing of this module. wal/DESIGN.md gives the format
// and what is assumed of the disk.
//
// Invariants:
//   - A value is durable when Set returns; every transaction is flushed.
//   - A value is never read that was not written under that key, and none is lost unnoticed:
//     each has a checksum over key and value, a list names the keys that must be there, and
//     every page of the file is checked before bbolt sees it.
//   - A crash between the two writes of a vote leaves no vote that raft would take for one
//     it already gave (hashicorp/raft issue 661).
//   - After an error nothing is retried: the store refuses every call, and its owner, told
//     once, ends the process.
//
// Files: store.go is the store, frame.go the format of a value, create.go makes the file,
// check.go checks it before it is opened, pages.go knows bbolt's format.
//
// raft-boltdb gives the store itself, pinned at v2.3.0 (later ones do not build beside raft
// v1.8.0); of bbolt, which it stands on, options and errors are used. Its logs bucket is not used: the log is in wal/tail.
package stable
