//go:build faultpoints

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/tidemark-db/tidemark/replication"
)

// Fault points hold raft's messages at chosen places, so that a test can stop a cluster in a
// state that lasts for microseconds otherwise. A normal binary does not contain them.
const (
	// pointEntries holds calls that carry log entries before they are sent: nothing that is
	// on this node's disk reaches another one. Heartbeats pass, so the lease goes on. A held
	// call fails when it is released; raft then sends it again if that is still right.
	pointEntries = "entries"
	// pointAnswers holds the answers to such calls: what is on the others' disks too is not
	// committed, since this node does not know.
	pointAnswers = "answers"
	// pointStepDown holds everything in both directions and takes its own heartbeats for
	// answered, so that a leader never hears of a newer term and never misses a majority.
	pointStepDown = "step-down"
)

// addFaultPoints puts the fault points into a node's options. serve then opens a port of
// their own, which the log names, for as long as the process lives:
//
//	POST /hold/POINT, POST /release/POINT
//	GET  /status    the node's role and term, how often the log was flushed, what is held
func addFaultPoints(o *replication.Options) (serve func(*replication.Shard) error) {
	f := &faultPoints{log: o.Logger, points: map[string]*faultPoint{
		pointEntries: {}, pointAnswers: {}, pointStepDown: {},
	}}
	o.OnSync = f.synced
	o.Hooks.Transport = f.transport
	return f.serve
}

// faultPoints are the fault points of one node. Their lock guards all that follows it.
type faultPoints struct {
	log   *zap.Logger
	shard *replication.Shard

	mu      sync.Mutex
	points  map[string]*faultPoint
	flushes int
}

// faultPoint is one place where messages are held.
type faultPoint struct {
	held    chan struct{} // closed by release; nil = not held
	waiting int
	newest  uint64 // the newest log entry that waited here since the point was held
}

func (f *faultPoints) synced(time.Duration, int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.flushes++
}

// holds says whether a point is held.
func (f *faultPoints) holds(name string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.points[name].held != nil
}

// pass waits at a point while it is held, and says whether it was.
func (f *faultPoints) pass(name string, entry uint64) (waited bool) {
	f.mu.Lock()
	p := f.points[name]
	held := p.held
	if held == nil {
		f.mu.Unlock()
		return false
	}
	p.waiting++
	p.newest = max(p.newest, entry)
	f.mu.Unlock()
	<-held
	f.mu.Lock()
	p.waiting--
	f.mu.Unlock()
	return true
}

