package server

import (
	"context"
	"errors"
	"runtime"
	"testing"
	"time"

	"google.golang.org/grpc/mem"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

func newBudget(t testing.TB, limit int64) *readBudget {
	t.Helper()
	b, err := newReadBudget(limit, readStall, readPatience)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// reader is a call on a connection of its own.
func (b *readBudget) reader() *callReads { return newCallReads(b, &connReads{}) }

// mustTake takes what is free.
func mustTake(t *testing.T, c *callReads, bytes int64) *charge {
	t.Helper()
	h, err := c.take(testContext(t), bytes)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// waiter is a call that waits for bytes.
type waiter struct {
	charge *charge
	err    error
	done   chan struct{}
}

// wait lets c wait for bytes, and returns when it has its place in the queue.
func wait(t *testing.T, ctx context.Context, c *callReads, bytes int64) *waiter {
	t.Helper()
	w := &waiter{done: make(chan struct{})}
	before := c.budget.use().waits
	go func() { // ends with its context at the latest
		defer close(w.done)
		w.charge, w.err = c.take(ctx, bytes)
	}()
	eventually(t, "the call waits", func() bool { return c.budget.use().waits > before })
	return w
}

func (w *waiter) get(t *testing.T) *charge {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(patience):
		t.Fatal("a call waits for what is free")
	}
	if w.err != nil {
		t.Fatal(w.err)
	}
	return w.charge
}

func (w *waiter) waits(t *testing.T) {
	t.Helper()
	select {
	case <-w.done:
		t.Fatalf("a call did not wait its turn: %v", w.err)
	default:
	}
}

// eventually waits for a state that nothing announces.
func eventually(t *testing.T, what string, reached func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for begun := time.Now(); !reached(); <-tick.C {
		if time.Since(begun) > patience {
			t.Fatalf("waited %v until %s", patience, what)
		}
	}
}

func wantUse(t *testing.T, b *readBudget, bytes int64, waiting int) {
	t.Helper()
	if u := b.use(); u.bytes != bytes || u.waiting != waiting {
		t.Fatalf("%d bytes are held and %d calls wait, want %d and %d", u.bytes, u.waiting, bytes, waiting)
	}
}

// A large answer is not starved by small ones that would fit, nor the other way round.
func TestBudgetServesInOrder(t *testing.T) {
	b, ctx := newBudget(t, 100), testContext(t)
	first := mustTake(t, b.reader(), 40)
	second := mustTake(t, b.reader(), 40)
	large := wait(t, ctx, b.reader(), 90)
	small := wait(t, ctx, b.reader(), 10)
	first.release()
	first.release() // again is nothing
	large.waits(t)
	small.waits(t)
	wantUse(t, b, 40, 2)
	second.release()
	l := large.get(t)
	s := small.get(t)
	wantUse(t, b, 100, 0)
	l.release()
	s.release()
	wantUse(t, b, 0, 0)
}

func TestBudgetLetsAnAnswerAboveTheLimitGoAlone(t *testing.T) {
	b, ctx := newBudget(t, 100), testContext(t)
	other := mustTake(t, b.reader(), 1)
	large := wait(t, ctx, b.reader(), 1000)
	large.waits(t)
	other.release()
	l := large.get(t)
	wantUse(t, b, 1000, 0)
	next := wait(t, ctx, b.reader(), 1)
	next.waits(t)
	l.release()
	next.get(t).release()
	wantUse(t, b, 0, 0)
}

// A connection gets half, and one answer in any case; the calls of other connections do not
// wait behind those that wait for that, and its own keep their order.
func TestBudgetGivesAConnectionHalf(t *testing.T) {
	b, ctx := newBudget(t, 100), testContext(t)
	conn := &connReads{}
	own := func() *callReads { return newCallReads(b, conn) }
	first := mustTake(t, own(), 30)
	large := wait(t, ctx, own(), 45)
	small := wait(t, ctx, own(), 5)
	other := mustTakeQueued(t, b.reader(), 70)
	wantUse(t, b, 100, 2)
	large.waits(t)
	small.waits(t)
	first.release()
	large.waits(t) // for the others now
	other.release()
	l := large.get(t)
	small.get(t).release()
	l.release()
	alone := mustTake(t, own(), 80)
	wantUse(t, b, 80, 0)
	alone.release()
}

// mustTakeQueued takes what is free while others wait for something else.
func mustTakeQueued(t *testing.T, c *callReads, bytes int64) *charge {
	t.Helper()
	return wait(t, testContext(t), c, bytes).get(t)
}

func TestBudgetWaitEndsWithItsCall(t *testing.T) {
	b := newBudget(t, 100)
	held := mustTake(t, b.reader(), 60)
	ctx, cancel := context.WithCancel(testContext(t))
	large := wait(t, ctx, b.reader(), 80)
	small := wait(t, testContext(t), b.reader(), 30)
	small.waits(t)
	cancel()
	s := small.get(t) // who waited behind the call that left is served
	if <-large.done; !errors.Is(large.err, context.Canceled) {
		t.Errorf("the wait ended with %v", large.err)
	}
	wantUse(t, b, 90, 0)
	s.release()
	held.release()
}

func TestBudgetRefusesWhoWaitsTooLong(t *testing.T) {
	b, err := newReadBudget(100, 10*time.Millisecond, 20*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	held := mustTake(t, b.reader(), 100)
	_, err = b.reader().take(testContext(t), 1)
	want := api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY,
		"answers to reads hold 100 bytes on this node, which is its limit, because their clients do not take them; ask again later").After(time.Second)
	wantError(t, err, want)
	held.release()
	wantUse(t, b, 0, 0)
}

func TestAReservationIsExtendedIfThereIsRoom(t *testing.T) {
	b, ctx := newBudget(t, 1200), testContext(t)
	c := b.reader()
	if err := c.reserve(ctx, 100); err != nil {
		t.Fatal(err)
	}
	if !c.extend(150) || !c.extend(90) {
		t.Error("not extended, although half of the budget is free")
	}
	wantUse(t, b, 450, 0)
	other := mustTake(t, b.reader(), 600)
	if c.extend(210) {
		t.Error("extended above what one connection gets")
	}
	other.release()
	if !c.extend(1000) {
		t.Error("not extended, although nothing else is held")
	}
	c.abandon()
	c.abandon()
	wantUse(t, b, 0, 0)
}

func TestAClosedConnectionGivesBack(t *testing.T) {
	b := newBudget(t, 100)
	conn := &connReads{}
	c := newCallReads(b, conn)
	h := mustTake(t, c, 60)
	next := wait(t, testContext(t), b.reader(), 80)
	b.disconnected(conn)
	n := next.get(t)
	wantUse(t, b, 80, 0)
	// What is still on its way, and what comes late, counts for nothing.
	h.built(50)
	h.left(true)
	late := mustTake(t, c, 10)
	late.built(1000)
	wantUse(t, b, 80, 0)
	n.release()
}

// message is a message that takes about n bytes.
func message(n int) *pb.ReadResponse {
	return &pb.ReadResponse{Batches: []*pb.Batch{{Events: []*pb.Event{{Payload: make([]byte, n)}}}}}
}

// encoded builds a message of c.
func encoded(t *testing.T, c *callReads, n int) *outbound {
	t.Helper()
	if err := c.reserve(testContext(t), n); err != nil {
		t.Fatal(err)
	}
	out, err := c.encode(message(n))
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// The bytes of a message count until gRPC has freed the last of them, and a call builds one
// message ahead only for a client that has taken one.
func TestBytesCountUntilTheyHaveLeft(t *testing.T) {
	b := newBudget(t, 8<<20)
	c := b.reader()
	const size = 200_000
	waits := func(what string) {
		t.Helper()
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		select {
		case <-c.freed:
		default:
		}
		if err := c.room(ctx); !errors.Is(err, context.Canceled) {
			t.Fatalf("%s: the next message may be built (%v)", what, err)
		}
	}
	first := encoded(t, c, size)
	wantUse(t, b, 256<<10, 0)
	if n := len(first.data); n != 3 {
		t.Fatalf("%d parts, want 3", n)
	}
	if got, want := first.data.Len(), size; got < want || got > want+100 {
		t.Fatalf("%d bytes, want %d and a little", got, want)
	}
	waits("nothing has left")
	first.data[0].Free()
	first.data[1].Free()
	wantUse(t, b, 256<<10, 0)
	waits("the last part is there")
	first.data[2].Free()
	wantUse(t, b, 0, 0)

	if err := c.room(testContext(t)); err != nil {
		t.Fatal(err)
	}
	second := encoded(t, c, size)
	if err := c.room(testContext(t)); err != nil {
		t.Fatal(err)
	}
	third := encoded(t, c, size*2)
	wantUse(t, b, 768<<10, 0)
	waits("two messages")
	second.data.Free()
	if err := c.room(testContext(t)); err != nil {
		t.Fatal(err)
	}
	third.data.Free()
	wantUse(t, b, 0, 0)

	small := encoded(t, c, 100)
	wantUse(t, b, 0, 0) // gRPC does not say when it frees these
	small.data.Free()
}

// gRPC forgets what it was about to queue for a stream that ends at that moment.
func TestForgottenBytesAreGivenBack(t *testing.T) {
	b := newBudget(t, 8<<20)
	out := encoded(t, b.reader(), 300_000)
	out.data[0].Free()
	wantUse(t, b, 512<<10, 0)
	runtime.KeepAlive(out)
	out = nil
	eventually(t, "the collector has found the message", func() bool {
		runtime.GC()
		return b.use().bytes == 0
	})
}

func TestBuffersAreUsedAgainOnlyWhenAllOfThemAreFree(t *testing.T) {
	b := newBudget(t, 8<<20)
	c := b.reader()
	pool := &countingPool{BufferPool: b.pool}
	b.pool = pool
	out := encoded(t, c, 300_000)
	for _, part := range out.data {
		if pool.put != 0 {
			t.Fatal("the buffer went back while gRPC had a part of it")
		}
		part.Free()
	}
	if pool.put != 1 {
		t.Fatalf("the buffer went back %d times", pool.put)
	}
}

type countingPool struct {
	mem.BufferPool
	put int
}

func (p *countingPool) Put(b *[]byte) {
	p.put++
	p.BufferPool.Put(b)
}

// Who is cut: connections that others wait for and that have not moved for a while, those that
// hold most, and no more than it takes.
func TestStalledConnectionsAreCut(t *testing.T) {
	b, ctx := newBudget(t, 100), testContext(t)
	b.stall = time.Minute
	hold := func(bytes int64, sent bool) *connReads {
		c := newCallReads(b, &connReads{cut: func() {}})
		h := mustTake(t, c, bytes)
		if sent {
			h.built(bytes)
		}
		return c.conn
	}
	little, most, some := hold(10, true), hold(30, true), hold(20, true)
	building := hold(40, false)
	later := time.Now().Add(2 * time.Minute)
	if got := b.stalled(later); got != nil {
		t.Errorf("%d connections would be cut, and nobody waits", len(got))
	}
	w := wait(t, ctx, b.reader(), 25)
	if got := b.stalled(time.Now()); got != nil {
		t.Errorf("%d connections would be cut that had no time to move", len(got))
	}
	if got := b.stalled(later); len(got) != 1 || got[0] != most {
		t.Errorf("%d connections would be cut, want the one that holds most", len(got))
	}
	b.disconnected(most)
	first := w.get(t)
	w = wait(t, ctx, b.reader(), 31)
	got := b.stalled(later)
	if len(got) != 2 || got[0] != some || got[1] != little {
		t.Errorf("%d connections would be cut, want the two that do not build", len(got))
	}
	if b.use().cuts != 3 {
		t.Errorf("%d cuts are counted, want 3", b.use().cuts)
	}
	// A connection that waits for its own share cuts nobody.
	b.disconnected(building)
	w.get(t).release()
	first.release()
	own := newCallReads(b, some)
	w = wait(t, ctx, own, 50)
	if got := b.stalled(later); got != nil {
		t.Errorf("%d connections would be cut for one that has its share", len(got))
	}
	b.disconnected(some)
	w.get(t)
}
