package truth

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/process"
)

func TestMain(m *testing.M) { process.Main(m, "faultpoints") }

// patience bounds every wait of these tests; none of them waits for a length of time.
const patience = 60 * time.Second

// The fault points, as in cmd/tidemark/faultpoints.go.
const (
	pointEntries  = "entries"
	pointAnswers  = "answers"
	pointStepDown = "step-down"
)

// cluster is three nodes.
type cluster struct {
	network  string // the first three parts of its addresses
	nodes    []*node
	timeline string
}

// node is one of them, running or not.
type node struct {
	*process.Node
	pb.EventStoreServiceClient
	c                *cluster
	id, dir, host    string
	heartbeatTimeout time.Duration // of its newest start
	faults           string        // the address of its fault points
}

// form starts three nodes. Whoever leads has the lease, and all others the heartbeat
// timeout that is given; 0 = the default for all.
//
// A cluster of long timeouts needs long for its first election. Here one node of short ones
// leads at once, hands leadership over when it is stopped, and comes back with the others'.
func form(t *testing.T, lease, others time.Duration) (c *cluster, leader *node, followers []*node) {
	t.Helper()
	c = &cluster{network: fmt.Sprintf("127.%d.%d.", 1+rand.IntN(250), rand.IntN(250))}
	for range 3 {
		c.nodes = append(c.nodes, c.another(t))
	}
	for i, n := range c.nodes {
		if i == 0 && lease > 0 {
			n.start(t, 300*time.Millisecond)
		} else {
			n.start(t, lease)
		}
	}
	leader = c.leader(t, c.nodes...)
	if lease == 0 {
		return c, leader, c.without(leader)
	}
	if founder := c.nodes[0]; leader == founder {
		founder.Signal(t, syscall.SIGTERM)
		founder.Wait(t, patience)
		leader = c.leader(t, c.nodes[1:]...)
		founder.start(t, others)
	}
	for _, n := range c.without(leader) {
		if n.heartbeatTimeout != others {
			n.Kill(t)
			n.start(t, others)
		}
	}
	return c, leader, c.without(leader)
}

// another makes a node that is none of the cluster's yet, with an address of its own.
func (c *cluster) another(t *testing.T) *node {
	t.Helper()
	i := len(c.nodes) + 1
	return &node{c: c, id: fmt.Sprint("n", i), dir: filepath.Join(t.TempDir(), "data"), host: c.network + strconv.Itoa(i)}
}

// peers is the initial cluster as --peers has it.
func (c *cluster) peers() string {
	var out []string
	for _, n := range c.nodes {
		out = append(out, n.id+"="+n.host+":7441")
	}
	return strings.Join(out, ",")
}

// without is all nodes but some.
func (c *cluster) without(some ...*node) []*node {
	var out []*node
next:
	for _, n := range c.nodes {
		for _, s := range some {
			if n == s {
				continue next
			}
		}
		out = append(out, n)
	}
	return out
}

// start starts a node for the first time, or again on what its directory holds.
func (n *node) start(t *testing.T, heartbeatTimeout time.Duration) {
	t.Helper()
	args := []string{
		"--node-id", n.id, "--peers", n.c.peers(),
		"--listen", n.host + ":7440", "--raft-listen", n.host + ":7441", "--http-listen", n.host + ":7442",
		"--memtable-bytes", "1MiB", "--block-cache-bytes", "8MiB",
	}
	if heartbeatTimeout > 0 {
		args = append(args, "--heartbeat-timeout", heartbeatTimeout.String(), "--election-timeout", heartbeatTimeout.String())
	}
	n.heartbeatTimeout = heartbeatTimeout
	n.Node = process.Launch(t, process.Options{DataDir: n.dir, Args: args})
	n.EventStoreServiceClient = pb.NewEventStoreServiceClient(n.Dial(t))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := n.WaitLog(ctx, func(line string) bool {
		var said struct {
			Address string `json:"fault_points"`
		}
		if json.Unmarshal([]byte(line), &said) != nil || said.Address == "" {
			return false
		}
		n.faults = said.Address
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
}

// state is what a node says of itself at its fault points.
type state struct {
	Role    string
	Term    uint64
	Ready   bool
	Flushes int
	Held    map[string]struct {
		Waiting int
		Newest  uint64
	}
}

func (n *node) state(t *testing.T) state {
	t.Helper()
	var s state
	if err := json.Unmarshal([]byte(n.control(t, http.MethodGet, "status")), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func (n *node) hold(t *testing.T, point string) {
	t.Helper()
	n.control(t, http.MethodPost, "hold/"+point)
}

func (n *node) release(t *testing.T, point string) {
	t.Helper()
	n.control(t, http.MethodPost, "release/"+point)
}

// control asks the node's fault points for something.
func (n *node) control(t *testing.T, method, path string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+n.faults+"/"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatalf("%s: %v", n.id, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s %s of %s: %s %q, %v", method, path, n.id, resp.Status, body, err)
	}
	return string(body)
}

// until waits for a condition.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(patience); !ok(); <-ticker.C {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// leader waits until one of some running nodes takes writes.
func (c *cluster) leader(t *testing.T, among ...*node) *node {
	t.Helper()
	var leader *node
	until(t, "a leader", func() bool {
		for _, n := range among {
			if n.state(t).Ready {
				leader = n
				return true
			}
		}
		return false
	})
	return leader
}

// freeze stops nodes with SIGSTOP and returns once they stand still.
func freeze(t *testing.T, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		n.Signal(t, syscall.SIGSTOP)
		until(t, n.id+" to stand still", func() bool {
			stat, err := os.ReadFile("/proc/" + strconv.Itoa(n.PID) + "/stat")
			if err != nil {
				t.Fatal(err)
			}
			_, rest, _ := strings.Cut(string(stat), ") ")
			return strings.HasPrefix(rest, "T")
		})
	}
}

func thaw(t *testing.T, nodes ...*node) {
	t.Helper()
	for _, n := range nodes {
		n.Signal(t, syscall.SIGCONT)
	}
}

// inTail says whether the files of a node's log hold some bytes.
func (n *node) inTail(t *testing.T, text string) bool {
	t.Helper()
	found := false
	err := filepath.WalkDir(filepath.Join(n.dir, "tail"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var b []byte
			b, err = os.ReadFile(path)
			found = found || strings.Contains(string(b), text)
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil // replaced while this looked
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
