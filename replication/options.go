package replication

import (
	"net"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"
)

// Options are the settings of a Shard. Zero values mean the default.
type Options struct {
	// Dir is the shard's directory; it is created if it does not exist.
	Dir string
	// NodeID names this node in its cluster; default n1.
	NodeID string
	// AdvertiseAddress is where clients reach this node; NotLeader and the handshake between
	// nodes tell it.
	AdvertiseAddress string
	// Listener is the port for other nodes; nil = none, and the node is alone. The shard
	// closes it. RaftAddress is where the others reach it.
	Listener    net.Listener
	RaftAddress string
	// Peers are the nodes of the initial cluster, this one included; empty = this node alone.
	Peers []Peer
	// Version is the program's, told to the other nodes.
	Version string
	// Shard is the shard's number; 0 today.
	Shard  uint32
	Logger *zap.Logger

	// MaxInFlightBytes bounds what is admitted and not decided; default 64 MiB. Above: 2012.
	MaxInFlightBytes int64
	// MaxOutstandingEntries is how many log entries are proposed at once; default 2.
	MaxOutstandingEntries int
	// HeadCacheBytes and MarkCacheBytes bound the two caches of heads and the two of marks
	// (admission's and Apply's), half each; negative = off. Default 64 and 32 MiB.
	HeadCacheBytes, MarkCacheBytes int64
	// BlockCacheBytes and MemTableBytes are the history's; default 256 and 64 MiB.
	BlockCacheBytes, MemTableBytes int64
	// SegmentBytes is the size of the tail's files; default 4 MiB.
	SegmentBytes int
	// LogCacheBytes bounds the newest log entries that are kept in memory for other nodes to
	// be sent and for Apply; default 32 MiB, negative = none.
	LogCacheBytes int64
	// RingBytes and RingChanges bound the newest changes of the log that are kept in memory for
	// subscriptions; default 16 MiB and 65,536. A subscription that lags further reads the
	// history.
	RingBytes   int64
	RingChanges int
	// SnapshotLogBytes is how much log may stand behind the newest snapshot before the next
	// one is taken; default 256 MiB. TrailingLogBytes is how much stays after it; default 64 MiB.
	SnapshotLogBytes, TrailingLogBytes int64
	// MinFreeDiskBytes is the reserve below which writes are refused with 2018; default
	// 256 MiB, negative = none.
	MinFreeDiskBytes int64
	// HeartbeatTimeout and ElectionTimeout are raft's: how long a follower, and a candidate,
	// waits for a leader; a leader gives up after HeartbeatTimeout without a majority. They
	// must be longer than the worst flush of any node's disk, because followers answer
	// nothing while they flush. After the loss of a leader nobody is elected before two nodes
	// have waited, each one to two timeouts: who still knows a leader grants no pre-vote.
	// Default 500 ms, or 50 ms without Listener: a node that is
	// alone has nobody to wait for.
	HeartbeatTimeout, ElectionTimeout time.Duration

	// Clock stamps committed_at; default time.Now. Nothing is ordered by it.
	Clock func() time.Time
	// FreeDisk returns the bytes free for this process where Dir is; default statfs.
	FreeDisk func(dir string) (int64, error)
	// OnSync is called after each flush of the tail.
	OnSync func(d time.Duration, bytes int)
	// Hooks are fault points for tests.
	Hooks Hooks
}

// Peer is a node of the initial cluster.
type Peer struct{ ID, Address string }

// Hooks are fault points. Nil functions do nothing.
type Hooks struct {
	// BeforePropose runs in the batcher before it hands an entry to raft; while it blocks,
	// everything admitted stays in flight.
	BeforePropose func()
	// Forming runs at each step of coming into a cluster; an error ends the node there, as a
	// crash would. Steps: founding, member (about to be written), founding written, member
	// written, bootstrapped.
	Forming func(step string) error
	// Restoring runs at each step of taking another node's snapshot; an error ends the node
	// there, as a crash would.
	Restoring func(step string) error
	// BackupWait, if not 0, is how long a backup waits for a majority and for Apply.
	BackupWait time.Duration
	// BeforePublish runs in Apply's goroutine when a step is committed and not visible yet.
	BeforePublish func()
	// Propose, if set, stands between the batcher and raft: it runs in the batcher, may call
	// next, which hands the entry to raft, and returns what waits for the entry's fate,
	// next's own answer or another.
	Propose func(next func() (wait func() error)) (wait func() error)
	// Transport, if set, stands between raft and the network: raft uses what it returns, also
	// after raft was started again. Questions between nodes (PeerService) do not go through it.
	Transport func(raft.Transport) raft.Transport
}

func (o *Options) setDefaults() {
	def := func(p *int64, v int64) {
		if *p == 0 {
			*p = v
		}
	}
	def(&o.MaxInFlightBytes, 64<<20)
	def(&o.HeadCacheBytes, 64<<20)
	def(&o.MarkCacheBytes, 32<<20)
	def(&o.BlockCacheBytes, 256<<20)
	def(&o.MemTableBytes, 64<<20)
	def(&o.LogCacheBytes, 32<<20)
	def(&o.RingBytes, 16<<20)
	if o.RingChanges == 0 {
		o.RingChanges = 65_536
	}
	def(&o.SnapshotLogBytes, 256<<20)
	def(&o.TrailingLogBytes, 64<<20)
	def(&o.MinFreeDiskBytes, 256<<20)
	if o.NodeID == "" {
		o.NodeID = "n1"
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.MaxOutstandingEntries == 0 {
		o.MaxOutstandingEntries = 2
	}
	if o.SegmentBytes == 0 {
		o.SegmentBytes = 4 << 20
	}
	if o.HeartbeatTimeout == 0 {
		o.HeartbeatTimeout = 500 * time.Millisecond
		if o.Listener == nil {
			o.HeartbeatTimeout = 50 * time.Millisecond
		}
	}
	if o.ElectionTimeout < o.HeartbeatTimeout {
		o.ElectionTimeout = o.HeartbeatTimeout // raft wants no less
	}
	if o.Clock == nil {
		o.Clock = time.Now
	}
	if o.FreeDisk == nil {
		o.FreeDisk = freeDisk
	}
}
