// Package peer is a node's one port for other nodes: raft's streams and the calls of
// tidemark.peer.v1.PeerService, behind a handshake that says who is on either end.
//
// It owns the port (network.go), the handshake and what it refuses (handshake.go), the
// connections after it (conn.go), raft's transport (transport.go, layer.go), and the
// clients of PeerService (client.go). It knows nothing of writes, terms or histories and
// may import api only; package replication implements the service and runs raft.
//
// # Connections
//
// A connection is of one of three kinds, said in its header (api/tidemark/peer/v1,
// handshake.proto, which also has the frame):
//
//	raft      raft's calls, pooled by raft's transport, one call at a time
//	snapshot  one InstallSnapshot and its answer
//	peer      gRPC
//
// The node that dials sends who it is and which server it means; the node that is dialed
// answers who it is, or why it refuses, and both log a refusal, with the same text. The
// messages are protobuf, so that they can grow, in a frame of fixed size that says their
// version and length, so that an unknown version can be refused in words and nothing long
// is ever read from a stranger. Bytes that are no frame are not answered.
//
// Invariants:
//   - Raft streams and snapshots connect two nodes of one cluster and one timeline, and end
//     at the very server they were meant for: a wiped node has another generation, hence
//     another server id, and is never taken for what it was. Addresses prove nothing.
//   - Calls may also come from, or go to, a node that belongs to no cluster yet, because
//     that is how it comes into one. Each call is judged again by what this node is then.
//   - At most one Transport, the newest, gets raft's streams. All its streams end with it.
//   - Everything that is open or remembered has a bound (Stats), everything that waits for
//     another node has a deadline, and Close returns after the last goroutine has ended.
//
// # Raft's transport
//
// raft.NetworkTransport passes an address, not the server id, to the layer below. Its
// ServerAddressProvider could put the id in, but is asked for the id alone, and would also
// answer for EncodePeer, whose result travels to other nodes. So Transport makes a route of
// kind, id and address for each call, which is also the key of raft's connection pool.
// Addresses in raft's configuration have the id in them for another reason (Address).
//
// Hazards of raft v1.8.0, and where each is met:
//   - Issue 695, the heartbeat fast path can change the term during a log write:
//     Transport.SetHeartbeatHandler.
//   - Issue 612, pipelined AppendEntries can wedge a follower: MaxRPCsInFlight 1, with
//     which there is no pipeline.
//   - A snapshot's deadline is timeout * size / TimeoutScale for everything, from the first
//     byte to the end of the restore, and hours for large ones at raft's default. Here a
//     stream must move, and its answer has a deadline of its own: conn.Read, conn.Write.
//   - The receiver of a snapshot has no deadline at all, and reads it in the main loop: with
//     a sender that hangs it could not vote. conn.Read again, and keepAlive.
//   - While it receives one it answers no heartbeat, and each that is given up leaves a
//     goroutine there until the end: Transport.AppendEntries holds them back.
//   - Pooled connections are not watched: after the other node restarted they fail one by
//     one, each costing an election its vote. Transport.retry.
//   - Closing the transport leaves pooled connections, and goroutines that read from
//     accepted ones, behind: layer.cut closes them.
//   - Shutdown's future waits for running calls before it closes the transport: see
//     Network.Transport for the order.
//
// Dependencies: hashicorp/raft, whose transport this is, and go-hclog because raft logs
// through it; grpc for calls, as for clients.
package peer
