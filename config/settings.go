package config

import "time"

// Config is the resolved configuration of one node. Sizes are bytes.
type Config struct {
	DataDir       string
	NodeID        string
	Listen        string // gRPC, host:port
	RaftListen    string // the other nodes, host:port
	HTTPListen    string // metrics and health, host:port
	Advertise     string // where clients reach this node; never empty
	RaftAdvertise string // where the other nodes reach this one; never empty
	Peers         []Peer // the initial cluster; empty = this node alone

	LogLevel  string // debug, info, warn or error
	LogFormat string // json or console

	MaxRequestBytes    int64
	MaxConcurrentCalls int
	MaxConcurrentReads int
	MaxSubscribers     int
	MaxInFlightBytes   int64
	MaxReadBytes       int64

	HeadCacheBytes  int64 // 0 = off
	MarkCacheBytes  int64 // 0 = off
	BlockCacheBytes int64
	// SubscriptionRingBytes is within what a node needs besides the sizes above.
	SubscriptionRingBytes int64
	MemtableBytes         int64
	MemoryLimitBytes      int64 // never 0
	GCPercent             int

	MinFreeDiskBytes int64
	SnapshotLogBytes int64
	TrailingLogBytes int64

	ShutdownTimeout  time.Duration
	ElectionTimeout  time.Duration // 0 = automatic
	HeartbeatTimeout time.Duration // 0 = automatic
	DiskStallTimeout time.Duration // 0 = off

	sources  map[string]Source
	problems []Problem // found while reading, before Validate looks at the whole
}

// Peer is one node of the initial cluster.
type Peer struct {
	ID      string
	Address string // raft, host:port
}

// kind is how a setting is written.
type kind string

const (
	kindText     kind = "text"
	kindPath     kind = "path"
	kindAddress  kind = "host:port"
	kindPeers    kind = "id=host:port,..."
	kindWord     kind = "word"
	kindSize     kind = "size"
	kindCount    kind = "count"
	kindPercent  kind = "percent"
	kindDuration kind = "duration"
)

// Setting describes one setting: a flag, an environment variable and a key of the file.
type Setting struct {
	Key     string // also the flag's name
	Default string // as a user would write it
	Help    string

	kind  kind
	field func(*Config) any // pointer to the field that holds the value

	// Bounds of a size (bytes), count or duration (nanoseconds). zero says that 0 is
	// allowed although it is below min.
	min, max int64
	zero     bool
	// words are the values that a word may have.
	words []string
	// empty says that an empty value is allowed.
	empty bool
}

// Variable is the name of the setting's environment variable.
func (s *Setting) Variable() string { return variable(s.Key) }

// Unit says how the value is written, for help and documentation.
func (s *Setting) Unit() string { return string(s.kind) }

const (
	kib = int64(1) << 10
	mib = int64(1) << 20
	gib = int64(1) << 30
	tib = int64(1) << 40
)

// automaticMemoryLimit is what memory-limit 0 means: what a node with the default caches
// needs while it loads at full speed.
const automaticMemoryLimit = 900 * mib

