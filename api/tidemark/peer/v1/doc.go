// Package peerv1 is what the nodes of a cluster say to each other: generated from
// peer.proto. Clients have no use for it.
package peerv1
