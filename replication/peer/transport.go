package peer

import (
	"errors"
	"io"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	peerv1 "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
)

const (
	defaultTimeout = 10 * time.Second
	// raftPool is how many idle connections raft keeps to a server: it replicates, sends
	// heartbeats and asks for votes side by side.
	raftPool = 3
	// snapshotRate, in bytes a second, is below what any disk does. It turns a snapshot's
	// size into a time that its receiver may take to use it.
	snapshotRate = 1 << 20
)

// Transport carries one instance of raft. It is raft's own network transport, but
//
//   - every call names the server it is meant for, by id as well as by address, and a
//     snapshot has a connection of its own kind;
//   - heartbeats have no fast path past raft's main loop (SetHeartbeatHandler), and wait
//     while their receiver takes in a snapshot (AppendEntries);
//   - it has no pipeline (AppendEntriesPipeline);
//   - the calls of an election are not lost to connections that have died in the pool
//     (retry).
type Transport struct {
	t       *raft.NetworkTransport
	layer   *layer
	timeout time.Duration

	mu         sync.Mutex
	installing map[raft.ServerID]chan struct{} // closed when a snapshot was sent, or not
}

// Raft finds these by type: without the second it would not ask before it stands for
// election.
var (
	_ raft.Transport   = (*Transport)(nil)
	_ raft.WithPreVote = (*Transport)(nil)
	_ raft.WithClose   = (*Transport)(nil)
)

// Transport returns a transport for a new instance of raft, which takes the place of the
// one before. timeout bounds a call (0 = 10 s), with what its receiver does on disk, but for
// the installation of a snapshot, which may take as long as it moves (conn.Read).
//
// Raft closes it at the end of a shutdown, but waits for its calls before: to shut raft
// down without waiting for a node that does not answer, call Shutdown, then Close here,
// and then wait for Shutdown's future.
func (n *Network) Transport(timeout time.Duration, logger hclog.Logger) *Transport {
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	if logger == nil {
		logger = hclog.NewNullLogger()
	}
	l := n.newLayer(n.o.Self().RaftAddress)
	t := raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
		Logger:          logger,
		Stream:          l,
		MaxPool:         raftPool,
		MaxRPCsInFlight: 1,
		Timeout:         timeout,
	})
	// Raft gives a snapshot timeout * size / TimeoutScale, for everything.
	t.TimeoutScale = max(1, int(timeout.Seconds()*snapshotRate))
	return &Transport{t: t, layer: l, timeout: timeout, installing: make(map[raft.ServerID]chan struct{})}
}

// Consumer gives raft the calls of other nodes.
func (t *Transport) Consumer() <-chan raft.RPC { return t.t.Consumer() }

// LocalAddr is the advertised address.
func (t *Transport) LocalAddr() raft.ServerAddress { return t.t.LocalAddr() }

// AppendEntriesPipeline returns raft.ErrPipelineReplicationNotSupported: a pipeline can
// wedge a follower (hashicorp/raft issue 612), and raft goes on without one.
func (t *Transport) AppendEntriesPipeline(id raft.ServerID, addr raft.ServerAddress) (raft.AppendPipeline, error) {
	return t.t.AppendEntriesPipeline(id, route(peerv1.Kind_KIND_RAFT, id, addr))
}

// errInstalling is returned for what waited for a snapshot in vain.
var errInstalling = errors.New("expected the server to be done with the snapshot it is sent, found it still at it: what it has not got yet waits for that")

// AppendEntries calls the server. While a snapshot is on its way there it waits for that
// first, since the server does nothing else: raft there would take each heartbeat that is
// given up here, and hold on to its connection, until the snapshot is in use.
func (t *Transport) AppendEntries(id raft.ServerID, addr raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	t.mu.Lock()
	installed := t.installing[id]
	t.mu.Unlock()
	if installed != nil {
		timer := time.NewTimer(t.timeout)
		defer timer.Stop()
		select {
		case <-installed:
		case <-timer.C:
			return errInstalling
		case <-t.layer.ctx.Done():
			return raft.ErrTransportShutdown
		}
	}
	return t.t.AppendEntries(id, route(peerv1.Kind_KIND_RAFT, id, addr), args, resp)
}

// InstallSnapshot calls the server and sends it the snapshot.
func (t *Transport) InstallSnapshot(id raft.ServerID, addr raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	installed := make(chan struct{})
	t.mu.Lock()
	t.installing[id] = installed // raft sends a server one at a time, but for one of a term that is over
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.installing[id] == installed {
			delete(t.installing, id)
		}
		close(installed)
	}()
	return t.t.InstallSnapshot(id, route(peerv1.Kind_KIND_SNAPSHOT, id, addr), args, resp, data)
}

// RequestVote calls the server.
func (t *Transport) RequestVote(id raft.ServerID, addr raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return retry(func() error {
		return t.t.RequestVote(id, route(peerv1.Kind_KIND_RAFT, id, addr), args, resp)
	})
}

// RequestPreVote calls the server.
func (t *Transport) RequestPreVote(id raft.ServerID, addr raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return retry(func() error {
		return t.t.RequestPreVote(id, route(peerv1.Kind_KIND_RAFT, id, addr), args, resp)
	})
}

// TimeoutNow calls the server.
func (t *Transport) TimeoutNow(id raft.ServerID, addr raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return retry(func() error {
		return t.t.TimeoutNow(id, route(peerv1.Kind_KIND_RAFT, id, addr), args, resp)
	})
}

// retry makes a call again while the other end turns out to have closed the connection, as
// it has with all that were in the pool if it was restarted since. They are out of the pool
// after that, so the last try has a new one. A call that arrives twice does no harm: a
// server gives a vote to the same candidate again. What replicates needs no such help,
// since raft sends it again at once.
func retry(call func() error) error {
	for range raftPool {
		err := call()
		var unreached *connectError
		closed := errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
		if !closed || errors.As(err, &unreached) {
			return err
		}
	}
	return call()
}

// EncodePeer writes an address down for other nodes, as it is in the configuration.
func (t *Transport) EncodePeer(id raft.ServerID, addr raft.ServerAddress) []byte {
	return t.t.EncodePeer(id, addr)
}

// DecodePeer reads an address.
func (t *Transport) DecodePeer(b []byte) raft.ServerAddress { return t.t.DecodePeer(b) }

// SetHeartbeatHandler does nothing. Through the handler a heartbeat would change the term
// while raft's main loop writes the log (hashicorp/raft issue 695); without it heartbeats
// go through the main loop, and wait for its writes.
func (t *Transport) SetHeartbeatHandler(func(raft.RPC)) {}

// Close ends all calls and streams.
func (t *Transport) Close() error { return t.t.Close() }
