package server

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tidemark-db/tidemark/mark"
)

// collector shows, at each scrape, every bound of the node and how much of it is in use. What
// is bounded has no metric of its own to keep: the figures are read where they are kept.
type collector struct{ server *Server }

// Describe implements prometheus.Collector. Without descriptions the registry checks each
// scrape instead, and what is collected is listed in one place only.
func (c *collector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	m := sink{to}
	m.calls(c.server.chain)
	m.reads(c.server.chain.budget.use())
	m.connections("grpc", c.server.conns)
	m.connections("http", c.server.webConns)
	m.shard(c.server.opts.Shard)
}

// sink makes metrics. Labels come in pairs of name and value.
type sink struct{ to chan<- prometheus.Metric }

func (m sink) gauge(name, help string, v float64, labels ...string) {
	m.emit(prometheus.GaugeValue, name, help, v, labels)
}

func (m sink) counter(name, help string, v float64, labels ...string) {
	m.emit(prometheus.CounterValue, name, help, v, labels)
}

func (m sink) emit(kind prometheus.ValueType, name, help string, v float64, labels []string) {
	var names, values []string
	for i := 0; i < len(labels); i += 2 {
		names, values = append(names, labels[i]), append(values, labels[i+1])
	}
	m.to <- prometheus.MustNewConstMetric(prometheus.NewDesc("tidemark_"+name, help, names, nil), kind, v, values...)
}

func (m sink) calls(c *chain) {
	m.gauge("calls", "Calls that are worked on, health and reflection left out.", float64(c.calls.Load()))
	m.gauge("calls_limit", "Most calls that are worked on at once (max-concurrent-calls).", float64(c.maxCalls))
	m.gauge("read_calls", "Calls that read and are worked on.", float64(c.reads.Load()))
	m.gauge("read_calls_limit", "Most calls that read and are worked on at once (max-concurrent-reads).", float64(c.maxReads))
	m.gauge("request_bytes", "Bytes of the requests that are worked on, as encoded.", float64(c.bytes.Load()))
	m.gauge("request_limit_bytes", "Most bytes of requests that are worked on at once (twice max-in-flight-bytes).", float64(c.maxBytes))
	m.counter("calls_refused_total", "Calls that were answered 11000 (ServerBusy) because a bound was reached.", float64(c.refused.Load()))
}

func (m sink) reads(u readUse) {
	m.gauge("read_bytes", "Bytes of answers to reads that are being built or that clients have not taken yet.", float64(u.bytes))
	m.gauge("read_limit_bytes", "Bytes above which reads wait for clients to take answers (max-read-bytes).", float64(u.limit))
	m.gauge("reads_waiting", "Reads that wait because answers hold too many bytes.", float64(u.waiting))
	m.counter("read_waits_total", "Times that a read had to wait because answers held too many bytes.", float64(u.waits))
	m.counter("stalled_connections_closed_total", "Connections closed because their clients took no answers while other reads waited for the memory.", float64(u.cuts))
}

func (m sink) connections(listener string, b *connBound) {
	label := []string{"listener", listener}
	m.gauge("connections", "Open connections.", float64(b.open.Load()), label...)
	m.gauge("connections_limit", "Most open connections.", float64(b.most), label...)
	m.counter("connections_refused_total", "Connections closed at once because there were too many.", float64(b.refused.Load()), label...)
}

func (m sink) shard(s Shard) {
	status, stats := s.Status(), s.Stats()
	m.gauge("in_flight_requests", "Appends that are admitted and not decided.", float64(status.InFlightRequests))
	m.gauge("in_flight_aggregates", "Aggregates that appends in flight write to.", float64(status.OverlayAggregates))
	m.gauge("in_flight_bytes", "Bytes of the appends in flight.", float64(status.InFlightBytes))
	m.gauge("in_flight_limit_bytes", "Bytes in flight above which appends are answered 2012 (max-in-flight-bytes).", float64(stats.MaxInFlightBytes))
	m.gauge("outstanding_entries", "Log entries that are proposed and not decided.", float64(stats.OutstandingEntries))
	m.gauge("outstanding_entries_limit", "Most log entries that are proposed at once.", float64(stats.MaxOutstandingEntries))
	m.gauge("tail_bytes", "Size of the tail, the log that is not in the history alone, on disk.", float64(status.TailBytes))
	m.gauge("disk_free_bytes", "Free space where the data directory is.", float64(status.FreeDiskBytes))
	m.gauge("disk_free_reserve_bytes", "Free space below which appends are answered 2018 (min-free-disk-bytes); 0 = none.", float64(stats.MinFreeDiskBytes))

	m.cache("head", "admission", stats.AdmissionHeads)
	m.cache("mark", "admission", stats.AdmissionMarks)
	m.cache("head", "apply", stats.ApplyHeads)
	m.cache("mark", "apply", stats.ApplyMarks)

	h := stats.History
	if h == nil {
		return
	}
	m.gauge("block_cache_bytes", "Blocks of the history that are kept in memory.", float64(h.BlockCacheBytes))
	m.gauge("block_cache_limit_bytes", "Size of the block cache (block-cache-bytes); it grows into what memtables do not use.", float64(h.BlockCacheLimit))
	m.counter("block_cache_hits_total", "Blocks that were found in the cache.", float64(h.BlockCacheHits))
	m.counter("block_cache_misses_total", "Blocks that were read from disk.", float64(h.BlockCacheMisses))
	m.gauge("memtables", "Memtables of the history that are written or wait for a flush.", float64(h.Memtables))
	m.gauge("memtable_bytes", "Bytes of those memtables.", float64(h.MemtableBytes))
	m.gauge("memtable_limit_bytes", "Size of one memtable (memtable-bytes).", float64(h.MemtableLimit))
	m.gauge("zombie_memtables", "Memtables that are flushed and still read.", float64(h.ZombieMemtables))
	m.gauge("zombie_memtable_bytes", "Bytes of those memtables.", float64(h.ZombieMemtableBytes))
	m.gauge("history_snapshots", "Moments of the history that readers hold.", float64(h.Snapshots))
	m.gauge("history_l0_sublevels", "Tables that a look-up in the newest level of the history may have to ask.", float64(h.L0Sublevels))
	m.gauge("history_compaction_debt_bytes", "Bytes of the history that are still to be compacted, an estimate.", float64(h.CompactionDebtBytes))
	m.gauge("history_bytes", "Size of the history on disk.", float64(h.DiskBytes))
}

func (m sink) cache(holds, used string, s mark.Stats) {
	labels := []string{"cache", holds, "user", used}
	m.gauge("cache_entries", "Heads of aggregates, or marks of writers, that are kept in memory.", float64(s.Entries), labels...)
	m.gauge("cache_bytes", "Bytes that those take.", float64(s.Bytes), labels...)
	m.gauge("cache_limit_bytes", "Most bytes that those may take (half of head-cache-bytes or mark-cache-bytes).", float64(s.Limit), labels...)
	m.counter("cache_hits_total", "Look-ups that found an entry.", float64(s.Hits), labels...)
	m.counter("cache_misses_total", "Look-ups that found none.", float64(s.Misses), labels...)
	m.counter("cache_evictions_total", "Entries dropped to stay below the limit.", float64(s.Evictions), labels...)
}
