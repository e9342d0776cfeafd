// Package follow is a client's way along the log: a subscription that goes on where it was when
// its stream ends.
//
// It owns what a client does about the end of a stream: 8006, a lost connection, a node that
// does not lead. It may import api; commands, benchmarks and tests import it.
//
// Invariants:
//   - The handler is given every message once, in order, whatever number of streams it took: a
//     message that repeats a position, or goes back, is an error.
//   - It ends with the caller's context, with the handler's error, with an answer that asking
//     again does not change, or when nothing has come for longer than it may take.
//
// Dependencies: google.golang.org/grpc is the wire.
package follow
