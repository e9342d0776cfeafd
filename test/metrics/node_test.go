package metrics

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/metric"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/server"
)

// The bounds of the node, small enough to be reached, and what is written to it.
const (
	headCache   = 64 << 10
	markCache   = 32 << 10
	logCache    = 64 << 10
	blockCache  = 1 << 20
	memtable    = 1 << 20
	snapshotLog = 1 << 20
	inFlight    = 8 << 20
	readBytes   = 16 << 20
	maxCalls    = 64
	maxReads    = 32
	maxConns    = 3
	diskFree    = 1 << 40
	diskReserve = 1 << 20

	writers    = 16
	aggregates = 40 // of each writer
	writes     = writers * aggregates * 4
	payload    = 600
)

// node is a node in this process whose disk and entries the test holds.
type node struct {
	t        *testing.T
	dir      string
	shard    *replication.Shard
	server   *server.Server
	registry *prometheus.Registry
	grpc     string
	web      string
	client   pb.EventStoreServiceClient

	free atomic.Int64
	gate sync.RWMutex // held by the test to hold entries back
}

func startNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, dir: t.TempDir(), registry: prometheus.NewRegistry()}
	n.free.Store(diskFree)
	var err error
	n.shard, err = replication.Open(replication.Options{
		Dir: n.dir, NodeID: "n1", MinFreeDiskBytes: diskReserve, FreeDisk: func(string) (int64, error) { return n.free.Load(), nil },
		MaxInFlightBytes: inFlight, HeadCacheBytes: headCache, MarkCacheBytes: markCache, LogCacheBytes: logCache,
		BlockCacheBytes: blockCache, MemTableBytes: memtable, SegmentBytes: 128 << 10, SnapshotLogBytes: snapshotLog, TrailingLogBytes: 64 << 10,
		Hooks: replication.Hooks{BeforePropose: func() { n.gate.RLock(); defer n.gate.RUnlock() }},
	})
	if err != nil {
		t.Fatal(err)
	}
	n.server, err = server.New(server.Options{
		Shard: n.shard, Registry: n.registry, MaxCalls: maxCalls, MaxReads: maxReads, MaxBytes: 2 * inFlight, MaxReadBytes: readBytes,
		MaxConnections: maxConns, Build: server.Build{Version: "v0", Commit: "c0", Go: "g0"}, OpenDuration: 2 * time.Second,
	})
	if err != nil {
		t.Fatal(err)
	}
	n.server.Started(3 * time.Second)
	served := make(chan error, 2)
	serve := func(f func(net.Listener) error) string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() { served <- f(l) }() // ends with Stop below
		return l.Addr().String()
	}
	n.grpc, n.web = serve(n.server.Serve), serve(n.server.ServeWeb)
	conn, err := grpc.NewClient(n.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	n.client = pb.NewEventStoreServiceClient(conn)
	t.Cleanup(func() {
		_ = conn.Close() // only ever "already closed"
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		n.server.Stop(ctx)
		_ = n.shard.Abandon() // it may have stopped
		for range 2 {
			if err := <-served; err != nil {
				t.Error(err)
			}
		}
	})
	return n
}

// scrape asks for /metrics without a connection of its own.
func (n *node) scrape() page {
	n.t.Helper()
	w := httptest.NewRecorder()
	n.server.HTTPHandler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	if w.Code != http.StatusOK {
		n.t.Fatalf("/metrics: %d %s", w.Code, w.Body)
	}
	return parse(n.t, w.Body.String())
}

func appendOf(id, client string, seq uint64) *pb.AppendRequest {
	return &pb.AppendRequest{
		ClientId: client, RequestId: "request-of-" + client,
		Writes: []*pb.Write{{
			Aggregate: &pb.AggregateKey{Org: "acme", Type: "orders", Id: id}, AllowCreate: true, EnforceClientIdempotency: true,
			Events: []*pb.NewEvent{{ClientSeq: seq, EventId: fmt.Sprint(client, "-", seq), Type: "placed", Payload: []byte(strings.Repeat("x", payload))}},
		}},
	}
}

func mustAppend(t *testing.T, client pb.EventStoreServiceClient, req *pb.AppendRequest) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := client.Append(ctx, req); err != nil {
		t.Error(err)
	}
}

// writeAll writes four batches to each aggregate: three at once by two clients in turn, whose
// marks are then known, and one after all the others, when they are forgotten.
func writeAll(t *testing.T, client pb.EventStoreServiceClient, run string) {
	t.Helper()
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			id := func(i int) string { return fmt.Sprintf("%s-%d-%d", run, w, i) }
			for i := range aggregates {
				mustAppend(t, client, appendOf(id(i), "a", 1))
				mustAppend(t, client, appendOf(id(i), "b", 1))
				mustAppend(t, client, appendOf(id(i), "a", 2))
			}
			for i := range aggregates {
				mustAppend(t, client, appendOf(id(i), "b", 2))
			}
		})
	}
	wg.Wait()
}

