// Package peer is a node's one port for other nodes: raft's streams and the calls of
// tidemark.peer.v1.PeerService, behind a handshake that says who is on either end.
//
// It may import api only; package replication builds on it.
package peer
