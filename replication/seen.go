package replication

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	peerpb "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
	"github.com/tidemark-db/tidemark/wal/history"
)

// seen is what /metrics shows and what nobody should wait for who asks: it is looked at in the
// background, and kept.
type seen struct {
	history   atomic.Pointer[history.Stats]
	snapshots atomic.Pointer[seenSnapshots]

	mu    sync.Mutex
	peers map[raft.ServerID]PeerStats // members as of the last look
}

// seenSnapshots is what stands under the lock of the snapshots, which is held over an fsync.
type seenSnapshots struct {
	newest *snapshotMeta // nil = there is none
	at     time.Time
	lent   int
	// behind is how many bytes of log stand behind the newest.
	behind int64
}

// PeerStats is another member of the cluster, as this node sees it.
type PeerStats struct {
	NodeID    string
	Voter, Up bool
	// As of its last answer, at Answered; zero = it has not answered yet.
	AppliedIndex, CommitIndex uint64
	// Lag is how many entries that this node knew to be committed before it asked the other
	// had not applied when it answered.
	Lag      uint64
	Answered time.Time
}

// watchEvery is how often that is looked at.
const watchEvery = time.Second

// watchHistory runs from Open until the shard stops. Pebble's figures are under locks that may
// be held over an fsync; after a fatal error nobody asks Pebble any more.
func (s *Shard) watchHistory() {
	defer s.wg.Done()
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		s.lookAtHistory()
		s.lookAtSnapshots()
		_ = s.Status() // finds out which entries are raft's own; see appliedThrough
		select {
		case <-s.stopped:
			return
		case <-ticker.C:
		}
	}
}

func (s *Shard) lookAtHistory() {
	s.mu.Lock()
	store, view := s.store, s.acquireView()
	s.mu.Unlock()
	if view == nil {
		return
	}
	// The store is not closed while a view of it is held.
	defer view.Release()
	if s.failed() {
		s.seen.history.Store(nil)
		return
	}
	s.seen.history.Store(store.Stats())
}

func (s *Shard) lookAtSnapshots() {
	now := &seenSnapshots{lent: s.snaps.lentCount(), behind: s.logs.sinceSnapshot()}
	now.newest, now.at = s.snaps.age()
	s.seen.snapshots.Store(now)
}

// watchPeers runs on every member that has a port for others, until the shard stops. It asks
// all other members how far they are.
func (s *Shard) watchPeers() {
	defer s.wg.Done()
	ctx, cancel := s.untilStopped()
	defer cancel()
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		s.lookAtPeers(ctx, s.raftGroup())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// lookAtPeers asks every other member at once, and forgets who is none any more.
func (s *Shard) lookAtPeers(ctx context.Context, g *raftGroup) {
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	members := s.clusterPeers(g)
	committed := g.raft.CommitIndex()
	found := make([]PeerStats, len(members))
	var wg sync.WaitGroup
	for i, m := range members {
		wg.Go(func() { // ends with the call, which ends with ctx
			found[i] = s.seen.peer(m.ID)
			p := &found[i]
			p.NodeID, p.Voter, p.Up = m.nodeID, m.Suffrage == raft.Voter, false
			if st, err := s.clientOf(m.Server).GetNodeStatus(ctx, &peerpb.GetNodeStatusRequest{}); err == nil {
				p.Up, p.Answered = true, time.Now()
				p.AppliedIndex, p.CommitIndex = st.GetAppliedIndex(), st.GetCommitIndex()
				p.Lag = committed - min(committed, p.AppliedIndex)
			}
		})
	}
	wg.Wait()
	peers := make(map[raft.ServerID]PeerStats, len(members))
	for i, m := range members {
		peers[m.ID] = found[i]
	}
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	s.seen.peers = peers
}

func (n *seen) peer(id raft.ServerID) PeerStats {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.peers[id]
}

// list returns the peers that are members still, one for each node: of two servers of one node,
// while a lost directory is replaced, the one that answers.
func (n *seen) list(members []server) []PeerStats {
	n.mu.Lock()
	defer n.mu.Unlock()
	var out []PeerStats
	at := make(map[string]int)
	for _, m := range members {
		p, ok := n.peers[m.ID]
		if !ok {
			continue
		}
		i, twice := at[p.NodeID]
		switch {
		case !twice:
			at[p.NodeID] = len(out)
			out = append(out, p)
		case p.Up || !out[i].Up:
			out[i] = p
		}
	}
	return out
}
