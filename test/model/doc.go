// Package model is the contract in memory, and the random tests that hold a real server
// against it.
//
// It owns a second reading of docs/contract.md: model.go judges and commits appends
// (sections 2.1 to 2.5), reads.go answers reads (section 5), chain.go encodes and hashes
// (section 7). They were written from the contract's text, not from the implementation,
// and share no code with it: only the messages of api are common to both, or an error
// could hide on both sides.
//
// The tests:
//   - testdata/scripts are answers written down from the contract, every row of truth table
//     2.3 among them; the model and a server both run them (op_test.go has the syntax).
//   - TestRandomOps draws scripts and compares a server with the model answer by answer, at
//     rest and with writes held in flight, over restarts, crashes and lost proposals. What
//     fails is cut down to a few lines that can be put under testdata/scripts as they are.
//   - TestRaces and TestSixteen... let go of concurrent clients and judge the history.
//
// More of it: go test ./test/model -rapid.checks=5000 (-rapid.steps=100 for longer scripts).
//
// Invariants:
//   - The model is plain and slow on purpose: it scans everything it ever recorded, so that
//     each rule can be read next to the sentence that it comes from.
//   - A difference between model and server is a bug in one of the two, never noise: what
//     the contract leaves to the server (committed_at) is told to the model by the answer
//     that first shows it, and is predicted from then on.
//
// It may import anything, being a test. pgregory.net/rapid draws the operations and
// shrinks what fails to a short script; blake3 recomputes the chain.
package model
