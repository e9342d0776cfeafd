package network

import (
	"context"
	"net"
	"os"
	"testing"
)

// Network is where nodes 1 to n live. Its methods are called one at a time, except Dial.
type Network interface {
	// Host is the address that a node listens on. Its ports are those of process.Options.
	Host(node int) string
	// RaftAddress is where the other nodes reach it: its --raft-advertise.
	RaftAddress(node int) string
	// Prefix is a command that runs another one in the node's place.
	Prefix(node int) []string
	// Started tells which process a node is from now on.
	Started(node, pid int)
	// Dial connects from where the clients are; nothing cuts them off.
	Dial(ctx context.Context, address string) (net.Conn, error)

	// Cut stops everything between two nodes, CutOneWay what one sends to the other, and
	// Isolate everything between one node and all others. Cuts add up until Heal ends all.
	Cut(tb testing.TB, a, b int)
	CutOneWay(tb testing.TB, from, to int)
	Isolate(tb testing.TB, node int)
	Heal(tb testing.TB)
}

// networkEnv set to "proxy" asks for the proxy where namespaces could be made. (A node takes
// every variable TIDEMARK_... for a setting.)
const networkEnv = "NETWORK_UNDER_TEST"

// New makes a network of namespaces for some nodes, or one of proxies where that is not
// possible. It is gone after the test.
func New(tb testing.TB, nodes int) Network {
	tb.Helper()
	if os.Getenv(networkEnv) != "proxy" {
		n, err := newNamespaces(tb, nodes)
		if err == nil {
			return n
		}
		tb.Logf("no network namespaces here, so a proxy stands between the nodes: %v", err)
	}
	return newProxies(tb, nodes)
}

// link is one direction between two nodes.
type link struct{ from, to int }

// links is the set of directions that are cut.
type links map[link]bool

func (l links) isolate(node, nodes int) {
	for other := 1; other <= nodes; other++ {
		if other != node {
			l[link{node, other}], l[link{other, node}] = true, true
		}
	}
}
