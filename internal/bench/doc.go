// Package bench measures a server from outside: appends against a store, the same calls
// against a gRPC server that does nothing (the echo), and what a flush of the disk costs.
//
// It owns the load generator, the histogram and the echo server. It may import api.
//
// The generator shares the machine with what it measures, so its own work is kept small:
// one goroutine for each outstanding call, started once; each is a writer of its own, with
// one request message that it changes in place, and answers are read without being decoded
// into messages. On append streams, it is two goroutines and one writer for each connection
// (stream.go). Appends and echo are driven by the same code, so that their rates compare.
//
// A writer whose append was answered with an error that leaves open whether it landed, or
// that says that its aggregate is not as it thinks, does not guess: it goes on with a new
// aggregate. A definite "not now" is sent again, after a pause.
package bench
