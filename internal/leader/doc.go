// Package leader is a client's way to the node of a cluster that leads.
//
// It owns which of a cluster's nodes a call goes to: the addresses it was given, tried in
// turn, and what the nodes themselves say of their leader. It may import api; the commands
// and what they are made of import it.
//
// Invariants:
//   - A call is sent to one node, once. Conn never repeats one; what it learns from a failure
//     decides where the next call goes. Do repeats a call only after answers that are definite:
//     2011, 2015, or no node that could be reached. So a write whose outcome is not known is
//     never sent again from here: that is for the caller, who knows its recipe.
//   - Nothing is sent before a connection is ready, so that a node that is not there is told
//     apart from one that may have worked on the call.
//   - Every wait ends: with the caller's context, a bound on each attempt to connect, and a
//     bound on how long Do looks for a leader.
//
// Dependencies: google.golang.org/grpc is the wire.
package leader
