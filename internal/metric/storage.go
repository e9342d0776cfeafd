package metric

func tail() Group {
	return Group{
		Title: "The tail (write-ahead log)",
		Defs: []Def{
			{Name: "tail_fsync_duration_seconds", Kind: Histogram, Buckets: Durations(), Help: text(`
				How long a flush of the log took, on leader and followers. Every write waits for one on a majority of nodes. Above
				half the heartbeat-timeout it costs elections: use a faster disk, or longer timeouts.`)},
			{Name: "tail_written_bytes_total", Kind: Counter, Help: "Bytes of the log that were made durable."},
			{Name: "tail_bytes", Kind: Gauge, Help: "Size of the tail on disk. Beyond snapshot-log-bytes plus trailing-log-bytes, by more than what a snapshot takes to be written, no snapshot succeeds, or one is being sent: see snapshots_total."},
			{Name: "tail_since_snapshot_bytes", Kind: Gauge, Help: "Bytes of the log behind the newest snapshot. The next snapshot is due at snapshot-log-bytes; far beyond, snapshots fail."},
			{Name: "recent_changes", Kind: Gauge, Help: "Newest changes of the log that are kept in memory for subscriptions."},
			{Name: "recent_changes_limit", Kind: Gauge, Help: "Most of those changes. A subscription that lags further reads the history."},
			{Name: "recent_bytes", Kind: Gauge, Help: "Bytes of those changes."},
			{Name: "recent_limit_bytes", Kind: Gauge, Help: "Most bytes of those changes (subscription-ring-bytes)."},
			{Name: "log_cache_bytes", Kind: Gauge, Help: "Bytes of the newest log entries that are kept in memory for the followers."},
			{Name: "log_cache_limit_bytes", Kind: Gauge, Help: "Most bytes that those may take."},
			{Name: "log_cache_entries", Kind: Gauge, Help: "Log entries that are kept in memory."},
			{Name: "log_cache_hits_total", Kind: Counter, Help: "Log entries that were found in memory."},
			{Name: "log_cache_misses_total", Kind: Counter, Help: "Log entries that were read from disk. A rate on a leader: a follower is further behind than the cache reaches."},
		},
	}
}

