package server

import (
	"context"
	"errors"
	"io"
	"runtime/debug"
	"sync"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
)

const (
	// outstandingBytes is what one stream may have unanswered, as encoded and with
	// outstandingCost for each request, before it is not received from; the message that
	// reaches it is taken whole.
	outstandingBytes = 4 << 20
	outstandingCost  = 512

	// answerBytes is from which size on a message of answers is sent though more are waiting.
	answerBytes = 64 << 10
)

// appendStreamMethod is AppendStream's name in logs.
const appendStreamMethod = pb.EventStoreService_AppendStream_FullMethodName

// AppendStream implements pb.EventStoreServiceServer (contract 5).
//
// The handler sends the answers. A second goroutine receives, and admits what comes in the order
// it came; it ends with the client's last message, or soon after the handler: gRPC lets it go
// when the call ends.
func (s *eventStore) AppendStream(stream grpc.BidiStreamingServer[pb.AppendStreamRequest, pb.AppendStreamResponse]) error {
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel()
	x := &appendStream{
		store: s, stream: stream, ctx: ctx, requests: s.shard.OpenStream(ctx), ids: make(map[string]struct{}),
		room: make(chan struct{}, 1), received: make(chan struct{}),
	}
	s.chain.streams.Add(1)
	defer x.close(cancel)
	go x.receive()
	return x.answer()
}

// appendStream is one AppendStream call.
type appendStream struct {
	store    *eventStore
	stream   grpc.ServerStream
	ctx      context.Context
	requests *replication.Stream

	// turn is held while requests are admitted.
	turn sync.Mutex

	mu sync.Mutex
	// ids are the requests without an answer.
	ids map[string]struct{}
	// bytes is what counts towards outstandingBytes, held what is held of the chain's budget.
	bytes, held int64
	// closing: nothing more is admitted.
	closing bool
	// ended is why nothing more is received; nil = the client has said all.
	ended error

	room     chan struct{} // one token: bytes has become less
	received chan struct{} // closed when ended is set

	answers []*replication.StreamRequest // answer's own
}

// close ends what the stream has at work, and gives back what it holds.
func (x *appendStream) close(cancel context.CancelFunc) {
	cancel()
	x.turn.Lock() // admission waits for nothing any more
	x.mu.Lock()
	x.closing = true
	x.store.chain.bytes.Add(-x.held)
	x.store.chain.streamBytes.Add(-x.bytes)
	x.held, x.bytes = 0, 0
	x.mu.Unlock()
	x.turn.Unlock()
	x.requests.Close()
	x.store.chain.streams.Add(-1)
}

// receive takes messages in until the stream ends.
func (x *appendStream) receive() {
	var end error
	defer func() {
		if p := recover(); p != nil {
			x.store.chain.meter.panics.Add(1)
			x.store.log.Error("an append stream panicked", zap.Any("panic", p), zap.ByteString("stack", debug.Stack()))
			end = api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL,
				"the node met a bug in %s; its log has the stack. The outcome of what has no answer is unknown", appendStreamMethod)
		}
		x.mu.Lock()
		x.ended = end
		x.mu.Unlock()
		close(x.received)
	}()
	for end == nil {
		if end = x.waitForRoom(); end != nil {
			return
		}
		in := &arrivals{chain: x.store.chain}
		if end = x.stream.RecvMsg(in); end != nil {
			in.release(in.requests)
			if errors.Is(end, io.EOF) {
				end = nil
			}
			return
		}
		end = x.admit(in)
	}
}

// waitForRoom waits until the stream may have more outstanding.
func (x *appendStream) waitForRoom() error {
	for waited := false; ; waited = true {
		x.mu.Lock()
		ok := x.bytes < outstandingBytes
		x.mu.Unlock()
		if ok {
			return nil
		}
		if !waited {
			x.store.chain.streamWaits.Add(1)
		}
		select {
		case <-x.room:
		case <-x.ctx.Done():
			return x.ctx.Err()
		}
	}
}

// admit takes a message's requests in. An error ends the stream behind those before the fault.
func (x *appendStream) admit(in *arrivals) error {
	x.turn.Lock()
	defer x.turn.Unlock()
	requests, err := x.register(in)
	if len(requests) > 0 {
		x.requests.Admit(requests)
	}
	return err
}

// register notes the requests up to the first that has no request_id of its own.
func (x *appendStream) register(in *arrivals) ([]*replication.StreamRequest, error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closing {
		in.release(in.requests)
		return nil, context.Canceled // the handler knows why
	}
	requests, fault := in.requests, in.err
	for i, r := range in.requests {
		id := r.Append.GetRequestId()
		field := func() string { return "appends[" + itoa(i) + "].request_id" }
		if id == "" {
			fault = api.Invalid(field(), "is empty; every request on a stream needs one")
		} else if _, known := x.ids[id]; known {
			fault = api.Invalid(field(), "is that of a request without an answer yet; it must be unique among those")
		} else {
			x.ids[id] = struct{}{}
			x.bytes += cost(r)
			x.held += r.Held
			continue
		}
		requests = in.requests[:i]
		in.release(in.requests[i:])
		break
	}
	for _, r := range requests {
		x.store.chain.streamBytes.Add(cost(r))
	}
	if fault != nil {
		return requests, fault
	}
	return requests, nil
}

