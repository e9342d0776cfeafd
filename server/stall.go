package server

import (
	"slices"
	"time"
)

// cutStalled closes connections whose calls hold what others wait for and have not moved,
// those that hold most first, until the first in the queue can be served.
func (b *readBudget) cutStalled() {
	for _, conn := range b.stalled(time.Now()) {
		conn.cut()
	}
}

func (b *readBudget) stalled(now time.Time) []*connReads {
	b.mu.Lock()
	defer b.mu.Unlock()
	missing := b.missing()
	if missing <= 0 {
		return nil
	}
	var conns []*connReads
	held := map[*connReads]int64{}
	for conn := range b.conns {
		for h := range conn.charges {
			if h.sent && now.Sub(h.call.moved) >= b.stall {
				held[conn] += h.bytes
			}
		}
		if held[conn] > 0 && conn.cut != nil {
			conns = append(conns, conn)
		}
	}
	slices.SortFunc(conns, func(x, y *connReads) int { return int(held[y] - held[x]) })
	for i, conn := range conns {
		b.cuts++
		// Everything that a connection holds comes free when it is closed.
		if missing -= conn.bytes; missing <= 0 {
			return conns[:i+1]
		}
	}
	return conns
}

// missing is how much must come free for the first call in the queue that does not wait for
// its own connection; 0 if there is none. b.mu is held.
func (b *readBudget) missing() int64 {
	for e := b.queue.Front(); e != nil; e = e.Next() {
		if t := e.Value.(*ticket); t.call.conn.waits != b.pass {
			return min(b.used, b.used+t.bytes-b.limit)
		}
	}
	return 0
}
