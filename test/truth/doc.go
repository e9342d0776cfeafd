// Package truth holds a cluster of three processes in the states in which a store is tempted
// to say something untrue, and asks it: while a write is on one disk and nowhere else, while
// it is on a majority's and nobody knows, while a deposed leader does not know that it is one.
//
// It owns what contract 2.2 to 2.4 and 3 promise of 2013, 2002, 2003, 2011 and 2014 across
// processes. Such states last for microseconds; fault points make them last, in a binary
// built with -tags faultpoints (cmd/tidemark/faultpoints.go). They hold raft's messages and
// nothing else: what the nodes ask each other directly still gets through.
//
// SIGSTOP alone does not keep a write from a follower: what was sent to it waits in its
// kernel's buffers, and it reads that when it is resumed, even from a leader that has been
// killed meanwhile. Where a write must stay on the leader, it is held there.
//
// It may import anything; nothing imports it.
package truth
