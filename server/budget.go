package server

import (
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/peer"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

const (
	// readStall is how long a read may go without a byte leaving before its connection may be
	// cut for the sake of those that wait.
	readStall = 5 * time.Second
	// readPatience is how long a read waits for memory before it is refused: three rounds of
	// cutting those that hold it.
	readPatience = 3 * readStall
	// retryReads is when a read that was refused is told to ask again.
	retryReads = time.Second

	// buildFactor is how often a message is in memory while it is built: as stored, decoded
	// and encoded.
	buildFactor = 3

	// streamBytes is what one call may have built and not handed over, unless it is a single
	// message.
	streamBytes = 1 << 20
)

// readBudget bounds the bytes of answers: those being built, and those that gRPC holds
// because their connection does not take them.
//
// gRPC's own limits do not bound them. A stream's write quota of 64 KiB only delays the
// message after the one that exceeds it, and a message of any size is taken over whole and
// waits, behind the client's flow-control window, in the queue of the goroutine that writes
// the connection; when the handler ends, not even the call's deadline applies to it any more.
// So what counts here is the buffers themselves, from before they exist until gRPC frees them
// (outbound.go), which is when it has copied them to the connection or dropped them.
//
// Who finds no room waits its turn, first come first served, which can be starved neither by
// small answers nor by large ones: an answer larger than the limit goes when nothing else is
// held. Since a client that stops reading would hold its share for good, a wait has two ends:
// connections that hold something and have not moved for stall are cut when others wait for
// it, and after patience the one that waits is refused. One connection gets at most half, so
// that a client with many streams that it does not read first of all stands in its own way.
type readBudget struct {
	limit, connLimit int64
	stall, patience  time.Duration
	pool             mem.BufferPool // of encoded messages

	mu    sync.Mutex // guards what follows, and every connReads, callReads and charge
	used  int64
	queue list.List // of *ticket, oldest first
	conns map[*connReads]struct{}
	pass  uint64 // counts the passes through the queue
	waits uint64
	cuts  uint64 // connections
}

func newReadBudget(limit int64, stall, patience time.Duration) (*readBudget, error) {
	pool, err := newBufferPool()
	if err != nil {
		return nil, fmt.Errorf("server: make the pool of message buffers: %w", err)
	}
	return &readBudget{
		limit: limit, connLimit: limit / 2, stall: stall, patience: patience, pool: pool,
		conns: map[*connReads]struct{}{},
	}, nil
}

// connReads is what the reads of one connection hold.
type connReads struct {
	cut     func() // closes the connection; nil = not one of ours
	bytes   int64
	charges map[*charge]struct{}
	closed  bool
	// waits is the last pass through the queue that left one of its calls waiting for it.
	waits uint64
}

// callReads is what one call holds. It is used by the call's goroutine, and by those that
// free what it has sent.
type callReads struct {
	budget *readBudget
	conn   *connReads
	bytes  int64
	// delivered says that a message has left to its end: this client reads.
	delivered bool
	// moved is when a part of an answer left last.
	moved time.Time
	// freed has a token when bytes has become less.
	freed chan struct{}
	// building is the charge for the message that is being built; the call's goroutine's own.
	building *charge
}

// charge is the part of the budget that one message has.
type charge struct {
	call  *callReads
	bytes int64 // 0 = given back
	sent  bool  // built: only its reader can make it go
}

// ticket is a place in the queue.
type ticket struct {
	call  *callReads
	bytes int64
	got   *charge       // set before ready is closed
	ready chan struct{} // closed when got is set
}

// callReadsKey is the context key of a call's *callReads.
type callReadsKey struct{}

// withReads gives a call what it needs to take from the budget.
func (b *readBudget) withReads(ctx context.Context) (context.Context, *callReads) {
	conn := &connReads{}
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(connAddr); ok {
			conn = a.conn.reads
		}
	}
	call := newCallReads(b, conn)
	return context.WithValue(ctx, callReadsKey{}, call), call
}

func newCallReads(b *readBudget, conn *connReads) *callReads {
	return &callReads{budget: b, conn: conn, freed: make(chan struct{}, 1)}
}

// readsOf is the budget's view of the call whose context ctx is; only reading calls have one.
func readsOf(ctx context.Context) *callReads {
	call, _ := ctx.Value(callReadsKey{}).(*callReads)
	return call
}

// reserve takes what building an answer of size bytes needs, before anything of it is read,
// and waits until there is room for it. A call that has reserved already gives that back
// first: nobody waits while holding what others wait for.
func (c *callReads) reserve(ctx context.Context, size int) (err error) {
	c.abandon()
	c.building, err = c.take(ctx, buildFactor*int64(size))
	return err
}

// tryReserve is reserve if that needs no waiting.
func (c *callReads) tryReserve(size int) bool {
	c.abandon()
	b := c.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	bytes := buildFactor * int64(size)
	if b.queue.Len() > 0 || !b.fits(c, bytes) {
		return false
	}
	c.building = b.hold(c, bytes)
	return true
}

// extend makes the reservation suffice for size bytes, if that needs no waiting.
func (c *callReads) extend(size int) bool { return c.building.grow(buildFactor * int64(size)) }

// abandon gives back what was reserved for an answer that is not sent.
func (c *callReads) abandon() {
	if c.building != nil {
		c.building.release()
		c.building = nil
	}
}