// Settings returns the table of all settings, in the order of the documentation.
func Settings() []Setting {
	return []Setting{
		{Key: "data-dir", Default: "tidemark-data", kind: kindPath, field: func(c *Config) any { return &c.DataDir },
			Help: "directory that holds everything this node stores; created if it does not exist"},
		{Key: "node-id", Default: "n1", kind: kindText, field: func(c *Config) any { return &c.NodeID },
			Help: "name of this node in its cluster, 1 to 64 of a-z A-Z 0-9 . _ -; never change it for a data directory"},
		{Key: "listen", Default: "127.0.0.1:7440", kind: kindAddress, field: func(c *Config) any { return &c.Listen },
			Help: "address for clients (gRPC); port 0 = any free one"},
		{Key: "raft-listen", Default: "127.0.0.1:7441", kind: kindAddress, field: func(c *Config) any { return &c.RaftListen },
			Help: "address for the other nodes; opened if peers is set"},
		{Key: "http-listen", Default: "127.0.0.1:7442", kind: kindAddress, field: func(c *Config) any { return &c.HTTPListen },
			Help: "address for metrics and health (HTTP)"},
		{Key: "advertise", kind: kindAddress, empty: true, field: func(c *Config) any { return &c.Advertise },
			Help: "address that clients are told to reach this node at; empty = the value of listen"},
		{Key: "raft-advertise", kind: kindAddress, empty: true, field: func(c *Config) any { return &c.RaftAdvertise },
			Help: "address that the other nodes reach this one at; empty = this node's address in peers, or the value of raft-listen"},
		{Key: "peers", kind: kindPeers, empty: true, field: func(c *Config) any { return &c.Peers },
			Help: "all nodes of the initial cluster with their raft addresses, the same list on every node; a node that is not in it waits until it is added; empty = this node alone"},
		{Key: "log-level", Default: "info", kind: kindWord, words: []string{"debug", "info", "warn", "error"}, field: func(c *Config) any { return &c.LogLevel },
			Help: "least severe log line that is written"},
		{Key: "log-format", Default: "console", kind: kindWord, words: []string{"json", "console"}, field: func(c *Config) any { return &c.LogFormat },
			Help: "how log lines are written to stderr, json being one object a line"},

		{Key: "max-request-bytes", Default: "4MiB", kind: kindSize, min: 64 * kib, max: 16 * mib, field: func(c *Config) any { return &c.MaxRequestBytes },
			Help: "largest append request that is accepted; larger ones get 2017"},
		{Key: "max-concurrent-calls", Default: "8192", kind: kindCount, min: 1, max: 1 << 20, field: func(c *Config) any { return &c.MaxConcurrentCalls },
			Help: "calls that are worked on at once; more get 11000"},
		{Key: "max-concurrent-reads", Default: "4096", kind: kindCount, min: 1, max: 1 << 20, field: func(c *Config) any { return &c.MaxConcurrentReads },
			Help: "calls that read and are worked on at once, of all calls; more get 11000"},
		{Key: "max-subscribers", Default: "16384", kind: kindCount, min: 1, max: 1 << 20, field: func(c *Config) any { return &c.MaxSubscribers },
			Help: "subscriptions that are open at once, apart from all calls; more get 8005"},
		{Key: "max-in-flight-bytes", Default: "64MiB", kind: kindSize, min: mib, max: 16 * gib, field: func(c *Config) any { return &c.MaxInFlightBytes },
			Help: "bytes of appends that may wait or be in flight at once; more get 2012"},
		{Key: "max-read-bytes", Default: "128MiB", kind: kindSize, min: mib, max: 16 * gib, field: func(c *Config) any { return &c.MaxReadBytes },
			Help: "memory for answers to reads that are being built or that clients have not taken yet, one connection at most half of it; further reads wait, then get 11000, and connections that hold some without taking any for 5s are closed"},

		{Key: "memory-limit", Default: "0", kind: kindSize, min: 128 * mib, max: 16 * tib, zero: true, field: func(c *Config) any { return &c.MemoryLimitBytes },
			Help: "memory that the node tries to stay below (replaces GOMEMLIMIT); a limit below 900MiB shrinks the caches and buffers that are left at their defaults; 0 = 900MiB, or more if larger caches need it"},
		{Key: "gogc", Default: "400", kind: kindPercent, min: 10, max: 10000, field: func(c *Config) any { return &c.GCPercent },
			Help: "heap growth that starts a garbage collection (replaces GOGC)"},
		{Key: "head-cache-bytes", Default: "64MiB", kind: kindSize, max: 1 * tib, field: func(c *Config) any { return &c.HeadCacheBytes },
			Help: "memory for the heads (version and more) of recently used aggregates; 0 = off"},
		{Key: "mark-cache-bytes", Default: "32MiB", kind: kindSize, max: 1 * tib, field: func(c *Config) any { return &c.MarkCacheBytes },
			Help: "memory for the marks of recently seen writers; 0 = off"},
		{Key: "block-cache-bytes", Default: "256MiB", kind: kindSize, min: mib, max: 1 * tib, field: func(c *Config) any { return &c.BlockCacheBytes },
			Help: "memory for blocks of the history that were read; memtables come on top"},
		{Key: "memtable-bytes", Default: "64MiB", kind: kindSize, min: mib, max: 1 * gib, field: func(c *Config) any { return &c.MemtableBytes },
			Help: "size of one memtable of the history; up to four exist at once"},

		{Key: "subscription-ring-bytes", Default: "16MiB", kind: kindSize, min: 64 * kib, max: 16 * gib, field: func(c *Config) any { return &c.SubscriptionRingBytes },
			Help: "memory for the newest changes of the log, from which subscriptions that keep up are served; others read the history"},

		{Key: "min-free-disk-bytes", Default: "256MiB", kind: kindSize, max: 1 * tib, field: func(c *Config) any { return &c.MinFreeDiskBytes },
			Help: "free disk space below which appends get 2018; 0 = never refuse"},
		{Key: "snapshot-log-bytes", Default: "256MiB", kind: kindSize, min: mib, max: 1 * tib, field: func(c *Config) any { return &c.SnapshotLogBytes },
			Help: "log written since the last snapshot that starts the next one"},
		{Key: "trailing-log-bytes", Default: "64MiB", kind: kindSize, min: mib, max: 1 * tib, field: func(c *Config) any { return &c.TrailingLogBytes },
			Help: "log that is kept after a snapshot, for nodes that lag a little"},

		{Key: "shutdown-timeout", Default: "10s", kind: kindDuration, min: int64(time.Second), max: int64(10 * time.Minute), field: func(c *Config) any { return &c.ShutdownTimeout },
			Help: "longest that an orderly shutdown may take"},
		{Key: "election-timeout", Default: "0", kind: kindDuration, min: int64(10 * time.Millisecond), max: int64(time.Minute), zero: true, field: func(c *Config) any { return &c.ElectionTimeout },
			Help: "time that a candidate waits for votes, at least heartbeat-timeout; 0 = automatic: heartbeat-timeout"},
		{Key: "heartbeat-timeout", Default: "0", kind: kindDuration, min: int64(10 * time.Millisecond), max: int64(time.Minute), zero: true, field: func(c *Config) any { return &c.HeartbeatTimeout },
			Help: "time without a word from the leader before a follower stands for election, and without a majority's before a leader gives up; longer than the slowest flush of any node's disk; 0 = automatic: 500ms, or 50ms without peers"},
		{Key: "disk-stall-timeout", Default: "30s", kind: kindDuration, min: int64(time.Second), max: int64(time.Hour), zero: true, field: func(c *Config) any { return &c.DiskStallTimeout },
			Help: "a disk operation that takes longer ends the process, so that another node can lead; 0 = off"},
	}
}
