package main

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// fakeCluster is a cluster's leader, or another node of it, that answers what a test says.
type fakeCluster struct {
	pb.UnimplementedClusterServiceServer
	store  *fakeStore // keeps what was asked
	status *pb.GetStatusResponse
	// answer is asked before every change; nil = done.
	answer func(context.Context) error
}

// startFakeCluster serves a fake until the test ends.
func startFakeCluster(t *testing.T, f *fakeCluster) (address string) {
	t.Helper()
	f.store = &fakeStore{cluster: f}
	return f.store.start(t)
}

func (f *fakeCluster) change(ctx context.Context, m proto.Message) error {
	f.store.note(m)
	if f.answer == nil {
		return nil
	}
	return f.answer(ctx)
}

func (f *fakeCluster) GetStatus(_ context.Context, req *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	f.store.note(req)
	return f.status, nil
}

func (f *fakeCluster) AddNode(ctx context.Context, req *pb.AddNodeRequest) (*pb.AddNodeResponse, error) {
	return &pb.AddNodeResponse{}, f.change(ctx, req)
}

func (f *fakeCluster) PromoteNode(ctx context.Context, req *pb.PromoteNodeRequest) (*pb.PromoteNodeResponse, error) {
	return &pb.PromoteNodeResponse{}, f.change(ctx, req)
}

func (f *fakeCluster) RemoveNode(ctx context.Context, req *pb.RemoveNodeRequest) (*pb.RemoveNodeResponse, error) {
	return &pb.RemoveNodeResponse{}, f.change(ctx, req)
}

func (f *fakeCluster) TransferLeadership(ctx context.Context, req *pb.TransferLeadershipRequest) (*pb.TransferLeadershipResponse, error) {
	return &pb.TransferLeadershipResponse{LeaderId: "n2", LeaderAddress: "10.0.0.2:7440"}, f.change(ctx, req)
}

func TestClusterStatusShowsEveryNode(t *testing.T) {
	f := &fakeCluster{status: &pb.GetStatusResponse{
		ClusterId: strings.Repeat("c", 32), Timeline: strings.Repeat("7", 32), NodeId: "n1", LeaderId: "n2", LeaderAddress: "10.0.0.2:7440",
		Role: "follower", Term: 4, AppliedIndex: 118, CommitIndex: 120, LastPosition: 80, Version: "v1.2.3", Insecure: true,
		Nodes: []*pb.Node{
			{Id: "n1", RaftAddress: "10.0.0.1:7441", ClientAddress: "10.0.0.1:7440", Voter: true, Role: "follower", AppliedIndex: proto.Uint64(118), Healthy: true, Generation: "0a0b0c0d", Version: "v1.2.3"},
			{Id: "n2", RaftAddress: "10.0.0.2:7441", ClientAddress: "10.0.0.2:7440", Voter: true, Role: "leader", AppliedIndex: proto.Uint64(121), Healthy: true},
			{Id: "n3", RaftAddress: "10.0.0.3:7441", Role: "unreachable", Problems: []string{"connection refused", "evil \x1b[31m"}},
		},
	}}
	address := startFakeCluster(t, f)
	expect(t, exitOK, `cluster      cccccccccccccccccccccccccccccccc
timeline     77777777777777777777777777777777
leader       n2 at 10.0.0.2:7440
term         4
answered by  n1, follower
applied      118 of 120 committed entries, position 80
version      v1.2.3
security     none: no TLS, no authentication

ID  ROLE         VOTER  RAFT ADDRESS   CLIENT ADDRESS  APPLIED  LAG  HEALTHY  PROBLEMS
n1  follower     yes    10.0.0.1:7441  10.0.0.1:7440   118      3    yes
n2  leader       yes    10.0.0.2:7441  10.0.0.2:7440   121      0    yes
n3  unreachable  no     10.0.0.3:7441  -               -        -    no       connection refused; evil \u001b[31m
`, "", "cluster", "status", "--server", freeAddress(t)+","+address)
	line, err := appendJSON(nil, f.status)
	if err != nil {
		t.Fatal(err)
	}
	expect(t, exitOK, string(line)+"\n", "", "cluster", "status", "--server", address, "--output", "json")

	f.status = &pb.GetStatusResponse{NodeId: "n1", Role: "joining", WaitingFor: "n2 at x:1", Version: "v1"}
	expect(t, exitOK, `cluster      -
timeline     -
leader       not known
term         0
answered by  n1, joining
applied      0 of 0 committed entries, position 0
version      v1
waits for    n2 at x:1

ID  ROLE  VOTER  RAFT ADDRESS  CLIENT ADDRESS  APPLIED  LAG  HEALTHY  PROBLEMS
`, "", "cluster", "status", "--server", address)
}