func cost(r *replication.StreamRequest) int64 { return r.Size + outstandingCost }

// answer sends answers until the stream ends, and returns with what it ends.
func (x *appendStream) answer() error {
	received, stopping := x.received, x.store.stopping
	var end error
	for ending := false; ; {
		select {
		case <-x.requests.Ready():
		case <-received:
			received, stopping, ending = nil, nil, true
			end = x.end()
		case <-stopping:
			received, stopping, ending = nil, nil, true
			end = api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER,
				"this node is stopping: nothing was done of what has no answer, ask another node, or again").With(&pb.NotLeader{})
			x.stopReceiving()
		case <-x.ctx.Done():
			return x.ctx.Err()
		}
		if err := x.send(); err != nil {
			return err
		}
		if ending && x.outstanding() == 0 {
			return end
		}
	}
}

func (x *appendStream) end() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.ended
}

// stopReceiving makes what is not admitted yet stay so.
func (x *appendStream) stopReceiving() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.closing = true
}

func (x *appendStream) outstanding() int {
	x.mu.Lock()
	defer x.mu.Unlock()
	return len(x.ids)
}

// send sends the answers that are there.
func (x *appendStream) send() error {
	x.answers = x.requests.Take(x.answers[:0])
	for rest := x.answers; len(rest) > 0; {
		n, err := x.sendSome(rest)
		if err != nil {
			return err
		}
		rest = rest[n:]
	}
	clear(x.answers)
	return nil
}

// sendSome sends a first part of the answers in one message, and returns how many.
func (x *appendStream) sendSome(answers []*replication.StreamRequest) (int, error) {
	c := x.store.chain
	sizes, size, n := make([]int, 0, len(answers)), 0, 0
	outcomes := make([]proto.Message, 0, len(answers))
	for n < len(answers) && size < answerBytes {
		outcome := x.outcome(answers[n])
		inner := proto.Size(outcome)
		body := protowire.SizeTag(fieldRequestID) + protowire.SizeBytes(len(answers[n].Append.GetRequestId())) +
			protowire.SizeTag(fieldResponse) + protowire.SizeBytes(inner)
		size += protowire.SizeTag(fieldAnswers) + protowire.SizeBytes(body)
		sizes = append(sizes, inner, body)
		outcomes = append(outcomes, outcome)
		n++
	}
	backing := c.budget.pool.Get(size)
	b := (*backing)[:0]
	var err error
	for i, r := range answers[:n] {
		b = protowire.AppendTag(b, fieldAnswers, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(sizes[2*i+1]))
		b = protowire.AppendTag(b, fieldRequestID, protowire.BytesType)
		b = protowire.AppendString(b, r.Append.GetRequestId())
		field := protowire.Number(fieldResponse)
		if r.Err != nil {
			field = fieldError
		}
		b = protowire.AppendTag(b, field, protowire.BytesType)
		b = protowire.AppendVarint(b, uint64(sizes[2*i]))
		if b, err = (proto.MarshalOptions{UseCachedSize: true}).MarshalAppend(b, outcomes[i]); err != nil {
			return 0, err
		}
	}
	*backing = b
	// The client may use a request_id again as soon as it has the answer.
	x.mu.Lock()
	var bytes, held int64
	for _, r := range answers[:n] {
		delete(x.ids, r.Append.GetRequestId())
		bytes += cost(r)
		held += r.Held
	}
	x.mu.Unlock()
	err = x.stream.SendMsg(&outbound{mem.BufferSlice{mem.NewBuffer(backing, c.budget.pool)}})
	x.mu.Lock()
	x.bytes -= bytes
	x.held -= held
	x.mu.Unlock()
	c.bytes.Add(-held)
	c.streamBytes.Add(-bytes)
	select {
	case x.room <- struct{}{}:
	default:
	}
	return n, err
}

// Field numbers of AppendStreamResponse and AppendAnswer.
const (
	fieldAnswers   = 1
	fieldRequestID = 1
	fieldResponse  = 2
	fieldError     = 3
)

// outcome is the answer to a request as a message, counted and logged.
func (x *appendStream) outcome(r *replication.StreamRequest) proto.Message {
	c := x.store.chain
	if r.Err == nil {
		c.meter.answered(0, 0, time.Since(r.Arrived))
		return r.Response
	}
	r.Err = c.answer(appendStreamMethod, r.Err)
	grpcCode, code := codesOf(r.Err)
	c.meter.answered(grpcCode, code, time.Since(r.Arrived))
	x.store.logAppend(r.Append, r.Err)
	return status.Convert(r.Err).Proto()
}
