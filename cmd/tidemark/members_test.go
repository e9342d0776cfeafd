package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/bench"
)

// A node comes into a running cluster, leads it, and is taken out again.
func TestMembersOfARunningClusterChange(t *testing.T) {
	d := dev(t, "--nodes", "3")
	d.status(t, "three healthy nodes", well(3))
	append1(t, d.Server, "1")
	raft := freeAddress(t)
	n4 := launch(t, t.TempDir(), "--node-id", "n4", "--raft-listen", raft, "--peers", "n1="+d.Nodes[0].RaftListen+",n2="+d.Nodes[1].RaftListen)
	if code, body := webGet(t, n4.web, "/readyz"); code != 503 || !strings.Contains(body, "[-]member: not a member of a cluster yet") {
		t.Errorf("/readyz of a node that waits: %d %s", code, body)
	}
	code, stdout, stderr := runCommand(t, "cluster", "add", "n4", "--raft-address", freeAddress(t), "--server", d.Server)
	if code != exitFailure || stdout != "" || !strings.HasPrefix(stderr, "tidemark: 2016 InvalidRequest: raft_address: expected node n4 at ") {
		t.Errorf("add of a node that is not there: exit %d, %q, %q", code, stdout, stderr)
	}
	expect(t, exitOK, "n4 is a voter\n", "n4 is in the cluster as a non-voter; waiting until it has caught up\n",
		"cluster", "add", "n4", "--raft-address", raft, "--client-address", n4.address, "--promote", "--server", d.Server)
	n4.log.line(t, "ready")
	d.status(t, "four healthy nodes", well(4))
	expect(t, exitOK, "n4 is in the cluster as a voter\n", "",
		"cluster", "add", "n4", "--raft-address", raft, "--server", d.Server)

	expect(t, exitOK, "leader: n4 at "+n4.address+"\n", "", "cluster", "transfer", "n4", "--server", d.Server)
	append1(t, d.Server, "2")
	code, stdout, stderr = runCommand(t, "cluster", "promote", "n9", "--server", d.Server)
	if code != exitFailure || stdout != "" || !strings.HasPrefix(stderr, `tidemark: 2016 InvalidRequest: id: expected a node of this cluster, found "n9"`) {
		t.Errorf("promote of a node that does not exist: exit %d, %q, %q", code, stdout, stderr)
	}

	// It leads: it hands leadership over, and the command goes on where that is.
	expect(t, exitOK, "n4 is no member of the cluster any more\n", "", "cluster", "remove", "n4", "--server", d.Server)
	if code := n4.wait(t); code != exitRemoved {
		t.Errorf("the removed node ended with %d, want %d:\n%s", code, exitRemoved, n4.log)
	}
	if text := fmt.Sprint(n4.log); strings.Contains(text, "calls were still at work") || !strings.Contains(text, "empty its data directory, start it again, and then on any node run: tidemark cluster add n4") {
		t.Errorf("the removed node, which no client called, logged:\n%s", text)
	}
	d.status(t, "three healthy nodes", well(3))
	append1(t, d.Server, "3")
}

func TestBenchGoesOnAfterTheLeaderHasGone(t *testing.T) {
	d := dev(t, "--nodes", "3")
	d.status(t, "three healthy nodes", well(3))
	type outcome struct {
		code           int
		stdout, stderr string
	}
	done := make(chan outcome, 1)
	go func() { // ends with the duration
		var o outcome
		o.code, o.stdout, o.stderr = runCommand(t, "bench", "append", "--connections", "2", "--outstanding", "16", "--duration", "6s",
			"--guard", "--enforce", "--server", d.Server, "--output", "json")
		done <- o
	}()
	before := d.status(t, "the run to have begun", func(st *pb.GetStatusResponse) bool { return st.GetLastPosition() > 200 })
	for _, n := range d.Nodes {
		if n.ID == before.GetLeaderId() {
			if err := syscall.Kill(n.PID, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
		}
	}
	after := d.status(t, "another leader", func(st *pb.GetStatusResponse) bool {
		return st.GetLeaderId() != "" && st.GetLeaderId() != before.GetLeaderId() && st.GetLeaderAddress() != ""
	})
	d.status(t, "the run to go on", func(st *pb.GetStatusResponse) bool { return st.GetLastPosition() > after.GetLastPosition()+200 })
	o := <-done
	var r bench.Result
	if err := json.Unmarshal([]byte(o.stdout), &r); err != nil || o.code != exitOK || o.stderr != "" || r.Count < 400 {
		t.Errorf("exit %d, %q, %q, %v", o.code, o.stdout, o.stderr, err)
	}
	// Definite answers, and outcomes that are open; no write of the run met another.
	for name := range r.Errors {
		if !strings.Contains(" 2011 2014 2015 UNAVAILABLE DEADLINE_EXCEEDED ", fmt.Sprintf(" %s ", name)) {
			t.Errorf("errors %v", r.Errors)
		}
	}
	if len(r.Errors) == 0 {
		t.Error("no call met the end of the leader; expected some to")
	}
}
