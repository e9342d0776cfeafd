// Package audit recomputes the audit chain of what a history holds, and compares heads and
// writer rows with the batches, while the node works: what ClusterService.Verify answers with.
//
// It may import api, wal/record and wal/history. It shares nothing with internal/inspect, which
// checks the same of a stopped node's files without this code's decoders: the two are each
// other's check.
//
// Invariants:
//   - Nothing is changed, and nothing is held between two steps: each step reads one view, and
//     what it keeps for the next one is the place and the batch before it. So memory is bounded
//     by a batch and the findings of a step.
//   - What one step reads is of one moment. A trim, a delete or a new life between two steps is
//     no finding: the next step goes on from what is there then.
//   - A finding is never about bytes that any sequence of appends, trims and deletes could have
//     left.
package audit
