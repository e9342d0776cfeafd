package server

import (
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-db/tidemark/internal/metric"
	"github.com/tidemark-db/tidemark/mark"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/replication/peer"
	"github.com/tidemark-db/tidemark/wal/history"
)

// collector shows, at each scrape, what the node has counted, every bound of it and how much of
// that is in use. Most has no metric of its own to keep: the figures are read where they are
// kept. It waits for no disk, and takes no lock that is held over one.
type collector struct {
	server *Server
	table  *metric.Table
}

// Describe implements prometheus.Collector. Without descriptions the registry checks each
// scrape instead, and what is collected is listed in one place only.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	m := sink{c.table.Sink(to)}
	s := c.server
	m.calls(s.chain)
	m.measured(s.chain.meter)
	m.reads(s.chain.budget.use())
	m.connections("grpc", s.conns)
	m.connections("http", s.webConns)
	m.process(s)

	st := s.opts.Shard.Stats()
	m.Flag("ready", st.Well && s.serving().Err == nil)
	m.Histograms(st.Histograms...)
	m.writes(&st)
	m.streams(s.chain, &st)
	m.cluster(&st)
	m.log(&st)
	m.snapshots(&st)
	m.backups(st.Backups)
	m.verifications(&s.verifications)
	if st.History != nil {
		m.history(st.History)
	}
}

type sink struct{ metric.Sink }

func (m sink) calls(c *chain) {
	m.Gauge("calls", float64(c.calls.Load()))
	m.Gauge("calls_limit", float64(c.maxCalls))
	m.Gauge("read_calls", float64(c.reads.Load()))
	m.Gauge("read_calls_limit", float64(c.maxReads))
	m.Gauge("subscriptions", float64(c.subscribers.Load()))
	m.Gauge("subscriptions_limit", float64(c.maxSubscribers))
	m.Gauge("request_bytes", float64(c.bytes.Load()))
	m.Gauge("request_limit_bytes", float64(c.maxBytes))
	m.Counter("calls_refused_total", float64(c.refused.Load()))
}

func (m sink) measured(c *meter) {
	for i, o := range c.outcomes {
		m.Counter("appends_total", float64(c.counts[i].Load()), o.Values()...)
	}
	for _, h := range c.appends {
		m.Histograms(h)
	}
	for method, r := range c.reads {
		m.Histograms(r.took)
		m.Counter("reads_total", float64(r.ok.Load()), method, metric.ResultOK)
		m.Counter("reads_total", float64(r.refused.Load()), method, metric.ResultRefused)
		m.Counter("reads_total", float64(r.failed.Load()), method, metric.ResultFailed)
		m.Counter("reads_total", float64(r.cancelled.Load()), method, metric.ResultCancelled)
	}
	m.Counter("call_panics_total", float64(c.panics.Load()))
	m.Gauge("start_duration_seconds", time.Duration(c.start.Load()).Seconds())
}

func (m sink) reads(u readUse) {
	m.Gauge("read_bytes", float64(u.bytes))
	m.Gauge("read_limit_bytes", float64(u.limit))
	m.Gauge("reads_waiting", float64(u.waiting))
	m.Counter("read_waits_total", float64(u.waits))
	m.Counter("stalled_connections_closed_total", float64(u.cuts))
}

func (m sink) connections(listener string, b *connBound) {
	m.Gauge("connections", float64(b.open.Load()), listener)
	m.Gauge("connections_limit", float64(b.most), listener)
	m.Counter("connections_refused_total", float64(b.refused.Load()), listener)
}

func (m sink) process(s *Server) {
	b := s.opts.Build
	m.Gauge("build_info", 1, b.Version, b.Commit, b.Go)
	m.Gauge("open_duration_seconds", s.opts.OpenDuration.Seconds())
}

