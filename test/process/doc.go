// Package process runs the real tidemark binary for the suites that kill, starve and
// restart it.
//
// It owns building the binary, starting a node on a data directory, finding its ports,
// ending it, and saying how it ended. It knows nothing about what is written.
//
// Every node dies with the test that started it: it is killed in the test's cleanup, and
// by the kernel if the test binary itself dies first. Processes are ended by their own id.
package process
