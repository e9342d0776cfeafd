package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"github.com/tidemark-db/tidemark/api"
	"github.com/tidemark-db/tidemark/config"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/server"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
	"github.com/tidemark-db/tidemark/wal/stable"
	"github.com/tidemark-db/tidemark/wal/tail"
)

func newServeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run a node",
		Long: `Run a node. It needs no configuration: data goes to ./tidemark-data, clients connect to
127.0.0.1:7440. http://127.0.0.1:7442 has /livez (the process is up), /readyz (the node
leads, or follows a leader and is as far as that one), /leaderz (it serves as leader) and
/metrics. With --peers it is one node of a cluster; "tidemark dev" runs a whole one here.

Every setting is a flag, an environment variable and a key of the YAML file; the flag wins
over the environment, the environment over the file, the file over the default. "tidemark
config print" shows the result. Unknown keys and unknown TIDEMARK_... variables are errors.

SIGTERM and SIGINT stop it in order: no more calls are taken, what waits is answered,
everything is flushed. A second signal ends it at once; nothing acknowledged is lost.

It ends by itself if it can no longer promise what it acknowledges: with 70 if the disk
fails or hangs, with 71 if stored data is damaged, whether the start, a call or the work in
the background finds it, with 73 if its cluster has removed it, with 74 if a majority of its
cluster has other data. It starts with 72 if another process has the data directory open,
with 2 if the configuration is wrong, with 1 for anything else, such as a port that is
taken.`,
		Example: `  tidemark serve
  tidemark serve --data-dir /var/lib/tidemark --listen 127.0.0.1:9000
  TIDEMARK_LOG_FORMAT=json tidemark serve --config /etc/tidemark.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			log := newLogger(c, cmd.ErrOrStderr())
			err = (&node{config: c, log: log}).run(cmd.Context())
			return logFailure(c, log, err)
		},
	}
	config.RegisterFlags(cmd.Flags())
	return cmd
}

// logFailure makes the last words of a node that logs JSON a line of its log, so that
// whatever collects the log gets them. A person reads them better as text.
func logFailure(c *config.Config, log *zap.Logger, err error) error {
	if err == nil || c.LogFormat != "json" {
		return err
	}
	failure := &exitError{code: exitFailure, err: err}
	errors.As(err, &failure)
	log.Error("the node ended", zap.Int("exit_code", failure.code), zap.Error(failure.err), zap.String("advice", failure.advice))
	return &exitError{code: failure.code, err: failure.err, reported: true}
}

// node is one running node.
type node struct {
	config *config.Config
	log    *zap.Logger

	grpc, web net.Listener
	raft      net.Listener // nil without peers
	shard     *replication.Shard
	opening   time.Duration // how long the shard took to open
	server    *server.Server
	// damage delivers the first damaged data that a call has met.
	damage chan error

	// The node's own goroutines: the listeners end when the server stops, the watchers
	// when stopWatching is called.
	goroutines   sync.WaitGroup
	stopWatching context.CancelFunc
}

// run runs the node until ctx is done (an orderly stop) or it must end.
func (n *node) run(ctx context.Context) error {
	began := time.Now()
	c := n.config
	debug.SetGCPercent(c.GCPercent)
	debug.SetMemoryLimit(c.MemoryLimitBytes)
	build := readBuildInfo()
	n.log.Info("starting", zap.String("version", build.Version), zap.String("commit", build.Commit), zap.String("go", build.Go),
		zap.String("node_id", c.NodeID), zap.String("data_dir", c.DataDir), zap.String("memory_limit", config.FormatSize(c.MemoryLimitBytes)))
	for _, w := range c.Warnings() {
		n.log.Warn(w)
	}
	if err := n.open(); err != nil {
		return err
	}
	n.log.Info("serving", zap.Stringer("listen", n.grpc.Addr()), zap.Stringer("http_listen", n.web.Addr()), zap.String("advertise", c.Advertise))

	watching, stopWatching := context.WithCancel(ctx)
	defer stopWatching()
	n.stopWatching = stopWatching
	failures := make(chan error, 2)
	n.goroutines.Go(func() { failures <- n.server.Serve(n.grpc) })
	n.goroutines.Go(func() { failures <- n.server.ServeWeb(n.web) })
	n.goroutines.Go(func() { n.reportReady(watching, began) })
	stalls := make(chan error, 1)
	if c.DiskStallTimeout > 0 {
		w := &stallWatch{timeout: c.DiskStallTimeout, probe: diskProbe(c.DataDir), log: n.log}
		n.goroutines.Go(func() {
			if err := w.watch(watching); err != nil {
				stalls <- err
			}
		})
	}

	select {
	case <-ctx.Done():
		return n.stop(context.Cause(ctx))
	case err := <-n.shard.Fatal():
		return n.crash(err)
	case err := <-n.damage:
		return n.crash(err)
	case err := <-stalls:
		return n.crash(err)
	case err := <-failures:
		n.log.Error("a listener failed", zap.Error(err))
		return errors.Join(err, n.stop(err))
	}
}

// open opens the ports, and then what is behind them: a port that is taken is found out
// before the data directory is touched, and clients that come early wait in the queue.
func (n *node) open() error {
	c := n.config
	var err error
	if n.grpc, err = n.listen("listen", c.Listen); err != nil {
		return err
	}
	if n.web, err = n.listen("http-listen", c.HTTPListen); err != nil {
		return errors.Join(err, n.grpc.Close())
	}
	if len(c.Peers) > 0 {
		if n.raft, err = n.listen("raft-listen", c.RaftListen); err != nil {
			return errors.Join(err, n.grpc.Close(), n.web.Close())
		}
	}
	if c.Source("advertise").Origin == config.OriginDerived {
		c.Advertise = n.grpc.Addr().String() // the port of ":0" is known now
	}
	if err = n.openShard(); err != nil {
		return errors.Join(err, n.grpc.Close(), n.web.Close())
	}
	n.damage = make(chan error, 1)
	build := readBuildInfo()
	n.server, err = server.New(server.Options{
		Shard: n.shard, Logger: n.log, OnDamage: n.foundDamage,
		Build:           server.Build{Version: build.Version, Commit: build.Commit, Go: build.Go},
		OpenDuration:    n.opening,
		MaxRequestBytes: int(c.MaxRequestBytes), MaxCalls: c.MaxConcurrentCalls,
		// Room for calls that are not admitted yet on top of what may be in flight.
		MaxBytes: 2 * c.MaxInFlightBytes,
		MaxReads: c.MaxConcurrentReads, MaxSubscribers: c.MaxSubscribers, MaxReadBytes: c.MaxReadBytes,
	})
	if err != nil {
		return errors.Join(err, n.shard.Abandon(), n.grpc.Close(), n.web.Close())
	}
	return nil
}

func (n *node) listen(key, address string) (net.Listener, error) {
	l, err := net.Listen("tcp", address)
	if err == nil {
		return l, nil
	}
	text := "%s is %s (%s): %w"
	if errors.Is(err, syscall.EADDRINUSE) {
		text = "%s is %s (%s): another process has that port: %w"
	}
	return nil, &exitError{
		code: exitFailure, err: fmt.Errorf(text, key, address, n.config.Source(key), err),
		advice: fmt.Sprintf("Choose another address with --%s, or port 0 for any free one.", key),
	}
}

func (n *node) openShard() error {
	c := n.config
	// The shard takes 0 for its default, and a negative size for none.
	none := func(size int64) int64 {
		if size == 0 {
			return -1
		}
		return size
	}
	var peers []replication.Peer
	for _, p := range c.Peers {
		peers = append(peers, replication.Peer{ID: p.ID, Address: p.Address})
	}
	options := replication.Options{
		Dir: c.DataDir, NodeID: c.NodeID, AdvertiseAddress: c.Advertise, Logger: n.log,
		Listener: n.raft, RaftAddress: c.RaftAdvertise, Peers: peers, Version: readBuildInfo().Version,
		MaxInFlightBytes: c.MaxInFlightBytes,
		HeadCacheBytes:   none(c.HeadCacheBytes), MarkCacheBytes: none(c.MarkCacheBytes),
		RingBytes: c.SubscriptionRingBytes, BlockCacheBytes: c.BlockCacheBytes, MemTableBytes: c.MemtableBytes,
		SnapshotLogBytes: c.SnapshotLogBytes, TrailingLogBytes: c.TrailingLogBytes,
		MinFreeDiskBytes: none(c.MinFreeDiskBytes),
		HeartbeatTimeout: c.HeartbeatTimeout, ElectionTimeout: c.ElectionTimeout,
	}
	serveFaultPoints := addFaultPoints(&options)
	var err error
	began := time.Now()
	if n.shard, err = replication.Open(options); err != nil {
		return n.startError(err)
	}
	n.opening = time.Since(began)
	return serveFaultPoints(n.shard)
}

// neverMade says whether a directory could not be made for a reason that lies in its name or in
// the file system: no disk that gets well changes that.
func neverMade(err error) bool {
	var path *fs.PathError
	return errors.As(err, &path) && path.Op == "mkdir" && (errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENAMETOOLONG) ||
		errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrExist))
}

// startError gives the error of a data directory that does not open its exit code.
func (n *node) startError(err error) error {
	failure := &exitError{code: exitFailure, err: fmt.Errorf("the node did not start: %w", err)}
	var errno syscall.Errno
	switch {
	case errors.Is(err, replication.ErrInUse):
		failure.code = exitInUse
	case damaged(err):
		failure.code = exitDamaged
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.ENOTDIR), neverMade(err):
		failure.code = exitUsage
		failure.err = fmt.Errorf("data-dir is %s (%s): expected a directory that this user can write to: %w",
			n.config.DataDir, n.config.Source("data-dir"), err)
		failure.advice = "Name another one with --data-dir, or mend the owner and the mode of this one."
	case errors.Is(err, replication.ErrForeign):
		failure.code = exitUsage
	case errors.Is(err, replication.ErrStorage), errors.As(err, &errno):
		failure.code = exitStorage
	}
	return failure
}

func damaged(err error) bool {
	var answer *api.Error
	return errors.Is(err, record.ErrCorrupt) || errors.Is(err, tail.ErrDamaged) || errors.Is(err, stable.ErrDamaged) || errors.Is(err, replication.ErrDamaged) ||
		errors.As(err, &answer) && answer.Corrupt
}

// readyEvery is how often a node that is not ready looks whether it is.
const readyEvery = 100 * time.Millisecond

// reportReady logs when the node is ready for the first time, as /readyz says it.
func (n *node) reportReady(ctx context.Context, began time.Time) {
	ticker := time.NewTicker(readyEvery)
	defer ticker.Stop()
	for {
		_, changed := n.shard.Leading()
		if !slices.ContainsFunc(n.shard.Checks(), func(c replication.Check) bool { return c.Err != nil && !c.Tolerated }) {
			break
		}
		select {
		case <-changed:
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
	s := n.shard.Status()
	after := time.Since(began)
	n.server.Started(after)
	n.log.Info("ready", zap.Duration("after", after.Round(time.Millisecond)), zap.String("cluster_id", s.ClusterID),
		zap.String("role", s.Role), zap.String("leader", s.LeaderID),
		zap.String("timeline", s.Timeline), zap.Uint64("term", s.Term), zap.Uint64("position", s.LastPosition))
}

// stop ends the node in order, within shutdown-timeout: calls at work get most of that to
// finish, then what still waits is answered as unknown, then the rest is cut.
func (n *node) stop(cause error) error {
	timeout := n.config.ShutdownTimeout
	n.log.Info("stopping", zap.NamedError("cause", cause), zap.Duration("shutdown_timeout", timeout))
	began := time.Now()
	n.stopWatching()
	done := make(chan error, 1)
	go func() { // ends with these calls, or with the process: a hung disk may hold them
		err := n.stopInOrder(timeout)
		n.goroutines.Wait()
		done <- err
	}()
	timer := time.NewTimer(timeout * 95 / 100)
	defer timer.Stop()
	select {
	case err := <-done:
		if err != nil {
			return n.ended(err)
		}
		n.log.Info("stopped", zap.Duration("after", time.Since(began).Round(time.Millisecond)))
		return nil
	case err := <-n.shard.Fatal():
		return n.crash(err) // what is still to be flushed never will be
	case err := <-n.damage:
		return n.crash(err)
	case <-timer.C:
		return fmt.Errorf("the node did not stop within %v (shutdown-timeout) and is cut off; what it acknowledged is on disk, and the next start replays the log", timeout)
	}
}

func (n *node) stopInOrder(timeout time.Duration) error {
	// All three count from now: what one step does not use, the next one has.
	within := func(percent time.Duration) (context.Context, context.CancelFunc) {
		return context.WithTimeout(context.Background(), timeout*percent/100)
	}
	all, cancel := within(85)
	defer cancel()
	waiting, cancelWaiting := within(70)
	defer cancelWaiting()
	drain, cancelDrain := within(50)
	defer cancelDrain()
	// First, so that the others lead while the calls here end.
	n.shard.HandOver(drain)
	if err := n.server.Drain(drain); err != nil {
		n.log.Warn("calls are still at work; what waits is answered as unknown now", zap.Error(err))
	}
	err := n.shard.Stop(waiting)
	if errors.Is(err, history.ErrViewsHeld) {
		// Reads that are still being sent. Everything is flushed already; they are cut next.
		err = nil
	}
	n.server.Stop(all)
	return err
}

// crashTimeout bounds what is still tried after the storage failed.
const crashTimeout = 2 * time.Second

// crash ends the node after a failure of its storage, or when the cluster goes on without
// it. Calls are cut: their clients learn
// that the outcome is unknown, which it is.
func (n *node) crash(err error) error {
	err = n.shard.AdviseOn(err)
	n.log.Error("the node must end", zap.Error(err))
	n.stopWatching()
	done := make(chan struct{})
	go func() { // ends with these calls, or with the process: a hung disk may hold them
		defer close(done)
		answers, cancel := context.WithTimeout(context.Background(), answerTimeout(err))
		defer cancel()
		n.server.Stop(answers)
		_ = n.shard.Abandon() // what it can still say is about the failure that is reported
		n.goroutines.Wait()
	}()
	timer := time.NewTimer(crashTimeout)
	defer timer.Stop()
	select {
	case <-done:
	case <-timer.C:
	}
	return n.ended(err)
}

// ended gives a failure of the storage its exit code.
func (n *node) ended(err error) error {
	switch {
	case errors.Is(err, replication.ErrRemoved):
		return &exitError{code: exitRemoved, err: err,
			advice: "To use this machine as a node again, empty the data directory, start the node, and add it to the cluster."}
	case errors.Is(err, replication.ErrDiverged):
		return &exitError{code: exitDiverged, err: err}
	}
	if damaged(err) {
		return &exitError{code: exitDamaged, err: fmt.Errorf("stored data is damaged: %w", err)}
	}
	return &exitError{
		code: exitStorage, err: fmt.Errorf("the storage of %s failed: %w", n.config.DataDir, err),
		advice: "Nothing that was acknowledged depends on the failed operation. Check the disk and the kernel's log, then start the node again; it repairs the end of its log by itself.",
	}
}