func (m sink) writes(s *replication.Stats) {
	m.Gauge("in_flight_requests", float64(s.Status.InFlightRequests))
	m.Gauge("in_flight_aggregates", float64(s.Status.OverlayAggregates))
	m.Gauge("in_flight_bytes", float64(s.Status.InFlightBytes))
	m.Gauge("in_flight_limit_bytes", float64(s.MaxInFlightBytes))
	m.Gauge("outstanding_entries", float64(s.OutstandingEntries))
	m.Gauge("outstanding_entries_limit", float64(s.MaxOutstandingEntries))
	m.Gauge("refusals_waiting", float64(s.RefusalsWaiting))
	m.Gauge("linearizable_reads_waiting", float64(s.ReadsWaiting))
	m.Counter("majority_rounds_total", float64(s.RoundsConfirmed), "confirmed")
	m.Counter("majority_rounds_total", float64(s.RoundsFailed), "failed")
	m.cache("head", "admission", s.AdmissionHeads)
	m.cache("mark", "admission", s.AdmissionMarks)
	m.cache("head", "apply", s.ApplyHeads)
	m.cache("mark", "apply", s.ApplyMarks)
	m.schemas(s)
}

func (m sink) streams(c *chain, s *replication.Stats) {
	m.Gauge("append_streams", float64(c.streams.Load()))
	m.Gauge("append_stream_bytes", float64(c.streamBytes.Load()))
	m.Gauge("append_stream_limit_bytes", outstandingBytes)
	m.Counter("append_stream_waits_total", float64(c.streamWaits.Load()))
	m.Gauge("append_stream_pairs", float64(s.StreamPairs))
	m.Gauge("append_stream_pair_bytes", float64(s.StreamPairBytes))
	m.Gauge("append_stream_pair_limit_bytes", float64(s.MaxStreamPairBytes))
	m.Counter("append_stream_pairs_forgotten_total", float64(s.StreamPairsForgotten-s.StreamPairsForgottenBroken), "whole")
	m.Counter("append_stream_pairs_forgotten_total", float64(s.StreamPairsForgottenBroken), "broken")
	m.Counter("append_chains_broken_total", float64(s.StreamChainsBroken))
}

func (m sink) schemas(s *replication.Stats) {
	m.Gauge("schemas", float64(s.Schemas))
	m.Gauge("schemas_limit", float64(s.MaxSchemas))
	v := &s.Validators
	m.Counter("schema_events_total", float64(v.Valid), metric.SchemaValid)
	m.Counter("schema_events_total", float64(v.Invalid), metric.SchemaInvalid)
	m.Counter("schema_events_total", float64(v.Unregistered), metric.SchemaUnregistered)
	m.Counter("schema_events_total", float64(v.Encrypted), metric.SchemaEncrypted)
	m.Gauge("schema_validators", float64(v.Entries))
	m.Gauge("schema_validators_limit", float64(v.MaxEntries))
	m.Gauge("schema_validator_bytes", float64(v.Bytes))
	m.Gauge("schema_validator_limit_bytes", float64(v.MaxBytes))
	m.Counter("schema_validator_hits_total", float64(v.Hits))
	m.Counter("schema_validator_misses_total", float64(v.Misses))
	m.Counter("schema_validator_evictions_total", float64(v.Evictions))
}

func (m sink) cache(holds, user string, s mark.Stats) {
	m.Gauge("cache_entries", float64(s.Entries), holds, user)
	m.Gauge("cache_bytes", float64(s.Bytes), holds, user)
	m.Gauge("cache_limit_bytes", float64(s.Limit), holds, user)
	m.Counter("cache_hits_total", float64(s.Hits), holds, user)
	m.Counter("cache_misses_total", float64(s.Misses), holds, user)
	m.Counter("cache_evictions_total", float64(s.Evictions), holds, user)
}

