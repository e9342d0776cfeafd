package server

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
)

// fakeCluster answers what a test says, and keeps what it was asked.
type fakeCluster struct {
	clusterMu sync.Mutex
	asked     []string
	answer    func(ctx context.Context) error // of every change; nil = done
	backups   *replication.Shard              // makes the backups
}

func (f *fakeCluster) do(ctx context.Context, words ...string) error {
	f.clusterMu.Lock()
	f.asked = append(f.asked, strings.Join(words, " "))
	answer := f.answer
	f.clusterMu.Unlock()
	if answer == nil {
		return nil
	}
	return answer(ctx)
}

// calls returns what was asked since the last time.
func (f *fakeCluster) calls() []string {
	f.clusterMu.Lock()
	defer f.clusterMu.Unlock()
	asked := f.asked
	f.asked = nil
	return asked
}

func (f *fakeCluster) onChange(answer func(ctx context.Context) error) {
	f.clusterMu.Lock()
	defer f.clusterMu.Unlock()
	f.answer = answer
}

func (f *fakeCluster) ClusterStatus(ctx context.Context) (*pb.GetStatusResponse, error) {
	if err := f.do(ctx, "status"); err != nil {
		return nil, err
	}
	return &pb.GetStatusResponse{NodeId: "n1", Nodes: []*pb.Node{{Id: "n1", Healthy: true}}}, nil
}

func (f *fakeCluster) AddNode(ctx context.Context, id, raftAddress, clientAddress string) error {
	return f.do(ctx, "add", id, raftAddress, clientAddress)
}

func (f *fakeCluster) PromoteNode(ctx context.Context, id string) error {
	return f.do(ctx, "promote", id)
}

func (f *fakeCluster) RemoveNode(ctx context.Context, id string) error {
	return f.do(ctx, "remove", id)
}

func (f *fakeCluster) TransferLeadership(ctx context.Context, to string) (string, error) {
	return "n2", f.do(ctx, "transfer", to)
}

func (f *fakeCluster) Backup(ctx context.Context, o replication.BackupOptions) (*replication.Backup, error) {
	if f.backups == nil {
		return nil, errors.New("the test has no shard to back up")
	}
	return f.backups.Backup(ctx, o)
}

func startCluster(t *testing.T) (*rig, pb.ClusterServiceClient) {
	r := start(t, nil)
	return r, pb.NewClusterServiceClient(r.conn)
}

