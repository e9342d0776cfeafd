package bench

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/leader"
)

// AppendOptions says what to send.
type AppendOptions struct {
	// Outstanding is how many calls wait for their answer at one time, over all connections.
	Outstanding int
	// Stream sends over one AppendStream a connection, on which one writer keeps its share of
	// Outstanding, with up to WritesPerMessage of them in a message.
	Stream           bool
	WritesPerMessage int
	// Duration is how long to measure, after Warmup; 0 = until Count.
	Duration, Warmup time.Duration
	// Count is how many calls to measure; 0 = until Duration. What is reached first ends
	// the run.
	Count uint64
	// Size is the payload's, in bytes.
	Size int
	// Guard sends the expected version, Enforce asks for the check of the sequence.
	Guard, Enforce bool
	// FreshAggregates makes every write create an aggregate.
	FreshAggregates bool
	// Prefix begins the ids of the aggregates and of the writers; the run's own random part
	// follows, so that runs on one store do not meet.
	Prefix string
}

// Org and Type are where the aggregates of a run are.
const (
	Org  = "bench"
	Type = "append"
)

// MaxOutstanding bounds AppendOptions.Outstanding.
const MaxOutstanding = 100_000

// MaxSize is the largest payload that a server can be told to accept.
const MaxSize = 16 << 20

// Validate checks the options; errors name the flag.
func (o *AppendOptions) Validate() error {
	switch {
	case o.Outstanding < 1 || o.Outstanding > MaxOutstanding:
		return fmt.Errorf("--outstanding: expected 1 to %d, found %d", MaxOutstanding, o.Outstanding)
	case o.Stream && (o.WritesPerMessage < 1 || o.WritesPerMessage > MaxWritesPerMessage):
		return fmt.Errorf("--writes-per-message: expected 1 to %d, found %d", MaxWritesPerMessage, o.WritesPerMessage)
	case !o.Stream && o.WritesPerMessage > 1:
		return fmt.Errorf("--writes-per-message: expected 1 without --mode stream, found %d", o.WritesPerMessage)
	case o.Duration < 0 || o.Warmup < 0:
		return errors.New("--duration and --warmup: expected no negative time")
	case o.Duration == 0 && o.Count == 0:
		return errors.New("expected --duration or --count: nothing else ends the run")
	case o.Size < 0 || o.Size > MaxSize:
		return fmt.Errorf("--size: expected 0 to %d bytes, found %d", MaxSize, o.Size)
	case len(o.Prefix) > 100 || strings.Contains(o.Prefix, "/"):
		return fmt.Errorf("--prefix: expected at most 100 bytes without '/', found %q", o.Prefix)
	}
	return nil
}

// DialOptions are what the connections of a run need besides credentials.
func DialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(newAnswerCodec())),
		// As the server has them: fewer system calls for many small messages, and no pings
		// that estimate the bandwidth.
		grpc.WithReadBufferSize(64 << 10),
		grpc.WithWriteBufferSize(64 << 10),
		grpc.WithStaticStreamWindowSize(1 << 20),
		grpc.WithStaticConnWindowSize(4 << 20),
	}
}

// grace is how long calls that are under way when a run ends may still take.
const grace = 30 * time.Second

// Append drives appends over the connections, which were made with DialOptions, and measures
// them. Cancelling ctx ends the run early; the result is then of what was measured.
func Append(ctx context.Context, conns []grpc.ClientConnInterface, opts AppendOptions) (Result, error) {
	if err := opts.Validate(); err != nil {
		return Result{}, err
	}
	run := make([]byte, 6)
	payload := make([]byte, opts.Size)
	_, _ = rand.Read(run) // does not fail
	_, _ = rand.Read(payload)
	g := &generator{opts: &opts, run: opts.Prefix + hex.EncodeToString(run), stop: ctx.Done(), errors: make(map[string]uint64)}
	// Calls are not cancelled with ctx, or their outcome would be lost: the run ends when no
	// more are sent and those under way are answered, or after the grace.
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	start := time.Now()
	g.measureFrom = start.Add(opts.Warmup)
	cut := time.Duration(math.MaxInt64)
	if opts.Duration > 0 {
		g.end = g.measureFrom.Add(opts.Duration)
		cut = opts.Warmup + opts.Duration + grace
	}
	cutOff := time.AfterFunc(cut, cancel)
	defer cutOff.Stop()
	defer context.AfterFunc(ctx, func() { cutOff.Reset(grace) })()
	var workers sync.WaitGroup // each ends with the run
	for i := range conns {
		if share := (opts.Outstanding + i) / len(conns); opts.Stream && share > 0 {
			s := newStreamer(g, i, share, conns[i], payload)
			workers.Go(func() { s.work(calls) })
		}
	}
	for i := range opts.Outstanding {
		if opts.Stream {
			break
		}
		w := newWriter(g, i, conns[i%len(conns)], payload)
		workers.Go(func() { w.work(calls) })
	}
	workers.Wait()
	end := time.Unix(0, g.lastEnd.Load())
	if !g.end.IsZero() && ctx.Err() == nil && !g.exhausted() {
		end = g.end
	}
	return newResult(&g.latency, g.errors, max(end.Sub(g.measureFrom), 0)), nil
}

