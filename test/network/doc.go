// Package network puts nodes where they can be cut from each other, one way or both, while
// clients still reach all of them.
//
// It owns the Network interface and its two implementations: namespaces (namespaces.go), a
// network namespace for each node behind a bridge, cut by nftables, as close to real hosts
// as one machine gets; and, where namespaces cannot be made, a TCP proxy in front of each
// node's port for other nodes (proxy.go), which loses no packets but stops passing bytes on.
// It needs root, ip and nft on the PATH for the first, nothing for the second.
//
// Invariant: nothing outlives the test; namespaces that a killed test has left behind are
// removed by the next one.
//
// It may import anything; only suites under test import it. Dependency: golang.org/x/sys,
// because setns is not in package syscall.
package network
