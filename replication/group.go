package replication

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/hashicorp/raft"
)

var errNotLeading = errors.New("it does not lead")

// group is what a shard asks of its raft group. raftGroup is the one that nodes run; the
// simulation has its own.
type group interface {
	// term is the newest term this node has seen.
	term() uint64
	// leads says whether this node leads in term, as far as it knows.
	leads(term uint64) bool
	// leader is the leader's id, as far as this node knows; "" = unknown.
	leader() raft.ServerID
	// barrier returns nil once everything that this leader inherited is applied.
	barrier() error
	// propose hands an entry over to be replicated. wait returns its fate: nil once it is
	// applied here; see resolved for the errors. wait may never return.
	propose(entry []byte) (wait func() error)
	// confirm returns nil once a majority of voters, all asked after the call began, has
	// confirmed that term is their newest one. An error means that this is not known.
	confirm(ctx context.Context, term uint64) error
}

// groupBox holds the group that a shard runs now: none while its cluster is formed, and
// another one after raft was restarted.
type groupBox struct{ p atomic.Pointer[group] }

func (b *groupBox) get() group {
	if g := b.p.Load(); g != nil {
		return *g
	}
	return nil
}

func (b *groupBox) set(g group) {
	if g == nil {
		b.p.Store(nil)
		return
	}
	b.p.Store(&g)
}

// raftGroup is a group on hashicorp/raft.
type raftGroup struct {
	raft *raft.Raft
	hook func(next func() (wait func() error)) (wait func() error) // Hooks.Propose
}

func (g *raftGroup) term() uint64 { return g.raft.CurrentTerm() }

func (g *raftGroup) leads(term uint64) bool {
	return g.raft.State() == raft.Leader && g.raft.CurrentTerm() == term
}

func (g *raftGroup) leader() raft.ServerID {
	_, id := g.raft.LeaderWithID()
	return id
}

func (g *raftGroup) barrier() error { return g.raft.Barrier(barrierTimeout).Error() }

func (g *raftGroup) propose(entry []byte) func() error {
	next := func() func() error { return g.raft.Apply(entry, enqueueTimeout).Error }
	if g.hook != nil {
		return g.hook(next)
	}
	return next()
}

// confirm: this node is the only voter and its own majority.
func (g *raftGroup) confirm(_ context.Context, term uint64) error {
	if !g.leads(term) {
		return errNotLeading
	}
	return nil
}
