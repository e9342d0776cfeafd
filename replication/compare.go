package replication

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	peerpb "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
	"github.com/tidemark-db/tidemark/wal/record"
)

// compareEvery is how often a node compares its digest with the other nodes'.
const compareEvery = time.Second

// ErrDiverged is delivered by Fatal when a majority of voters agrees on other contents than
// this node's at the same index: the process must end.
var ErrDiverged = errors.New("this node's data differs from what a majority of the cluster has")

// compareDigests runs on every member until the shard stops. It asks the others for their
// digests as of indexes that this node has applied: its newest ones of this and the last
// rounds, so that a node that lags a little has one of them.
func (s *Shard) compareDigests() {
	defer s.wg.Done()
	ctx, cancel := s.untilStopped()
	defer cancel()
	ticker := time.NewTicker(compareEvery)
	defer ticker.Stop()
	var indexes []uint64
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if _, last := s.digests.bounds(); last > 0 && (len(indexes) == 0 || indexes[0] != last) {
			indexes = append([]uint64{last}, indexes...)
			indexes = indexes[:min(len(indexes), 8)]
		}
		g := s.raftGroup()
		verdict := judgeDigests(s.identity().serverID(), g.servers(), s.digests.at, s.askDigests(ctx, g, indexes))
		if verdict.compared {
			s.meter.comparisons.Add(1)
		}
		s.setDiverged(verdict)
		if verdict.outvoted {
			s.fatal(fmt.Errorf("%w: at log entry %d a majority of voters agrees and this node does not: keep its data directory for study, then start it with an empty one, and it will copy the others' data", ErrDiverged, verdict.index))
			return
		}
	}
}

// askDigests asks every other member at once for its digests.
func (s *Shard) askDigests(ctx context.Context, g *raftGroup, indexes []uint64) map[raft.ServerID][]*peerpb.Digest {
	if len(indexes) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, helloTimeout)
	defer cancel()
	type answer struct {
		id      raft.ServerID
		digests []*peerpb.Digest
	}
	others := s.clusterPeers(g)
	answers := make(chan answer, len(others))
	for _, m := range others {
		go func() { // ends with the call, which ends with ctx
			a := answer{id: m.ID}
			if resp, err := s.clientOf(m.Server).GetDigests(ctx, &peerpb.GetDigestsRequest{Indexes: indexes}); err == nil {
				a.digests = resp.GetDigests()
			}
			answers <- a
		}()
	}
	out := make(map[raft.ServerID][]*peerpb.Digest)
	for range others {
		a := <-answers
		out[a.id] = a.digests
	}
	return out
}

// digestVerdict is what comparing digests has shown.
type digestVerdict struct {
	compared bool   // with another voter, at least
	index    uint64 // where nodes differ; 0 = they do not
	// differing are the servers whose digest differs from this node's.
	differing []raft.ServerID
	// outvoted: a majority of voters has one digest, and this node another.
	outvoted bool
	// undecided: nodes differ, and no digest is known to be that of a majority of voters.
	undecided bool
}

// judgeDigests compares at the newest index at which any two nodes can be compared and
// differ.
func judgeDigests(self raft.ServerID, servers []raft.Server, own func(uint64) (record.Hash, bool), answers map[raft.ServerID][]*peerpb.Digest) digestVerdict {
	voters := make(map[raft.ServerID]bool)
	for _, v := range servers {
		if v.Suffrage == raft.Voter {
			voters[v.ID] = true
		}
	}
	byIndex := make(map[uint64]map[raft.ServerID]record.Hash)
	for id, digests := range answers {
		for _, d := range digests {
			if len(d.GetDigest()) != record.HashSize {
				continue
			}
			if byIndex[d.GetIndex()] == nil {
				byIndex[d.GetIndex()] = make(map[raft.ServerID]record.Hash)
			}
			byIndex[d.GetIndex()][id] = record.Hash(d.GetDigest())
		}
	}
	var v digestVerdict
	for index, at := range byIndex {
		mine, ok := own(index)
		if !ok || index < v.index {
			continue
		}
		at[self] = mine
		votes := make(map[record.Hash]int)
		var differing []raft.ServerID
		for id, d := range at {
			if voters[id] {
				votes[d]++
			}
			if d != mine {
				differing = append(differing, id)
			}
		}
		for id := range at {
			v.compared = v.compared || id != self && voters[id]
		}
		if len(differing) == 0 {
			continue
		}
		v = digestVerdict{compared: v.compared, index: index, differing: differing, undecided: true}
		for d, n := range votes {
			if n > len(voters)/2 {
				v.undecided = false
				v.outvoted = d != mine
			}
		}
	}
	return v
}

// setDiverged keeps the verdict: while it is undecided, no write is admitted. It stays so
// while there is nobody to compare with: that a node went down has mended nothing.
func (s *Shard) setDiverged(v digestVerdict) {
	s.mu.Lock()
	was := s.diverged
	if was.undecided && !v.compared {
		s.mu.Unlock()
		return
	}
	s.diverged = v
	s.mu.Unlock()
	if v.index == 0 || v.index == was.index {
		return
	}
	s.mismatches.Add(1)
	s.log.Error("nodes hold different data", zap.Uint64("index", v.index), zap.Any("differing", v.differing),
		zap.Bool("this_node_is_outvoted", v.outvoted), zap.Bool("writes_stop", v.undecided))
}
