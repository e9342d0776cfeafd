package metrics

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/tidemark-db/tidemark/internal/metric"
)

// The steps, in the order in which they run: first on one node, then on three.
const (
	start     = "a node has started"
	load      = "clients have written"
	refused   = "a write was refused"
	held      = "an entry is held back"
	released  = "the entry goes on"
	reading   = "a client has read"
	following = "a client has subscribed"
	left      = "the subscriber has left"
	knocking  = "more connections come than there is room for"
	diskFull  = "the disk is full"
	diskRoom  = "the disk has room again"
	noRoom    = "snapshots cannot be written"
	stopped   = "the node has stopped"

	formed     = "three nodes are a cluster"
	followed   = "on a follower"
	replicated = "clients have written to three nodes"
	leaderDies = "the leader was killed"
	alone      = "the last node hears of nobody"
	caughtUp   = "a wiped follower has caught up"
	onReceiver = "the wiped follower has caught up"
)

// cacheRows are the rows of the four caches.
func cacheRows() []row {
	var all []row
	for _, c := range []string{"head", "mark"} {
		for _, u := range []string{"admission", "apply"} {
			of := func(name string) string { return name + `{cache="` + c + `",user="` + u + `"}` }
			limit := float64(headCache / 2)
			if c == "mark" {
				limit = markCache / 2
			}
			all = append(all,
				row{series: of("cache_entries"), step: load, must: grow()}, row{series: of("cache_bytes"), step: load, must: grow()},
				row{series: of("cache_limit_bytes"), step: load, must: is(limit)}, row{series: of("cache_hits_total"), step: load, must: grow()},
				row{series: of("cache_misses_total"), step: load, must: grow()}, row{series: of("cache_evictions_total"), step: load, must: grow()},
				row{series: of("cache_rebuild_duration_seconds"), step: load, must: grow()})
		}
	}
	return all
}

// elsewhere are rows of one test.
func elsewhere(test string, series ...string) []row {
	var all []row
	for _, s := range series {
		all = append(all, row{series: s, in: test})
	}
	return all
}