func (m sink) cluster(s *replication.Stats) {
	st := &s.Status
	m.Gauge("node_info", 1, st.NodeID, st.ClusterID, st.Timeline)
	m.State("role", st.Role, metric.Roles())
	m.Flag("serving_leader", st.Ready)
	m.Flag("leader_known", st.LeaderID != "")
	m.Gauge("term", float64(st.Term))
	m.Counter("elections_started_total", float64(s.Elections))
	m.Counter("leader_changes_total", float64(s.LeaderChanges))
	m.Gauge("commit_index", float64(st.CommitIndex))
	m.Gauge("applied_index", float64(st.AppliedIndex))
	m.Gauge("position", float64(st.LastPosition))
	m.Gauge("log_first_index", float64(s.FirstIndex))
	m.Gauge("log_last_index", float64(s.LastIndex))
	m.Gauge("members", float64(s.Voters), "voter")
	m.Gauge("members", float64(s.Nonvoters), "nonvoter")
	if s.Connections != nil {
		m.peerConnections(s.Connections)
	}
	for _, p := range s.Peers {
		m.Flag("peer_up", p.Up, p.NodeID)
		m.Flag("peer_voter", p.Voter, p.NodeID)
		m.Gauge("peer_applied_index", float64(p.AppliedIndex), p.NodeID)
		m.Gauge("peer_commit_index", float64(p.CommitIndex), p.NodeID)
		m.Gauge("peer_lag_entries", float64(p.Lag), p.NodeID)
		m.Gauge("peer_last_answer_timestamp_seconds", unixSeconds(p.Answered), p.NodeID)
	}
	m.Counter("digest_comparisons_total", float64(s.DigestComparisons))
	m.Counter("digest_mismatches_total", float64(s.DigestMismatches))
	m.Flag("data_diverged", s.Diverged)
}

func (m sink) peerConnections(s *peer.Stats) {
	for _, k := range []struct {
		kind    string
		n, most int
	}{
		{"raft", s.Raft, s.MaxRaft}, {"peer", s.Peer, s.MaxPeer},
		{"handshaking", s.Handshaking, s.MaxHandshaking}, {"client", s.Clients, s.MaxClients},
	} {
		m.Gauge("peer_connections", float64(k.n), k.kind)
		m.Gauge("peer_connections_limit", float64(k.most), k.kind)
	}
}

func (m sink) log(s *replication.Stats) {
	m.Gauge("tail_bytes", float64(s.Status.TailBytes))
	m.Counter("tail_written_bytes_total", float64(s.TailWrittenBytes))
	m.Gauge("tail_since_snapshot_bytes", float64(s.TailSinceSnapshot))
	m.Gauge("recent_changes", float64(s.Feed.Changes))
	m.Gauge("recent_changes_limit", float64(s.Feed.MaxChanges))
	m.Gauge("recent_bytes", float64(s.Feed.Bytes))
	m.Gauge("recent_limit_bytes", float64(s.Feed.MaxBytes))
	m.Gauge("log_cache_bytes", float64(s.LogCache.Bytes))
	m.Gauge("log_cache_limit_bytes", float64(s.LogCache.Limit))
	m.Gauge("log_cache_entries", float64(s.LogCache.Entries))
	m.Counter("log_cache_hits_total", float64(s.LogCache.Hits))
	m.Counter("log_cache_misses_total", float64(s.LogCache.Misses))
	m.Gauge("disk_free_bytes", float64(s.Status.FreeDiskBytes))
	m.Gauge("disk_free_reserve_bytes", float64(s.MinFreeDiskBytes))
}

