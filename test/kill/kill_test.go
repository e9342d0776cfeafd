package kill

import (
	"context"
	"flag"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/offline"
	"github.com/tidemark-db/tidemark/test/process"
	"github.com/tidemark-db/tidemark/test/writers"
)

// A longer run: go test ./test/kill -args -rounds 500 -seed 7.
var (
	flagRounds = flag.Int("rounds", rounds(), "how often the node is killed")
	flagSeed   = flag.Uint64("seed", 0, "seed of the load and of the moments; 0 = a new one")
)

// rounds is fewer under the race detector, which is after races and is slow.
func rounds() int {
	if process.Race {
		return 4
	}
	return 20
}

const (
	writerCount = 24
	connections = 3
	// longest a round writes before the kill
	longest = 500 * time.Millisecond
	// snapshotsAfter is when a node first looks whether its log is long enough for one.
	snapshotsAfter = time.Second
	// compareEvery is how often everything is compared with what the directory held.
	compareEvery = 10
)

// nodeArgs make the node flush, snapshot and truncate within the load of a few rounds, so
// that kills land in those too.
func nodeArgs() []string {
	return []string{"--memtable-bytes", "1MiB", "--snapshot-log-bytes", "1MiB", "--trailing-log-bytes", "1MiB"}
}

func TestMain(m *testing.M) { process.Main(m) }

func clients(t *testing.T, n *process.Node) []pb.EventStoreServiceClient {
	t.Helper()
	out := make([]pb.EventStoreServiceClient, connections)
	for i := range out {
		out[i] = pb.NewEventStoreServiceClient(n.Dial(t))
	}
	return out
}

func TestNothingAcknowledgedIsLostToAKill(t *testing.T) {
	seed := *flagSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) >> 10
	}
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	o := process.Options{DataDir: filepath.Join(t.TempDir(), "data"), Args: nodeArgs()}
	set := writers.New("kill", seed, writerCount)

	var slowest time.Duration
	unknown, snapshots, fromTail := 0, 0, 0
	for round := range *flagRounds {
		if round%4 == 3 {
			killWhileStarting(t, o, time.Duration(rng.Int64N(int64(150*time.Millisecond))))
		}
		offline.Sound(t, o.DataDir)
		began := time.Now()
		// What is on disk, by a reader that has nothing of the server's: what the node then has,
		// before anybody writes, is that and nothing else.
		var content *offline.Content
		if round%compareEvery == 1 {
			content = offline.Read(t, o.DataDir)
			fromTail += content.FromTail
			began = time.Now()
		}
		n := process.Start(t, o)
		slowest = max(slowest, time.Since(began))
		compare(t, content, n)
		verify(t, set, n)

		before := set.Acknowledged()
		after := time.Duration(rng.Int64N(int64(longest)))
		if round%5 == 4 {
			after += snapshotsAfter
		}
		killUnderLoad(t, set, n, after)
		if got := set.Acknowledged() - before; got == 0 {
			t.Fatalf("round %d: the kill came before the first acknowledgement", round)
		}
		unknown += set.Unknown()
		snapshots += strings.Count(n.Log(), `"snapshot taken"`)
	}

	content := offline.Read(t, o.DataDir)
	n := process.Start(t, o)
	compare(t, content, n)
	verify(t, set, n)
	// Everything once more from the first batch, this time as one history.
	set.Recheck()
	if err := set.Check(t.Context(), clients(t, n)[0]); err != nil {
		t.Error(err)
	}
	n.Kill(t)
	t.Logf("%d kills, %d requests acknowledged, %d without an answer, %d snapshots, slowest start %v",
		*flagRounds, set.Acknowledged(), unknown, snapshots, slowest.Round(time.Millisecond))
	if unknown == 0 {
		t.Error("no kill hit a write in flight: the load is not what this test is for")
	}
	if fromTail == 0 {
		t.Error("no kill left entries that the history lacked: the load is not what this test is for")
	}
	if snapshots == 0 && *flagRounds >= 20 {
		t.Error("no snapshot was taken, so no kill came near one: the load is not what this test is for")
	}
}

// compare holds all that a node has against what its directory held before it started.
func compare(t *testing.T, content *offline.Content, n *process.Node) {
	t.Helper()
	if content == nil {
		return
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := content.Compare(ctx, clients(t, n)[0]); err != nil {
		t.Fatalf("before and after the start: %v", err)
	}
}

// verify holds a node that has just started, and has nothing cached, against the answers.
func verify(t *testing.T, set *writers.Set, n *process.Node) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := clients(t, n)[0]
	if err := set.Retry(ctx, client); err != nil {
		t.Fatalf("cold retries: %v", err)
	}
	if err := set.Check(ctx, client); err != nil {
		t.Fatalf("after the restart: %v", err)
	}
	if err := set.Settle(ctx, client); err != nil {
		t.Fatalf("requests without an answer: %v", err)
	}
}

// killUnderLoad lets all writers write, and kills the node some time after the first answer.
func killUnderLoad(t *testing.T, set *writers.Set, n *process.Node, after time.Duration) {
	t.Helper()
	answered := make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan []writers.Ending, 1)
	to := clients(t, n)
	// Ends when the node is killed, at the latest with ctx.
	go func() {
		ended <- set.Run(ctx, to, func() {
			select {
			case answered <- struct{}{}:
			default:
			}
		})
	}()
	select {
	case <-answered:
	case <-n.Exited():
	case <-time.After(10 * time.Second):
		t.Fatal("no write was answered within 10 s")
	}
	select {
	case <-time.After(after):
	case <-n.Exited():
	}
	n.Kill(t)
	for _, e := range <-ended {
		if e.Err == nil || e.Definite {
			t.Errorf("writer %s was stopped by %v, expected the loss of its connection", e.Writer, e.Err)
		}
	}
}

// killWhileStarting kills a node that may not have recovered yet.
func killWhileStarting(t *testing.T, o process.Options, after time.Duration) {
	t.Helper()
	n := process.Launch(t, o)
	select {
	case <-time.After(after):
	case <-n.Exited():
	}
	n.Kill(t)
}