func TestClusterChangesFollowTheLeader(t *testing.T) {
	leader := &fakeCluster{status: &pb.GetStatusResponse{Nodes: []*pb.Node{
		{Id: "n1", Voter: true}, {Id: "n4"}, {Id: "n5"}, {Id: "n6"}, {Id: "n6", Voter: true},
	}}}
	address := startFakeCluster(t, leader)
	follower := startFakeCluster(t, &fakeCluster{answer: func(context.Context) error {
		return api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "n2 leads").With(&pb.NotLeader{LeaderId: "n2", LeaderAddress: address})
	}})
	at := []string{"--server", follower}
	run := func(stdout, stderr string, args ...string) {
		t.Helper()
		expect(t, exitOK, stdout, stderr, append(append([]string{"cluster"}, args...), at...)...)
	}
	run("n4 is in the cluster as a non-voter and copies what there is. To make it a voter, once it has caught up: tidemark cluster promote n4\n", "",
		"add", "n4", "--raft-address", "10.0.0.4:7441", "--client-address", "10.0.0.4:7440")
	run("n5 is a voter\n", "n5 is in the cluster as a non-voter; waiting until it has caught up\n", "add", "n5", "--raft-address", "10.0.0.5:7441", "--promote")
	run(`{"id":"n5","voter":true,"removed":false}`+"\n", "", "add", "n5", "--raft-address", "10.0.0.5:7441", "--promote", "--output", "json")
	run(`{"id":"n4","voter":false,"removed":false}`+"\n", "", "add", "n4", "--raft-address", "10.0.0.4:7441", "--output", "json")
	run("n1 is in the cluster as a voter\n", "", "add", "n1", "--raft-address", "10.0.0.1:7441")
	run("n1 is in the cluster as a voter\n", "", "add", "n1", "--raft-address", "10.0.0.1:7441", "--promote")
	run(`{"id":"n1","voter":true,"removed":false}`+"\n", "", "add", "n1", "--raft-address", "10.0.0.1:7441", "--output", "json")
	for _, id := range []string{"n6", "n7"} { // the status says both, and nothing
		run(id+" is in the cluster. If it is no voter yet, to make it one, once it has caught up: tidemark cluster promote "+id+"\n", "", "add", id, "--raft-address", "10.0.0.6:7441")
	}
	run(`{"id":"n7","voter":null,"removed":false}`+"\n", "", "add", "n7", "--raft-address", "10.0.0.6:7441", "--output", "json")
	run("n7 is a voter\n", "n7 is in the cluster; waiting until it has caught up\n", "add", "n7", "--raft-address", "10.0.0.6:7441", "--promote")
	run("n4 is a voter\n", "", "promote", "n4")
	run("n1 is no member of the cluster any more\n", "", "remove", "n1")
	run(`{"id":"n1","voter":false,"removed":true}`+"\n", "", "remove", "n1", "--output", "json")
	run("leader: n2 at 10.0.0.2:7440\n", "", "transfer")
	run(`{"leader_id":"n2","leader_address":"10.0.0.2:7440"}`+"\n", "", "transfer", "n2", "--output", "json")
	add4 := &pb.AddNodeRequest{Id: "n4", RaftAddress: "10.0.0.4:7441"}
	add5 := &pb.AddNodeRequest{Id: "n5", RaftAddress: "10.0.0.5:7441"}
	add1 := &pb.AddNodeRequest{Id: "n1", RaftAddress: "10.0.0.1:7441"}
	add6 := &pb.AddNodeRequest{Id: "n6", RaftAddress: "10.0.0.6:7441"}
	add7 := &pb.AddNodeRequest{Id: "n7", RaftAddress: "10.0.0.6:7441"}
	look := &pb.GetStatusRequest{}
	leader.store.asked(t,
		&pb.AddNodeRequest{Id: "n4", RaftAddress: "10.0.0.4:7441", ClientAddress: "10.0.0.4:7440"}, look,
		add5, look, &pb.PromoteNodeRequest{Id: "n5"}, add5, look, &pb.PromoteNodeRequest{Id: "n5"}, add4, look,
		add1, look, add1, look, add1, look, add6, look, add7, look, add7, look, add7, look, &pb.PromoteNodeRequest{Id: "n7"},
		&pb.PromoteNodeRequest{Id: "n4"}, &pb.RemoveNodeRequest{Id: "n1"}, &pb.RemoveNodeRequest{Id: "n1"},
		&pb.TransferLeadershipRequest{}, &pb.TransferLeadershipRequest{ToId: "n2"})
}

