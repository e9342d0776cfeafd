package replication

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-db/tidemark/internal/metric"
)

// meter keeps what a shard counts and times for /metrics alone: nothing is decided by it. Its
// methods may be called by any goroutine, and none waits or allocates.
type meter struct {
	admission, replication, apply, fsync   prometheus.Histogram
	entryRequests, entryBytes, batchEvents prometheus.Histogram
	round, snapshot, receive               prometheus.Histogram
	admissionRebuilt, applyRebuilt         rebuilt

	writtenBytes, elections, leaderChanges atomic.Uint64
	roundsConfirmed, roundsFailed          atomic.Uint64
	comparisons                            atomic.Uint64
	snapshotsTaken, snapshotsFailed        atomic.Uint64
	snapshotsReceived, receivesFailed      atomic.Uint64
	snapshotsSent, snapshotSentBytes       atomic.Uint64
	// How many refusals and reads wait for a majority.
	refusalsWaiting, readsWaiting atomic.Int64
}

func newMeter() *meter {
	t := metric.NewTable()
	caches := func(user string) rebuilt {
		return rebuilt{
			heads: t.NewHistogram("cache_rebuild_duration_seconds", "head", user),
			marks: t.NewHistogram("cache_rebuild_duration_seconds", "mark", user),
		}
	}
	return &meter{
		admission: t.NewHistogram("admission_duration_seconds"), replication: t.NewHistogram("replication_duration_seconds"),
		apply: t.NewHistogram("apply_duration_seconds"), fsync: t.NewHistogram("tail_fsync_duration_seconds"),
		entryRequests: t.NewHistogram("entry_requests"), entryBytes: t.NewHistogram("entry_bytes"), batchEvents: t.NewHistogram("batch_events"),
		round: t.NewHistogram("majority_round_duration_seconds"), snapshot: t.NewHistogram("snapshot_duration_seconds"),
		receive:          t.NewHistogram("snapshot_receive_duration_seconds"),
		admissionRebuilt: caches("admission"), applyRebuilt: caches("apply"),
	}
}

// histograms are all of them.
func (m *meter) histograms() []prometheus.Histogram {
	return []prometheus.Histogram{
		m.admission, m.replication, m.apply, m.fsync, m.entryRequests, m.entryBytes, m.batchEvents, m.round, m.snapshot, m.receive,
		m.admissionRebuilt.heads, m.admissionRebuilt.marks, m.applyRebuilt.heads, m.applyRebuilt.marks,
	}
}

// rebuilt times how heads and marks are derived from the history after a miss. nil does nothing.
type rebuilt struct{ heads, marks prometheus.Histogram }

func (r *rebuilt) head(began time.Time) {
	if r != nil {
		r.heads.Observe(time.Since(began).Seconds())
	}
}

func (r *rebuilt) mark(began time.Time) {
	if r != nil {
		r.marks.Observe(time.Since(began).Seconds())
	}
}

// synced is told of each flush of the tail.
func (m *meter) synced(took time.Duration, bytes int) {
	m.fsync.Observe(took.Seconds())
	m.writtenBytes.Add(uint64(bytes))
}

// proposes is told of a proposal and the size of its entry, before raft is.
func (m *meter) proposes(g *proposal, bytes int) {
	g.handed = time.Now()
	m.entryRequests.Observe(float64(len(g.requests)))
	m.entryBytes.Observe(float64(bytes))
	for _, p := range g.requests {
		m.admission.Observe(g.handed.Sub(p.arrived).Seconds())
		for i := range p.writes {
			m.batchEvents.Observe(float64(p.writes[i].EventCount))
		}
	}
}

// observe is a filter of raft's observations that lets none pass: raft calls it in its own
// goroutines, so it only counts.
func (m *meter) observe(o *raft.Observation) bool {
	switch d := o.Data.(type) {
	case raft.RaftState:
		if d == raft.Candidate {
			m.elections.Add(1)
		}
	case raft.LeaderObservation:
		if d.LeaderID != "" {
			m.leaderChanges.Add(1)
		}
	}
	return false
}

// timed returns a round of asking a majority that is counted and timed.
func (m *meter) timed(ask func(context.Context, uint64) error) func(context.Context, uint64) error {
	return func(ctx context.Context, term uint64) error {
		began := time.Now()
		err := ask(ctx, term)
		m.round.Observe(time.Since(began).Seconds())
		if err != nil {
			m.roundsFailed.Add(1)
		} else {
			m.roundsConfirmed.Add(1)
		}
		return err
	}
}

// took is told of an attempt to take a snapshot.
func (m *meter) took(began time.Time, err error) {
	switch {
	case err == nil:
		m.snapshotsTaken.Add(1)
		m.snapshot.Observe(time.Since(began).Seconds())
	case !errors.Is(err, raft.ErrNothingNewToSnapshot) && !errors.Is(err, raft.ErrRaftShutdown):
		m.snapshotsFailed.Add(1)
	}
}

// received is told of each snapshot of another node, whole or not.
func (m *meter) received(began time.Time, whole bool) {
	if !whole {
		m.receivesFailed.Add(1)
		return
	}
	m.snapshotsReceived.Add(1)
	m.receive.Observe(time.Since(began).Seconds())
}
