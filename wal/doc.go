// Package wal holds no code: it is the place of Tidemark's write-ahead log, which is one log
// in two tiers. DESIGN.md beside this file gives the formats byte by byte, the steps of
// recovery, and what is assumed of the disk.
//
//   - wal/record defines the bytes: aggregate keys, canonical events, batches, log entries.
//   - wal/tail is the newest part, in commit order: raft's log, flushed before a write is
//     answered.
//   - wal/stable is raft's term and vote.
//   - wal/history is every committed batch, sorted by aggregate, written without a flush of
//     its own and rebuilt from the tail after a crash.
//   - wal/audit recomputes the chains of what the history holds.
//
// The packages below may import api and each other's formats (record), never mark,
// replication or server. Nothing outside wal touches their files.
package wal