func history() Group {
	level := []Label{{Name: "level", Values: []string{"0", "1", "2", "3", "4", "5", "6"}}}
	return Group{
		Title: "The history (Pebble)",
		Intro: "Read once a second, so that a scrape waits for none of Pebble's locks. Counters begin anew when another node's snapshot takes the history's place. Absent after the storage has failed.",
		Defs: []Def{
			{Name: "history_bytes", Kind: Gauge, Help: "Size of the history on disk, files that wait for their removal included. Snapshots share its files."},
			{Name: "history_l0_sublevels", Kind: Gauge, Help: "Tables that a look-up in the newest level of the history may have to ask. 4 starts a compaction, above 6 compactions do not keep up, 20 stops writes."},
			{Name: "history_read_amplification", Kind: Gauge, Help: "Tables that a look-up may have to ask in all levels. Above 15 or so, look-ups are slow."},
			{Name: "history_compaction_debt_bytes", Kind: Gauge, Help: "Bytes of the history that are still to be compacted, an estimate. Growing over hours means that writes come faster than the disk can sort them."},
			{Name: "history_level_bytes", Kind: Gauge, Labels: level, Help: "Size of the tables of each level, values in blob files left out."},
			{Name: "history_level_tables", Kind: Gauge, Labels: level, Help: "Tables of each level."},
			{Name: "history_blob_bytes", Kind: Gauge, Help: "Size of the blob files, which hold the batches."},
			{Name: "history_obsolete_bytes", Kind: Gauge, Help: "Size of tables and blob files that nothing needs and that wait for their removal. Lasting: the disk does not keep up with removals."},
			{Name: "history_zombie_bytes", Kind: Gauge, Help: "Size of tables and blob files that only readers still need. Lasting: a read that never ends keeps them."},
			{Name: "history_snapshots", Kind: Gauge, Help: "Moments of the history that readers hold. Growing: reads do not end."},
			{Name: "history_tombstones", Kind: Gauge, Help: "Deletions that are still to be compacted away. Large for long: what was trimmed or deleted still takes its space."},
			{Name: "history_flushes_total", Kind: Counter, Help: "Memtables that were written to tables."},
			{Name: "history_flushed_bytes_total", Kind: Counter, Help: "Bytes that flushes wrote."},
			{Name: "history_compactions_total", Kind: Counter, Help: "Compactions that ended."},
			{Name: "history_compactions_failed_total", Kind: Counter, Help: "Compactions that met an error. They are tried again; a rate means a disk that is full or broken."},
			{Name: "history_compactions_running", Kind: Gauge, Help: "Compactions at work. Two, always: the disk does not keep up."},
			{Name: "history_compacted_bytes_total", Kind: Counter, Help: "Bytes that compactions wrote: this and history_flushed_bytes_total, over tail_written_bytes_total, is the write amplification."},
			{Name: "history_write_stalls_total", Kind: Counter, Help: "Times that commits had to wait because memtables or the newest level were full. A rate means that appends stand still now and then."},
			{Name: "history_write_stall_seconds_total", Kind: Counter, Help: "Seconds that commits have waited so."},
			{Name: "history_slow_disk_operations_total", Kind: Counter, Help: "Operations on the history's files that took longer than five seconds. Anything above 0 means a disk that hangs."},
			{Name: "block_cache_bytes", Kind: Gauge, Help: "Blocks of the history that are kept in memory."},
			{Name: "block_cache_limit_bytes", Kind: Gauge, Help: "Size of the block cache (block-cache-bytes); it grows into what memtables do not use."},
			{Name: "block_cache_hits_total", Kind: Counter, Help: "Blocks that were found in the cache."},
			{Name: "block_cache_misses_total", Kind: Counter, Help: "Blocks that were read from disk. Hits over both is the hit rate; below 0.9 with slow look-ups, a larger block-cache-bytes helps."},
			{Name: "memtables", Kind: Gauge, Help: "Memtables of the history that are written or wait for a flush. At 3 commits stop until one is flushed."},
			{Name: "memtable_bytes", Kind: Gauge, Help: "Bytes of those memtables."},
			{Name: "memtable_limit_bytes", Kind: Gauge, Help: "Size of one memtable (memtable-bytes)."},
			{Name: "zombie_memtables", Kind: Gauge, Help: "Memtables that are flushed and still read. Growing: reads that do not end keep memory."},
			{Name: "zombie_memtable_bytes", Kind: Gauge, Help: "Bytes of those memtables."},
		},
	}
}