// TestOneNode runs the steps of one node.
func TestOneNode(t *testing.T) {
	n := startNode(t)
	at := shows(t, start, nil, n.scrape)

	writeAll(t, n.client, "load")
	at = shows(t, load, at, n.scrape)

	conflict := appendOf("load-0-0", "a", 3)
	conflict.Writes[0].ExpectedVersion = proto.Uint64(99)
	if _, err := n.client.Append(t.Context(), conflict); err == nil {
		t.Fatal("a write on a version that never was is accepted")
	}
	at = shows(t, refused, at, n.scrape)

	n.gate.Lock()
	done := make(chan struct{})
	go func() { // ends with the call, which the gate holds
		defer close(done)
		mustAppend(t, n.client, appendOf("held", "a", 1))
	}()
	at = shows(t, held, at, n.scrape)
	n.gate.Unlock()
	<-done
	at = shows(t, released, at, n.scrape)

	stream, err := n.client.Read(t.Context(), &pb.ReadRequest{Aggregate: &pb.AggregateKey{Org: "acme", Type: "orders", Id: "held"}})
	for err == nil {
		_, err = stream.Recv()
	}
	if err != io.EOF {
		t.Fatal(err)
	}
	at = shows(t, reading, at, n.scrape)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	subscription, err := n.client.Subscribe(ctx, &pb.SubscribeRequest{Scope: &pb.SubscribeRequest_All{All: &pb.AllScope{}}, Start: &pb.SubscribeRequest_FromNow{FromNow: true}})
	if err == nil {
		_, err = subscription.Recv() // it is there from its first message on
	}
	if err != nil {
		t.Fatal(err)
	}
	at = shows(t, following, at, n.scrape)
	cancel()
	at = shows(t, left, at, n.scrape)
	at = n.knock(at)

	n.free.Store(diskReserve - 1)
	at = shows(t, diskFull, at, func() page {
		p := n.scrape()
		if free, _ := p.sum(t, "disk_free_bytes"); free == diskReserve-1 {
			if count, _ := p.sum(t, `appends_total{code="2018"}`); count == 0 {
				_, _ = n.client.Append(t.Context(), appendOf("full", "a", 1)) // counted below
			}
		}
		return n.scrape()
	})
	n.free.Store(diskFree)
	at = shows(t, diskRoom, at, n.scrape)

	// What is in the way of the snapshots' directory keeps them from being written.
	dir := filepath.Join(n.dir, "snapshots")
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	shows(t, noRoom, at, func() page {
		_, _ = n.client.Append(t.Context(), appendOf("more", "a", uint64(time.Now().UnixNano()))) // one more is as good as another
		for range 32 {
			mustAppendLarge(t, n.client)
		}
		return n.scrape()
	})
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	if err := n.shard.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	shows(t, stopped, at, n.scrape)
	n.lint()
	n.onlyKnownValues()
}

// mustAppendLarge makes the log grow.
func mustAppendLarge(t *testing.T, client pb.EventStoreServiceClient) {
	t.Helper()
	req := appendOf("large", "a", uint64(time.Now().UnixNano()))
	req.Writes[0].Events[0].Payload = make([]byte, 64<<10)
	mustAppend(t, client, req)
}

// knock opens more connections than there is room for.
func (n *node) knock(before page) page {
	n.t.Helper()
	var open []net.Conn
	dial := func(address string, count int) {
		for range count {
			c, err := net.Dial("tcp", address)
			if err != nil {
				n.t.Fatal(err)
			}
			open = append(open, c)
		}
	}
	dial(n.grpc, maxConns)
	dial(n.web, 257)
	after := shows(n.t, knocking, before, n.scrape)
	for _, c := range open {
		_ = c.Close() // the node may have closed it
	}
	return after
}

// lint asks Prometheus's own lint about what was registered, the libraries' metrics left out.
func (n *node) lint() {
	n.t.Helper()
	problems, err := testutil.GatherAndLint(n.registry)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, metric.Prefix) {
			n.t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// onlyKnownValues: whatever clients sent, every value of a label is one of the table's, or says
// which node, cluster or build this is.
func (n *node) onlyKnownValues() {
	n.t.Helper()
	defs := map[string]metric.Def{}
	for _, g := range metric.Groups() {
		for _, d := range g.Defs {
			defs[d.Name] = d
		}
	}
	status := n.shard.Status()
	own := map[string]string{
		"node_id": "n1", "cluster_id": status.ClusterID, "timeline": status.Timeline, "version": "v0", "commit": "c0", "go_version": "g0",
	}
	for _, s := range n.scrape() {
		name := s.name
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base := strings.TrimSuffix(name, suffix); defs[base].Kind == metric.Histogram {
				name = base
			}
		}
		d, known := defs[name]
		if !known {
			n.t.Errorf("%s is not in the table", s.name)
		}
		for label, value := range s.labels {
			ok := label == "le" || value == own[label]
			for _, l := range d.Labels {
				if l.Name != label {
					continue
				}
				for _, v := range l.Values {
					ok = ok || v == value
				}
			}
			if !ok {
				n.t.Errorf("%s: nothing explains %s=%q", s.name, label, value)
			}
		}
	}
}
