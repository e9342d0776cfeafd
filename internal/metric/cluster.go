package metric

// Roles are the values of role: those of Status.Role.
func Roles() []string { return []string{"leader", "follower", "candidate", "joining", "shutdown"} }

func raftGroup() Group {
	peerKind := []Label{{Name: "kind", Values: []string{"raft", "peer", "handshaking", "client"},
		Meaning: "accepted for raft, accepted for questions, accepted and not identified yet, made by this node for questions"}}
	return Group{
		Title: "The node in its cluster",
		Defs: []Def{
			{Name: "role", Kind: Gauge, Labels: []Label{{Name: "role", Values: Roles()}}, Help: text(`
				1 for the role that this node has, 0 for the others. Over all nodes, sum(tidemark_role{role="leader"}) is 1; 0 for
				longer than an election takes means that nobody takes writes, 2 for longer than that that somebody was cut off.`)},
			{Name: "serving_leader", Kind: Gauge, Help: "1 if this node takes writes: it leads, and has applied what it inherited. A leader where this stays 0 is still replaying, or is stopping."},
			{Name: "leader_known", Kind: Gauge, Help: "1 if this node leads or knows who does. 0 for longer than an election takes means no majority, or a node that is cut off."},
			{Name: "ready", Kind: Gauge, Help: "1 if /readyz answers 200. 0 for long: ask /readyz?verbose what is wrong."},
			{Name: "term", Kind: Gauge, Help: "The raft term. It grows with each election; growing all the time means that no leader lasts."},
			{Name: "elections_started_total", Kind: Counter, Help: "Times that this node stood for election because it heard from no leader, or was asked to take over. One that goes on standing is counted once: see role."},
			{Name: "leader_changes_total", Kind: Counter, Help: "Times that this node learned of a leader, itself or another, after it had none or another one. 1 after a start; a rate without restarts means disks or a network slower than the timeouts."},
			{Name: "commit_index", Kind: Gauge, Help: "Index of the newest log entry that this node knows to be committed."},
			{Name: "applied_index", Kind: Gauge, Help: "Index up to which this node has nothing left to apply. A distance to commit_index that grows means that Apply does not keep up."},
			{Name: "position", Kind: Gauge, Help: "Position of the newest batch in this node's history: its rate is batches per second, on followers too."},
			{Name: "log_first_index", Kind: Gauge, Help: "Index of the oldest log entry in the tail. A follower that needs an older one is sent a snapshot."},
			{Name: "log_last_index", Kind: Gauge, Help: "Index of the newest log entry in the tail, committed or not."},
			{Name: "members", Kind: Gauge, Labels: []Label{{Name: "suffrage", Values: []string{"voter", "nonvoter"}}}, Help: "Nodes in the cluster's configuration, as this node has it. An even number of voters tolerates no more failures than one less."},
			{Name: "peer_connections", Kind: Gauge, Labels: peerKind, Help: "Open connections between this node and others. Many that are handshaking: somebody else knocks."},
			{Name: "peer_connections_limit", Kind: Gauge, Labels: peerKind, Help: "Most of each kind; one more is closed at once."},
		},
	}
}

func peers() Group {
	node := []Label{{Name: "node", Meaning: "node id of a member of the cluster's configuration, this node left out; the series of a node that was removed ends"}}
	return Group{
		Title: "The other nodes, as this one sees them",
		Intro: "Every node asks every other member once a second. Absent on a node that is alone.",
		Defs: []Def{
			{Name: "peer_up", Kind: Gauge, Labels: node, Help: "1 if the node answered this one's last question. 0 on every other node: it is down; 0 on some: the network between them is."},
			{Name: "peer_voter", Kind: Gauge, Labels: node, Help: "1 if the node votes. 0 for long: it was added and not promoted, or it does not catch up."},
			{Name: "peer_applied_index", Kind: Gauge, Labels: node, Help: "Index up to which the node has nothing left to apply, as of its last answer."},
			{Name: "peer_commit_index", Kind: Gauge, Labels: node, Help: "Index of the newest log entry that the node knows to be committed, as of its last answer."},
			{Name: "peer_lag_entries", Kind: Gauge, Labels: node, Help: text(`
				Committed log entries that the node had not applied when it last answered: this node's commit index of before
				the question, less the node's applied index, 0 if it is ahead. A node that is down keeps its last value: see
				peer_up. Growing on the leader's page means that the node does not keep up; it serves stale reads, and cannot
				take over quickly.`)},
			{Name: "peer_last_answer_timestamp_seconds", Kind: Gauge, Labels: node, Help: "When the node last answered, in seconds since 1970; 0 = not yet. time() less this is how long it has been silent."},
		},
	}
}

func majority() Group {
	return Group{
		Title: "Questions to a majority",
		Intro: "What a client acts on, a refusal or a linearizable read, is only said once a majority of voters has confirmed the leader's term. One round answers everyone who waits.",
		Defs: []Def{
			{Name: "refusals_waiting", Kind: Gauge, Help: "Refusals that wait for a majority to confirm the term. Lasting means a leader that is cut off: it answers 2011 in the end."},
			{Name: "linearizable_reads_waiting", Kind: Gauge, Help: "Reads that wait for a majority to confirm the term."},
			{Name: "majority_rounds_total", Kind: Counter, Labels: []Label{{Name: "result", Values: []string{"confirmed", "failed"}}},
				Help: `Rounds of asking the voters for their term. "failed" is normal around an election, and else bad: no majority answers.`},
			{Name: "majority_round_duration_seconds", Kind: Histogram, Buckets: Durations(), Help: "How long a round took: about a network round trip. Every refusal and every linearizable read waits for up to two of them."},
		},
	}
}

func digests() Group {
	return Group{
		Title: "Are all nodes the same?",
		Intro: "Nodes compare a hash over everything they have applied, once a second.",
		Defs: []Def{
			{Name: "digest_comparisons_total", Kind: Counter, Help: "Comparisons with at least one other voter. Not growing on a cluster: nobody would find out that data differs."},
			{Name: "digest_mismatches_total", Kind: Counter, Help: "Times that nodes were found to hold different data. Anything above 0 is an emergency: keep all data directories."},
			{Name: "data_diverged", Kind: Gauge, Help: "1 while nodes hold different data and none of it is known to be a majority's: appends are answered Internal."},
		},
	}
}
