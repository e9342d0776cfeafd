package main

import (
	"context"
	"encoding/json"
	"os"
	"regexp"
	"testing"

	"github.com/tidemark-db/tidemark/internal/bench"
)

func TestBenchAppendDrivesANode(t *testing.T) {
	node := serve(t, t.TempDir()).address
	code, stdout, stderr := runCommand(t, "bench", "append", "--mode", "unary", "--connections", "2", "--outstanding", "16", "--count", "300",
		"--size", "200", "--guard", "--enforce", "--prefix", "p-", "--server", node, "--output", "json")
	var r bench.Result
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK || stderr != "" {
		t.Fatalf("exit %d, %q, %q, %v", code, stdout, stderr, err)
	}
	if r.Count != 300 || len(r.Errors) != 0 || r.Rate <= 0 || r.Seconds <= 0 || r.P50MS <= 0 || r.P999MS < r.P99MS || r.P99MS < r.P50MS {
		t.Errorf("result %+v; want 300 calls without errors", r)
	}
	code, stdout, stderr = runCommand(t, "bench", "append", "--outstanding", "16", "--count", "50", "--fresh-aggregates", "--server", node)
	want := regexp.MustCompile(`^rate      \d+/s\np50       \d+\.\d{3} ms\np99       \d+\.\d{3} ms\np99\.9     \d+\.\d{3} ms\nerrors    none\ncount     50\nmeasured  \d+\.\d{3} s\n$`)
	if code != exitOK || stderr != "" || !want.MatchString(stdout) {
		t.Errorf("exit %d, stdout\n%s\nstderr %q", code, stdout, stderr)
	}
}

func TestBenchFsync(t *testing.T) {
	code, stdout, stderr := runCommand(t, "bench", "fsync", "--dir", t.TempDir(), "--size", "100", "--duration", "10ms", "--output", "json")
	var r bench.Result
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK || stderr != "" || r.Count == 0 || r.Errors == nil {
		t.Errorf("exit %d, %q, %q, %v", code, stdout, stderr, err)
	}
}

func TestBenchMistakesExitWithTwo(t *testing.T) {
	expect(t, exitUsage, "", "tidemark: --writes-per-message: expected 1 to 1000, found 0\nSee \"tidemark bench append --help\".\n",
		"bench", "append", "--mode", "stream", "--writes-per-message", "0")
	expect(t, exitUsage, "", "tidemark: --writes-per-message: expected 1 without --mode stream, found 8\nSee \"tidemark bench echo --help\".\n", "bench", "echo", "--writes-per-message", "8")
	expect(t, exitUsage, "", "tidemark: --connections: expected 1 to 1024, found 0\nSee \"tidemark bench append --help\".\n", "bench", "append", "--connections", "0")
	expect(t, exitUsage, "", "tidemark: --outstanding: expected 1 to 100000, found 0\nSee \"tidemark bench echo --help\".\n", "bench", "echo", "--outstanding", "0")
	expect(t, exitUsage, "", "tidemark: --dir is missing\nSee \"tidemark bench fsync --help\".\n", "bench", "fsync")
	expect(t, exitUsage, "", "tidemark: unknown command \"nonsense\" for \"tidemark bench\"\nSee \"tidemark bench --help\".\n", "bench", "nonsense")
}

// TestMain makes the test binary a tidemark where a test has it started as one: bench echo
// and dev start their own program again.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == "bench" || os.Args[1] == "serve" || os.Args[1] == "dev") {
		os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func TestBenchEchoStartsAndEndsItsServer(t *testing.T) {
	code, stdout, stderr := runCommand(t, "bench", "echo", "--connections", "2", "--outstanding", "16", "--count", "300",
		"--size", "200", "--guard", "--enforce", "--server", "nowhere:1", "--output", "json")
	var r bench.Result
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != exitOK || stderr != "" || r.Count != 300 || len(r.Errors) != 0 {
		t.Errorf("exit %d, %q, %q, %v; want 300 calls without errors", code, stdout, stderr, err)
	}
}
