package server

import (
	"fmt"
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

// Defaults of Options.
const (
	DefaultMaxRequestBytes = 4 << 20
	DefaultMaxCalls        = 8192
	DefaultMaxReads        = 4096
	DefaultMaxSubscribers  = 16384
	DefaultMaxBytes        = 256 << 20
	DefaultMaxReadBytes    = 128 << 20
	DefaultMaxConnections  = 1024

	// Every client's preface comes with its first packet.
	DefaultHandshakeTimeout = 5 * time.Second

	// MostRequestBytes is the largest value of Options.MaxRequestBytes.
	MostRequestBytes = 16 << 20
)

// Options says what a Server serves and within which bounds. A zero bound is its default.
type Options struct {
	// Shard is what the calls are about; required.
	Shard Shard
	// Logger receives what an operator must see; nil logs nothing.
	Logger *zap.Logger
	// Registry is what /metrics shows; nil makes an own one. New adds the node's collector and
	// those of the process and of the Go runtime to it.
	Registry *prometheus.Registry

	// MaxRequestBytes bounds one request as encoded (2017), at most MostRequestBytes.
	MaxRequestBytes int
	// MaxCalls bounds the calls at work, health and reflection left out (11000).
	MaxCalls int
	// MaxReads bounds those of them that read (11000).
	MaxReads int
	// MaxSubscribers bounds the open subscriptions (8005), which are none of the calls above.
	MaxSubscribers int
	// MaxBytes bounds the requests at work, as encoded, in all (11000).
	MaxBytes int64
	// MaxReadBytes bounds the answers to reads that are being built, or that their clients have
	// not taken yet, in all. A read waits for room, and is refused after a while (11000).
	MaxReadBytes int64
	// MaxConnections bounds the gRPC connections; one more is closed at once.
	MaxConnections int

	// HandshakeTimeout is how long a new gRPC connection has for HTTP/2's preface and settings,
	// before it is closed. A silent one takes the place of one that would speak.
	HandshakeTimeout time.Duration

	// Build says what this binary is, and OpenDuration how long the shard took to open; both
	// are only shown.
	Build        Build
	OpenDuration time.Duration

	// Observe, if set, is told of every call.
	Observe Observer
	// OnDamage, if set, is told of damaged data when a call has met some, before that is its
	// answer. It must not block. The node should end: what is damaged stays so.
	OnDamage func(error)
	// Authenticate, if set, admits calls.
	Authenticate Authenticator

	// See readBudget.
	readStall, readPatience time.Duration
	// backupStall is that of backups.
	backupStall time.Duration
	// verifyPace is that of verifications.
	verifyPace pace
}

// Build is what /metrics says of the binary.
type Build struct{ Version, Commit, Go string }

func (o *Options) fill() error {
	if o.Shard == nil {
		return fmt.Errorf("server: Options.Shard is nil; a server needs a shard to serve")
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	if o.MaxRequestBytes == 0 {
		o.MaxRequestBytes = DefaultMaxRequestBytes
	}
	if o.MaxCalls == 0 {
		o.MaxCalls = DefaultMaxCalls
	}
	if o.MaxSubscribers == 0 {
		o.MaxSubscribers = DefaultMaxSubscribers
	}
	if o.MaxReads == 0 {
		o.MaxReads = DefaultMaxReads
	}
	if o.MaxReadBytes == 0 {
		o.MaxReadBytes = DefaultMaxReadBytes
	}
	if o.HandshakeTimeout == 0 {
		o.HandshakeTimeout = DefaultHandshakeTimeout
	}
	if o.verifyPace == (pace{}) {
		o.verifyPace = pace{work: verifyWork, rest: verifyRest}
	}
	if o.backupStall == 0 {
		o.backupStall = backupStall
	}
	if o.readStall == 0 {
		o.readStall, o.readPatience = readStall, readPatience
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.MaxConnections == 0 {
		o.MaxConnections = DefaultMaxConnections
	}
	if o.MaxRequestBytes < 0 || o.MaxRequestBytes > MostRequestBytes {
		return fmt.Errorf("server: Options.MaxRequestBytes is %d; expected 1..%d", o.MaxRequestBytes, MostRequestBytes)
	}
	if o.MaxReads < 0 || o.MaxReadBytes < 0 || o.MaxSubscribers < 0 {
		return fmt.Errorf("server: MaxReads %d, MaxSubscribers %d and MaxReadBytes %d must be positive", o.MaxReads, o.MaxSubscribers, o.MaxReadBytes)
	}
	if o.MaxCalls < 0 || o.MaxConnections < 0 || o.MaxBytes < int64(o.MaxRequestBytes) {
		return fmt.Errorf("server: MaxCalls %d and MaxConnections %d must be positive, and MaxBytes %d must hold a request of %d bytes",
			o.MaxCalls, o.MaxConnections, o.MaxBytes, o.MaxRequestBytes)
	}
	return nil
}

// streamWorkers is how many goroutines wait for calls; more calls than that get one of their
// own. An idle one keeps the 8 to 16 KiB of its stack.
const streamWorkers = 2048

// TransportOptions are the gRPC server options of a node that accepts requests of
// maxRequest bytes. The echo server of the benchmark uses the same ones, so that the two
// differ in nothing but the work.
func TransportOptions(maxRequest int) []grpc.ServerOption {
	return []grpc.ServerOption{
		// gRPC's own bound lies above ours, so that ours answers (2017), and below what
		// would let one call fill the memory.
		grpc.MaxRecvMsgSize(4*maxRequest + 1<<20),
		// What was written can be read: a batch of a request's size has event numbers,
		// times and hashes on top.
		grpc.MaxSendMsgSize(math.MaxInt32),
		// Above what one client keeps outstanding on a connection, so that calls do not
		// queue in the client, and still a bound.
		grpc.MaxConcurrentStreams(4096),
		grpc.MaxHeaderListSize(64 << 10),
		// A call begins on a goroutine whose stack has grown already: a call that waits for a
		// commit grew a new one four times, which was a twentieth of the work of an append.
		grpc.NumStreamWorkers(streamWorkers),
		// One read or write of the socket should carry the messages of as many calls as are
		// waiting: at 1,024 outstanding, a system call per handful of calls is what costs.
		grpc.ReadBufferSize(64 << 10),
		grpc.WriteBufferSize(64 << 10),
		// Fixed windows save the pings by which gRPC estimates a connection's bandwidth,
		// and bound what a connection may send without being read.
		grpc.StaticStreamWindowSize(1 << 20),
		grpc.StaticConnWindowSize(4 << 20),
		grpc.ConnectionTimeout(DefaultHandshakeTimeout),
		// Lenient towards clients that ping; a client that vanished is noticed in 80 s.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
	}
}
