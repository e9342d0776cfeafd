package truth

import (
	"context"
	"fmt"
	"regexp"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// Raft's AddVoter counts a node in every majority from that moment on, however far behind it
// is. So a node is added as a non-voter, and promoted once it has caught up.
func TestNodeThatLagsIsNotPromoted(t *testing.T) {
	t.Parallel()
	c, leader, _ := form(t, 0, 0)
	c.prepare(t, leader)
	admin := pb.NewClusterServiceClient(leader.Dial(t))
	fourth := c.another(t)
	fourth.start(t, patience) // it believes in its leader for as long as this test lasts
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := admin.AddNode(ctx, &pb.AddNodeRequest{Id: "n4", RaftAddress: fourth.host + ":7441"}); err != nil {
		t.Fatal(err)
	}
	until(t, "the new node to follow", func() bool { return fourth.state(t).Role == "follower" && fourth.state(t).Term > 0 })
	// It knows of its own addition: what it lacks then is entries.
	leader.settled(t, write{aggregate: "first", client: "a", seq: 1}.request()).ok(t, 1)
	until(t, "the new node to have what was written", func() bool {
		return member(t, admin, "n4").GetAppliedIndex() >= member(t, admin, leader.id).GetAppliedIndex()
	})

	fourth.hold(t, pointStepDown)
	for i := range 100 {
		leader.settled(t, write{aggregate: fmt.Sprint("more-", i), client: "a", seq: 1}.request()).ok(t, 1)
	}
	behind := regexp.MustCompile(`node n4 has not caught up and stays a non-voter: it is 1\d\d entries behind; ask again later$`)
	until(t, "the refusal to say how far the node is behind", func() bool {
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := admin.PromoteNode(short, &pb.PromoteNodeRequest{Id: "n4"})
		if c := status.Code(err); c != codes.InvalidArgument && c != codes.DeadlineExceeded {
			t.Fatalf("the promotion of a node that lags was answered with %v, expected 2016", err)
		}
		return behind.MatchString(status.Convert(err).Message())
	})
	if n := member(t, admin, "n4"); n.GetVoter() {
		t.Fatalf("a node that lags was promoted: %v", n)
	}
	fourth.release(t, pointStepDown)
	if _, err := admin.PromoteNode(ctx, &pb.PromoteNodeRequest{Id: "n4"}); err != nil {
		t.Fatal(err)
	}
	if n := member(t, admin, "n4"); !n.GetVoter() {
		t.Fatalf("a node that has caught up was not promoted: %v", n)
	}
}

// member is a node as the cluster's status has it.
func member(t *testing.T, admin pb.ClusterServiceClient, id string) *pb.Node {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	s, err := admin.GetStatus(ctx, &pb.GetStatusRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range s.GetNodes() {
		if n.GetId() == id {
			return n
		}
	}
	t.Fatalf("no node %s in %v", id, s)
	return nil
}