// Exit code 1 says that nothing was changed, 23 that it may have been.
func TestClusterChangesThatFail(t *testing.T) {
	const open = "The change may or may not have happened. \"tidemark cluster status\" shows; giving the same command again does no harm.\n"
	hang := func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for _, c := range []struct {
		answer func(context.Context) error
		code   int
		stderr string
	}{
		{func(context.Context) error { return api.Invalid("id", "is not a node of this cluster") }, exitFailure,
			"tidemark: 2016 InvalidRequest: id is not a node of this cluster\n"},
		{func(context.Context) error { return status.Error(codes.Unimplemented, "unknown method") }, exitFailure,
			"tidemark: the server does not know this call; is it an older version, or not Tidemark? unknown method\n"},
		{func(context.Context) error { return status.Error(codes.Unavailable, "reset") }, exitUnknown,
			"tidemark: the connection was lost before the answer came: reset\n" + open},
		{func(context.Context) error {
			return api.Errorf(pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN, "leadership was lost")
		}, exitUnknown, "tidemark: 2014 WriteOutcomeUnknown: leadership was lost\n" + open},
		{hang, exitUnknown, "tidemark: no answer came within --timeout\n" + open},
	} {
		f := &fakeCluster{answer: c.answer}
		address := startFakeCluster(t, f)
		for _, args := range [][]string{{"add", "n4", "--raft-address", "h:1"}, {"promote", "n4"}, {"remove", "n4"}, {"transfer", "n4"}} {
			expect(t, c.code, "", c.stderr, append(append([]string{"cluster"}, args...), "--server", address, "--timeout", "300ms")...)
		}
		if n := f.store.calls(); n != 4 {
			t.Errorf("%d calls were sent, want one by each command", n)
		}
	}
	expect(t, exitUsage, "", "tidemark: required flag(s) \"raft-address\" not set\nSee \"tidemark cluster add --help\".\n", "cluster", "add", "n4")
	expect(t, exitUsage, "", "tidemark: ID: missing\nSee \"tidemark cluster remove --help\".\n", "cluster", "remove")
	expect(t, exitUsage, "", "tidemark: unknown command \"stauts\" for \"tidemark cluster\"\nSee \"tidemark cluster --help\".\n", "cluster", "stauts")
}

// A node that cannot join, because its --peers are wrong, was said to be copying.
func TestAddSaysWhatANodeWaitsForThatDoesNotJoin(t *testing.T) {
	const says = "not a member of a cluster yet; it waits for --peers to name one cluster"
	f := &fakeCluster{status: &pb.GetStatusResponse{Nodes: []*pb.Node{
		{Id: "n4", Role: "joining", Problems: []string{says}}, {Id: "n5", Role: "follower"},
	}}}
	at := []string{"--server", startFakeCluster(t, f), "--timeout", "1s"}
	run := func(stdout string, args ...string) {
		t.Helper()
		expect(t, exitOK, stdout, "", append(append([]string{"cluster", "add"}, args...), at...)...)
	}
	run("n4 is in the cluster as a non-voter, but has not joined yet. It says: "+says+". To look again: tidemark cluster status\n", "n4", "--raft-address", "10.0.0.4:7441")
	run(`{"id":"n4","voter":false,"removed":false,"waiting_for":"`+says+`"}`+"\n", "n4", "--raft-address", "10.0.0.4:7441", "--output", "json")
	run("n5 is in the cluster as a non-voter and copies what there is. To make it a voter, once it has caught up: tidemark cluster promote n5\n", "n5", "--raft-address", "10.0.0.5:7441")
}
