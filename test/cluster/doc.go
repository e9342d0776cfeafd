// Package cluster runs the nodes of one cluster as real processes on a network and on disks
// of their own.
//
// It owns starting, stopping, killing, pausing and wiping nodes, finding the leader, and
// waiting until a cluster is well. It knows nothing about what is written.
//
// Invariants:
//   - A node only ends when it was told to or was expected to: any other end fails the test
//     at the next wait.
//   - Nobody sleeps: all waits are for conditions, and they are bounded.
//   - The logs of all nodes, over all their restarts, stay in one directory, which is removed
//     if the test passes.
//
// It may import anything; only suites under test import it.
package cluster
