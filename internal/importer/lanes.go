package importer

import (
	"context"
	"sync"
)

// What may wait to be sent, or for its answer, at one time.
const (
	maxWaiting      = 8192
	maxWaitingBytes = 64 << 20
)

// lanes hands units to workers so that units of one aggregate are worked on one after
// another, in the order added, and aggregates side by side.
//
// add is called from one goroutine, take and done from any number.
type lanes struct {
	mu   sync.Mutex
	room sync.Cond // on mu: add may go on
	work sync.Cond // on mu: a unit is ready, or there will be none

	waiting int // added and not done
	bytes   int
	// queues holds the units of each aggregate that has any; the first of each is ready or
	// being worked on.
	queues map[string][]*unit
	// ready are the units that may be taken.
	ready []*unit

	closed  bool // nothing more will be added
	stopped bool // nothing more is to be taken
}

func newLanes() *lanes {
	l := &lanes{queues: make(map[string][]*unit)}
	l.room.L, l.work.L = &l.mu, &l.mu
	return l
}

// add waits for room and queues a unit; false means that the lanes were stopped.
func (l *lanes) add(u *unit) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.stopped && l.waiting > 0 && (l.waiting >= maxWaiting || l.bytes+u.size > maxWaitingBytes) {
		l.room.Wait()
	}
	if l.stopped {
		return false
	}
	l.waiting++
	l.bytes += u.size
	queue := l.queues[u.aggregate]
	l.queues[u.aggregate] = append(queue, u)
	if len(queue) == 0 {
		l.ready = append(l.ready, u)
		l.work.Signal()
	}
	return true
}

// take waits for a unit to work on; false means that there will be none.
func (l *lanes) take() (*unit, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.stopped && len(l.ready) == 0 && !(l.closed && l.waiting == 0) {
		l.work.Wait()
	}
	if l.stopped || len(l.ready) == 0 {
		return nil, false
	}
	u := l.ready[0]
	l.ready = l.ready[1:]
	return u, true
}

// done ends the work on a unit and makes the next of its aggregate ready.
func (l *lanes) done(u *unit) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting--
	l.bytes -= u.size
	queue := l.queues[u.aggregate][1:]
	if len(queue) == 0 {
		delete(l.queues, u.aggregate)
	} else {
		l.queues[u.aggregate] = queue
		l.ready = append(l.ready, queue[0])
		l.work.Signal()
	}
	l.room.Signal()
	if l.closed && l.waiting == 0 {
		l.work.Broadcast()
	}
}

// close says that everything was added.
func (l *lanes) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	l.work.Broadcast()
}

// stop ends the work; what waits is not taken any more.
func (l *lanes) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = true
	l.room.Broadcast()
	l.work.Broadcast()
}

// stopWith stops the lanes when ctx ends; the returned function undoes it.
func (l *lanes) stopWith(ctx context.Context) (undo func() bool) {
	return context.AfterFunc(ctx, l.stop)
}