// take waits until bytes of the budget are free and returns them as a charge.
func (c *callReads) take(ctx context.Context, bytes int64) (*charge, error) {
	b := c.budget
	b.mu.Lock()
	if b.queue.Len() == 0 && b.fits(c, bytes) {
		defer b.mu.Unlock()
		return b.hold(c, bytes), nil
	}
	b.waits++
	t := &ticket{call: c, bytes: bytes, ready: make(chan struct{})}
	place := b.queue.PushBack(t)
	// The queue may hold nothing but calls that wait for their own connections.
	b.grant()
	b.mu.Unlock()

	began := time.Now()
	tick := time.NewTicker(max(b.stall/4, time.Millisecond))
	defer tick.Stop()
	for {
		var err error
		select {
		case <-t.ready:
			return t.got, nil
		case <-ctx.Done():
			err = ctx.Err()
		case <-tick.C:
			if time.Since(began) < b.patience {
				b.cutStalled()
				continue
			}
			err = api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY,
				"answers to reads hold %d bytes on this node, which is its limit, because their clients do not take them; ask again later",
				b.limit).After(retryReads)
		}
		b.mu.Lock()
		b.queue.Remove(place)
		if t.got != nil { // granted at the same moment
			t.got.drop()
		}
		b.grant()
		b.mu.Unlock()
		return nil, err
	}
}

// fits says whether the call may have bytes more. b.mu is held.
func (b *readBudget) fits(c *callReads, bytes int64) bool {
	return (b.used == 0 || b.used+bytes <= b.limit) && b.connFits(c, bytes)
}

func (b *readBudget) connFits(c *callReads, bytes int64) bool {
	return c.conn.bytes == 0 || c.conn.bytes+bytes <= b.connLimit
}

// hold makes a charge. b.mu is held.
func (b *readBudget) hold(c *callReads, bytes int64) *charge {
	h := &charge{call: c}
	if c.conn.closed {
		return h // the call is about to learn it; nothing it sends is kept
	}
	if c.conn.charges == nil {
		c.conn.charges = map[*charge]struct{}{}
	}
	c.conn.charges[h] = struct{}{}
	b.conns[c.conn] = struct{}{}
	h.resize(bytes)
	return h
}

// grant serves the queue: in its order, but for calls that wait for their own connection, and
// those of the same connection behind them. b.mu is held.
func (b *readBudget) grant() {
	b.pass++
	for e := b.queue.Front(); e != nil; {
		t, next := e.Value.(*ticket), e.Next()
		switch conn := t.call.conn; {
		case conn.waits == b.pass:
		case !b.connFits(t.call, t.bytes):
			conn.waits = b.pass
		case !b.fits(t.call, t.bytes):
			return
		default:
			b.queue.Remove(e)
			t.got = b.hold(t.call, t.bytes)
			close(t.ready)
		}
		e = next
	}
}

// resize makes a charge bytes large; it may exceed the limit. budget.mu is held.
func (h *charge) resize(bytes int64) {
	d := bytes - h.bytes
	h.bytes = bytes
	h.call.bytes += d
	h.call.conn.bytes += d
	h.call.budget.used += d
}

// drop gives a charge back, once. budget.mu is held, and grant is to be called.
func (h *charge) drop() {
	b, conn := h.call.budget, h.call.conn
	if _, held := conn.charges[h]; !held {
		return
	}
	h.resize(0)
	delete(conn.charges, h)
	if len(conn.charges) == 0 {
		delete(b.conns, conn)
	}
	select {
	case h.call.freed <- struct{}{}:
	default:
	}
}

// release gives a charge back; it may be called again.
func (h *charge) release() {
	b := h.call.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	h.drop()
	b.grant()
}

// grow makes an unsent charge larger if that is possible without waiting.
func (h *charge) grow(bytes int64) bool {
	b := h.call.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	if h.bytes == 0 || h.bytes >= bytes {
		return true
	}
	if more := bytes - h.bytes; b.queue.Len() == 0 && b.used+more <= b.limit && h.call.conn.bytes+more <= b.connLimit ||
		b.used == h.bytes {
		h.resize(bytes)
		return true
	}
	return false
}

// built turns a charge for building a message into one for the bytes that it became.
func (h *charge) built(bytes int64) {
	b := h.call.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	h.sent = true
	h.call.moved = time.Now()
	if h.bytes != 0 {
		h.resize(bytes)
		b.grant()
	}
}

// left notes that a part of the message has left; last says that it was the last one.
func (h *charge) left(last bool) {
	b := h.call.budget
	b.mu.Lock()
	defer b.mu.Unlock()
	h.call.moved = time.Now()
	if last {
		h.call.delivered = true
		h.drop()
		b.grant()
	}
}

// hasRoom says whether the call may build its next message: one at a time until the client has
// taken a whole one, then one ahead. If not, freed has a token when it is time to ask again.
func (c *callReads) hasRoom() bool {
	c.budget.mu.Lock()
	defer c.budget.mu.Unlock()
	return c.bytes == 0 || c.delivered && c.bytes <= streamBytes/2
}

// room waits until the call may build its next message.
func (c *callReads) room(ctx context.Context) error {
	for {
		if c.hasRoom() {
			return nil
		}
		select {
		case <-c.freed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// disconnected gives back what a closed connection's calls hold: gRPC does not free what was
// on its way to it.
func (b *readBudget) disconnected(conn *connReads) {
	b.mu.Lock()
	defer b.mu.Unlock()
	conn.closed = true
	for h := range conn.charges {
		h.drop()
	}
	b.grant()
}

// readUse is the budget's state for metrics.
type readUse struct {
	bytes, limit int64
	waiting      int
	waits, cuts  uint64
}

func (b *readBudget) use() readUse {
	b.mu.Lock()
	defer b.mu.Unlock()
	return readUse{bytes: b.used, limit: b.limit, waiting: b.queue.Len(), waits: b.waits, cuts: b.cuts}
}
