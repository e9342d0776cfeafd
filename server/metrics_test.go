package server

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"

	"github.com/tidemark-db/tidemark/mark"
	"github.com/tidemark-db/tidemark/replication"
)

// scrape returns the node's own series, sorted, as /metrics shows them.
func scrape(t *testing.T, s *Server) (series []string, page string) {
	t.Helper()
	w := httptest.NewRecorder()
	s.HTTPHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("/metrics: %d\n%s", w.Code, w.Body)
	}
	page = w.Body.String()
	for lines := bufio.NewScanner(strings.NewReader(page)); lines.Scan(); {
		if strings.HasPrefix(lines.Text(), "tidemark_") {
			series = append(series, lines.Text())
		}
	}
	slices.Sort(series)
	return series, page
}

// fullStats is a shard whose every figure differs.
func fullStats() replication.Stats {
	cache := func(n uint64) mark.Stats {
		return mark.Stats{Hits: n, Misses: n + 1, Evictions: n + 2, Entries: int64(n) + 3, Bytes: int64(n) + 4, Limit: int64(n) + 5}
	}
	return replication.Stats{
		MaxInFlightBytes: 201, MinFreeDiskBytes: 202, OutstandingEntries: 203, MaxOutstandingEntries: 204,
		AdmissionHeads: cache(210), AdmissionMarks: cache(220), ApplyHeads: cache(230), ApplyMarks: cache(240),
		History: &replication.HistoryStats{
			BlockCacheBytes: 301, BlockCacheLimit: 302, BlockCacheHits: 303, BlockCacheMisses: 304,
			Memtables: 305, ZombieMemtables: 306, MemtableBytes: 307, ZombieMemtableBytes: 308, MemtableLimit: 309,
			Snapshots: 310, L0Sublevels: 311, CompactionDebtBytes: 312, DiskBytes: 313,
		},
	}
}

func TestMetrics(t *testing.T) {
	r := start(t, func(o *Options) {
		o.MaxCalls, o.MaxReads, o.MaxBytes, o.MaxReadBytes, o.MaxConnections = 101, 102, 4<<20+103, 104, 105
	})
	status := r.shard.Status()
	status.InFlightRequests, status.OverlayAggregates, status.InFlightBytes = 401, 402, 403
	status.TailBytes, status.FreeDiskBytes = 404, 405
	r.shard.setStatus(status)
	stats := fullStats()
	r.shard.setStats(stats)
	want := strings.Split(strings.TrimSpace(`
tidemark_block_cache_bytes 301
tidemark_block_cache_hits_total 303
tidemark_block_cache_limit_bytes 302
tidemark_block_cache_misses_total 304
tidemark_cache_bytes{cache="head",user="admission"} 214
tidemark_cache_bytes{cache="head",user="apply"} 234
tidemark_cache_bytes{cache="mark",user="admission"} 224
tidemark_cache_bytes{cache="mark",user="apply"} 244
tidemark_cache_entries{cache="head",user="admission"} 213
tidemark_cache_entries{cache="head",user="apply"} 233
tidemark_cache_entries{cache="mark",user="admission"} 223
tidemark_cache_entries{cache="mark",user="apply"} 243
tidemark_cache_evictions_total{cache="head",user="admission"} 212
tidemark_cache_evictions_total{cache="head",user="apply"} 232
tidemark_cache_evictions_total{cache="mark",user="admission"} 222
tidemark_cache_evictions_total{cache="mark",user="apply"} 242
tidemark_cache_hits_total{cache="head",user="admission"} 210
tidemark_cache_hits_total{cache="head",user="apply"} 230
tidemark_cache_hits_total{cache="mark",user="admission"} 220
tidemark_cache_hits_total{cache="mark",user="apply"} 240
tidemark_cache_limit_bytes{cache="head",user="admission"} 215
tidemark_cache_limit_bytes{cache="head",user="apply"} 235
tidemark_cache_limit_bytes{cache="mark",user="admission"} 225
tidemark_cache_limit_bytes{cache="mark",user="apply"} 245
tidemark_cache_misses_total{cache="head",user="admission"} 211
tidemark_cache_misses_total{cache="head",user="apply"} 231
tidemark_cache_misses_total{cache="mark",user="admission"} 221
tidemark_cache_misses_total{cache="mark",user="apply"} 241
tidemark_calls 0
tidemark_calls_limit 101
tidemark_calls_refused_total 0
tidemark_connections_limit{listener="grpc"} 105
tidemark_connections_limit{listener="http"} 256
tidemark_connections_refused_total{listener="grpc"} 0
tidemark_connections_refused_total{listener="http"} 0
tidemark_connections{listener="grpc"} 0
tidemark_connections{listener="http"} 0
tidemark_disk_free_bytes 405
tidemark_disk_free_reserve_bytes 202
tidemark_history_bytes 313
tidemark_history_compaction_debt_bytes 312
tidemark_history_l0_sublevels 311
tidemark_history_snapshots 310
tidemark_in_flight_aggregates 402
tidemark_in_flight_bytes 403
tidemark_in_flight_limit_bytes 201
tidemark_in_flight_requests 401
tidemark_memtable_bytes 307
tidemark_memtable_limit_bytes 309
tidemark_memtables 305
tidemark_outstanding_entries 203
tidemark_outstanding_entries_limit 204
tidemark_read_bytes 0
tidemark_read_calls 0
tidemark_read_calls_limit 102
tidemark_read_limit_bytes 104
tidemark_read_waits_total 0
tidemark_reads_waiting 0
tidemark_request_bytes 0
tidemark_request_limit_bytes 4.194407e+06
tidemark_stalled_connections_closed_total 0
tidemark_tail_bytes 404
tidemark_zombie_memtable_bytes 308
tidemark_zombie_memtables 306
`), "\n")
	got, page := scrape(t, r.server)
	wantSeries(t, got, want)
	for _, line := range got {
		name, _, _ := strings.Cut(strings.TrimSuffix(line, "}"), " ")
		name, _, _ = strings.Cut(name, "{")
		kind := "gauge"
		if strings.HasSuffix(name, "_total") {
			kind = "counter"
		}
		if !strings.Contains(page, "# TYPE "+name+" "+kind+"\n") {
			t.Errorf("%s is no %s", name, kind)
		}
	}

	// Without a history, its series are gone and the others stay.
	stats.History = nil
	r.shard.setStats(stats)
	want = slices.DeleteFunc(want, func(line string) bool {
		return strings.HasPrefix(line, "tidemark_block_cache") || strings.HasPrefix(line, "tidemark_history") || strings.Contains(line, "memtable")
	})
	got, _ = scrape(t, r.server)
	wantSeries(t, got, want)
}

