// Package offline holds what is read from a data directory whose node does not run against the
// node, and breaks directories in every way to see that it is found.
//
// content.go compares what internal/inspect, which reads without the server's code, finds in a
// directory with what a node answers once it has started on it: suites that kill nodes use it.
// The tests flip bytes of every kind of file that a data directory has, and see that
// inspect.Verify names each, that it finds nothing in sound directories, whatever they went
// through, and that it changes nothing.
//
// It may import anything; of it, only content.go is imported, by test/kill and test/chaos.
package offline
