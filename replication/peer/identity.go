package peer

import (
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	peerv1 "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
)

// Identity is what a node says of itself in every handshake.
type Identity struct {
	ClusterID, Timeline string // "" while the directory belongs to no cluster
	NodeID              string
	Generation          string // made with the data directory; "" in one from before there were any
	RaftAddress         string // advertised, host:port
	ClientAddress       string // advertised, host:port
	Version             string // of the program
}

// ServerID is the node's id in raft: a wiped node has another generation and is another
// server.
func (i Identity) ServerID() raft.ServerID {
	if i.Generation == "" {
		return raft.ServerID(i.NodeID)
	}
	return raft.ServerID(i.NodeID + "#" + i.Generation)
}

// NodeID is the node's id in a server's, without the generation: what users see.
func NodeID(id raft.ServerID) string {
	node, _, _ := strings.Cut(string(id), "#")
	return node
}

// Address is a server's address in raft's configuration, which wants every one to be
// another: the server's id is in it, because a node that was wiped has two servers at one
// address until it has taken its old place.
func Address(id raft.ServerID, address string) raft.ServerAddress {
	return raft.ServerAddress(string(id) + "@" + address)
}

// SplitAddress takes an address out of raft's configuration apart. One that no server's id
// is in, as raft's messages have it, is returned as it is.
func SplitAddress(a raft.ServerAddress) (id raft.ServerID, address string) {
	if id, address, ok := strings.Cut(string(a), "@"); ok {
		return raft.ServerID(id), address
	}
	return "", string(a)
}

func (i Identity) proto() *peerv1.Identity {
	return &peerv1.Identity{
		ClusterId: i.ClusterID, Timeline: i.Timeline, NodeId: i.NodeID, Generation: i.Generation,
		RaftAddress: i.RaftAddress, ClientAddress: i.ClientAddress, Version: i.Version,
	}
}

func identityOf(p *peerv1.Identity) Identity {
	return Identity{
		ClusterID: p.GetClusterId(), Timeline: p.GetTimeline(), NodeID: p.GetNodeId(), Generation: p.GetGeneration(),
		RaftAddress: p.GetRaftAddress(), ClientAddress: p.GetClientAddress(), Version: p.GetVersion(),
	}
}

// maxKnown bounds how many nodes are remembered: more than a cluster has, with those that
// were replaced.
const maxKnown = 64

// acquaintances are the nodes seen in handshakes, by server: another directory under a
// node's name does not speak for the node.
type acquaintances struct {
	mu   sync.Mutex
	seen map[raft.ServerID]acquaintance
}

type acquaintance struct {
	identity Identity
	at       time.Time
}

// met notes a node, and forgets the one not seen for the longest time if there are too many.
func (a *acquaintances) met(i Identity, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if _, ok := a.seen[i.ServerID()]; !ok && len(a.seen) >= maxKnown {
		var oldest raft.ServerID
		for id, s := range a.seen {
			if oldest == "" || s.at.Before(a.seen[oldest].at) {
				oldest = id
			}
		}
		delete(a.seen, oldest)
	}
	a.seen[i.ServerID()] = acquaintance{i, now}
}

func (a *acquaintances) known(id raft.ServerID) (Identity, time.Time, bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	s, ok := a.seen[id]
	return s.identity, s.at, ok
}

func (a *acquaintances) len() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.seen)
}
