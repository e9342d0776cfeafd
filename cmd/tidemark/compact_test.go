package main

import (
	"context"
	"testing"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// compacter is one node of a cluster.
type compacter struct {
	pb.UnimplementedClusterServiceServer
	status *pb.GetStatusResponse
	answer *pb.CompactResponse
	err    error
	order  *[]string
}

func (c *compacter) GetStatus(context.Context, *pb.GetStatusRequest) (*pb.GetStatusResponse, error) {
	return c.status, nil
}

func (c *compacter) Compact(context.Context, *pb.CompactRequest) (*pb.CompactResponse, error) {
	*c.order = append(*c.order, c.answer.GetNodeId())
	return c.answer, c.err
}

func TestCompactAsksEveryNodeTheLeaderFirst(t *testing.T) {
	var order []string
	st := &pb.GetStatusResponse{LeaderId: "n2"}
	nodes := map[string]*compacter{}
	var first string
	for i, id := range []string{"n1", "n2", "n3"} {
		c := &compacter{status: st, order: &order, answer: &pb.CompactResponse{NodeId: id, BytesBefore: 100, BytesAfter: uint64(10 + i)}}
		address := (&fakeStore{cluster: c}).start(t)
		st.Nodes = append(st.Nodes, &pb.Node{Id: id, ClientAddress: address})
		nodes[id] = c
		if i == 0 {
			first = address
		}
	}
	asked := func(want ...string) {
		t.Helper()
		if len(order) != len(want) {
			t.Fatalf("asked %v, want %v", order, want)
		}
		for i := range want {
			if order[i] != want[i] {
				t.Fatalf("asked %v, want %v", order, want)
			}
		}
		order = nil
	}
	check(t, output{exitOK, "n2: 100 bytes before, 11 after\nn1: 100 bytes before, 10 after\nn3: 100 bytes before, 12 after\n", ""}, "compact", "--server", first)
	asked("n2", "n1", "n3")
	check(t, output{exitOK, "{\"node_id\":\"n3\",\"bytes_before\":\"100\",\"bytes_after\":\"12\",\"incomplete\":[]}\n", ""}, "compact", "--server", first, "--node", "n3", "--output", "json")
	asked("n3")
	check(t, output{exitFailure, "", "tidemark: the cluster has no node \"n9\"; \"tidemark cluster status\" lists them\n"}, "compact", "--server", first, "--node", "n9")

	nodes["n1"].answer.Incomplete = []string{"a view is held"}
	check(t, output{exitFailure, "n2: 100 bytes before, 11 after\nn1: 100 bytes before, 10 after\nn1: not all: a view is held\nn3: 100 bytes before, 12 after\n",
		"tidemark: something that was deleted may be left, see above; docs/deleting.md says what to do about each\n"}, "compact", "--server", first)
	order = nil
	nodes["n2"].err = api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "the disk is full").GRPCStatus().Err()
	check(t, output{exitFailure, "n1: 100 bytes before, 10 after\nn1: not all: a view is held\nn3: 100 bytes before, 12 after\n",
		"n2: 11001 Internal: the disk is full\ntidemark: not every node was compacted; the same command may be given again\n"}, "compact", "--server", first)
}

func TestCompactOfOneNodeNeedsNoAddressOfIt(t *testing.T) {
	var order []string
	c := &compacter{order: &order, status: &pb.GetStatusResponse{LeaderId: "n1", Nodes: []*pb.Node{{Id: "n1", ClientAddress: "nowhere.invalid:1"}}},
		answer: &pb.CompactResponse{NodeId: "n1", BytesBefore: 2, BytesAfter: 1}}
	check(t, output{exitOK, "n1: 2 bytes before, 1 after\n", ""}, "compact", "--server", (&fakeStore{cluster: c}).start(t))
}
