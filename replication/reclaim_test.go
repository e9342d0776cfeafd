package replication

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// filesWith lists the files below a data directory that hold any of the markers.
func filesWith(t *testing.T, dir string, markers [][]byte) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		name, _ := filepath.Rel(dir, path)
		for i, m := range markers {
			if bytes.Contains(content, m) {
				found = append(found, fmt.Sprintf("%s: %d", name, i))
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// secret is a payload that no compression shortens.
func secret(t *testing.T) []byte {
	t.Helper()
	b := make([]byte, 32)
	if _, err := rand.Read(b); err != nil {
		t.Fatal(err)
	}
	return b
}

// appendSecret writes one event with this payload behind as much that nobody hides.
func appendSecret(t *testing.T, s *Shard, client, id string, seq uint64, payload []byte, pad int) {
	t.Helper()
	mustAppend(t, s, &pb.AppendRequest{ClientId: client, Writes: []*pb.Write{{
		Aggregate: key(id), AllowCreate: true, EnforceClientIdempotency: true,
		Events: []*pb.NewEvent{{ClientSeq: seq, EventId: fmt.Sprint("e", seq), Type: "t", Payload: append(payload, make([]byte, pad)...)}},
	}}})
}

func mustCompact(t *testing.T, s *Shard) *pb.CompactResponse {
	t.Helper()
	resp, err := s.Compact(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// Nothing of what was trimmed or deleted is left in any file of the data directory after Compact:
// not in the history, not in the snapshot, whose files were the history's once, and not in the
// log; before, it is in all three. What stays, stays, and so do the marks.
func TestCompactLeavesNothingOfADeletedPayload(t *testing.T) {
	dir := t.TempDir()
	s := openShard(t, Options{Dir: dir, NodeID: "n1"})
	var gone, stays [][]byte
	for i := range uint64(12) {
		hidden, open := secret(t), secret(t)
		gone, stays = append(gone, hidden), append(stays, open)
		id := fmt.Sprint(i % 3)
		appendSecret(t, s, "a", id, 2*i+1, hidden, int(i%2)*1000)
		appendSecret(t, s, "a", "stays", 2*i+1, open, int(i%2)*1000)
		if i == 5 {
			if err := s.snapshot(); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, place := range []string{"history", "snapshots", "tail"} {
		if found := filesWith(t, filepath.Join(dir, place), gone); len(found) == 0 && place != "history" {
			t.Fatalf("before, %s holds nothing: the test looks in the wrong way", place)
		}
	}
	// Two are deleted, of one the oldest three of four are trimmed.
	for _, id := range []string{"0", "1"} {
		if _, err := s.Delete(context.Background(), &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{{Aggregate: key(id)}}}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Trim(context.Background(), &pb.TrimRequest{Aggregate: key("2"), KeepFromVersion: 4}); err != nil {
		t.Fatal(err)
	}
	stays = append(stays, gone[11])
	gone = gone[:11]
	resp := mustCompact(t, s)
	if len(resp.GetIncomplete()) > 0 || resp.GetNodeId() != "n1" || resp.GetBytesBefore() == 0 || resp.GetBytesAfter() == 0 {
		t.Errorf("answered %v, want nothing left", resp)
	}
	if found := filesWith(t, dir, gone); len(found) > 0 {
		t.Errorf("deleted, and found: %q", found)
	}
	if found := filesWith(t, filepath.Join(dir, "history"), stays); len(found) < len(stays)/2 {
		t.Errorf("of %d payloads that stay, %d are found", len(stays), len(found))
	}
	// A compaction with nothing new in the log, by a node that leads: it logs something.
	if again := mustCompact(t, s); len(again.GetIncomplete()) > 0 {
		t.Errorf("again: %v", again)
	}
	for _, how := range []func() error{func() error { return nil }, s.Abandon} {
		if err := how(); err != nil {
			t.Fatal(err)
		}
		if s.failed() || s.closed {
			s = openShard(t, Options{Dir: dir, NodeID: "n1"})
		}
		wantFailure(t, s, appendOf("a", "0", seqs(19)), &pb.AppendFailure{
			Code: 2006, Aggregate: key("0"), CurrentVersion: 4, AttemptedSeq: 19, Mark: 19,
			Holder: &pb.Holder{Version: 4, Incarnation: 1, Position: 19, ClientSeq: 19, EventId: "e19", FirstClientSeq: 19, LastClientSeq: 19, EventCount: 1, Trimmed: true},
		})
		wantFailure(t, s, appendOf("a", "2", seqs(11), expect(4)), &pb.AppendFailure{
			Code: 2002, Aggregate: key("2"), ExpectedVersion: proto.Uint64(4), CurrentVersion: 4, AttemptedSeq: 11, Mark: 23,
			Holder: &pb.Holder{Version: 2, Incarnation: 1, Position: 11, ClientSeq: 11, EventId: "e11", FirstClientSeq: 11, LastClientSeq: 11, EventCount: 1, Trimmed: true},
		})
	}
	if found := filesWith(t, dir, gone); len(found) > 0 {
		t.Errorf("deleted, and found after a start: %q", found)
	}
	if err := s.Abandon(); err != nil {
		t.Fatal(err)
	}
}

// On three nodes, the leader first: no node's directory holds anything of what was deleted, all
// three say the same of it, and so they do after they were all killed.
func TestCompactOnThreeNodes(t *testing.T) {
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	var gone [][]byte
	leader := c.leader()
	for i := range uint64(8) {
		hidden := secret(t)
		gone = append(gone, hidden)
		appendSecret(t, leader.Shard, "a", fmt.Sprint(i%2), i+1, hidden, int(i)*100)
	}
	c.converged()
	for _, n := range c.nodes {
		if len(filesWith(t, filepath.Join(n.opts.Dir, "tail"), gone)) == 0 {
			t.Fatal("before, a log holds nothing: the test looks in the wrong way")
		}
		if err := n.snapshot(); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := leader.Delete(context.Background(), &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{
		{Aggregate: key("0"), AllowRecreate: true}, {Aggregate: key("1"), AllowRecreate: true, ForgetWriters: true},
	}}); err != nil {
		t.Fatal(err)
	}
	c.converged()
	for _, id := range append([]string{leader.id()}, c.followers()...) {
		if resp := mustCompact(t, c.nodes[id].Shard); len(resp.GetIncomplete()) > 0 || resp.GetNodeId() != id {
			t.Errorf("%s answered %v, want nothing left", id, resp)
		}
		c.converged()
	}
	check := func(when string) {
		t.Helper()
		c.converged()
		var first string
		for id, n := range c.nodes {
			if found := filesWith(t, n.opts.Dir, gone); len(found) > 0 {
				t.Errorf("%s, %s: deleted, and found: %q", when, id, found)
			}
			v := n.currentView()
			state, err := dumpView(v)
			v.Release()
			if err != nil {
				t.Fatal(err)
			}
			if first == "" {
				first = state
			}
			if state != first {
				t.Errorf("%s: nodes hold\n%s\nand\n%s", when, first, state)
			}
		}
		s := c.leader().Shard
		wantFailure(t, s, appendOf("a", "0", seqs(7)), &pb.AppendFailure{
			Code: 2002, Aggregate: key("0"), CurrentVersion: 5, AttemptedSeq: 7, Mark: 9,
			Holder: &pb.Holder{Version: 4, Incarnation: 1, Position: 7, ClientSeq: 7, EventId: "e7", FirstClientSeq: 7, LastClientSeq: 7, EventCount: 1, Trimmed: true},
		})
		wantFailure(t, s, appendOf("a", "1", seqs(1)), &pb.AppendFailure{
			Code: 2002, Aggregate: key("1"), CurrentVersion: 5, AttemptedSeq: 1, Mark: 1,
			Holder: &pb.Holder{Version: 5, Incarnation: 2, Position: 12, ClientSeq: 1, EventId: "a-1", FirstClientSeq: 1, LastClientSeq: 1, EventCount: 1},
		})
	}
	c.write("0", 9)
	c.write("1", 1) // again: its writers were forgotten
	check("running")
	c.kill("n1", "n2", "n3")
	c.start("n1", "n2", "n3")
	check("after all were killed")
}

func (n *clusterNode) id() string { return n.identity().NodeID }
