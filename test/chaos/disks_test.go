package chaos

import (
	"time"

	"github.com/tidemark-db/tidemark/test/cluster"
)

// exitStorage is how a node ends whose disk fails or hangs.
const exitStorage = 70

// reserve is below which a leader refuses writes.
const reserve = "32MiB"

func (r *run) diskFullOnLeader() {
	leader := r.cluster.Leader()
	defer leader.Disk.Empty(r.t)
	leader.MayEnd()
	leader.Disk.Fill(r.t, 16<<20)
	r.wait(time.Second) // writes are refused: nothing can be waited for but time
	leader.Disk.Fill(r.t, 0)
	r.spaceIsBack(leader)
}

func (r *run) diskFullOnFollower() {
	n := r.follower()
	defer n.Disk.Empty(r.t)
	n.MayEnd()
	n.Disk.Fill(r.t, 0)
	r.progress() // the others go on
	r.spaceIsBack(n)
}

// spaceIsBack gives a node with a full disk some time to end on it, makes room, and starts it
// again if it ended.
func (r *run) spaceIsBack(n *cluster.Node) {
	r.t.Helper()
	select {
	case <-n.Exited():
	case <-time.After(3 * time.Second):
	}
	n.Disk.Empty(r.t)
	if n.EndedWith(exitStorage) {
		n.Launch()
	}
}

func (r *run) stalledDiskOnLeader() {
	leader := r.cluster.Leader()
	r.stall(leader, func() { r.takeOver(leader) })
}

func (r *run) stalledDiskOnFollower() {
	n := r.follower()
	r.stall(n, r.progress)
}

// stall freezes a node's disk. The node's own watchdog must end it: until the disk answers
// again, the kernel does not let go of its process, but nothing of it answers any more.
func (r *run) stall(n *cluster.Node, meanwhile func()) {
	r.t.Helper()
	defer n.Disk.Thaw(r.t)
	n.MayEnd()
	n.Disk.Freeze(r.t)
	meanwhile()
	r.cluster.Until("the watchdog to end "+n.ID, func() bool { return n.Logged("the disk does not answer") > 0 })
	n.Disk.Thaw(r.t)
	n.WaitExit(exitStorage)
	n.Launch()
}
