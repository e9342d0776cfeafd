package chaos

import (
	"cmp"
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-db/tidemark/test/clients"
	"github.com/tidemark-db/tidemark/test/cluster"
	"github.com/tidemark-db/tidemark/test/linear"
	"github.com/tidemark-db/tidemark/test/offline"
	"github.com/tidemark-db/tidemark/test/process"
)

var (
	flagSeed     = flag.Uint64("seed", 0, "seed of the schedule and of the load; 0 = a new one")
	flagDuration = flag.Duration("duration", 0, "how long to go on; 0 = every nemesis once")
	flagNemesis  = flag.String("nemesis", "", "only the nemeses whose name has this text")
)

const (
	// patience is how long requests may take to resolve once the cluster is well.
	patience = 30 * time.Second
	// judging is how long the checker may take for one aggregate.
	judging = 20 * time.Second
	// some is how many requests must be acknowledged before something is broken, while it is
	// (where it should be survived), and after it is whole again.
	some = 40
)

func TestMain(m *testing.M) { process.Main(m) }

func TestNothingAcknowledgedIsLostAndNoAnswerMisleads(t *testing.T) {
	seed := *flagSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano())>>10&0xffffff + 1
	}
	r := &run{t: t, seed: seed, rng: rand.New(rand.NewPCG(seed, 0))}
	defer func() {
		if t.Failed() {
			t.Logf("seed %d, the schedule so far: %s", seed, strings.Join(r.schedule, ", "))
		}
	}()
	began := time.Now()
	r.cluster = cluster.Start(t, cluster.Options{Nodes: 3, Spare: 1, DiskBytes: 512 << 20, Args: nodeArgs()})
	for {
		for _, i := range r.rng.Perm(len(nemeses)) {
			if !strings.Contains(nemeses[i].name, *flagNemesis) {
				continue
			}
			r.episode(nemeses[i])
			if *flagDuration > 0 && time.Since(began) >= *flagDuration {
				break
			}
		}
		if len(r.past) == 0 {
			t.Fatalf("no nemesis is called %q", *flagNemesis)
		}
		if time.Since(began) >= *flagDuration {
			break
		}
	}
	r.checkPast()
	for _, n := range r.cluster.Members() {
		n.Kill()
		offline.Sound(t, n.DataDir())
	}
	taken, received, behind := r.cluster.Logged("snapshot taken"), r.cluster.Logged("another node's snapshot was restored"), r.cluster.Logged(restoredByStart)
	t.Logf("seed %d: %d episodes, %d requests acknowledged, %d snapshots taken, %d received, %d restored by the start after a crash, %v",
		seed, len(r.past), r.acknowledged, taken, received, behind, time.Since(began).Round(time.Second))
	if *flagNemesis == "" && *flagDuration == 0 && (received == 0 || behind == 0) {
		t.Error("no snapshot was received, or none was restored after a crash: the load is not what this test is for")
	}
}

// restoredByStart is in the log of a node that was killed after a snapshot was installed and
// before the history was restored from it.
const restoredByStart = "the history is behind the newest snapshot"

// nodeArgs make nodes flush, snapshot and truncate within seconds, notice a stalled disk soon,
// and elect quickly.
func nodeArgs() []string {
	return []string{
		"--log-level", "debug", "--memtable-bytes", "1MiB", "--block-cache-bytes", "8MiB", "--snapshot-log-bytes", "1MiB", "--trailing-log-bytes", "1MiB",
		"--min-free-disk-bytes", reserve, "--disk-stall-timeout", "4s", "--heartbeat-timeout", "500ms", "--election-timeout", "500ms",
	}
}

// run is one run of the suite.
type run struct {
	t            *testing.T
	seed         uint64
	rng          *rand.Rand
	cluster      *cluster.Cluster
	schedule     []string
	timeline     string
	past         []episode
	acknowledged int

	load *clients.Load // of the current episode
}

// episode is what is left of an episode.
type episode struct {
	name     string
	load     *clients.Load
	position uint64
	hashes   map[string][sha256.Size]byte
}

