package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// devOutput is what dev --output json prints.
type devOutput struct {
	ClusterID string `json:"cluster_id"`
	Server    string `json:"server"`
	Nodes     []struct {
		ID         string `json:"id"`
		Listen     string `json:"listen"`
		RaftListen string `json:"raft_listen"`
		HTTPListen string `json:"http_listen"`
		DataDir    string `json:"data_dir"`
		PID        int    `json:"pid"`
		Role       string `json:"role"`
	} `json:"nodes"`
}

// runningDev is a "tidemark dev" in this process; its nodes are processes.
type runningDev struct {
	devOutput
	stderr    *logSink
	interrupt context.CancelFunc
	exit      chan int
}

// dev runs a cluster and waits until it is ready.
func dev(t *testing.T, args ...string) *runningDev {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	d := &runningDev{stderr: newLogSink(), interrupt: cancel, exit: make(chan int, 1)}
	stdout := newLogSink()
	args = append([]string{"dev", "--output", "json"}, args...)
	if !strings.Contains(strings.Join(args, " "), " -- ") {
		args = append(args, "--")
	}
	args = append(args, "--min-free-disk-bytes", "0")
	go func() { d.exit <- run(ctx, args, strings.NewReader(""), stdout, d.stderr) }() // ends when interrupted
	t.Cleanup(func() {
		d.wait(t)
		if t.Failed() {
			t.Logf("dev said\n%s", d.stderr)
		}
	})
	stdout.until(t, "\n")
	if err := json.Unmarshal([]byte(stdout.String()), &d.devOutput); err != nil {
		t.Fatal(err)
	}
	return d
}

// wait stops the cluster, if it runs still, and returns the exit code.
func (d *runningDev) wait(t *testing.T) int {
	t.Helper()
	d.interrupt()
	select {
	case code := <-d.exit:
		d.exit <- code
		return code
	case <-time.After(60 * time.Second):
		t.Fatalf("dev did not end:\n%s", d.stderr)
		return -1
	}
}

// status asks for the cluster's status until it is as wanted.
func (d *runningDev) status(t *testing.T, what string, ok func(*pb.GetStatusResponse) bool) *pb.GetStatusResponse {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		code, stdout, stderr := runCommand(t, "cluster", "status", "--server", d.Server, "--output", "json")
		st := &pb.GetStatusResponse{}
		if code == exitOK {
			if err := protojson.Unmarshal([]byte(stdout), st); err != nil {
				t.Fatal(err)
			}
			if ok(st) {
				return st
			}
		}
		if time.Now().After(deadline) {
			t.Fatalf("waited for %s; exit %d, %s, %s", what, code, stdout, stderr)
		}
		<-ticker.C
	}
}

// well says whether all of so many nodes are healthy.
func well(n int) func(*pb.GetStatusResponse) bool {
	return func(st *pb.GetStatusResponse) bool {
		healthy := 0
		for _, node := range st.GetNodes() {
			if node.GetHealthy() {
				healthy++
			}
		}
		return healthy == n && len(st.GetNodes()) == n && st.GetLeaderAddress() != ""
	}
}

// alive says whether a process runs; a zombie does not.
func alive(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(rest, "Z")
}

// append1 appends an event of the writer "w" to an aggregate of its own.
func append1(t *testing.T, server, id string) {
	t.Helper()
	code, stdout, stderr := runCommand(t, "append", "acme/tries/"+id, "--client-id", "w", "--seq", "1", "--event-type", "Tried",
		"--data", "{}", "--event-id", id, "--create", "--confirm", "--server", server)
	if code != exitOK || stderr != "" {
		t.Errorf("append %s: exit %d, %s%s", id, code, stdout, stderr)
	}
}

