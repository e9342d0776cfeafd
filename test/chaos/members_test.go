package chaos

import (
	"context"
	"time"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/cluster"
)

// exitRemoved is how a node ends that its cluster has removed.
const exitRemoved = 73

// change asks whoever leads for a change of the members until it is made: all of these calls
// may be repeated.
func (r *run) change(what string, call func(context.Context, pb.ClusterServiceClient) error) {
	r.t.Helper()
	var err error
	defer func() {
		if err != nil {
			r.t.Logf("%s: the last answer was %v", what, err)
		}
	}()
	r.cluster.Until(what, func() bool {
		leader := r.cluster.Leader()
		ctx, cancel := context.WithTimeout(r.t.Context(), 15*time.Second)
		defer cancel()
		err = call(ctx, pb.NewClusterServiceClient(leader.Conn()))
		return err == nil
	})
}

func (r *run) transferred() {
	for range 3 {
		to := r.follower()
		r.change("leadership to move", func(ctx context.Context, c pb.ClusterServiceClient) error {
			_, err := c.TransferLeadership(ctx, &pb.TransferLeadershipRequest{ToId: to.ID})
			return err
		})
		r.progress()
	}
}

func (r *run) memberWiped() {
	n := r.follower()
	if r.rng.IntN(3) == 0 {
		n = r.cluster.Leader()
	}
	n.Kill()
	n.Wipe()
	r.takeOver(n)
	n.Launch()
	if r.rng.IntN(2) == 0 {
		leader := r.cluster.Leader()
		r.wait(r.upTo(time.Second))
		leader.Kill() // in the middle of the return, perhaps
		leader.Launch()
	}
}

// wipedWhileLagging leaves one node that does not have the newest writes and one that has
// nothing. Together they are a majority, and must not serve.
func (r *run) wipedWhileLagging() {
	leader := r.cluster.Leader()
	others := r.cluster.Others(leader)
	lagging, wiped := others[0], others[1]
	lagging.Pause()
	r.progress()
	wiped.Kill()
	leader.Kill()
	wiped.Wipe()
	wiped.Launch()
	lagging.Resume()
	r.wait(2 * time.Second) // nothing should happen
	leader.Launch()
}

// crashesWhileCatchingUp kills a node at moments of the transfer of a snapshot, between its
// installation and the restoration of the history from it, and in the start after that.
func (r *run) crashesWhileCatchingUp() {
	n := r.follower()
	// Only a node that finds the log cut gets a snapshot.
	r.cluster.Until("snapshots to cut the log", func() bool { return r.cluster.Logged("snapshot taken") >= 6 })
	n.Kill()
	for round := range 3 {
		n.Wipe()
		r.progress()
		n.Launch()
		if round < 2 {
			// What raft says when the snapshot is on the disk and before it restores from it.
			n.Logs("copied to local snapshot", 5*time.Second)
			r.wait(r.upTo(2 * time.Millisecond))
		} else {
			r.wait(r.upTo(time.Second))
		}
		n.Kill()
		n.Launch()
		if round == 0 {
			n.Logs(restoredByStart, 5*time.Second) // and once more in the middle of that
		} else {
			r.wait(r.upTo(500 * time.Millisecond))
		}
		n.Kill()
	}
	n.Launch()
}

// membersReplaced adds a node, promotes it, and removes another one, perhaps the leader. The
// removed one's place is then empty, for the next time.
func (r *run) membersReplaced() {
	var spare *cluster.Node
	for _, n := range r.cluster.Nodes {
		if !n.Member {
			spare = n
		}
	}
	leaving := r.cluster.Members()[r.rng.IntN(3)]
	spare.Launch()
	r.change(spare.ID+" to be added", func(ctx context.Context, c pb.ClusterServiceClient) error {
		_, err := c.AddNode(ctx, &pb.AddNodeRequest{Id: spare.ID, RaftAddress: r.cluster.Network.RaftAddress(spare.Number)})
		return err
	})
	spare.Member = true
	r.progress()
	r.change(spare.ID+" to be promoted", func(ctx context.Context, c pb.ClusterServiceClient) error {
		_, err := c.PromoteNode(ctx, &pb.PromoteNodeRequest{Id: spare.ID})
		return err
	})
	r.progress()
	leaving.MayEnd()
	r.change(leaving.ID+" to be removed", func(ctx context.Context, c pb.ClusterServiceClient) error {
		_, err := c.RemoveNode(ctx, &pb.RemoveNodeRequest{Id: leaving.ID})
		return err
	})
	leaving.Member = false
	leaving.WaitExit(exitRemoved)
	leaving.Wipe()
}
