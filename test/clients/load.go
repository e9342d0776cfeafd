package clients

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/linear"
)

// Target is a node that clients talk to.
type Target struct {
	ID, Address string
	Conn        grpc.ClientConnInterface
}

// Options describe a load.
type Options struct {
	// Name is part of every aggregate's and writer's name: two loads with other names share
	// nothing.
	Name string
	Seed uint64
	// Targets are the nodes. They may be down.
	Targets          []Target
	Timeline         string
	Writers, Readers int
	// Aggregates is how many are written to at a time, and Operations how many operations
	// each takes part in, about.
	Aggregates, Operations int
	// Pause is how long a client waits between two requests, on average.
	Pause time.Duration
}

// recorded bounds the history of a load.
const recorded = 1 << 20

// Load is a number of running clients.
type Load struct {
	options  Options
	recorder *linear.Recorder
	// stopping is done when no new request is to be decided, giveUp when those that are
	// not resolved yet are not resolved in time.
	stopping, giveUp context.Context
	stop, abandon    context.CancelFunc
	running          sync.WaitGroup
	acknowledged     atomic.Int64
	leader           atomic.Int64 // index of the target that is thought to lead

	mu       sync.Mutex // guards what follows
	slots    []*aggregate
	all      []*aggregate
	contents map[string][sha256.Size]byte // of what was sent, by event id and aggregate
	problems []error
}

// aggregate is what clients know of an aggregate. Load.mu guards it.
type aggregate struct {
	key              *pb.AggregateKey
	name             string
	operations       int
	version          uint64            // the newest heard of
	placed, position uint64            // a version and its position, the newest acknowledged
	marks            map[string]uint64 // of writers
}

// Start starts the clients. They run until Settle.
func Start(o Options) *Load {
	l := &Load{options: o, recorder: linear.NewRecorder(recorded), contents: map[string][sha256.Size]byte{}}
	l.stopping, l.stop = context.WithCancel(context.Background())
	l.giveUp, l.abandon = context.WithCancel(context.Background())
	for i := range o.Aggregates {
		l.slots = append(l.slots, l.fresh(i))
	}
	for i := range o.Writers {
		w := &writer{client: l.client(fmt.Sprintf("%s-w%d", o.Name, i), uint64(i)), next: map[string]uint64{}}
		l.running.Go(w.run) // ends with stopping, at the latest with giveUp; Settle waits
	}
	for i := range o.Readers {
		r := &reader{client: l.client(fmt.Sprintf("%s-r%d", o.Name, i), uint64(1000+i))}
		l.running.Go(r.run) // ends with stopping; Settle waits
	}
	return l
}

// fresh makes an aggregate for a slot. The caller holds mu, or is alone.
func (l *Load) fresh(slot int) *aggregate {
	id := fmt.Sprintf("%s-%d-%d", l.options.Name, slot, len(l.all))
	a := &aggregate{key: &pb.AggregateKey{Org: "chaos", Type: "orders", Id: id}, name: "chaos/orders/" + id, marks: map[string]uint64{}}
	l.all = append(l.all, a)
	return a
}

// pick returns some aggregates of different slots to work with.
func (l *Load) pick(rng *rand.Rand, n int) []*aggregate {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*aggregate
	for _, slot := range rng.Perm(len(l.slots))[:n] {
		if l.slots[slot].operations >= l.options.Operations {
			l.slots[slot] = l.fresh(slot)
		}
		l.slots[slot].operations++
		out = append(out, l.slots[slot])
	}
	return out
}

// learn notes what an answer says of an aggregate; position 0 = nothing.
func (l *Load) learn(a *aggregate, version, position uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.version = max(a.version, version)
	if position > a.position {
		a.placed, a.position = version, position
	}
}

// marked notes a writer's mark.
func (l *Load) marked(a *aggregate, writer string, mark uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a.marks[writer] = max(a.marks[writer], mark)
}

// Acknowledged is how many requests were acknowledged so far.
func (l *Load) Acknowledged() int { return int(l.acknowledged.Load()) }

// Ops is the history so far.
func (l *Load) Ops() []linear.Op { return l.recorder.Ops() }

// Settle lets the clients finish what they have begun, and returns what they found wrong by
// themselves. A request that does not resolve in time is an error: every 2013 and 2014 must.
func (l *Load) Settle(within time.Duration) error {
	l.stop()
	timer := time.AfterFunc(within, l.abandon)
	l.running.Wait()
	timer.Stop()
	l.abandon()
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.Join(l.problems...)
}

// Forget drops the history; the load can still be inspected.
func (l *Load) Forget() { l.recorder = linear.NewRecorder(0) }

// problem notes what a client found wrong.
func (l *Load) problem(format string, args ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.problems) < 20 {
		l.problems = append(l.problems, fmt.Errorf(format, args...))
	}
}

// record adds an operation to the history.
func (l *Load) record(op linear.Op) {
	if !l.recorder.Add(op) {
		l.problem("more than %d operations: the load is longer than can be judged", recorded)
		l.stop()
	}
}

// client is what writers and readers have in common. One goroutine uses it.
type client struct {
	load *Load
	id   string
	rng  *rand.Rand
}

func (l *Load) client(id string, number uint64) client {
	return client{load: l, id: id, rng: rand.New(rand.NewPCG(l.options.Seed, number))}
}

// pause waits about some time. It returns false if the wait was cut short.
func (c *client) pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d/2 + time.Duration(c.rng.Int64N(int64(d)+1)))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// target is the node to ask for something that only the leader does.
func (c *client) target() *Target {
	return &c.load.options.Targets[int(c.load.leader.Load())%len(c.load.options.Targets)]
}

// any is some node.
func (c *client) any() *Target {
	return &c.load.options.Targets[c.rng.IntN(len(c.load.options.Targets))]
}

// follow takes the leader's address from a 2011, and guesses if there is none.
func (c *client) follow(address string) {
	for i, t := range c.load.options.Targets {
		if t.Address == address {
			c.load.leader.Store(int64(i))
			return
		}
	}
	if address != "" {
		c.load.problem("%s was sent to %s, where no node is", c.id, address)
	}
	c.load.leader.Store(int64(c.rng.IntN(len(c.load.options.Targets))))
}
