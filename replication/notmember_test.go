package replication

import (
	"context"
	"testing"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/record"
)

// A node that lost its directory and waits for a leader to take it in took the timeline of its
// own cluster for another one's, and sent clients away for good.
func TestNodeWithoutATimelineRefusesNone(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	c.write("1", 1)
	timeline := c.leader().identity().Timeline
	c.kill("n1", "n2", "n3")
	c.wipe("n3")
	c.start("n3")
	n := c.nodes["n3"]

	a := &pb.AggregateKey{Org: "acme", Type: "orders", Id: "1"}
	k := record.MakeKey("acme", "orders", "1")
	calls := map[string]func(context.Context, string) error{
		"append": func(ctx context.Context, timeline string) error {
			req := appendOf("a", "1", seqs(2))
			req.Timeline = timeline
			_, err := n.Append(ctx, req)
			return err
		},
		"trim": func(ctx context.Context, timeline string) error {
			_, err := n.Trim(ctx, &pb.TrimRequest{Aggregate: a, KeepFromVersion: 1, Timeline: timeline})
			return err
		},
		"delete": func(ctx context.Context, timeline string) error {
			_, err := n.Delete(ctx, &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{{Aggregate: a}}, Timeline: timeline})
			return err
		},
	}
	for value, level := range pb.Consistency_name {
		if value == int32(pb.Consistency_CONSISTENCY_UNSPECIFIED) {
			continue
		}
		for what, position := range map[string]uint64{"": 0, " with min_position": 1} {
			calls[level+what] = func(ctx context.Context, timeline string) error {
				v, err := n.Read(ctx, ReadOptions{Consistency: pb.Consistency(value), Timeline: timeline, MinPosition: position})
				if err == nil {
					v.Release()
				}
				return err
			}
			calls["mark "+level+what] = func(ctx context.Context, timeline string) error {
				v, _, err := n.ReadMark(ctx, ReadOptions{Consistency: pb.Consistency(value), Timeline: timeline, MinPosition: position}, k, "a")
				if err == nil {
					v.Release()
				}
				return err
			}
		}
	}
	for name, call := range calls {
		for _, named := range []string{timeline, ""} {
			e, ok := api.FromStatus(call(t.Context(), named))
			if !ok || e.Code != pb.ErrorCode_ERROR_CODE_NOT_LEADER {
				t.Errorf("%s with timeline %q: %v, expected 2011", name, named, e)
				continue
			}
			const text = "this node is not a member of a cluster yet: nothing was done, no leader is known here now, ask another node, or again"
			if detail, _ := e.Details[0].(*pb.NotLeader); e.Message != text || detail.GetLeaderId() != "" || detail.GetLeaderAddress() != "" {
				t.Errorf("%s with timeline %q: %q, %v", name, named, e.Message, detail)
			}
		}
	}
	// What knows the cluster still refuses another one's.
	c.start("n1", "n2")
	_, err := c.leader().Read(t.Context(), ReadOptions{Consistency: pb.Consistency_CONSISTENCY_ANY, Timeline: newHexID(16)})
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_TIMELINE_MISMATCH)
}
