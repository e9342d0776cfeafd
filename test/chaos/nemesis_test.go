package chaos

import (
	"time"

	"github.com/tidemark-db/tidemark/test/cluster"
)

// nemesis is a way to break a cluster. run returns when it is on the way to being whole again:
// all members are started, nothing is paused; cuts may be left.
type nemesis struct {
	name string
	run  func(*run)
}

// nemeses are all of them.
var nemeses = []nemesis{
	{"leader killed", (*run).leaderKilled},
	{"three kills in a row", (*run).threeKills},
	{"all killed", (*run).allKilled},
	{"leader paused and thawed", (*run).leaderPaused},
	{"leader cut off", (*run).leaderCutOff},
	{"leader killed while a follower lags", (*run).killedWhileLagging},
	{"one way: the leader is not heard", (*run).leaderNotHeard},
	{"one way: the leader does not hear", (*run).leaderDeaf},
	{"one way: a follower does not hear", (*run).followerDeaf},
	{"no majority", (*run).noMajority},
	{"a flapping link", (*run).flappingLink},
	{"rolling restart", (*run).rollingRestart},
	{"leadership transferred", (*run).transferred},
	{"a member wiped", (*run).memberWiped},
	{"a member wiped while another lags", (*run).wipedWhileLagging},
	{"crashes while catching up", (*run).crashesWhileCatchingUp},
	{"members replaced", (*run).membersReplaced},
	{"disk full on the leader", (*run).diskFullOnLeader},
	{"disk full on a follower", (*run).diskFullOnFollower},
	{"stalled disk on the leader", (*run).stalledDiskOnLeader},
	{"stalled disk on a follower", (*run).stalledDiskOnFollower},
}

// wait lets time pass in which the cluster is broken.
func (r *run) wait(d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-r.t.Context().Done():
	}
}

// upTo is a random duration.
func (r *run) upTo(d time.Duration) time.Duration { return time.Duration(r.rng.Int64N(int64(d))) }

// follower is a member that does not lead.
func (r *run) follower() *cluster.Node {
	others := r.cluster.Others(r.cluster.Leader())
	return others[r.rng.IntN(len(others))]
}

// takeOver waits until another node than one leads, and takes writes.
func (r *run) takeOver(from *cluster.Node) *cluster.Node {
	r.t.Helper()
	next := r.cluster.Leader(r.cluster.Others(from)...)
	r.progress()
	return next
}

func (r *run) leaderKilled() {
	leader := r.cluster.Leader()
	leader.Kill()
	r.takeOver(leader)
	leader.Launch()
}

func (r *run) threeKills() {
	for range 3 {
		leader := r.cluster.Leader()
		r.wait(r.upTo(300 * time.Millisecond))
		leader.Kill()
		leader.Launch() // the next kill may find it in the middle of its start
	}
}

func (r *run) allKilled() {
	for _, n := range r.cluster.Members() {
		n.Kill()
	}
	for _, n := range r.cluster.Members() {
		n.Launch()
		r.wait(r.upTo(200 * time.Millisecond))
	}
}

// leaderPaused thaws a leader that has missed its successor's election, with requests waiting
// in its sockets: what it says before it knows must not mislead.
func (r *run) leaderPaused() {
	for range 2 {
		leader := r.cluster.Leader()
		leader.Pause()
		r.takeOver(leader)
		leader.Resume()
		r.progress()
	}
}

func (r *run) leaderCutOff() {
	leader := r.cluster.Leader()
	r.cluster.Network.Isolate(r.t, leader.Number)
	r.takeOver(leader)
}

func (r *run) killedWhileLagging() {
	leader := r.cluster.Leader()
	lagging := r.follower()
	lagging.Pause()
	r.progress()
	leader.Kill()
	lagging.Resume()
	r.takeOver(leader)
	leader.Launch()
}

func (r *run) leaderNotHeard() {
	leader := r.cluster.Leader()
	for _, n := range r.cluster.Others(leader) {
		r.cluster.Network.CutOneWay(r.t, leader.Number, n.Number)
	}
	r.takeOver(leader)
}

func (r *run) leaderDeaf() {
	leader := r.cluster.Leader()
	for _, n := range r.cluster.Others(leader) {
		r.cluster.Network.CutOneWay(r.t, n.Number, leader.Number)
	}
	r.takeOver(leader)
}

func (r *run) followerDeaf() {
	leader, deaf := r.cluster.Leader(), r.follower()
	r.cluster.Network.CutOneWay(r.t, leader.Number, deaf.Number)
	r.progress()
	r.wait(2 * time.Second) // it stands for election, and nobody should follow
	r.progress()
}

func (r *run) noMajority() {
	members := r.cluster.Members()
	for _, n := range members[1:] {
		r.cluster.Network.Isolate(r.t, n.Number)
	}
	r.wait(time.Second + r.upTo(2*time.Second))
}

func (r *run) flappingLink() {
	leader, other := r.cluster.Leader(), r.follower()
	for range 8 {
		if r.rng.IntN(2) == 0 {
			r.cluster.Network.Cut(r.t, leader.Number, other.Number)
		} else {
			r.cluster.Network.CutOneWay(r.t, leader.Number, other.Number)
		}
		r.wait(100*time.Millisecond + r.upTo(600*time.Millisecond))
		r.cluster.Network.Heal(r.t)
		r.wait(r.upTo(400 * time.Millisecond))
	}
}

func (r *run) rollingRestart() {
	for _, n := range r.cluster.Members() {
		n.Stop()
		r.progress()
		n.Launch()
		r.cluster.Settle()
	}
}
