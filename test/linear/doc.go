// Package linear judges what clients saw of a cluster: whether one order of writes exists,
// per aggregate, that explains every answer.
//
// It owns the history (history.go: what was asked, what was answered, when), the ledger (the
// batches that are there at the end, ledger.go), what each answer claims about the aggregate
// at the moment of the answer (claims.go), and the verdict (check.go, atomic.go). It knows
// neither the network nor the messages of api.
//
// How it decides. The batches read at the end fix the order of the writes of an aggregate: a
// version is one write. So the state at any moment is a version, and everything that an
// answer says (current_version, mark, holder, what a read returned) is true at some versions
// and false at others. A write moves the aggregate from its version - 1 to its version; it
// must pass its own guard and sequence there. Porcupine then looks for moments, one for each
// operation and within its call, at which all of that holds.
//
//   - A write whose outcome its caller does not know, and that is there, took effect at some
//     moment after it was first sent: until the end of time, since a delayed copy may land.
//     One that is not there had no effect and is left out.
//   - An answer that a deposed leader may give (2013, a 2002 with holder, LEADER and ANY reads)
//     may describe an older version, never a newer one.
//   - Requests over several aggregates are judged per aggregate first. Then atomic.go checks
//     that they are there as a whole, at consecutive positions, and that the positions of all
//     aggregates together agree with the order in which calls followed each other.
//
// Invariants:
//   - Only enforced writes are understood: a sequence is recorded at most once.
//   - All times come from one clock of one process, so that "before" means something.
//   - No verdict within the time limit is a failure, and it says so.
//
// The tests hold the checker itself against histories that are known to be wrong.
//
// It may import nothing of this module. Dependency: anishathalye/porcupine, the usual checker
// of linearizability for Go, because a checker that is not ours does not share our mistakes.
package linear