func snapshots() Group {
	return Group{
		Title: "Snapshots, backups and verification",
		Intro: "A snapshot stands for the log before it, so that the log can be cut off, and is what a new or lost follower is sent.",
		Defs: []Def{
			{Name: "snapshots_total", Kind: Counter, Labels: []Label{{Name: "result", Values: []string{"taken", "failed"}}}, Help: `Snapshots that this node took of itself, or failed to. "failed" is bad: the log grows until one succeeds.`},
			{Name: "snapshot_duration_seconds", Kind: Histogram, Buckets: long(), Help: "How long taking a snapshot took; appends go on meanwhile."},
			{Name: "snapshot_timestamp_seconds", Kind: Gauge, Help: "When the newest snapshot was taken or received, in seconds since 1970; 0 = there is none. Old is fine on a node with few writes."},
			{Name: "snapshot_index", Kind: Gauge, Help: "Index of the newest snapshot; 0 = there is none."},
			{Name: "snapshot_bytes", Kind: Gauge, Help: "Size of the newest snapshot; most of it is shared with the history."},
			{Name: "snapshots_sent_total", Kind: Counter, Help: "Snapshots that this node sent whole. A rate: a follower falls behind again and again, see trailing-log-bytes."},
			{Name: "snapshot_sent_bytes_total", Kind: Counter, Help: "Bytes of snapshots that were sent, whole or not."},
			{Name: "snapshots_received_total", Kind: Counter, Labels: []Label{{Name: "result", Values: []string{"whole", "failed"}}}, Help: `Snapshots of other nodes that reached this one. "failed" is bad if it lasts: the node cannot catch up.`},
			{Name: "snapshot_receive_duration_seconds", Kind: Histogram, Buckets: long(), Help: "How long it took to receive a snapshot whole."},
			{Name: "lent_snapshots", Kind: Gauge, Help: "Snapshots that are being sent, or were until a minute ago: the log behind them is kept."},
			{Name: "lent_log_limit_bytes", Kind: Gauge, Help: "Most bytes of log that are kept for a node that is being sent a snapshot."},
			{Name: "retired_histories", Kind: Gauge, Help: "Histories that gave way to another node's and are still read. Lasting: a read that does not end keeps their space."},
			{Name: "retired_histories_limit", Kind: Gauge, Help: "Most of those; the next snapshot that arrives waits."},
			{Name: "backups", Kind: Gauge, Help: "Backups that are being sent: each keeps the files of its moment on the disk until it ends."},
			{Name: "backups_limit", Kind: Gauge, Help: "Most of those; more are answered 11000."},
			{Name: "backups_total", Kind: Counter, Labels: []Label{{Name: "result", Values: []string{"sent", "failed"}}}, Help: `Backups that this node sent to a client, or did not send to the end.`},
			{Name: "backup_sent_bytes_total", Kind: Counter, Help: "Bytes of backups that were sent, whole or not."},
			{Name: "backup_timestamp_seconds", Kind: Gauge, Help: "The moment that the newest backup which this node sent whole is of, in seconds since 1970; 0 = there is none. It survives restarts. Any node may be asked for backups: take the maximum over all, and alert on its age."},
			{Name: "verifications", Kind: Gauge, Help: "Verify calls at work. Each takes up to a quarter of a core, and reads from the disk."},
			{Name: "verifications_limit", Kind: Gauge, Help: "Most of those; more are answered 11000."},
			{Name: "verified_batches_total", Kind: Counter, Help: "Batches that Verify calls have checked."},
			{Name: "verify_findings_total", Kind: Counter, Help: "What Verify calls have found on this node. Anything but 0 is bad: docs/verify.md says what to do."},
		},
	}
}

func disk() Group {
	return Group{
		Title: "Disk",
		Defs: []Def{
			{Name: "disk_free_bytes", Kind: Gauge, Help: "Free space where the data directory is, looked at four times a second. Near disk_free_reserve_bytes: appends are about to be refused."},
			{Name: "disk_free_reserve_bytes", Kind: Gauge, Help: "Free space below which appends are answered 2018 (min-free-disk-bytes); 0 = none."},
		},
	}
}

func node() Group {
	return Group{
		Title: "The process",
		Intro: "Beside these, /metrics has what Go's runtime (`go_`) and the operating system (`process_`) say of the process.",
		Defs: []Def{
			{Name: "build_info", Kind: Gauge, Labels: []Label{{Name: "version", Meaning: "of this binary"}, {Name: "commit", Meaning: "of this binary"}, {Name: "go_version", Meaning: "of this binary"}}, Help: "Always 1; its labels say which build this is. Two versions for long: an upgrade that was not finished."},
			{Name: "node_info", Kind: Gauge, Labels: []Label{{Name: "node_id", Meaning: "of this node"}, {Name: "cluster_id", Meaning: "of its cluster"}, {Name: "timeline", Meaning: "of its cluster"}}, Help: "Always 1; its labels say which node of which cluster this is. Two clusters under one job: a node joined the wrong one; another timeline: it was restored."},
			{Name: "open_duration_seconds", Kind: Gauge, Help: "How long it took to open the data directory at the start. It grows with what is to be replayed and with the disk."},
			{Name: "start_duration_seconds", Kind: Gauge, Help: "How long it took from the start of the process until it first led or followed a leader; 0 = not yet. Staying 0: no majority is up, or they do not reach each other."},
		},
	}
}