func wantSeries(t *testing.T, got, want []string) {
	t.Helper()
	for _, line := range want {
		if !slices.Contains(got, line) {
			t.Errorf("missing: %s", line)
		}
	}
	for _, line := range got {
		if !slices.Contains(want, line) {
			t.Errorf("unexpected: %s", line)
		}
	}
}

// The figures of the server itself move with what it does.
func TestMetricsMove(t *testing.T) {
	r := startSlow(t, func(o *Options) { o.MaxCalls, o.MaxConnections = 4, 1 })
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	entered, release := holdAppends(r.shard)
	defer release()
	appended := inBackground(t, r, smallAppend())
	<-entered
	// A message and the building of a second are more than a connection's share.
	for range 3 {
		stick(t, ctx, r.client)
	}
	eventually(t, "one has sent a message and two wait", func() bool {
		u := r.use()
		return u.waiting == 2 && u.bytes > slowBatch && u.bytes < slowBatch+1000
	})
	if _, err := r.client.Append(ctx, smallAppend()); err == nil {
		t.Error("a call above the limit was answered")
	}
	refused, err := net.Dial("tcp", r.conn.Target())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = refused.Close() }()
	if _, err := refused.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a connection above the limit reads %v", err)
	}
	r.server.chain.budget.mu.Lock()
	r.server.chain.budget.cuts = 17
	r.server.chain.budget.mu.Unlock()

	got, _ := scrape(t, r.server)
	request := proto.Size(smallAppend()) + 3*proto.Size(&pb.ReadRequest{Aggregate: pbKey("large")})
	for _, want := range []string{
		"tidemark_calls 4", "tidemark_read_calls 3", "tidemark_calls_refused_total 1", "tidemark_reads_waiting 2",
		`tidemark_connections{listener="grpc"} 1`, `tidemark_connections_refused_total{listener="grpc"} 1`,
		fmt.Sprintf("tidemark_request_bytes %d", request), "tidemark_stalled_connections_closed_total 17",
		"tidemark_read_bytes " + strconv.FormatFloat(float64(r.use().bytes), 'g', -1, 64),
	} {
		if !slices.Contains(got, want) {
			t.Errorf("missing: %s in\n%s", want, strings.Join(got, "\n"))
		}
	}
	release()
	if err := appended(); err != nil {
		t.Error(err)
	}
	cancel()
	eventually(t, "all is given back", func() bool { return r.use().bytes == 0 })
	got, _ = scrape(t, r.server)
	for _, want := range []string{"tidemark_read_bytes 0", "tidemark_reads_waiting 0", "tidemark_calls_refused_total 1"} {
		if !slices.Contains(got, want) {
			t.Errorf("missing: %s", want)
		}
	}
}