// rowsOf returns all rows.
func rowsOf() []row {
	rows := []row{
		{series: `build_info{version="v0",commit="c0",go_version="g0"}`, step: start, must: is(1)},
		{series: `node_info{node_id="n1"}`, step: start, must: is(1)},
		{series: "open_duration_seconds", step: start, must: is(2)},
		{series: "start_duration_seconds", step: start, must: is(3)},
		{series: "ready", step: start, must: is(1)},
		{series: "serving_leader", step: start, must: is(1)},
		{series: "leader_known", step: start, must: is(1)},
		{series: `role{role="leader"}`, step: start, must: is(1)},
		{series: `role{role="shutdown"}`, step: start, must: is(0)},
		{series: "term", step: start, must: atLeast(1)},
		{series: `members{suffrage="voter"}`, step: start, must: is(1)},
		{series: "in_flight_limit_bytes", step: start, must: is(inFlight)},
		{series: "outstanding_entries_limit", step: start, must: is(2)},
		{series: "calls_limit", step: start, must: is(maxCalls)},
		{series: "read_calls_limit", step: start, must: is(maxReads)},
		{series: "request_limit_bytes", step: start, must: is(2 * inFlight)},
		{series: "read_limit_bytes", step: start, must: is(readBytes)},
		{series: `connections_limit{listener="grpc"}`, step: start, must: is(maxConns)},
		{series: `connections_limit{listener="http"}`, step: start, must: is(256)},
		{series: "log_cache_limit_bytes", step: start, must: is(logCache)},
		{series: "disk_free_bytes", step: start, must: is(diskFree)},
		{series: "disk_free_reserve_bytes", step: start, must: is(diskReserve)},
		{series: "lent_log_limit_bytes", step: start, must: is(4 * snapshotLog)},
		{series: "retired_histories_limit", step: start, must: is(2)},
		{series: "backups_limit", step: start, must: is(2)},
		{series: "verifications_limit", step: start, must: is(2)},
		{series: "subscriptions_limit", step: start, must: atLeast(1)},
		{series: "recent_changes_limit", step: start, must: atLeast(1)},
		{series: "recent_limit_bytes", step: start, must: atLeast(1)},
		{series: "block_cache_limit_bytes", step: start, must: is(blockCache)},
		{series: "memtable_limit_bytes", step: start, must: is(memtable)},
		{series: "memtables", step: start, must: atLeast(1)},
		{series: "memtable_bytes", step: start, must: atLeast(1)},

		{series: `appends_total{code="0",outcome="ok"}`, step: load, must: by(writes)},
		{series: `append_duration_seconds{result="ok"}`, step: load, must: by(writes)},
		{series: "admission_duration_seconds", step: load, must: by(writes)},
		{series: "batch_events_sum", step: load, must: by(writes)},
		{series: "batch_events", step: load, must: by(writes)},
		{series: "entry_requests_sum", step: load, must: by(writes)},
		{series: "entry_requests", step: load, must: grow()},
		{series: "entry_bytes", step: load, must: grow()},
		{series: "entry_bytes_sum", step: load, must: atLeast(writes * payload)},
		{series: "replication_duration_seconds", step: load, must: grow()},
		{series: "apply_duration_seconds", step: load, must: grow()},
		{series: "tail_fsync_duration_seconds", step: load, must: grow()},
		{series: "tail_written_bytes_total", step: load, must: atLeast(writes * payload)},
		{series: "tail_bytes", step: load, must: grow()},
		{series: "tail_since_snapshot_bytes", step: load, must: change()},
		{series: "log_cache_bytes", step: load, must: grow()},
		{series: "log_cache_entries", step: load, must: change()},
		{series: "position", step: load, must: by(writes)},
		{series: "recent_changes", step: load, must: grow()},
		{series: "recent_bytes", step: load, must: grow()},
		{series: "commit_index", step: load, must: grow()},
		{series: "applied_index", step: load, must: grow()},
		{series: "log_first_index", step: load, must: grow()},
		{series: "log_last_index", step: load, must: grow()},
		{series: `snapshots_total{result="taken"}`, step: load, must: grow()},
		{series: "snapshot_duration_seconds", step: load, must: grow()},
		{series: "snapshot_timestamp_seconds", step: load, must: setNow()},
		{series: "snapshot_index", step: load, must: grow()},
		{series: "snapshot_bytes", step: load, must: grow()},
		{series: "history_bytes", step: load, must: grow()},
		{series: "history_blob_bytes", step: load, must: grow()},
		{series: "history_flushes_total", step: load, must: grow()},

		{series: `appends_total{code="2003",outcome="OptimisticConcurrencyViolation"}`, step: refused, must: by(1)},
		{series: `append_duration_seconds{result="refused"}`, step: refused, must: by(1)},
		{series: `majority_rounds_total{result="confirmed"}`, step: refused, must: by(1)},
		{series: "majority_round_duration_seconds", step: refused, must: by(1)},

		{series: "in_flight_requests", step: held, must: is(1)},
		{series: "in_flight_aggregates", step: held, must: is(1)},
		{series: "in_flight_bytes", step: held, must: atLeast(payload)},
		{series: "outstanding_entries", step: held, must: is(1)},
		{series: "calls", step: held, must: is(1)},
		{series: "request_bytes", step: held, must: atLeast(payload)},
		{series: "in_flight_requests", step: released, must: is(0)},
		{series: "in_flight_aggregates", step: released, must: is(0)},
		{series: "in_flight_bytes", step: released, must: is(0)},
		{series: "outstanding_entries", step: released, must: is(0)},
		{series: "calls", step: released, must: is(0)},
		{series: "request_bytes", step: released, must: is(0)},

		{series: `reads_total{method="Read",result="ok"}`, step: reading, must: by(1)},
		{series: `read_duration_seconds{method="Read"}`, step: reading, must: by(1)},

		{series: "subscriptions", step: following, must: is(1)},
		{series: "subscriptions", step: left, must: is(0)},

		{series: `connections{listener="grpc"}`, step: knocking, must: is(maxConns)},
		{series: `connections_refused_total{listener="grpc"}`, step: knocking, must: atLeast(1)},
		{series: `connections{listener="http"}`, step: knocking, must: is(256)},
		{series: `connections_refused_total{listener="http"}`, step: knocking, must: atLeast(1)},

		{series: "disk_free_bytes", step: diskFull, must: is(diskReserve - 1)},
		{series: `appends_total{code="2018"}`, step: diskFull, must: by(1)},
		{series: "disk_free_bytes", step: diskRoom, must: is(diskFree)},
		{series: `snapshots_total{result="failed"}`, step: noRoom, must: grow()},

		{series: `role{role="shutdown"}`, step: stopped, must: is(1)},
		{series: `role{role="leader"}`, step: stopped, must: is(0)},
		{series: "serving_leader", step: stopped, must: is(0)},
		{series: "ready", step: stopped, must: is(0)},

		{series: `members{suffrage="voter"}`, step: formed, must: is(3)},
		{series: `role{role="leader"}`, step: formed, must: is(1)},
		{series: "peer_up", step: formed, must: is(2)},
		{series: "peer_voter", step: formed, must: is(2)},
		{series: "start_duration_seconds", step: formed, must: atLeast(0.001)},
		{series: "leader_changes_total", step: formed, must: atLeast(1)},
		{series: "elections_started_total", step: formed, must: atLeast(1)},
		{series: `peer_connections{kind="raft"}`, step: followed, must: atLeast(1)},
		{series: `peer_connections{kind="peer"}`, step: followed, must: atLeast(1)},
		{series: `peer_connections{kind="client"}`, step: followed, must: is(2)},
		{series: `role{role="follower"}`, step: followed, must: is(1)},
		{series: `role{role="leader"}`, step: followed, must: is(0)},
		{series: "leader_known", step: followed, must: is(1)},
		{series: "ready", step: followed, must: is(1)},
		{series: "serving_leader", step: followed, must: is(0)},
		{series: "peer_connections_limit", step: followed, must: atLeast(4)},

		{series: "peer_applied_index", step: replicated, must: grow()},
		{series: "peer_commit_index", step: replicated, must: grow()},
		{series: "log_cache_hits_total", step: replicated, must: grow()},
		{series: "digest_comparisons_total", step: replicated, must: grow()},

		{series: "term", step: leaderDies, must: grow()},
		{series: "leader_changes_total", step: leaderDies, must: grow()},
		{series: "elections_started_total", step: leaderDies, must: grow()},
		{series: "peer_up", step: leaderDies, must: is(1)},
		{series: `role{role="leader"}`, step: leaderDies, must: is(1)},

		{series: `role{role="candidate"}`, step: alone, must: is(1)},
		{series: "leader_known", step: alone, must: is(0)},
		{series: "ready", step: alone, must: is(0)},
		{series: "peer_up", step: alone, must: is(0)},

		{series: "snapshots_sent_total", step: caughtUp, must: grow()},
		{series: "snapshot_sent_bytes_total", step: caughtUp, must: grow()},
		{series: "lent_snapshots", step: caughtUp, must: atLeast(1)},
		{series: "peer_last_answer_timestamp_seconds", step: caughtUp, must: grow()},
		{series: `snapshots_received_total{result="whole"}`, step: onReceiver, must: atLeast(1)},
		{series: "snapshot_receive_duration_seconds", step: onReceiver, must: atLeast(1)},
		{series: "snapshot_timestamp_seconds", step: onReceiver, must: setNow()},
		{series: "log_cache_misses_total", step: onReceiver, must: atLeast(1)},
	}
	rows = append(rows, cacheRows()...)
	for _, more := range [][]row{
		elsewhere("server.TestAppendsAreCounted", "appends_total", "append_duration_seconds"),
		elsewhere("server.TestAppendStreamsAreCounted", "append_streams", "append_stream_bytes", "append_stream_limit_bytes", "append_stream_waits_total",
			"append_stream_pairs", "append_stream_pair_bytes", "append_stream_pair_limit_bytes", "append_chains_broken_total"),
		elsewhere("replication.TestForgottenPairsAreTakenForBroken", "append_stream_pairs_forgotten_total"),
		elsewhere("server.TestReadsAreCounted", "reads_total", "read_duration_seconds"),
		elsewhere("server.TestMetricsMove", "read_calls", "calls_refused_total", "reads_waiting", "read_bytes", "read_waits_total", "stalled_connections_closed_total"),
		elsewhere("server.TestAPanicIsAnAnswer", "call_panics_total"),
		elsewhere("replication.TestWritesMatchTheirSchemas", "schema_events_total", "schema_validators", "schema_validator_bytes",
			"schema_validator_hits_total", "schema_validator_misses_total", "schemas", "schemas_limit", "schema_validators_limit", "schema_validator_limit_bytes"),
		elsewhere("replication.TestValidatorsAreBounded", "schema_validator_evictions_total"),
		elsewhere("replication.TestBackupIsOfOneMoment", `backups_total{result="sent"}`, "backup_sent_bytes_total", "backup_timestamp_seconds"),
		elsewhere("server.TestVerificationsAreBounded", "verifications", "verified_batches_total"),
		elsewhere("server.TestVerifyNamesWhatItFinds", "verify_findings_total"),
		elsewhere("replication.TestBackupsAreBounded", `backups_total{result="failed"}`, "backups"),
		elsewhere("wal/history.TestStatsOfWork", "history_l0_sublevels", "history_read_amplification", "history_compaction_debt_bytes",
			"history_level_bytes", "history_level_tables", "history_snapshots", "history_tombstones", "history_flushed_bytes_total",
			"history_compactions_total", "history_compacted_bytes_total", "block_cache_bytes", "block_cache_hits_total", "block_cache_misses_total"),
		elsewhere("wal/history.TestStatsOfWhatReadersHold", "history_zombie_bytes", "zombie_memtables", "zombie_memtable_bytes"),
		elsewhere("wal/history.TestStatsOfTheBackground", "history_obsolete_bytes", "history_compactions_failed_total", "history_compactions_running"),
		elsewhere("wal/history.TestStatsOfStalls", "history_write_stalls_total", "history_write_stall_seconds_total", "history_slow_disk_operations_total"),
		elsewhere("replication.TestWhatWaitsForAMajorityIsShown", "refusals_waiting", "linearizable_reads_waiting", `majority_rounds_total{result="failed"}`),
		elsewhere("replication.TestPeersAreSeen", "peer_lag_entries", `members{suffrage="nonvoter"}`),
		elsewhere("replication.TestWritesStopWhileNoMajorityAgreesOnTheData", "digest_mismatches_total", "data_diverged"),
		elsewhere("replication.TestSnapshotsThatFailToArriveAreCounted", `snapshots_received_total{result="failed"}`),
		elsewhere("replication.TestRetiredHistoriesAreBounded", "retired_histories"),
		elsewhere("replication.TestANodeThatJoinsIsSeen", `role{role="joining"}`),
		elsewhere("replication/peer.TestSilentConnectionsDoNotKeepNodesOut", `peer_connections{kind="handshaking"}`),
	} {
		rows = append(rows, more...)
	}
	return rows
}

