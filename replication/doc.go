// Package replication decides over writes and replicates them: a Shard is one raft group
// with its log, its history and its marks.
//
// It owns admission (admission.go), what is in flight (overlay.go, tenure.go), the checks
// (decide.go), Apply (processor.go, applyappend.go, rows.go, publish.go), trims and deletes
// (change.go, trim.go, delete.go), reclaiming their space on demand (reclaim.go), the raft node (group.go, leadership.go,
// lifecycle.go), its log and its snapshots (logstore.go, compact.go, snapshot.go, sink.go,
// transfer.go, restore.go), backups and what is made from them (backup.go, readindex.go,
// frombackup.go; see DESIGN.md), how a node comes into a
// cluster (identity.go, form.go) and what it does there (members.go, tend.go, rounds.go,
// compare.go), and what it tells /metrics (stats.go, meter.go, seen.go). The port between nodes is package peer's. It may import wal, mark, config,
// api, internal/metric and internal/schema.
//
// A request goes one way and has a type of its own at each step: *pb.AppendRequest, pending
// (encoded, then admitted), proposal (an entry's worth), record.Request (as Apply reads
// it), outcome, *pb.AppendResponse.
//
// Invariants:
//   - The decision that counts is made by the processor, from the entry and the history
//     alone. Admission answers early and keeps doomed writes out of the log.
//   - Everything an answer says is as of one applied position: admission judges under
//     Shard.mu against the overlay and one published view, and looks details up in that view.
//   - publish makes a step's view, heads and marks visible and takes its requests out of the
//     overlay at one moment, and only then are callers answered.
//   - Trims and deletes are judged by the processor alone. A write to an aggregate with a delete
//     in flight is not judged before that is over.
//   - What is in flight belongs to a tenure and dies with its term. Entries carry the term
//     they were admitted in, and Apply refuses them in any other.
//   - An empty directory never votes. A directory has a generation, which is part of its
//     node's name in raft, so that what is meant for a lost one never reaches its successor.
//   - What a client acts on is said only after a majority of voters, asked after the call
//     arrived, has confirmed the term that the call was judged in.
//   - Only an answer by which raft promises that an entry is in no log is a definite no.
//
// Dependencies: hashicorp/raft is the most deployed raft library for Go and lets us bring
// log, state and transport; go-hclog only because raft logs through it;
// prometheus/client_golang's histograms cost tens of nanoseconds and allocate nothing.
package replication