func (f *faultPoints) serve(s *replication.Shard) error {
	f.shard = s
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("fault points: %w", err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /hold/{point}", func(w http.ResponseWriter, r *http.Request) { f.set(w, r, true) })
	mux.HandleFunc("POST /release/{point}", func(w http.ResponseWriter, r *http.Request) { f.set(w, r, false) })
	mux.HandleFunc("GET /status", f.status)
	f.log.Warn("fault points are open: this binary is for tests only", zap.Stringer("fault_points", l.Addr()))
	web := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	go func() { // ends with the process
		f.log.Error("fault points ended", zap.Error(web.Serve(l)))
	}()
	return nil
}

func (f *faultPoints) set(w http.ResponseWriter, r *http.Request, hold bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.points[r.PathValue("point")]
	switch {
	case p == nil:
		http.Error(w, fmt.Sprintf("expected a fault point, found %q", r.PathValue("point")), http.StatusNotFound)
	case hold && p.held == nil:
		*p = faultPoint{held: make(chan struct{}), waiting: p.waiting}
	case !hold && p.held != nil:
		close(p.held)
		p.held = nil
	}
}

// heldStatus is what waits at a point.
type heldStatus struct {
	Waiting int    `json:"waiting"`
	Newest  uint64 `json:"newest"`
}

func (f *faultPoints) status(w http.ResponseWriter, _ *http.Request) {
	s := f.shard.Status()
	f.mu.Lock()
	held := make(map[string]heldStatus)
	for name, p := range f.points {
		if p.held != nil {
			held[name] = heldStatus{p.waiting, p.newest}
		}
	}
	flushes := f.flushes
	f.mu.Unlock()
	// An error means that whoever asked has gone.
	_ = json.NewEncoder(w).Encode(struct {
		Role    string                `json:"role"`
		Term    uint64                `json:"term"`
		Ready   bool                  `json:"ready"`
		Flushes int                   `json:"flushes"`
		Held    map[string]heldStatus `json:"held"`
	}{s.Role, s.Term, s.Ready, flushes, held})
}

// fullTransport is what raft looks for in a transport, and what every transport here has.
type fullTransport interface {
	raft.Transport
	raft.WithPreVote
	raft.WithClose
}

// faultTransport is raft's transport with fault points in it.
type faultTransport struct {
	fullTransport
	f        *faultPoints
	incoming chan raft.RPC
	closed   chan struct{}
	once     sync.Once
}

// transport wraps the transport of one life of raft.
func (f *faultPoints) transport(t raft.Transport) raft.Transport {
	full, ok := t.(fullTransport)
	if !ok {
		panic(fmt.Sprintf("fault points: %T has no pre-vote or cannot be closed", t))
	}
	ft := &faultTransport{fullTransport: full, f: f, incoming: make(chan raft.RPC), closed: make(chan struct{})}
	go ft.receive() // ends with Close
	return ft
}

func (t *faultTransport) receive() {
	for {
		select {
		case <-t.closed:
			return
		case rpc := <-t.fullTransport.Consumer():
			t.f.pass(pointStepDown, 0)
			select {
			case <-t.closed:
				return
			case t.incoming <- rpc:
			}
		}
	}
}

func (t *faultTransport) Close() error {
	t.once.Do(func() { close(t.closed) })
	return t.fullTransport.Close()
}

func (t *faultTransport) Consumer() <-chan raft.RPC { return t.incoming }

// errHeld fails a call that was held until its time was over.
var errHeld = errors.New("a fault point held the call back")

// call holds a call, which then fails, or makes it. A call that was under way when the point
// was held has its answer held back, and fails too.
func (t *faultTransport) call(do func() error) error {
	if t.f.pass(pointStepDown, 0) {
		return errHeld
	}
	err := do()
	if t.f.pass(pointStepDown, 0) {
		return errHeld
	}
	return err
}

func (t *faultTransport) AppendEntries(id raft.ServerID, to raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) error {
	if len(args.Entries) == 0 {
		if !t.f.holds(pointStepDown) {
			err := t.fullTransport.AppendEntries(id, to, args, resp)
			if !t.f.holds(pointStepDown) {
				return err
			}
		}
		*resp = raft.AppendEntriesResponse{RPCHeader: args.RPCHeader, Term: args.Term, Success: true}
		return nil
	}
	newest := args.Entries[len(args.Entries)-1].Index
	if t.f.pass(pointEntries, newest) {
		return errHeld
	}
	err := t.call(func() error { return t.fullTransport.AppendEntries(id, to, args, resp) })
	if err == nil && resp.Success {
		t.f.pass(pointAnswers, newest)
	}
	return err
}

func (t *faultTransport) RequestVote(id raft.ServerID, to raft.ServerAddress, args *raft.RequestVoteRequest, resp *raft.RequestVoteResponse) error {
	return t.call(func() error { return t.fullTransport.RequestVote(id, to, args, resp) })
}

func (t *faultTransport) RequestPreVote(id raft.ServerID, to raft.ServerAddress, args *raft.RequestPreVoteRequest, resp *raft.RequestPreVoteResponse) error {
	return t.call(func() error { return t.fullTransport.RequestPreVote(id, to, args, resp) })
}

func (t *faultTransport) InstallSnapshot(id raft.ServerID, to raft.ServerAddress, args *raft.InstallSnapshotRequest, resp *raft.InstallSnapshotResponse, data io.Reader) error {
	return t.call(func() error { return t.fullTransport.InstallSnapshot(id, to, args, resp, data) })
}

func (t *faultTransport) TimeoutNow(id raft.ServerID, to raft.ServerAddress, args *raft.TimeoutNowRequest, resp *raft.TimeoutNowResponse) error {
	return t.call(func() error { return t.fullTransport.TimeoutNow(id, to, args, resp) })
}
