package watch

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/process"
)

func TestMain(m *testing.M) { process.Main(m) }

// node is one of three.
type node struct {
	id, host, dir, peers string
	process              *process.Node
}

// instance is the node's name in Prometheus.
func (n *node) instance() string { return n.host + ":7442" }

func (n *node) start(t *testing.T) {
	t.Helper()
	n.process = process.Launch(t, process.Options{
		DataDir: n.dir, Host: n.host, Args: []string{"--node-id", n.id, "--peers", n.peers},
	})
}

// watched is a cluster and the Prometheus that watches it.
type watched struct {
	*prometheusServer
	t     *testing.T
	nodes []*node
}

func startWatched(t *testing.T) *watched {
	t.Helper()
	program := tool(t, "prometheus")
	w := &watched{t: t}
	network, first := fmt.Sprintf("127.%d.%d.", 1+rand.IntN(250), rand.IntN(250)), 1+rand.IntN(250)
	var peers, targets []string
	for i := range 3 {
		n := &node{id: fmt.Sprint("n", i+1), host: network + fmt.Sprint(first+i), dir: filepath.Join(t.TempDir(), "data")}
		w.nodes = append(w.nodes, n)
		peers = append(peers, n.id+"="+n.host+":7441")
		targets = append(targets, n.instance())
	}
	for _, n := range w.nodes {
		n.peers = strings.Join(peers, ",")
		n.start(t)
	}
	w.prometheusServer = startPrometheus(t, program, prometheusDir, network+fmt.Sprint(first+3)+":9090", targets)
	return w
}

// until waits for a condition, which returns what it has found instead.
func (w *watched) until(what string, met func(ctx context.Context) (found any, ok bool)) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	var last any
	for begun := time.Now(); ; {
		found, ok := met(ctx)
		if ok {
			w.t.Logf("%v for %s", time.Since(begun).Round(time.Millisecond), what)
			return
		}
		if ctx.Err() == nil {
			last = found // what the deadline interrupts is no finding
		}
		select {
		case <-ticker.C:
		case <-w.ended:
			w.t.Fatalf("Prometheus ended while waiting for %s", what)
		case <-ctx.Done():
			w.t.Fatalf("waited %v for %s; found %v", patience, what, last)
		}
	}
}

// untilQuery waits until an expression has exactly these values, by instance.
func (w *watched) untilQuery(what, expr string, want map[string]float64) {
	w.t.Helper()
	w.until(what, func(ctx context.Context) (any, bool) {
		got, err := w.query(ctx, expr)
		if err != nil {
			return err, false
		}
		return got, maps.Equal(got, want)
	})
}

// untilFiring waits until some alerts fire, and no others but the ones that may. It returns all.
func (w *watched) untilFiring(what string, must ...string) map[string]alert {
	w.t.Helper()
	slices.Sort(must)
	var all map[string]alert
	w.until(what, func(ctx context.Context) (any, bool) {
		var err error
		if all, err = w.firing(ctx); err != nil {
			return err, false
		}
		found := slices.Sorted(maps.Keys(all))
		counts := slices.DeleteFunc(slices.Clone(found), func(name string) bool {
			kind, _, _ := strings.Cut(name, " ")
			return slices.Contains(mayFire, kind)
		})
		return found, slices.Equal(counts, must)
	})
	return all
}

// leader waits until Prometheus sees one of some nodes lead, and no other.
func (w *watched) leader(among ...*node) *node {
	w.t.Helper()
	var leader *node
	w.until("a leader", func(ctx context.Context) (any, bool) {
		serving, err := w.query(ctx, `tidemark_serving_leader{job="tidemark"} == 1`)
		if err != nil {
			return err, false
		}
		leader = nil
		for _, n := range among {
			if serving[n.instance()] == 1 {
				leader = n
			}
		}
		return serving, len(serving) == 1 && leader != nil
	})
	return leader
}

// each is a value for every node.
func (w *watched) each(value func(*node) float64) map[string]float64 {
	all := map[string]float64{}
	for _, n := range w.nodes {
		all[n.instance()] = value(n)
	}
	return all
}

func (w *watched) others(not ...*node) []*node {
	return slices.DeleteFunc(slices.Clone(w.nodes), func(n *node) bool { return slices.Contains(not, n) })
}

