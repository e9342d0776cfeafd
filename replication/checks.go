package replication

import (
	"context"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"

	peerpb "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
)

// Check is one thing that a node has to be well in.
type Check struct {
	// Name is one word: member, leader, applied, data or disk.
	Name string
	// Err says what is wrong; nil = it passes.
	Err error
	// Tolerated: the node serves in spite of Err, if not everything.
	Tolerated bool
}

// behind is how many committed entries a node may have left to apply and still count as
// caught up. Under load some are always on their way; a node that comes back has many.
const behind = 1000

// Checks says what this node is well in: it belongs to a cluster, it leads or follows a
// leader, it has applied what is committed, its data is that of the others, and its disk has
// room. The order is always the same.
func (s *Shard) Checks() []Check { return s.checks(s.Status()) }

// well says whether every check passes or is tolerated.
func well(checks []Check) bool {
	for _, c := range checks {
		if c.Err != nil && !c.Tolerated {
			return false
		}
	}
	return true
}

func (s *Shard) checks(st Status) []Check {
	s.mu.Lock()
	diverged := s.diverged
	s.mu.Unlock()
	return []Check{
		{Name: "member", Err: checkMember(&st)},
		{Name: "leader", Err: checkLeader(&st)},
		{Name: "applied", Err: checkApplied(&st, s.leaderCommit.Load())},
		{Name: "data", Err: checkData(diverged)},
		{Name: "disk", Err: s.checkDisk(), Tolerated: true},
	}
}

func checkMember(st *Status) error {
	switch {
	case st.Waiting != "":
		return fmt.Errorf("not a member of a cluster yet; it waits for %s", st.Waiting)
	case st.Role == "joining":
		return errors.New("not a member of a cluster yet")
	}
	return nil
}

func checkLeader(st *Status) error {
	switch {
	case st.Role == "leader" && !st.Ready:
		return fmt.Errorf("it leads in term %d and still applies what it inherited", st.Term)
	case st.LeaderID == "" && st.Role != "leader":
		return fmt.Errorf("it knows no leader (%s in term %d): is a majority of the voters up, and do they reach each other?", st.Role, st.Term)
	}
	return nil
}

// checkApplied compares with the leader's commit index: a node's own says nothing while the
// entries, or the snapshot, that it lacks are still on their way to it.
func checkApplied(st *Status, commit uint64) error {
	switch {
	case st.Role == "leader":
		return nil // that is what Ready says
	case commit == 0:
		return errors.New("it has not heard yet how far the leader is")
	case st.AppliedIndex+behind < commit:
		return fmt.Errorf("it has applied %d of %d committed entries", st.AppliedIndex, commit)
	}
	return nil
}

func checkData(v digestVerdict) error {
	if !v.undecided {
		return nil
	}
	return fmt.Errorf("nodes hold different data at log entry %d, and no majority of voters agrees: no writes are taken", v.index)
}

func (s *Shard) checkDisk() error {
	if free := s.disk.low(); free >= 0 {
		return fmt.Errorf("%d bytes are free, less than the reserve of %d (min-free-disk-bytes): appends are refused with 2018", free, s.disk.reserve)
	}
	return nil
}

// problems are the texts of the checks that fail. What else a node that is no member is not is
// no problem of its own.
func (s *Shard) problems() []string {
	var out []string
	for _, c := range s.Checks() {
		if c.Err != nil {
			out = append(out, c.Err.Error())
			if c.Name == "member" {
				return out
			}
		}
	}
	return out
}

// noteCommit keeps how far the leader is, for checkApplied. A value from before is kept if
// there is no leader, or it does not answer: it only ever grows.
func (s *Shard) noteCommit(ctx context.Context, g *raftGroup) {
	if g.raft.State() == raft.Leader {
		s.leaderCommit.Store(g.raft.CommitIndex())
		return
	}
	leader := g.leader()
	for _, m := range g.members() {
		if m.ID != leader || leader == s.identity().serverID() {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, helloTimeout)
		defer cancel()
		if st, err := s.clientOf(m.Server).GetNodeStatus(ctx, &peerpb.GetNodeStatusRequest{}); err == nil {
			s.leaderCommit.Store(max(s.leaderCommit.Load(), st.GetCommitIndex()))
		}
		return
	}
}
