// Package disk gives a node a disk of its own, which can fill up and stop answering.
//
// It owns a file system (ext4) in a file, mounted through a loop device. It needs root, loop
// devices, and mkfs.ext4, mount and fsfreeze on the PATH, and says so.
//
// Invariant: nothing outlives the test. A frozen file system is thawed by a process that
// holds a pipe to the test and acts when that closes, so it is thawed even if the test is
// killed: whoever waits for a frozen one cannot be killed, and sync(2) of the whole machine
// waits for it.
//
// It may import anything; only suites under test import it.
package disk
