package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/metric"
)

// Server is the gRPC and HTTP front of one node.
//
// A process stops it in three steps: Drain, which refuses new calls and lets those at work
// finish; then the shard's own Stop, which answers what is still waiting; then Stop.
type Server struct {
	opts   Options
	chain  *chain
	grpc   *grpc.Server
	web    *http.Server
	health *health.Server
	// The bounds of gRPC's connections and of HTTP's.
	conns, webConns *connBound
	verifications   verifications

	// stopping is closed by the first Drain or Stop; drained when every call has ended.
	stopping chan struct{}
	drained  chan struct{}
	once     sync.Once
	// endWatches ends the streams of the health service.
	endWatches context.CancelFunc
	// followed is closed when the goroutine that follows the leadership has ended.
	followed chan struct{}
}

// New makes a server that does not accept connections yet. It starts one goroutine, which
// Stop ends, so Stop must be called even if nothing was served.
func New(o Options) (*Server, error) {
	if err := o.fill(); err != nil {
		return nil, err
	}
	if err := o.Registry.Register(collectors.NewGoCollector()); err != nil {
		return nil, fmt.Errorf("server: register the Go runtime's metrics: %w", err)
	}
	if err := o.Registry.Register(collectors.NewProcessCollector(collectors.ProcessCollectorOpts{})); err != nil {
		return nil, fmt.Errorf("server: register the process's metrics: %w", err)
	}
	budget, err := newReadBudget(o.MaxReadBytes, o.readStall, o.readPatience)
	if err != nil {
		return nil, err
	}
	table := metric.NewTable()
	watches, endWatches := context.WithCancel(context.Background())
	s := &Server{
		opts: o,
		chain: &chain{
			maxCalls:       int64(o.MaxCalls),
			maxReads:       int64(o.MaxReads),
			maxSubscribers: int64(o.MaxSubscribers),
			maxBytes:       o.MaxBytes,
			maxRequest:     o.MaxRequestBytes,
			budget:         budget,
			meter:          newMeter(table),
			authenticate:   o.Authenticate,
			observe:        o.Observe,
			onDamage:       o.OnDamage,
			log:            o.Logger,
			watches:        watches,
		},
		grpc: grpc.NewServer(append(TransportOptions(o.MaxRequestBytes),
			grpc.ConnectionTimeout(o.HandshakeTimeout), grpc.ForceServerCodecV2(newCodec()))...),
		health:     health.NewServer(),
		conns:      &connBound{most: int64(o.MaxConnections), log: o.Logger, budget: budget},
		webConns:   &connBound{most: maxWebConnections, log: o.Logger},
		stopping:   make(chan struct{}),
		drained:    make(chan struct{}),
		endWatches: endWatches,
		followed:   make(chan struct{}),
	}
	if err := o.Registry.Register(&collector{s, table}); err != nil {
		return nil, fmt.Errorf("server: register the node's metrics: %w", err)
	}
	r := registrar{Server: s.grpc, chain: s.chain}
	pb.RegisterEventStoreServiceServer(r, &eventStore{shard: o.Shard, log: o.Logger, chain: s.chain, stopping: s.stopping})
	pb.RegisterClusterServiceServer(r, &clusterService{
		shard: o.Shard, log: o.Logger, stopping: s.stopping, backupStall: o.backupStall, verifications: &s.verifications, verifyPace: o.verifyPace,
	})
	healthpb.RegisterHealthServer(r, s.health)
	reflection.Register(r)
	s.web = newWeb(s)
	s.setHealth()
	go s.followLeadership()
	return s, nil
}

// Serve accepts gRPC connections until the server stops, and then returns nil. It owns the
// listener.
func (s *Server) Serve(l net.Listener) error {
	err := s.grpc.Serve(&boundedListener{l, s.conns})
	// gRPC says ErrServerStopped only to a Serve that comes after the stop, as it may when a
	// node is told to end while it starts.
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("serve gRPC on %s: %w", l.Addr(), err)
	}
	return nil
}

// ServeWeb accepts HTTP connections (probes, metrics) until the server stops, and then
// returns nil. It owns the listener.
func (s *Server) ServeWeb(l net.Listener) error {
	if err := s.web.Serve(&boundedListener{l, s.webConns}); err != nil && err != http.ErrServerClosed {
		return fmt.Errorf("serve HTTP on %s: %w", l.Addr(), err)
	}
	return nil
}

// Started tells the server how long the node took to start, from the beginning of the process
// until it first led or followed a leader, for start_duration_seconds.
func (s *Server) Started(after time.Duration) { s.chain.meter.start.Store(int64(after)) }

// Drain tells health checks that the node is going away, refuses new connections and
// calls, and waits until the calls at work have ended or ctx is done; then it returns ctx's
// error and the calls go on.
func (s *Server) Drain(ctx context.Context) error {
	s.once.Do(func() {
		close(s.stopping)
		s.health.Shutdown()
		s.endWatches()
		// Ends when the last call has, which Stop makes happen.
		go func() {
			defer close(s.drained)
			s.grpc.GracefulStop()
		}()
	})
	select {
	case <-s.drained:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stop drains until ctx is done, then cuts the calls that are left, and closes every
// connection and listener. It may be called again.
func (s *Server) Stop(ctx context.Context) {
	if err := s.Drain(ctx); err != nil {
		if n := s.chain.calls.Load(); n > 0 {
			s.opts.Logger.Warn("calls were still at work when the server stopped; their clients cannot know the outcome", zap.Int64("calls", n), zap.Error(err))
		}
		s.grpc.Stop()
		<-s.drained
	}
	if err := s.web.Shutdown(ctx); err != nil {
		// Nothing but probes and scrapes are cut off here.
		s.opts.Logger.Debug("HTTP requests were still at work when the server stopped", zap.Error(err))
		_ = s.web.Close()
	}
	<-s.followed
}
