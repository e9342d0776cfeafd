// Package writers puts load on a server and remembers every answer, so that after a crash
// what is stored can be held against what was said.
//
// It owns the load and the check. A Set is a number of writers, each with one write in
// flight, each on aggregates of its own or shared with one other writer. What a writer
// sends is a function of the seed, the writer and the number of the request, so nothing
// but the answers has to be remembered.
//
// What Check holds a server to, after anything that may have happened to it:
//   - Every acknowledged request is there exactly once, with its exact bytes, at the
//     version, position and chain hash of its answer.
//   - A request without an answer is there as a whole or not at all.
//   - A writer's requests are there in order and without a gap, because it had one in flight.
//   - What was definitely refused is not there.
//   - Versions and event numbers are dense, chain hashes are what the content hashes to,
//     and the positions of all aggregates together are dense.
//
// It may import anything; only suites under test import it.
package writers