func TestClusterCallsReachTheShard(t *testing.T) {
	r, c := startCluster(t)
	ctx := testContext(t)
	st, err := c.GetStatus(ctx, &pb.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	wantMessage(t, st, &pb.GetStatusResponse{NodeId: "n1", Nodes: []*pb.Node{{Id: "n1", Healthy: true}}})
	if _, err := c.AddNode(ctx, &pb.AddNodeRequest{Id: "n4", RaftAddress: "10.0.0.4:7441", ClientAddress: "n4.example:7440"}); err != nil {
		t.Error(err)
	}
	if _, err := c.AddNode(ctx, &pb.AddNodeRequest{Id: "n4", RaftAddress: "[::1]:7441"}); err != nil {
		t.Error(err)
	}
	if _, err := c.PromoteNode(ctx, &pb.PromoteNodeRequest{Id: "n4"}); err != nil {
		t.Error(err)
	}
	if _, err := c.RemoveNode(ctx, &pb.RemoveNodeRequest{Id: "a.B_c-9"}); err != nil {
		t.Error(err)
	}
	r.shard.setStatus(replication.Status{LeaderID: "n2", LeaderAddress: "10.0.0.2:7440"})
	moved, err := c.TransferLeadership(ctx, &pb.TransferLeadershipRequest{ToId: "n2"})
	if err != nil {
		t.Fatal(err)
	}
	wantMessage(t, moved, &pb.TransferLeadershipResponse{LeaderId: "n2", LeaderAddress: "10.0.0.2:7440"})
	// Somebody else may lead by the time the address is looked up.
	r.shard.setStatus(replication.Status{LeaderID: "n3", LeaderAddress: "10.0.0.3:7440"})
	if moved, err = c.TransferLeadership(ctx, &pb.TransferLeadershipRequest{}); err != nil {
		t.Fatal(err)
	}
	wantMessage(t, moved, &pb.TransferLeadershipResponse{LeaderId: "n2"})
	want := []string{"status", "add n4 10.0.0.4:7441 n4.example:7440", "add n4 [::1]:7441 ", "promote n4", "remove a.B_c-9", "transfer n2", "transfer "}
	if got := r.shard.calls(); !slices.Equal(got, want) {
		t.Errorf("the shard was asked %q, want %q", got, want)
	}
}

func TestClusterCallsOfAWrongShapeNameTheField(t *testing.T) {
	r, c := startCluster(t)
	ctx := testContext(t)
	const name = "expected a node's id, 1 to 64 characters from a-z A-Z 0-9 . _ -"
	const where = "expected host:port that others can connect to"
	add := func(id, raft, client string) error {
		_, err := c.AddNode(ctx, &pb.AddNodeRequest{Id: id, RaftAddress: raft, ClientAddress: client})
		return err
	}
	long := strings.Repeat("n", 65)
	wantError(t, add("", "h:1", ""), api.Invalid("id", `is ""; %s`, name))
	wantError(t, add(long, "h:1", ""), api.Invalid("id", "is %q; %s", long, name))
	wantError(t, add("n 4", "h:1", ""), api.Invalid("id", `is "n 4"; %s`, name))
	for _, address := range []string{"", "h", ":7441", "h:0", "0.0.0.0:7441", "[::]:7441", "h:x", "h:70000", "http://h:1"} {
		wantError(t, add("n4", address, ""), api.Invalid("raft_address", "is %q; %s", address, where))
		if address != "" {
			wantError(t, add("n4", "h:1", address), api.Invalid("client_address", "is %q; %s", address, where))
		}
	}
	endless := strings.Repeat("h", 1000) + ":1"
	wantError(t, add("n4", endless, ""), api.Invalid("raft_address", "is %q; %s", endless[:maxAddress]+"...", where))
	_, err := c.PromoteNode(ctx, &pb.PromoteNodeRequest{})
	wantError(t, err, api.Invalid("id", `is ""; %s`, name))
	_, err = c.RemoveNode(ctx, &pb.RemoveNodeRequest{Id: "n4#00000000"})
	wantError(t, err, api.Invalid("id", `is "n4#00000000"; %s`, name))
	_, err = c.TransferLeadership(ctx, &pb.TransferLeadershipRequest{ToId: "/"})
	wantError(t, err, api.Invalid("to_id", `is "/"; %s`, name))
	if got := r.shard.calls(); len(got) != 0 {
		t.Errorf("the shard was asked %q, want nothing", got)
	}
}

func TestClusterCallsAnswerWithTheShardsErrors(t *testing.T) {
	r, c := startCluster(t)
	ctx := testContext(t)
	calls := map[string]func() error{
		"status":   func() error { _, err := c.GetStatus(ctx, &pb.GetStatusRequest{}); return err },
		"add":      func() error { _, err := c.AddNode(ctx, &pb.AddNodeRequest{Id: "n4", RaftAddress: "h:1"}); return err },
		"promote":  func() error { _, err := c.PromoteNode(ctx, &pb.PromoteNodeRequest{Id: "n4"}); return err },
		"remove":   func() error { _, err := c.RemoveNode(ctx, &pb.RemoveNodeRequest{Id: "n4"}); return err },
		"transfer": func() error { _, err := c.TransferLeadership(ctx, &pb.TransferLeadershipRequest{}); return err },
	}
	for name, call := range calls {
		notLeader := api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "ask the leader").With(&pb.NotLeader{LeaderId: "n2", LeaderAddress: "10.0.0.2:7440"})
		r.shard.onChange(func(context.Context) error { return notLeader })
		wantError(t, call(), notLeader)
		r.shard.onChange(func(context.Context) error { return status.Error(codes.Aborted, "not now") })
		if err := call(); status.Code(err) != codes.Aborted || status.Convert(err).Message() != "not now" {
			t.Errorf("%s: found %v, want ABORTED, not now", name, err)
		}
		r.shard.onChange(func(context.Context) error { return errors.New("a bug") })
		wantError(t, call(), api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "a bug"))
	}
}

