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
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"

	"github.com/tidemark-db/tidemark/mark"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/replication/peer"
	"github.com/tidemark-db/tidemark/wal/history"
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
		Status: replication.Status{
			NodeID: "n1", ClusterID: "c1", Timeline: "t1", Role: "follower", Term: 411, AppliedIndex: 412, CommitIndex: 413, LastPosition: 414,
			LeaderID: "n2", InFlightRequests: 401, OverlayAggregates: 402, InFlightBytes: 403, TailBytes: 404, FreeDiskBytes: 405,
		},
		MaxInFlightBytes: 201, MinFreeDiskBytes: 202, OutstandingEntries: 203, MaxOutstandingEntries: 204,
		AdmissionHeads: cache(210), AdmissionMarks: cache(220), ApplyHeads: cache(230), ApplyMarks: cache(240),
		Schemas: 601, MaxSchemas: 602, Validators: replication.ValidatorStats{
			Entries: 603, MaxEntries: 604, Bytes: 605, MaxBytes: 606, Hits: 607, Misses: 608, Evictions: 609, Valid: 610, Invalid: 611, Unregistered: 612, Encrypted: 613,
		},
		FirstIndex: 501, LastIndex: 502, TailWrittenBytes: 503, TailSinceSnapshot: 504,
		Feed:     replication.FeedStats{Changes: 571, MaxChanges: 572, Bytes: 573, MaxBytes: 574},
		LogCache: replication.EntryCacheStats{Entries: 505, Bytes: 506, Limit: 507, Hits: 508, Misses: 509}, Elections: 510, LeaderChanges: 511,
		Voters: 512, Nonvoters: 513, Connections: &peer.Stats{
			Handshaking: 521, MaxHandshaking: 522, Peer: 523, MaxPeer: 524, Raft: 525, MaxRaft: 526, Clients: 527, MaxClients: 528,
		},
		Peers: []replication.PeerStats{
			{NodeID: "n2", Voter: true, Up: true, AppliedIndex: 531, CommitIndex: 532, Lag: 533, Answered: time.Unix(534, 0)},
			{NodeID: "n3"},
		},
		RefusalsWaiting: 541, ReadsWaiting: 542, RoundsConfirmed: 543, RoundsFailed: 544,
		DigestComparisons: 545, DigestMismatches: 546, Diverged: true,
		SnapshotAt: time.Unix(551, 5e8), SnapshotIndex: 552, SnapshotBytes: 553, SnapshotsTaken: 554, SnapshotsFailed: 555,
		Backups:       replication.BackupStats{Running: 562, Limit: 563, Sent: 564, Failed: 565, Bytes: 566, LastSent: time.Unix(567, 5e8)},
		SnapshotsSent: 556, SnapshotSentBytes: 557, SnapshotsReceived: 558, ReceivesFailed: 559,
		RetiredHistories: 560, MaxRetiredHistories: 561, LentSnapshots: 562, MaxLentLogBytes: 563,
		History: &history.Stats{
			BlockCacheBytes: 301, BlockCacheLimit: 302, BlockCacheHits: 303, BlockCacheMisses: 304,
			Memtables: 305, ZombieMemtables: 306, MemtableBytes: 307, ZombieMemtableBytes: 308, MemtableLimit: 309,
			Snapshots: 310, L0Sublevels: 311, CompactionDebtBytes: 312, DiskBytes: 313, ReadAmplification: 314,
			LevelBytes: [7]int64{320, 321, 322, 323, 324, 325, 326}, LevelTables: [7]int64{330, 331, 332, 333, 334, 335, 336},
			BlobBytes: 340, ObsoleteBytes: 341, ZombieBytes: 342, Tombstones: 343,
			Flushes: 344, Compactions: 345, CompactionsFailed: 346, CompactionsRunning: 347, FlushedBytes: 348, CompactedBytes: 349,
			Stalls: 350, Stalled: 351 * time.Second, SlowOperations: 352,
		},
	}
}

// countedElsewhere says that a line is of what the server counts itself, which
// TestAppendsAreCounted and TestReadsAreCounted look at.
func countedElsewhere(line string) bool {
	return slices.ContainsFunc([]string{"append", "reads_total", "read_duration"}, func(name string) bool {
		return strings.HasPrefix(line, "tidemark_"+name)
	})
}

// The figures of the shard are under their names, and no other figures are there.
func TestMetricsOfTheShard(t *testing.T) {
	r := start(t, func(o *Options) {
		o.MaxCalls, o.MaxReads, o.MaxBytes, o.MaxReadBytes, o.MaxConnections, o.MaxSubscribers = 101, 102, 4<<20+103, 104, 105, 108
		o.Build, o.OpenDuration = Build{"v9", "abc", "go9"}, 106*time.Second
	})
	r.server.Started(107 * time.Second)
	stats := fullStats()
	r.shard.setStats(stats)
	want := strings.Split(strings.TrimSpace(figures), "\n")
	got, _ := scrape(t, r.server)
	got = slices.DeleteFunc(got, countedElsewhere)
	wantSeries(t, got, want)

	// Without a history, its series are gone and the others stay.
	stats.History = nil
	r.shard.setStats(stats)
	want = slices.DeleteFunc(want, func(line string) bool {
		return strings.HasPrefix(line, "tidemark_block_cache") || strings.HasPrefix(line, "tidemark_history") || strings.Contains(line, "memtable")
	})
	got, _ = scrape(t, r.server)
	got = slices.DeleteFunc(got, countedElsewhere)
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
		"tidemark_calls 4", "tidemark_read_calls 3", "tidemark_calls_refused_total 1", "tidemark_reads_waiting 2", "tidemark_read_waits_total 2",
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
