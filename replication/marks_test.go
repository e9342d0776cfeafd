package replication

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// persist makes a call on whoever leads until it is answered with something final. All calls of
// this test may be made again after an unknown outcome.
func persist[R any](c *cluster, call func(context.Context, *Shard) (R, error)) (resp R, err error) {
	c.until("a final answer", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		resp, err = call(ctx, c.leader().Shard)
		if e := (*api.Error)(nil); errors.As(err, &e) {
			switch e.Code {
			case pb.ErrorCode_ERROR_CODE_NOT_LEADER, pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY, pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN,
				pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE, pb.ErrorCode_ERROR_CODE_SERVER_BUSY:
				return false
			}
			return true
		}
		return err == nil
	})
	return resp, err
}

// Marks outlive trims, deletes, recreations, compactions, snapshots, kills and failovers, in
// whatever order: a sequence that was recorded is never accepted again, unless a delete said
// forget_writers, and then it is. All nodes end with the same state.
func TestUsedSequencesStayUsed(t *testing.T) {
	c := newCluster(t, 3)
	c.start("n1", "n2", "n3")
	rng := rand.New(rand.NewPCG(20, 26))
	marks := map[string]uint64{} // of "a", by aggregate
	floor, version := map[string]uint64{}, map[string]uint64{}
	alive := map[string]bool{}
	did := map[string]int{}
	for step := range 140 {
		id := fmt.Sprint(rng.IntN(3))
		kind := [...]string{"new", "new", "new", "old", "old", "trim", "delete", "forget", "compact", "snapshot", "kill"}[rng.IntN(11)]
		describe := fmt.Sprintf("step %d, %s of %s", step, kind, id)
		switch kind {
		case "new":
			seq := marks[id] + 1 + rng.Uint64N(2)
			resp, err := persist(c, func(ctx context.Context, s *Shard) (*pb.AppendResponse, error) {
				return s.Append(ctx, appendOf("a", id, seqs(seq), confirmRequest))
			})
			if err != nil {
				t.Fatalf("%s: %v", describe, err)
			}
			r := resp.GetResults()[0]
			if !alive[id] {
				alive[id], floor[id] = true, r.GetVersion()
			} else if r.GetVersion() != version[id]+1 {
				t.Fatalf("%s: version %d follows %d", describe, r.GetVersion(), version[id])
			}
			marks[id], version[id] = seq, r.GetVersion()
		case "old":
			if marks[id] == 0 {
				continue
			}
			seq := 1 + rng.Uint64N(marks[id])
			resp, err := persist(c, func(ctx context.Context, s *Shard) (*pb.AppendResponse, error) {
				return s.Append(ctx, appendOf("a", id, seqs(seq)))
			})
			if api.CodeOf(err) != pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION {
				t.Fatalf("%s: sequence %d of mark %d: %v, %v; want 2002", describe, seq, marks[id], resp, err)
			}
		case "trim":
			if !alive[id] {
				continue
			}
			keep := floor[id] + rng.Uint64N(version[id]-floor[id]+1)
			resp, err := persist(c, func(ctx context.Context, s *Shard) (*pb.TrimResponse, error) {
				return s.Trim(ctx, &pb.TrimRequest{Aggregate: key(id), KeepFromVersion: keep})
			})
			if err != nil || resp.GetFirstVersion() != keep {
				t.Fatalf("%s to %d: %v, %v", describe, keep, resp, err)
			}
			floor[id] = keep
		case "delete", "forget":
			if version[id] == 0 {
				continue
			}
			wasAlive := alive[id]
			_, err := persist(c, func(ctx context.Context, s *Shard) (*pb.DeleteResponse, error) {
				return s.Delete(ctx, &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{{
					Aggregate: key(id), AllowRecreate: true, RestartVersions: step%2 == 0, ForgetWriters: kind == "forget",
				}}})
			})
			if err != nil {
				t.Fatalf("%s: %v", describe, err)
			}
			if alive[id] = false; kind == "forget" && wasAlive {
				marks[id] = 0
			}
		case "compact", "snapshot":
			node := c.nodes[fmt.Sprint("n", 1+rng.IntN(3))]
			if kind == "snapshot" {
				if err := node.snapshot(); err != nil {
					t.Fatalf("%s: %v", describe, err)
				}
			} else if _, err := node.Compact(context.Background()); err != nil && api.CodeOf(err) != pb.ErrorCode_ERROR_CODE_SERVER_BUSY {
				t.Fatalf("%s: %v", describe, err)
			}
		case "kill":
			victim := fmt.Sprint("n", 1+rng.IntN(3))
			if rng.IntN(2) == 0 {
				victim = c.leader().id()
			}
			c.kill(victim)
			c.start(victim)
		}
		did[kind]++
	}
	t.Log(did)
	c.converged()
	var first string
	for id, n := range c.nodes {
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
			t.Errorf("%s holds\n%s\nwant\n%s", id, state, first)
		}
	}
}
