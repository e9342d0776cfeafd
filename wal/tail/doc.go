// Package tail is the newest part of Tidemark's log: raft's LogStore, in commit order, on
// tidwall/wal. It is the only thing that is flushed before a write is answered.
//
// It owns the files below Options.Dir and nothing else. It knows raft's entries and not what
// is in them; of this module it imports nothing. wal/DESIGN.md gives the formats byte by
// byte, the steps of recovery, and what is assumed of the disk.
//
// Invariants:
//   - StoreLogs returns after its records are durable, and only then does a reader see them.
//   - A batch is flushed before the next one is written; a segment before the next begins.
//   - Every record is checked each time it is read, and all of them at Open.
//   - Nothing acknowledged is ever cut off. Damage is reported with file and offset and
//     left as it is.
//   - After a write, a flush, a truncation or a checked read failed, nothing is retried:
//     the log refuses every call, and its owner, told once, ends the process.
//   - The log is without gaps. It is begun anew, all or nothing, where raft needs one.
//
// Files: log.go opens and closes, store.go appends, read.go and handles.go read, delete.go
// deletes, files.go names and creates, state.go keeps what was flushed, recover.go checks and
// repairs at Open, judge.go tells a torn append from damage, frame.go is the record.
//
// tidwall/wal appends, and divides the log into segments. Everything else it offers has a
// hazard (DESIGN.md lists them) and is done here: reading, flushing, truncating, repairing.
// raft defines the interface; zap is the project's logger.
package tail