// episode runs one nemesis under load and judges.
func (r *run) episode(n nemesis) {
	r.t.Helper()
	began := time.Now()
	name := fmt.Sprintf("e%d", len(r.past))
	r.schedule = append(r.schedule, n.name)
	var targets []clients.Target
	for _, node := range r.cluster.Nodes {
		targets = append(targets, clients.Target{ID: node.ID, Address: r.cluster.Network.Host(node.Number) + ":7440", Conn: node.Conn()})
	}
	if r.timeline == "" {
		s, err := r.cluster.Leader().Status()
		if err != nil {
			r.t.Fatal(err)
		}
		r.timeline = s.GetTimeline()
	}
	r.load = clients.Start(clients.Options{
		Name: fmt.Sprintf("s%d-%s", r.seed, name), Seed: r.seed<<16 + uint64(len(r.past)), Targets: targets, Timeline: r.timeline,
		Writers: 12, Readers: 6, Aggregates: 6, Operations: 1500, Pause: 10 * time.Millisecond,
	})
	defer r.load.Settle(0) // after a failure
	r.progress()
	n.run(r)
	r.cluster.Network.Heal(r.t)
	broken := time.Since(began)
	r.cluster.Settle()
	r.progress()
	well := time.Since(began)
	if err := r.load.Settle(patience); err != nil {
		r.t.Errorf("%s: what clients found by themselves: %v", n.name, err)
	}
	r.judge(n.name)
	r.t.Logf("%s: %d requests, %d operations; broken until %v, well at %v, judged at %v", n.name, r.load.Acknowledged(), len(r.load.Ops()),
		broken.Round(time.Millisecond), well.Round(time.Millisecond), time.Since(began).Round(time.Millisecond))
	r.acknowledged += r.load.Acknowledged()
	r.load.Forget()
	if r.t.Failed() {
		r.t.FailNow()
	}
}

// progress waits until some more requests are acknowledged.
func (r *run) progress() {
	r.t.Helper()
	least := r.load.Acknowledged() + some
	r.cluster.Until("requests to be acknowledged", func() bool { return r.load.Acknowledged() >= least })
}

// judge holds what the clients saw against what all nodes have.
func (r *run) judge(name string) {
	r.t.Helper()
	position := r.load.Position()
	var first *clients.Content
	for _, n := range r.cluster.Members() {
		ctx, cancel := context.WithTimeout(r.t.Context(), patience)
		content, err := r.load.Inspect(ctx, n.Conn(), position)
		cancel()
		if err != nil {
			r.t.Fatalf("%s: at %s: %v", name, n.ID, err)
		}
		if first == nil {
			first = content
		}
		for aggregate, hash := range content.Hashes {
			if hash != first.Hashes[aggregate] {
				r.t.Errorf("%s: %s has other batches of %s than %s: %+v, %+v", name, n.ID, aggregate, r.cluster.Members()[0].ID, content.Batches[aggregate], first.Batches[aggregate])
			}
		}
		if len(content.Hashes) != len(first.Hashes) {
			r.t.Errorf("%s: %s has %d aggregates, %s %d", name, n.ID, len(content.Hashes), r.cluster.Members()[0].ID, len(first.Hashes))
		}
	}
	if err := linear.Check(r.load.Ops(), first.Batches, judging); err != nil {
		r.t.Errorf("%s: %v", name, err)
	}
	if r.t.Failed() {
		r.keepHistory(first.Batches)
	}
	r.cluster.CheckAlive()
	r.past = append(r.past, episode{name, r.load, position, first.Hashes})
}

// keepHistory writes what the clients saw, and what is there, next to the logs.
func (r *run) keepHistory(batches map[string][]linear.Batch) {
	r.t.Helper()
	var s strings.Builder
	ops := r.load.Ops()
	slices.SortFunc(ops, func(a, b linear.Op) int { return cmp.Compare(a.Call, b.Call) })
	for i := range ops {
		fmt.Fprintln(&s, &ops[i])
	}
	for _, aggregate := range slices.Sorted(maps.Keys(batches)) {
		fmt.Fprintln(&s, aggregate)
		for _, b := range batches[aggregate] {
			fmt.Fprintf(&s, "  %+v\n", b)
		}
	}
	path := filepath.Join(r.cluster.Dir, "history.txt")
	if err := os.WriteFile(path, []byte(s.String()), 0o600); err != nil {
		r.t.Error(err)
	}
	r.t.Logf("what the clients saw is in %s", path)
}

// checkPast looks at everything of all episodes once more, on every node.
func (r *run) checkPast() {
	r.t.Helper()
	for _, e := range r.past {
		for _, n := range r.cluster.Members() {
			ctx, cancel := context.WithTimeout(r.t.Context(), patience)
			content, err := e.load.Inspect(ctx, n.Conn(), e.position)
			cancel()
			if err != nil {
				r.t.Fatalf("%s, at the end: at %s: %v", e.name, n.ID, err)
			}
			if !maps.Equal(content.Hashes, e.hashes) {
				r.t.Errorf("%s: at the end %s has other batches than after the episode", e.name, n.ID)
			}
		}
	}
	r.cluster.CheckAlive()
}
