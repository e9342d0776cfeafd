package main

import "time"

// foundDamage is told by a call that it has met damaged data. The node ends then, also if that
// was one block of many: what is damaged stays so, the log and the other nodes have what was in
// it, and a node that goes on would fail some calls for ever and look ready all the same.
func (n *node) foundDamage(err error) {
	select {
	case n.damage <- err:
	default: // the first one counts
	}
}

// answerTimeout is how long calls at work get when the node must end. After damage that is
// enough to answer the one that found it, and others that do not touch it; after a failure of
// the storage nobody can be told anything definite.
func answerTimeout(cause error) time.Duration {
	if damaged(cause) {
		return crashTimeout / 2
	}
	return 0
}