// generator is what the writers of a run share.
type generator struct {
	opts        *AppendOptions
	run         string // distinguishes runs on one store
	measureFrom time.Time
	end         time.Time // zero = none
	stop        <-chan struct{}

	latency histogram
	sent    atomic.Uint64 // of Count
	lastEnd atomic.Int64  // Unix nanoseconds of the newest measured answer

	mu     sync.Mutex // guards errors
	errors map[string]uint64
}

// running says whether the run goes on at now, but for Count.
func (g *generator) running(now time.Time) bool {
	select {
	case <-g.stop:
		return false
	default:
	}
	return g.end.IsZero() || now.Before(g.end)
}

// more says whether a call may be sent at now.
func (g *generator) more(now time.Time) bool {
	if !g.running(now) {
		return false
	}
	if g.opts.Count == 0 || now.Before(g.measureFrom) {
		return true
	}
	return g.sent.Add(1) <= g.opts.Count
}

// exhausted says whether Count ended the run.
func (g *generator) exhausted() bool {
	return g.opts.Count > 0 && g.sent.Load() > g.opts.Count
}

// record counts a call that was sent and answered at these times. What was sent during the
// warm-up or answered after the end is not part of the measurement.
func (g *generator) record(sent, answered time.Time, err error) {
	if sent.Before(g.measureFrom) || !g.end.IsZero() && answered.After(g.end) {
		return
	}
	for nanos := answered.UnixNano(); ; {
		last := g.lastEnd.Load()
		if last >= nanos || g.lastEnd.CompareAndSwap(last, nanos) {
			break
		}
	}
	if err == nil {
		g.latency.record(answered.Sub(sent))
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.errors[errorName(err)]++
}

// errorName is the key of an error in Result.Errors.
func errorName(err error) string {
	if code := api.CodeOf(err); code != pb.ErrorCode_ERROR_CODE_UNSPECIFIED {
		return strconv.Itoa(int(code))
	}
	return rpccode.Code(status.Code(err)).String()
}

// writer sends one call at a time: a client_id of its own on an aggregate of its own.
type writer struct {
	g    *generator
	conn grpc.ClientConnInterface
	name string

	req   *pb.AppendRequest
	write *pb.Write
	event *pb.NewEvent
	resp  answer

	version uint64 // of the aggregate
	next    int    // number of the writer's next aggregate
}

func newWriter(g *generator, i int, conn grpc.ClientConnInterface, payload []byte) *writer {
	event := &pb.NewEvent{EventId: "benchmark", Type: "Benchmarked", Payload: payload, ContentType: "application/octet-stream"}
	write := &pb.Write{
		Aggregate: &pb.AggregateKey{Org: Org, Type: Type}, Events: []*pb.NewEvent{event},
		AllowCreate: true, EnforceClientIdempotency: g.opts.Enforce,
	}
	if g.opts.Guard {
		write.ExpectedVersion = proto.Uint64(0)
	}
	w := &writer{
		g: g, conn: conn, name: fmt.Sprintf("%s-%d", g.run, i),
		write: write, event: event,
	}
	w.req = &pb.AppendRequest{ClientId: w.name, Writes: []*pb.Write{write}}
	w.moveOn()
	return w
}

// moveOn makes the writer go on with an aggregate that nobody has written to.
func (w *writer) moveOn() {
	w.write.Aggregate.Id = w.name + "-" + strconv.Itoa(w.next)
	w.next++
	w.event.ClientSeq = 1
	w.setVersion(0)
}

func (w *writer) setVersion(v uint64) {
	w.version = v
	if w.write.ExpectedVersion != nil {
		*w.write.ExpectedVersion = v
	}
}

// work sends calls until the run ends.
func (w *writer) work(ctx context.Context) {
	failures := 0
	for {
		sent := time.Now()
		if !w.g.more(sent) {
			return
		}
		err := w.call(ctx, sent)
		if err == nil {
			failures = 0
			continue
		}
		failures++
		w.pause(ctx, failures, err)
	}
}

// call sends one call, records it, and prepares the next.
func (w *writer) call(ctx context.Context, sent time.Time) error {
	err := w.conn.Invoke(ctx, pb.EventStoreService_Append_FullMethodName, w.req, &w.resp)
	w.g.record(sent, time.Now(), err)
	if err == nil {
		w.advance()
	} else if !notNow(err) {
		w.moveOn()
	}
	return err
}

// advance prepares the write after one that landed.
func (w *writer) advance() {
	if w.g.opts.FreshAggregates {
		w.moveOn()
		return
	}
	w.event.ClientSeq++
	w.setVersion(w.resp.version)
}

// notNow says whether an error is a definite no that has nothing to do with the write.
func notNow(err error) bool {
	if errors.As(err, new(*leader.NotTakenError)) {
		return true
	}
	switch api.CodeOf(err) {
	case pb.ErrorCode_ERROR_CODE_SERVER_BUSY, pb.ErrorCode_ERROR_CODE_REPLICATION_BACKPRESSURE,
		pb.ErrorCode_ERROR_CODE_NOT_LEADER, pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY,
		pb.ErrorCode_ERROR_CODE_INSUFFICIENT_DISK_SPACE:
		return true
	}
	return false
}

// pause waits before the call after a failure, or a server that is gone would be asked
// hundreds of thousands of times a second.
func (w *writer) pause(ctx context.Context, failures int, err error) {
	wait := min(time.Millisecond<<min(failures, 10), time.Second)
	if e, ok := api.FromStatus(err); ok {
		wait = max(wait, min(e.RetryAfter, time.Second))
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-w.g.stop:
	case <-ctx.Done():
	}
}