func (m sink) snapshots(s *replication.Stats) {
	m.Counter("snapshots_total", float64(s.SnapshotsTaken), "taken")
	m.Counter("snapshots_total", float64(s.SnapshotsFailed), "failed")
	m.Gauge("snapshot_timestamp_seconds", unixSeconds(s.SnapshotAt))
	m.Gauge("snapshot_index", float64(s.SnapshotIndex))
	m.Gauge("snapshot_bytes", float64(s.SnapshotBytes))
	m.Counter("snapshots_sent_total", float64(s.SnapshotsSent))
	m.Counter("snapshot_sent_bytes_total", float64(s.SnapshotSentBytes))
	m.Counter("snapshots_received_total", float64(s.SnapshotsReceived), "whole")
	m.Counter("snapshots_received_total", float64(s.ReceivesFailed), "failed")
	m.Gauge("lent_snapshots", float64(s.LentSnapshots))
	m.Gauge("lent_log_limit_bytes", float64(s.MaxLentLogBytes))
	m.Gauge("retired_histories", float64(s.RetiredHistories))
	m.Gauge("retired_histories_limit", float64(s.MaxRetiredHistories))
}

func (m sink) backups(s replication.BackupStats) {
	m.Gauge("backups", float64(s.Running))
	m.Gauge("backups_limit", float64(s.Limit))
	m.Counter("backups_total", float64(s.Sent), "sent")
	m.Counter("backups_total", float64(s.Failed), "failed")
	m.Counter("backup_sent_bytes_total", float64(s.Bytes))
	m.Gauge("backup_timestamp_seconds", unixSeconds(s.LastSent))
}

func (m sink) verifications(v *verifications) {
	m.Gauge("verifications", float64(v.running.Load()))
	m.Gauge("verifications_limit", maxVerifications)
	m.Counter("verified_batches_total", float64(v.batches.Load()))
	m.Counter("verify_findings_total", float64(v.findings.Load()))
}

func (m sink) history(h *history.Stats) {
	m.Gauge("history_bytes", float64(h.DiskBytes))
	m.Gauge("history_l0_sublevels", float64(h.L0Sublevels))
	m.Gauge("history_read_amplification", float64(h.ReadAmplification))
	m.Gauge("history_compaction_debt_bytes", float64(h.CompactionDebtBytes))
	for i := range h.LevelBytes {
		m.Gauge("history_level_bytes", float64(h.LevelBytes[i]), strconv.Itoa(i))
		m.Gauge("history_level_tables", float64(h.LevelTables[i]), strconv.Itoa(i))
	}
	m.Gauge("history_blob_bytes", float64(h.BlobBytes))
	m.Gauge("history_obsolete_bytes", float64(h.ObsoleteBytes))
	m.Gauge("history_zombie_bytes", float64(h.ZombieBytes))
	m.Gauge("history_snapshots", float64(h.Snapshots))
	m.Gauge("history_tombstones", float64(h.Tombstones))
	m.Counter("history_flushes_total", float64(h.Flushes))
	m.Counter("history_flushed_bytes_total", float64(h.FlushedBytes))
	m.Counter("history_compactions_total", float64(h.Compactions))
	m.Counter("history_compactions_failed_total", float64(h.CompactionsFailed))
	m.Gauge("history_compactions_running", float64(h.CompactionsRunning))
	m.Counter("history_compacted_bytes_total", float64(h.CompactedBytes))
	m.Counter("history_write_stalls_total", float64(h.Stalls))
	m.Counter("history_write_stall_seconds_total", h.Stalled.Seconds())
	m.Counter("history_slow_disk_operations_total", float64(h.SlowOperations))
	m.Gauge("block_cache_bytes", float64(h.BlockCacheBytes))
	m.Gauge("block_cache_limit_bytes", float64(h.BlockCacheLimit))
	m.Counter("block_cache_hits_total", float64(h.BlockCacheHits))
	m.Counter("block_cache_misses_total", float64(h.BlockCacheMisses))
	m.Gauge("memtables", float64(h.Memtables))
	m.Gauge("memtable_bytes", float64(h.MemtableBytes))
	m.Gauge("memtable_limit_bytes", float64(h.MemtableLimit))
	m.Gauge("zombie_memtables", float64(h.ZombieMemtables))
	m.Gauge("zombie_memtable_bytes", float64(h.ZombieMemtableBytes))
}

// unixSeconds is a time as Prometheus has times; 0 = never.
func unixSeconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}