func TestDevRunsAClusterAndCleansUp(t *testing.T) {
	d := dev(t, "--nodes", "3")
	st := d.status(t, "three healthy nodes", well(3))
	if st.GetClusterId() != d.ClusterID || len(d.Nodes) != 3 {
		t.Errorf("dev printed %+v, the status is %v", d.devOutput, st)
	}
	leader, follower := -1, -1
	for i, n := range d.Nodes {
		is := st.GetNodes()[i]
		if n.ID != fmt.Sprint("n", i+1) || is.GetId() != n.ID || is.GetClientAddress() != n.Listen || is.GetRaftAddress() != n.RaftListen || !is.GetVoter() || is.GetRole() != n.Role {
			t.Errorf("dev printed %+v of a node, the status is %v", n, is)
		}
		if n.Role == "leader" {
			leader = i
		} else {
			follower = i
		}
		if code, body := webGet(t, n.HTTPListen, "/leaderz"); (code == 200) != (n.Role == "leader") {
			t.Errorf("%s is a %s; /leaderz: %d %s", n.ID, n.Role, code, body)
		}
		if code, body := webGet(t, n.HTTPListen, "/readyz"); code != 200 || body != "ok\n" {
			t.Errorf("%s: /readyz: %d %s", n.ID, code, body)
		}
	}
	// Asked at a follower alone, every command finds the leader.
	append1(t, d.Nodes[follower].Listen, "1")
	if code, stdout, stderr := runCommand(t, "read", "acme/tries/1", "--server", d.Nodes[follower].Listen, "--output", "json"); code != exitOK || strings.Count(stdout, "\n") != 1 {
		t.Errorf("read: exit %d, %s%s", code, stdout, stderr)
	}

	// A node that ends is reported, and the others go on.
	if err := syscall.Kill(d.Nodes[leader].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.stderr.until(t, "tidemark: "+d.Nodes[leader].ID+" was ended by a signal (killed)\ntidemark: to start it again: "+os.Args[0]+" serve --node-id "+d.Nodes[leader].ID+" --data-dir "+d.Nodes[leader].DataDir+" ")
	append1(t, d.Server, "2")

	if code := d.wait(t); code != exitOK {
		t.Errorf("exit %d, want 0", code)
	}
	for _, n := range d.Nodes {
		if alive(n.PID) {
			t.Errorf("%s runs still", n.ID)
		}
	}
	if _, err := os.Stat(filepath.Dir(d.Nodes[0].DataDir)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the data is still there: %v", err)
	}
}

func TestDevKeepsADirectoryAndRestartsItsNodes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "kept")
	d := dev(t, "--nodes", "1", "--dir", dir, "--restart")
	append1(t, d.Server, "1")
	if err := syscall.Kill(d.Nodes[0].PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	d.stderr.until(t, "tidemark: n1 was ended by a signal (killed); it is started again\n")
	d.status(t, "the node to be back", well(1))
	if code := d.wait(t); code != exitOK {
		t.Errorf("exit %d, want 0", code)
	}

	again := dev(t, "--dir", dir)
	if again.ClusterID != d.ClusterID || again.Server != d.Server {
		t.Errorf("the second time: %+v, the first: %+v", again.devOutput, d.devOutput)
	}
	if code, stdout, stderr := runCommand(t, "read", "acme/tries/1", "--server", again.Server, "--output", "json"); code != exitOK || strings.Count(stdout, "\n") != 1 {
		t.Errorf("read: exit %d, %s%s", code, stdout, stderr)
	}
	again.wait(t)

	const see = "See \"tidemark dev --help\".\n"
	expect(t, exitUsage, "", "tidemark: --nodes is 3, but "+dir+" holds a cluster of 1 nodes; \"tidemark cluster add\" and \"remove\" change a cluster\n"+see, "dev", "--nodes", "3", "--dir", dir)
	_, port, _ := net.SplitHostPort(d.Server)
	expect(t, exitUsage, "", "tidemark: --port is 1, but the cluster in "+dir+" has "+port+", and its nodes know each other by their ports\n"+see, "dev", "--port", "1", "--dir", dir)
	if err := os.WriteFile(filepath.Join(dir, devFile), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, exitUsage, "", "tidemark: --dir: "+filepath.Join(dir, devFile)+" is not what an earlier \"tidemark dev\" wrote (<nil>); name another directory\n"+see, "dev", "--dir", dir)
}