// write appends an event, on whichever node takes it. It is confirmed if an attempt whose answer
// was lost has landed.
func (w *watched) write() {
	w.t.Helper()
	request := &pb.AppendRequest{ClientId: "watch", OnDuplicate: pb.OnDuplicate_ON_DUPLICATE_CONFIRM, Writes: []*pb.Write{{
		Aggregate:   &pb.AggregateKey{Org: "acme", Type: "orders", Id: "1"},
		AllowCreate: true, EnforceClientIdempotency: true,
		Events: []*pb.NewEvent{{ClientSeq: 1, EventId: "placed-1", Type: "placed", Payload: []byte("{}")}},
	}}}
	var clients []pb.EventStoreServiceClient
	for _, n := range w.nodes {
		clients = append(clients, pb.NewEventStoreServiceClient(n.process.Dial(w.t)))
	}
	w.until("a node that takes a write", func(ctx context.Context) (any, bool) {
		var refused []error
		for _, c := range clients {
			_, err := c.Append(ctx, request)
			if err == nil {
				return nil, true
			}
			refused = append(refused, err)
		}
		return refused, false
	})
}

const (
	nodeDown = "TidemarkNodeDown "
	noLeader = "TidemarkNoLeader"
)

// mayFire are alerts that are no matter here: there is no backup; a node that is missing is
// missing for long when minutes are seconds; and this machine may be as busy as they say.
var mayFire = []string{
	"TidemarkBackupTooOld", "TidemarkNoFailureTolerated", "TidemarkNodeNotReady", "TidemarkPeerUnreachable",
	"TidemarkDigestsNotCompared", "TidemarkFsyncSlow", "TidemarkLeaderFlapping",
}

// TestPrometheusSeesTheLeaderDie lets a real Prometheus watch a cluster that loses its leader,
// then its majority, and gets both back.
func TestPrometheusSeesTheLeaderDie(t *testing.T) {
	w := startWatched(t)
	w.untilQuery("all targets", `up{job="tidemark"}`, w.each(func(*node) float64 { return 1 }))
	first := w.leader(w.nodes...)
	w.untilQuery("nodes that are ready", `tidemark_ready`, w.each(func(*node) float64 { return 1 }))
	w.write()
	w.untilQuery("a write", `sum(tidemark_appends_total{outcome="ok", code="0"}) >= bool 1`, map[string]float64{"": 1})
	w.untilFiring("a cluster that is well")
	w.checkNames()

	first.process.Kill(t)
	second := w.leader(w.others(first)...)
	a := w.untilFiring("the alert about the node", nodeDown+first.instance())
	checkText(t, a[nodeDown+first.instance()], map[string]string{
		"summary":     first.instance() + " of tidemark does not answer.",
		"runbook_url": runbook + "tidemarknodedown",
	})

	second.process.Kill(t)
	a = w.untilFiring("the alert about the leader", noLeader, nodeDown+first.instance(), nodeDown+second.instance())
	checkText(t, a[noLeader], map[string]string{
		"summary":     "No node of tidemark takes writes.",
		"runbook_url": runbook + "tidemarknoleader",
	})

	first.start(t)
	second.start(t)
	w.leader(w.nodes...)
	w.untilQuery("all targets again", `up{job="tidemark"}`, w.each(func(*node) float64 { return 1 }))
	w.untilFiring("alerts that are over")
}

// checkText expects of an alert, beside its description, these annotations.
func checkText(t *testing.T, a alert, want map[string]string) {
	t.Helper()
	got := maps.Clone(a.Annotations)
	if d := got["description"]; !strings.HasPrefix(d, "Expected ") || strings.Contains(d, "error expanding") {
		t.Errorf("description is %q", d)
	}
	delete(got, "description")
	if !maps.Equal(got, want) {
		t.Errorf("annotations are %q, expected %q", got, want)
	}
}

// checkNames expects Prometheus to have every series that alerts and dashboard ask for.
func (w *watched) checkNames() {
	w.t.Helper()
	var wanted []string
	for _, e := range expressions(w.t) {
		for _, s := range selectors(e.expr) {
			wanted = append(wanted, s.name)
		}
	}
	w.until("every series that is asked for", func(ctx context.Context) (any, bool) {
		var names []string
		if err := w.get(ctx, "label/__name__/values", nil, &names); err != nil {
			return err, false
		}
		missing := slices.DeleteFunc(slices.Clone(wanted), func(n string) bool { return slices.Contains(names, n) })
		slices.Sort(missing)
		return slices.Compact(missing), len(missing) == 0
	})
}