// The caller learns what the change waited for, and not only that its time was up.
func TestAClusterChangeEndsBeforeItsCallersDeadline(t *testing.T) {
	r, c := startCluster(t)
	r.shard.onChange(func(ctx context.Context) error {
		<-ctx.Done()
		return status.Error(codes.Aborted, "it is 7 entries behind")
	})
	ctx, cancel := context.WithTimeout(testContext(t), 2*time.Second)
	defer cancel()
	_, err := c.PromoteNode(ctx, &pb.PromoteNodeRequest{Id: "n4"})
	if status.Code(err) != codes.Aborted || status.Convert(err).Message() != "it is 7 entries behind" {
		t.Errorf("found %v, want the shard's own words", err)
	}
}

func TestReadsOnAFollowerNameTheLeader(t *testing.T) {
	r := start(t, nil)
	ctx := testContext(t)
	want := api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "this node is not the leader").With(&pb.NotLeader{LeaderId: "n2", LeaderAddress: "10.0.0.2:7440"})
	r.shard.refuseReads(want)
	for name, call := range r.everyRead(ctx) {
		t.Run(name, func(t *testing.T) { wantError(t, call(), want) })
	}
}

// everyRead calls each method that reads, about pbKey("1") and the writer a.
func (r *rig) everyRead(ctx context.Context) map[string]func() error {
	return map[string]func() error{
		"GetAggregate": func() error {
			_, err := r.client.GetAggregate(ctx, &pb.GetAggregateRequest{Aggregate: pbKey("1")})
			return err
		},
		"ReadAll": func() error {
			_, _, _, err := readLog(ctx, r, &pb.ReadAllRequest{})
			return err
		},
		"GetMark": func() error {
			_, err := r.client.GetMark(ctx, &pb.GetMarkRequest{Aggregate: pbKey("1"), ClientId: "a"})
			return err
		},
		"ListMarks": func() error {
			_, err := r.client.ListMarks(ctx, &pb.ListMarksRequest{Aggregate: pbKey("1")})
			return err
		},
		"FindEvent": func() error {
			_, err := r.client.FindEvent(ctx, &pb.FindEventRequest{Aggregate: pbKey("1"), ClientId: "a", ClientSeq: 1})
			return err
		},
		"ListOrgs":  func() error { _, err := r.client.ListOrgs(ctx, &pb.ListOrgsRequest{}); return err },
		"ListTypes": func() error { _, err := r.client.ListTypes(ctx, &pb.ListTypesRequest{Org: "acme"}); return err },
		"ListAggregates": func() error {
			_, err := r.client.ListAggregates(ctx, &pb.ListAggregatesRequest{Org: "acme", Type: "orders"})
			return err
		},
		"GetSchema": func() error {
			_, err := r.client.GetSchema(ctx, &pb.GetSchemaRequest{Org: "acme", Type: "orders", EventType: "Placed"})
			return err
		},
		"ListSchemas": func() error { _, err := r.client.ListSchemas(ctx, &pb.ListSchemasRequest{Org: "acme"}); return err },
		"Read": func() error {
			stream, err := r.client.Read(ctx, &pb.ReadRequest{Aggregate: pbKey("1")})
			for err == nil {
				_, err = stream.Recv()
			}
			if err == io.EOF {
				return nil
			}
			return err
		},
	}
}