func TestDevThatDoesNotStart(t *testing.T) {
	const see = "See \"tidemark dev --help\".\n"
	expect(t, exitUsage, "", "tidemark: --port: expected at most 65513, for the last of the ports that follow it is 65535, found 70000\n"+see, "dev", "--nodes", "3", "--port", "70000")
	expect(t, exitUsage, "", "tidemark: --nodes: expected 1, 3 or 5, found 2: an even number survives no more failures than one node less\n"+see, "dev", "--nodes", "2")
	expect(t, exitUsage, "", "tidemark: expected no arguments before --, found \"three\"\n"+see, "dev", "three")
	chosen := func(what string) string {
		return "tidemark: " + what + ": expected not to be set, for \"tidemark dev\" chooses it for each node; leave it out (--dir says where the data goes, --port where the ports begin)\n" + see
	}
	dir := filepath.Join(t.TempDir(), "kept")
	for _, key := range []string{"data-dir", "node-id", "listen", "raft-listen", "http-listen", "advertise", "raft-advertise", "peers"} {
		expect(t, exitUsage, "", chosen("--"+key), "dev", "--dir", dir, "--", "--gogc", "200", "--"+key, "n1=127.0.0.1:1")
		file := filepath.Join(t.TempDir(), "tidemark.yaml")
		if err := os.WriteFile(file, []byte(key+": n1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		expect(t, exitUsage, "", chosen(file+": "+key), "dev", "--dir", dir, "--", "--config="+file)
	}
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of a cluster that was refused: %v, want none", err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	port := taken.Addr().(*net.TCPAddr).Port
	expect(t, exitFailure, "", fmt.Sprintf("tidemark: port %d, for n1, is not free: listen tcp 127.0.0.1:%d: bind: address already in use\nChoose another --port, or 0 for any free ones.\n", port, port), "dev", "--port", fmt.Sprint(port))
	code, stdout, stderr := runCommand(t, "dev", "--nodes", "1", "--", "--log-format", "xml")
	if code != exitFailure || stdout != "" || !strings.HasPrefix(stderr, "n1 | tidemark: ") || !strings.HasSuffix(stderr, "tidemark: the cluster did not start: n1 ended with exit code 2; its log lines say why\n") {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
}

// Whatever becomes of "tidemark dev", no node stays behind.
func TestNodesDoNotOutliveDev(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "dev", "--nodes", "1", "--dir", t.TempDir(), "--output", "json", "--", "--min-free-disk-bytes", "0")
	stdout, stderr := newLogSink(), newLogSink()
	cmd.Stdout, cmd.Stderr = stdout, stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill() }()
	stdout.until(t, "\n")
	var d devOutput
	if err := json.Unmarshal([]byte(stdout.String()), &d); err != nil {
		t.Fatal(err)
	}
	if !alive(d.Nodes[0].PID) {
		t.Fatalf("the node does not run:\n%s", stderr)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	deadline := time.After(20 * time.Second)
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for alive(d.Nodes[0].PID) {
		select {
		case <-ticker.C:
		case <-deadline:
			_ = syscall.Kill(d.Nodes[0].PID, syscall.SIGKILL)
			t.Fatal("the node outlived dev")
		}
	}
}

func TestLinesArePrefixed(t *testing.T) {
	var mu sync.Mutex
	var out bytes.Buffer
	a, b := &prefixed{mu: &mu, out: &out, prefix: "a | "}, &prefixed{mu: &mu, out: &out, prefix: "b | "}
	for _, w := range []struct {
		to   *prefixed
		text string
	}{{a, "one\ntw"}, {b, "\n"}, {a, "o\n"}, {b, strings.Repeat("x", longestLine)}, {b, "y\n"}} {
		if n, err := w.to.Write([]byte(w.text)); n != len(w.text) || err != nil {
			t.Errorf("Write: %d, %v", n, err)
		}
	}
	want := "a | one\nb | \na | two\nb | " + strings.Repeat("x", longestLine) + "\nb | y\n"
	if out.String() != want {
		t.Errorf("found %.200q..., want %.200q...", out.String(), want)
	}
}

// The command line that is shown can be given to a shell.
func TestShownCommandLines(t *testing.T) {
	n := &devNode{ID: "n1", Listen: "127.0.0.1:1", RaftListen: "127.0.0.1:2", HTTPListen: "127.0.0.1:3"}
	n.prepare("/bin/tidemark", "/a b/it's", "n1=127.0.0.1:2", "warn", []string{"--gogc", ""})
	want := `bin/tidemark serve --node-id n1 --data-dir '/a b/it'\''s/n1' --listen 127.0.0.1:1 --raft-listen 127.0.0.1:2 --http-listen 127.0.0.1:3 --peers n1=127.0.0.1:2 --log-level warn --memory-limit 256MiB --gogc ''`
	if got := n.shell("bin/tidemark"); got != want {
		t.Errorf("found %s\nwant  %s", got, want)
	}
}

// The commands to try name this program as its user typed it, and can be pasted.
func TestCommandsToTry(t *testing.T) {
	var out strings.Builder
	cmd := newDevCommand()
	cmd.SetOut(&out)
	c := &devCluster{
		flags: &devFlags{dir: "d"}, cmd: cmd, dir: "d", program: "my bin/tidemark",
		nodes: []*devNode{{ID: "n1", Listen: "127.0.0.1:1", RaftListen: "127.0.0.1:2", HTTPListen: "127.0.0.1:3"}},
	}
	if err := c.print(&pb.GetStatusResponse{LeaderId: "n1", Nodes: []*pb.Node{{Id: "n1", Role: "leader"}}}); err != nil {
		t.Fatal(err)
	}
	want := `
The cluster is ready: 1 node; data in d.

NODE  ROLE    CLIENTS (gRPC)  NODES (RAFT)  HTTP         PID
n1    leader  127.0.0.1:1     127.0.0.1:2   127.0.0.1:3  0

Try, in another terminal:

  export TIDEMARK_SERVER=127.0.0.1:1
  'my bin/tidemark' cluster status
  'my bin/tidemark' append acme/orders/1 --client-id me --seq 1 --event-type Tried --data '{}' --create
  'my bin/tidemark' cluster transfer
  kill -9 0      # ends n1
  curl 'http://127.0.0.1:3/readyz?verbose'

Ctrl-C stops all nodes.

`
	if out.String() != want {
		t.Errorf("found %s\nwant  %s", out.String(), want)
	}
}

// webGet fetches a path of a node's HTTP port.
func webGet(t *testing.T, address, path string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}
