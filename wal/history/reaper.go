package history

import (
	"sync"

	"github.com/cockroachdb/pebble/v2"
)

// reaper closes the snapshots of views that nobody holds any more. Closing one can wait for a
// flush or a compaction that is syncing the MANIFEST, and neither Apply nor a reader that
// releases the last reference must.
//
// Its goroutine starts with start and ends with a stop that finds no view held, or, after
// drain, once none is held any more.
type reaper struct {
	mu      sync.Mutex
	wake    sync.Cond
	retired []retired      // to be closed
	held    int            // made and not retired
	open    map[uint64]int // made and not closed, by the index that they are of
	stopped bool
	drains  bool // stop as soon as held is 0
	done    chan struct{}
}

// retired is a snapshot of an index, to be closed.
type retired struct {
	snap  *pebble.Snapshot
	index uint64
}

func (r *reaper) start() {
	r.wake.L = &r.mu
	r.open = make(map[uint64]int)
	r.done = make(chan struct{})
	go r.run()
}

// made counts a snapshot that will be retired.
func (r *reaper) made(index uint64) {
	r.mu.Lock()
	r.held++
	r.open[index]++
	r.mu.Unlock()
}

// retire hands over a snapshot.
func (r *reaper) retire(s *pebble.Snapshot, index uint64) {
	r.mu.Lock()
	r.held--
	r.retired = append(r.retired, retired{s, index})
	r.mu.Unlock()
	r.wake.Signal()
}

// before counts the snapshots of an index below this one that are not closed.
func (r *reaper) before(index uint64) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for at, held := range r.open {
		if at < index {
			n += held
		}
	}
	return n
}

// closed forgets a snapshot that was closed.
func (r *reaper) closed(index uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open[index]--; r.open[index] == 0 {
		delete(r.open, index)
	}
}

// stop ends the goroutine once it has closed what was retired, and waits for it; if views are
// held it says how many and changes nothing.
func (r *reaper) stop() (held int) {
	r.mu.Lock()
	if r.held > 0 {
		defer r.mu.Unlock()
		return r.held
	}
	r.stopped = true
	r.mu.Unlock()
	r.wake.Signal()
	<-r.done
	return 0
}

// drain ends the goroutine once no view is held, and everything retired is closed.
func (r *reaper) drain() {
	r.mu.Lock()
	r.drains = true
	r.mu.Unlock()
	r.wake.Signal()
}

func (r *reaper) run() {
	defer close(r.done)
	var batch []retired
	for {
		r.mu.Lock()
		for len(r.retired) == 0 && !r.stopped && !(r.drains && r.held == 0) {
			r.wake.Wait()
		}
		if len(r.retired) == 0 {
			r.mu.Unlock()
			return
		}
		batch, r.retired = r.retired, batch[:0]
		r.mu.Unlock()
		// Newest first: Pebble looks for compactions whenever the oldest goes.
		for i := len(batch) - 1; i >= 0; i-- {
			_ = batch[i].snap.Close() // always nil; panics if it was closed before
			r.closed(batch[i].index)
			batch[i] = retired{}
		}
	}
}
