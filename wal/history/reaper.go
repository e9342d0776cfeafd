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
	retired []*pebble.Snapshot // to be closed
	held    int                // made and not retired
	stopped bool
	drains  bool // stop as soon as held is 0
	done    chan struct{}
}

func (r *reaper) start() {
	r.wake.L = &r.mu
	r.done = make(chan struct{})
	go r.run()
}

// made counts a snapshot that will be retired.
func (r *reaper) made() {
	r.mu.Lock()
	r.held++
	r.mu.Unlock()
}

// retire hands over a snapshot.
func (r *reaper) retire(s *pebble.Snapshot) {
	r.mu.Lock()
	r.held--
	r.retired = append(r.retired, s)
	r.mu.Unlock()
	r.wake.Signal()
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
	var batch []*pebble.Snapshot
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
			_ = batch[i].Close() // always nil; panics if it was closed before
			batch[i] = nil
		}
	}
}
