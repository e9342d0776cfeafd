package replication

import (
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-db/tidemark/mark"
	"github.com/tidemark-db/tidemark/replication/peer"
	"github.com/tidemark-db/tidemark/wal/history"
)

// Stats is what a shard shows of itself on /metrics: how far it uses what its options bound, and
// what it has counted since it was opened. Sizes are bytes. docs/metrics.md says what each
// means.
type Stats struct {
	Status Status
	// Well: every check passes or is tolerated.
	Well bool

	// MaxInFlightBytes bounds Status.InFlightBytes. MinFreeDiskBytes is the reserve of disk
	// space; 0 = none.
	MaxInFlightBytes, MinFreeDiskBytes int64
	// OutstandingEntries are proposed and not decided.
	OutstandingEntries, MaxOutstandingEntries int

	// The caches of admission and those of Apply.
	AdmissionHeads, AdmissionMarks mark.Stats
	ApplyHeads, ApplyMarks         mark.Stats

	// Schemas are registered; Validators are those in use.
	Schemas, MaxSchemas uint64
	Validators          ValidatorStats

	// The log: its bounds, what was made durable of it, and what stands behind the newest
	// snapshot.
	FirstIndex, LastIndex    uint64
	TailWrittenBytes         uint64
	TailSinceSnapshot        int64
	LogCache                 EntryCacheStats
	Elections, LeaderChanges uint64

	// Voters and Nonvoters are the members; Peers all but this one.
	Voters, Nonvoters int
	Peers             []PeerStats
	// Connections are those of the port for other nodes; nil = this node has none.
	Connections *peer.Stats

	// What waits for a majority to confirm the term, and the rounds of asking it.
	RefusalsWaiting, ReadsWaiting int64
	RoundsConfirmed, RoundsFailed uint64

	DigestComparisons, DigestMismatches uint64
	// Diverged: nodes hold different data, and no writes are taken.
	Diverged bool

	// The newest snapshot; SnapshotAt is zero if there is none.
	SnapshotAt                        time.Time
	SnapshotIndex                     uint64
	SnapshotBytes                     int64
	SnapshotsTaken, SnapshotsFailed   uint64
	SnapshotsSent, SnapshotSentBytes  uint64
	SnapshotsReceived, ReceivesFailed uint64
	// Feed hands the log to subscriptions.
	Feed FeedStats
	// RetiredHistories gave way to another node's and are still read, of MaxRetiredHistories:
	// the next one to give way would wait then. LentSnapshots are being sent to other nodes, or
	// were until a minute ago: the log behind them is kept, up to MaxLentLogBytes.
	RetiredHistories, MaxRetiredHistories int
	LentSnapshots                         int
	MaxLentLogBytes                       int64

	Backups BackupStats

	// The AppendStream calls, and the pairs of aggregate and client_id that they remember; see
	// chain.go.
	Streams, StreamPairs                                                 int
	StreamPairBytes, MaxStreamPairBytes                                  int64
	StreamChainsBroken, StreamPairsForgotten, StreamPairsForgottenBroken uint64

	// History is as of the last second; nil once the shard has failed.
	History *history.Stats

	Histograms []prometheus.Histogram
}

// Stats says where the shard is and how full its bounded things are. It waits for no disk, and
// for no lock that is held for long.
func (s *Shard) Stats() Stats {
	o, m := s.opts, s.meter
	st := Stats{
		Status:           s.statusAs(s.logs.cache.peek),
		MaxInFlightBytes: o.MaxInFlightBytes, MaxOutstandingEntries: o.MaxOutstandingEntries,
		MinFreeDiskBytes: max(o.MinFreeDiskBytes, 0),
		TailWrittenBytes: m.writtenBytes.Load(), Feed: s.feed.Stats(), LogCache: s.logs.cache.stats(),
		Elections: m.elections.Load(), LeaderChanges: m.leaderChanges.Load(),
		RefusalsWaiting: m.refusalsWaiting.Load(), ReadsWaiting: m.readsWaiting.Load(),
		RoundsConfirmed: m.roundsConfirmed.Load(), RoundsFailed: m.roundsFailed.Load(),
		DigestComparisons: m.comparisons.Load(), DigestMismatches: s.mismatches.Load(),
		SnapshotsTaken: m.snapshotsTaken.Load(), SnapshotsFailed: m.snapshotsFailed.Load(),
		SnapshotsSent: m.snapshotsSent.Load(), SnapshotSentBytes: m.snapshotSentBytes.Load(),
		SnapshotsReceived: m.snapshotsReceived.Load(), ReceivesFailed: m.receivesFailed.Load(),
		RetiredHistories: len(s.hist.slots), MaxRetiredHistories: maxRetired,
		MaxLentLogBytes: s.logs.maxLent,
		Backups:         s.backups.stats(),
		History:         s.seen.history.Load(), Histograms: m.histograms(),
	}
	st.Well = well(s.checks(st.Status))
	// An error means that the log is closed or has failed: then it has no bounds.
	st.FirstIndex, _ = s.tail.FirstIndex()
	st.LastIndex, _ = s.tail.LastIndex()
	if snaps := s.seen.snapshots.Load(); snaps != nil {
		st.TailSinceSnapshot, st.LentSnapshots = snaps.behind, snaps.lent
		if m := snaps.newest; m != nil {
			st.SnapshotAt, st.SnapshotIndex, st.SnapshotBytes = snaps.at, m.Index, m.Size
		}
	}
	st.Validators, st.MaxSchemas = s.validators.Stats(), maxSchemas
	s.mu.Lock()
	for _, n := range s.revisions {
		st.Schemas += n
	}
	cache, proc, g := s.cache, s.proc, s.raft
	st.Diverged = s.diverged.undecided
	s.streams.stats(&st)
	if s.tenure != nil {
		st.OutstandingEntries = len(s.tenure.proposed)
	}
	s.mu.Unlock()
	st.AdmissionHeads, st.AdmissionMarks = cache.Stats()
	if proc != nil {
		st.ApplyHeads, st.ApplyMarks = proc.cache.Stats()
	}
	if s.net != nil {
		c := s.net.Stats()
		st.Connections = &c
	}
	if g != nil {
		members := g.members()
		for _, server := range members {
			if server.Suffrage == raft.Voter {
				st.Voters++
			} else {
				st.Nonvoters++
			}
		}
		st.Peers = s.seen.list(members)
	}
	if s.failed() {
		st.History = nil
	}
	return st
}
