package faults

import (
	"context"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/process"
	"github.com/tidemark-db/tidemark/test/writers"
)

// Exit codes of serve, as "tidemark --help" documents them.
const (
	exitStorage = 70
	exitDamaged = 71
	exitInUse   = 72
)

const seed = 20

// node is what most tests begin with: a data directory, a binary and writers.
type fixture struct {
	options process.Options
	set     *writers.Set
}

func newFixture(t *testing.T, args ...string) *fixture {
	t.Helper()
	return &fixture{
		options: process.Options{DataDir: filepath.Join(t.TempDir(), "data"), Args: append([]string{"--memtable-bytes", "1MiB"}, args...)},
		set:     writers.New(strings.ToLower(t.Name()), seed, 12),
	}
}

func TestMain(m *testing.M) { process.Main(m) }

func clients(t *testing.T, n *process.Node) []pb.EventStoreServiceClient {
	t.Helper()
	return []pb.EventStoreServiceClient{pb.NewEventStoreServiceClient(n.Dial(t)), pb.NewEventStoreServiceClient(n.Dial(t))}
}

// load lets all writers write until so many more requests are acknowledged.
func (f *fixture) load(t *testing.T, n *process.Node, requests int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	acked := make(chan struct{}, 1<<16)
	done := make(chan []writers.Ending, 1)
	to := clients(t, n)
	// Ends with ctx, which is cancelled below.
	go func() { done <- f.set.Run(ctx, to, func() { acked <- struct{}{} }) }()
	for range requests {
		select {
		case <-acked:
		case <-ctx.Done():
			t.Fatalf("the writers made %d of %d requests in 30 s", f.set.Acknowledged(), requests)
		}
	}
	cancel()
	for _, e := range <-done {
		if e.Err != nil {
			t.Fatalf("writer %s: %v", e.Writer, e.Err)
		}
	}
}

// background starts the writers; ended delivers how they ended, after cancel at the latest.
func (f *fixture) background(t *testing.T, n *process.Node) (ended <-chan []writers.Ending, cancel context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	out := make(chan []writers.Ending, 1)
	first := make(chan struct{}, 1)
	to := clients(t, n)
	// Ends with ctx.
	go func() {
		out <- f.set.Run(ctx, to, func() {
			select {
			case first <- struct{}{}:
			default:
			}
		})
	}()
	select {
	case <-first:
	case <-time.After(20 * time.Second):
		t.Fatal("no write was answered within 20 s")
	}
	return out, cancel
}

// verify restarts the node and holds it against every answer from the first on.
func (f *fixture) verify(t *testing.T) *process.Node {
	t.Helper()
	n := process.Start(t, f.options)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	client := clients(t, n)[0]
	f.set.Recheck()
	if err := f.set.Retry(ctx, client); err != nil {
		t.Errorf("cold retries: %v", err)
	}
	if err := f.set.Check(ctx, client); err != nil {
		t.Errorf("after the restart: %v", err)
	}
	if err := f.set.Settle(ctx, client); err != nil {
		t.Errorf("requests without an answer: %v", err)
	}
	return n
}

// segments are the files of the tail, oldest first.
func segments(t *testing.T, dir string) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "tail", "log-*", "[0-9]*"))
	if err != nil || len(found) == 0 {
		t.Fatalf("no segment in %s (%v)", dir, err)
	}
	slices.Sort(found)
	return found
}

func lastSegment(t *testing.T, dir string) string {
	t.Helper()
	all := segments(t, dir)
	return all[len(all)-1]
}

// copyDir copies what a node that does nothing has in its directory.
func copyDir(t *testing.T, from string) string {
	t.Helper()
	to := filepath.Join(t.TempDir(), "data")
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	return to
}

// contents is every file below dir.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		out[p] = string(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// appendTo adds bytes to the end of a file.
func appendTo(t *testing.T, path string, b []byte) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

// expectExit waits for the node to end with a code, and its log to say all of the parts.
func expectExit(t *testing.T, n *process.Node, within time.Duration, code int, says ...string) {
	t.Helper()
	exit := n.Wait(t, within)
	if exit.Code != code {
		t.Errorf("exit code %d (signal %v), expected %d", exit.Code, exit.Signal, code)
	}
	for _, s := range says {
		if !strings.Contains(n.Log(), s) {
			t.Errorf("the log does not say %q", s)
		}
	}
}

// logged says whether a line of the log, of level warn or above, holds all parts.
func logged(n *process.Node, parts ...string) bool {
	for line := range strings.Lines(n.Log()) {
		var l struct {
			Level string `json:"level"`
		}
		if json.Unmarshal([]byte(line), &l) != nil || (l.Level != "warn" && l.Level != "error") {
			continue
		}
		if !slices.ContainsFunc(parts, func(p string) bool { return !strings.Contains(line, p) }) {
			return true
		}
	}
	return false
}
