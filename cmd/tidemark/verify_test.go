package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
)

// stoppedNode makes the directory of a node that was stopped after n writes, or returns it
// running.
func stoppedNode(t *testing.T, n int) (dir string, s *replication.Shard) {
	t.Helper()
	dir = t.TempDir()
	s, err := replication.Open(replication.Options{Dir: dir, MinFreeDiskBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.After(20 * time.Second)
	for {
		ready, changed := s.Leading()
		if ready {
			break
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("expected a node that takes writes within 20 s")
		}
	}
	for i := range n {
		_, err := s.Append(t.Context(), &pb.AppendRequest{ClientId: "svc", Writes: []*pb.Write{{
			Aggregate: &pb.AggregateKey{Org: "acme", Type: "orders", Id: "1"}, AllowCreate: true, EnforceClientIdempotency: true,
			Events: []*pb.NewEvent{{ClientSeq: uint64(i + 1), EventId: fmt.Sprint("e", i+1), Type: "Placed", Payload: []byte(`{"x":1}`)}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir, s
}

func stopNode(t *testing.T, s *replication.Shard) {
	t.Helper()
	if err := s.Stop(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// runOffline runs a command and returns its exit code and what it printed.
func runOffline(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

func TestVerifyExitCodes(t *testing.T) {
	dir, s := stoppedNode(t, 3)
	if code, _, stderr := runOffline(t, "verify", dir); code != exitInUse || !strings.Contains(stderr, "LOCK; stop the node") {
		t.Errorf("verify of a directory in use: %d, %q; expected %d", code, stderr, exitInUse)
	}
	stopNode(t, s)
	code, stdout, stderr := runOffline(t, "verify", dir)
	if code != exitOK || stdout != "" || !strings.HasPrefix(stderr, "Checked 6 entries of the log (3 applied anew), ") ||
		!strings.HasSuffix(stderr, " 1 aggregates, 3 batches, 3 writer rows, 3 positions: 0 places are damaged, 0 notes.\n") {
		t.Errorf("verify of a sound directory: %d, %q, %q", code, stdout, stderr)
	}
	segment := filepath.Join(dir, "tail", "log-0000000001", "00000000000000000001")
	b, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-20] ^= 1
	if err := os.WriteFile(segment, b, 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr = runOffline(t, "verify", dir)
	if code != exitDamaged || !strings.HasPrefix(stdout, "DAMAGE  "+segment+": offset ") || !strings.Contains(stderr, "docs/verify.md says how") {
		t.Errorf("verify of a damaged directory: %d, %q, %q", code, stdout, stderr)
	}
	code, stdout, _ = runOffline(t, "verify", dir, "--output", "json")
	var finding struct {
		Finding struct {
			Damage bool
			File   string
			Offset int64
			Index  string
			Text   string
		}
	}
	var summary struct {
		Summary struct {
			Damage  int
			Entries string
		}
	}
	first, last, _ := strings.Cut(strings.TrimSpace(stdout), "\n")
	if err := json.Unmarshal([]byte(first), &finding); err != nil {
		t.Fatal(err, stdout)
	}
	if err := json.Unmarshal([]byte(last), &summary); err != nil {
		t.Fatal(err, stdout)
	}
	if f := finding.Finding; code != exitDamaged || !f.Damage || f.File != segment || f.Offset == 0 || f.Index != "6" || f.Text == "" ||
		summary.Summary.Damage != 1 || summary.Summary.Entries != "5" {
		t.Errorf("verify as JSON: %d, %s", code, stdout)
	}
	if code, _, stderr := runOffline(t, "inspect", dir, "entries"); code != exitDamaged || !strings.Contains(stderr, segment) {
		t.Errorf("inspect of a damaged directory: %d, %q", code, stderr)
	}
	for _, other := range []string{filepath.Join(dir, "none"), t.TempDir(), segment} {
		if code, _, stderr := runOffline(t, "verify", other); code != exitUsage {
			t.Errorf("verify %s: %d, %q; expected %d", other, code, stderr, exitUsage)
		}
	}
}

func TestInspectShowsEverything(t *testing.T) {
	dir, s := stoppedNode(t, 2)
	if code, _, _ := runOffline(t, "inspect", dir); code != exitInUse {
		t.Errorf("inspect of a directory in use: %d, expected %d", code, exitInUse)
	}
	stopNode(t, s)
	for what, want := range map[string]string{
		"entries":   "5      1     command        233    history  acme/orders/1 by svc 2\n",
		"batches":   "acme/orders/1  2        2      2         svc     2    Placed  history  {\"x\":1}\n",
		"heads":     "acme/orders/1  2        1            1              2       2         svc          2     live   history  ",
		"writers":   "acme/orders/1  svc     2    2        2      2         history  e2\n",
		"positions": "2         batch  2        1            history  acme/orders/1\n",
		"raft":      "log       entries 1 to 5 (term 1), flushed to 5\n",
		"summary":   "batches        2\n",
	} {
		code, stdout, stderr := runOffline(t, "inspect", dir, what)
		if code != exitOK || !strings.Contains(stdout, want) || stderr != "" {
			t.Errorf("inspect %s: %d, %q, expected %q in\n%s", what, code, stderr, want, stdout)
		}
		code, stdout, stderr = runOffline(t, "inspect", dir, what, "--output", "json")
		for line := range strings.SplitSeq(strings.TrimSpace(stdout), "\n") {
			if !json.Valid([]byte(line)) || code != exitOK || stderr != "" {
				t.Errorf("inspect %s as JSON: %d, %q, %q", what, code, stderr, line)
			}
		}
	}
	_, stdout, _ := runOffline(t, "inspect", dir, "batches", "--from", "2", "--aggregate", "acme/orders/1", "--output", "json")
	if n := strings.Count(stdout, "\n"); n != 1 || !strings.Contains(stdout, `"version":"2"`) {
		t.Errorf("inspect from version 2: %s", stdout)
	}
	if _, stdout, _ := runOffline(t, "inspect", dir, "batches", "--aggregate", "acme/orders/2", "--output", "json"); stdout != "" {
		t.Errorf("inspect of another aggregate: %s", stdout)
	}
	if code, _, _ := runOffline(t, "inspect", dir, "everything"); code != exitUsage {
		t.Errorf("inspect everything: %d, expected %d", code, exitUsage)
	}
}
