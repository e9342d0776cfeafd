package main

import (
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// verifier is a node that answers Verify with what a test says.
type verifier struct {
	pb.UnimplementedClusterServiceServer
	asked  *pb.VerifyRequest
	answer []*pb.VerifyResponse
	err    error
}

func (v *verifier) Verify(req *pb.VerifyRequest, stream grpc.ServerStreamingServer[pb.VerifyResponse]) error {
	v.asked = req
	for _, m := range v.answer {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return v.err
}

func TestVerifyOfANodePrintsWhatItFinds(t *testing.T) {
	at := func(aggregates, batches, events, findings uint64, done bool) *pb.VerifyProgress {
		return &pb.VerifyProgress{NodeId: "n2", Position: 9, Aggregates: aggregates, Batches: batches, Events: events, Findings: findings, Done: done, Aggregate: order()}
	}
	v := &verifier{answer: []*pb.VerifyResponse{{Progress: at(0, 1, 1, 0, false)}, {Progress: at(2, 3, 4, 0, true)}}}
	server := (&fakeStore{cluster: v}).start(t)
	asked := func(want *pb.VerifyRequest) {
		t.Helper()
		if !proto.Equal(v.asked, want) {
			t.Errorf("asked %v, want %v", v.asked, want)
		}
	}
	const sound = "Checked 2 aggregates, 3 batches, 4 events of node n2 up to position 9: 0 findings.\n"
	check(t, output{exitOK, "", sound}, "verify", "--server", server)
	asked(&pb.VerifyRequest{})
	check(t, output{exitOK, "", sound}, "verify", "--server", server, "--org", "acme", "--type", "orders")
	asked(&pb.VerifyRequest{Org: "acme", Type: "orders"})
	check(t, output{exitOK, "", sound}, "verify", "--server", server, "--aggregate", "acme/orders/4821")
	asked(&pb.VerifyRequest{Org: "acme", Type: "orders", Id: "4821"})
	check(t, output{exitOK, `{"progress":{"node_id":"n2","timeline":"","position":"9","aggregates":"2","batches":"3","events":"4","bytes":"0","findings":"0","aggregate":{"org":"acme","type":"orders","id":"4821"},"done":true},"findings":[]}` + "\n", ""},
		"verify", "--server", server, "--output", "json")

	const damage = "tidemark: the data of node n2 is damaged\nkeep that node's data for examination and restore it from another node or from a backup; docs/verify.md says how\n"
	v.answer = []*pb.VerifyResponse{
		{Progress: at(0, 1, 1, 1, false), Findings: []*pb.VerifyFinding{
			{Kind: pb.FindingKind_FINDING_KIND_MISSING, Aggregate: order(), Incarnation: 2, Version: 3, Text: "expected version 3, found none"},
			{Kind: pb.FindingKind_FINDING_KIND_UNREADABLE, Text: "a table"},
		}},
		{Progress: at(2, 3, 4, 2, true)},
	}
	check(t, output{exitDamaged, "DAMAGE  acme/orders/4821, incarnation 2, version 3: missing: expected version 3, found none\nDAMAGE  the node: unreadable: a table\n",
		"Checked 2 aggregates, 3 batches, 4 events of node n2 up to position 9: 2 findings.\n" + damage}, "verify", "--server", server)

	v.answer = []*pb.VerifyResponse{{Progress: at(1, 2, 3, 0, false)}}
	v.err = api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "a table is gone")
	check(t, output{exitFailure, "", "Checked only 1 aggregates, 2 batches, 3 events of node n2 up to position 9: 0 findings.\ntidemark: 11001 Internal: a table is gone\nReport it with the server's log. A write's outcome is unknown: keep the client_seq.\n"}, "verify", "--server", server)
	v.err = nil
	check(t, output{exitFailure, "", "Checked only 1 aggregates, 2 batches, 3 events of node n2 up to position 9: 0 findings.\ntidemark: the node ended the answer before everything was verified\n"}, "verify", "--server", server)
}

func TestVerifyTakesADirectoryOrANode(t *testing.T) {
	for _, c := range []struct {
		says string
		args []string
	}{
		{`--server is about a node at work; found an argument, "dir", which is checked offline`, []string{"dir", "--server", "h:1"}},
		{`--aggregate is about a node at work; found an argument, "dir", which is checked offline`, []string{"dir", "--aggregate", "a/b/c"}},
		{"--temp-dir and --checksums-only are about a backup; expected its name as an argument, found none", []string{"--checksums-only"}},
		{"expected --aggregate, or --org and --type; found both", []string{"--aggregate", "a/b/c", "--org", "a"}},
		{"--type: expected --org, too, found none", []string{"--type", "a"}},
		{`expected an aggregate written org/type/id, such as acme/orders/4821; found "a"`, []string{"--aggregate", "a"}},
		{`expected DIR|BACKUP alone, found "b" too; is a quote missing?`, []string{"a", "b"}},
	} {
		t.Run(c.says, func(t *testing.T) {
			code, stdout, stderr := runCommand(t, append([]string{"verify"}, c.args...)...)
			if want := "tidemark: " + c.says + "\nSee \"tidemark verify --help\".\n"; code != exitUsage || stdout != "" || stderr != want {
				t.Errorf("exit %d, %q, %q; want %d and %q", code, stdout, stderr, exitUsage, want)
			}
		})
	}
}

func TestVerifyOnANode(t *testing.T) {
	node := serve(t, t.TempDir()).address
	expect(t, exitOK, "imported 5, already there 0, refused 0\n", "", importClaims(node, "testdata/claims.csv")...)
	code, stdout, stderr := runCommand(t, "verify", "--server", node, "--org", "acme")
	const want = "Checked 2 aggregates, 5 batches, 5 events of node n1 up to position 5: 0 findings.\n"
	if code != exitOK || stdout != "" || stderr != want {
		t.Errorf("exit %d, %q, %q; want %q", code, stdout, stderr, want)
	}
}
