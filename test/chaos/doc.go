// Package chaos breaks a cluster in every way that it should survive, while clients write and
// read, and judges afterwards what they saw and what is there.
//
// It owns the ways to break it (nemesis.go, disks.go, members.go), the schedule, and the
// verdict over each episode (chaos_test.go). An episode is one load, one nemesis, the return
// to a cluster that is well, and the check of everything. All episodes of a run are one after
// the other on one cluster, so each begins with what the ones before have left.
//
// Checked after each: the history is linearizable per aggregate with refusals, marks and
// holders as observations, and requests are atomic (test/linear); every request has resolved;
// every node has the same bytes, which are those that were sent, each acknowledged write
// exactly once; no node has ended but as expected. At the end, all episodes again on all nodes.
//
// More of it: make chaos DURATION=1h SEED=7, or one way only,
//
//	go test ./test/chaos -args -nemesis 'one way' -duration 10m
//
// It may import anything; nothing imports it.
package chaos