// Every series of the table has a row, with every value of its labels; and every row is about a
// series, and every test that one names exists.
func TestEverySeriesHasARow(t *testing.T) {
	rows := rowsOf()
	used := make([]bool, len(rows))
	for _, g := range metric.Groups() {
		for _, d := range g.Defs {
			for _, labels := range combinations(d.Labels) {
				moved := false
				for i, r := range rows {
					name, pattern := split(t, r.series)
					if strings.TrimSuffix(name, "_sum") != d.Name {
						continue
					}
					if covers(closed(pattern, d.Labels), labels) {
						used[i], moved = true, true
					}
				}
				if !moved && possible(d.Name, labels) {
					t.Errorf("nothing moves %s%v: give it a row", d.Name, labels)
				}
			}
		}
	}
	for i, r := range rows {
		if !used[i] {
			t.Errorf("%s is not in the table", r.series)
		}
		if r.in == "" {
			continue
		}
		at := strings.LastIndexByte(r.in, '.')
		files, err := filepath.Glob(filepath.Join("../..", filepath.FromSlash(r.in[:at]), "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		found := false
		for _, f := range files {
			text, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			found = found || regexp.MustCompile(`(?m)^func `+r.in[at+1:]+`\(`).Match(text)
		}
		if !found {
			t.Errorf("%s: there is no test %s", r.series, r.in)
		}
	}
}

// possible leaves out the pairs of code and outcome that are not of each other.
func possible(name string, labels map[string]string) bool {
	if name != "appends_total" {
		return true
	}
	for _, o := range metric.Outcomes() {
		if v := o.Values(); v[0] == labels["code"] && v[1] == labels["outcome"] {
			return true
		}
	}
	return false
}

// closed keeps the labels of a pattern whose values the table lists.
func closed(pattern map[string]string, labels []metric.Label) map[string]string {
	out := map[string]string{}
	for _, l := range labels {
		if v, ok := pattern[l.Name]; ok && l.Values != nil {
			out[l.Name] = v
		}
	}
	return out
}

// combinations are all values of the labels whose values the table lists.
func combinations(labels []metric.Label) []map[string]string {
	all := []map[string]string{{}}
	for _, l := range labels {
		if l.Values == nil {
			continue
		}
		var next []map[string]string
		for _, c := range all {
			for _, v := range l.Values {
				n := map[string]string{l.Name: v}
				for k, v := range c {
					n[k] = v
				}
				next = append(next, n)
			}
		}
		all = next
	}
	return all
}
