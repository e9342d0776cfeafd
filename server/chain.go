package server

import (
	"context"
	"errors"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/record"
)

// retryBusy is when a caller that met a bound is told to ask again.
const retryBusy = 100 * time.Millisecond

// An Observer is told of every call when it ends: code is the contract's, or
// ERROR_CODE_UNSPECIFIED for an answer that has none (success, a deadline, a cancellation).
// It runs on the call's goroutine.
type Observer func(method string, status codes.Code, code pb.ErrorCode, took time.Duration)

// An Authenticator admits a call or refuses it with an *api.Error, and may add to its
// context what the call's handler must know of the caller.
type Authenticator func(ctx context.Context, method string) (context.Context, error)

// chain is what every call passes, whatever its service: the bound on calls, the decoding
// of the request, authentication, and, on the way back, panics and errors.
//
// It wraps the handlers of a service description instead of being a gRPC interceptor,
// because gRPC reads and decodes a unary request before it calls an interceptor: the bound
// would come too late to bound anything, and a request that cannot be decoded would be
// answered by gRPC, without a code.
type chain struct {
	maxCalls   int64
	maxReads   int64
	maxBytes   int64 // of the requests at work, as encoded
	maxRequest int

	calls atomic.Int64
	reads atomic.Int64
	// subscribers counts the open subscriptions, which are neither calls nor reads here.
	subscribers    atomic.Int64
	maxSubscribers int64
	bytes          atomic.Int64
	// streams counts the open AppendStream calls, streamBytes what they have outstanding,
	// streamWaits how often one was not received from because of that.
	streams, streamBytes atomic.Int64
	streamWaits          atomic.Uint64
	// refused counts the answers 11000.
	refused atomic.Uint64

	budget *readBudget // of the bytes of reads
	meter  *meter

	authenticate Authenticator // may be nil
	observe      Observer      // may be nil
	onDamage     func(error)   // may be nil
	log          *zap.Logger

	// watches ends the streams of the standard services, which would otherwise last as
	// long as their clients, when the server stops.
	watches context.Context
}

// registrar registers services on a gRPC server, each of their calls behind the chain.
type registrar struct {
	*grpc.Server
	chain *chain
}

// RegisterService implements grpc.ServiceRegistrar.
func (r registrar) RegisterService(desc *grpc.ServiceDesc, impl any) {
	wrapped := *desc
	wrapped.Methods = make([]grpc.MethodDesc, len(desc.Methods))
	for i, m := range desc.Methods {
		m.Handler = r.chain.unary(r.rpc(desc.ServiceName, m.MethodName), m.Handler)
		wrapped.Methods[i] = m
	}
	wrapped.Streams = make([]grpc.StreamDesc, len(desc.Streams))
	for i, s := range desc.Streams {
		s.Handler = r.chain.stream(r.rpc(desc.ServiceName, s.StreamName), s.Handler)
		wrapped.Streams[i] = s
	}
	r.Server.RegisterService(&wrapped, impl)
}

func (r registrar) rpc(service, method string) rpc {
	known := rpcOf(service, method)
	r.chain.meter.attach(&known)
	return known
}

// rpc is what the chain knows of a method.
type rpc struct {
	method string // "/service/Method"
	// own: one of Tidemark's services. The standard ones (health, reflection) are not
	// bounded with them, or a busy node would be taken for a dead one.
	own bool
	// read: a method that reads. Reads have a bound of their own below that of all calls, so
	// that readers who do not take their answers leave room for writers.
	read bool
	// subscribe: a method that reads for as long as its client likes. Those have a bound of
	// their own, apart from all calls: thousands may wait for something to happen.
	subscribe bool
	// appends: it is what appends_total counts; timed is of a method that reads and ends by
	// itself.
	appends bool
	timed   *readMeter
}

func rpcOf(service, method string) rpc {
	r := rpc{method: "/" + service + "/" + method, own: strings.HasPrefix(service, "tidemark.")}
	switch method {
	case "Read", "ReadAll", "GetAggregate", "GetMark", "ListMarks", "FindEvent", "ListOrgs", "ListTypes", "ListAggregates",
		"GetSchema", "ListSchemas":
		r.read = r.own
	case "Subscribe":
		r.subscribe = r.own
	}
	return r
}

func (c *chain) unary(r rpc, next grpc.MethodHandler) grpc.MethodHandler {
	return func(srv any, ctx context.Context, dec func(any) error, _ grpc.UnaryServerInterceptor) (resp any, err error) {
		x := call{chain: c, rpc: r}
		defer func() { err = x.end(recover(), err) }()
		if ctx, err = x.begin(ctx); err != nil {
			return nil, err
		}
		resp, err = next(srv, ctx, func(m any) error { return x.receive(dec, m) }, nil)
		if err != nil || x.reads == nil || x.reads.building == nil {
			return resp, err
		}
		return x.reads.encode(resp.(proto.Message))
	}
}

func (c *chain) stream(r rpc, next grpc.StreamHandler) grpc.StreamHandler {
	return func(srv any, ss grpc.ServerStream) (err error) {
		x := call{chain: c, rpc: r}
		defer func() { err = x.end(recover(), err) }()
		ctx, err := x.begin(ss.Context())
		if err != nil {
			return err
		}
		if !r.own {
			var cancel context.CancelFunc
			ctx, cancel = context.WithCancel(ctx)
			defer cancel()
			defer context.AfterFunc(c.watches, cancel)()
		}
		return next(srv, &serverStream{ServerStream: ss, ctx: ctx, call: &x})
	}
}

// serverStream is a stream whose requests are decoded by the chain.
type serverStream struct {
	grpc.ServerStream
	ctx  context.Context
	call *call
}

func (s *serverStream) Context() context.Context { return s.ctx }

func (s *serverStream) RecvMsg(m any) error { return s.call.receive(s.ServerStream.RecvMsg, m) }

// call is one call on its way through the chain.
type call struct {
	chain   *chain
	rpc     rpc
	start   time.Time
	counted bool
	in      inbound
	reads   *callReads // of a reading call that was admitted
}

// begin admits the call or says why not.
func (x *call) begin(ctx context.Context) (context.Context, error) {
	c := x.chain
	x.start = time.Now()
	if x.rpc.subscribe {
		ctx, x.reads = c.budget.withReads(ctx)
		if n := c.subscribers.Add(1); n > c.maxSubscribers {
			return ctx, api.Errorf(pb.ErrorCode_ERROR_CODE_TOO_MANY_SUBSCRIBERS,
				"%d subscriptions are open on this node, which is its limit (max-subscribers)", c.maxSubscribers)
		}
	} else if x.rpc.own {
		x.counted = true
		if n := c.calls.Add(1); n > c.maxCalls {
			return ctx, api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY,
				"%d calls are at work on this node, which is its limit; ask again later", c.maxCalls).After(retryBusy)
		}
	}
	if x.rpc.read {
		ctx, x.reads = c.budget.withReads(ctx)
		if n := c.reads.Add(1); n > c.maxReads {
			return ctx, api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY,
				"%d calls that read are at work on this node, which is its limit; ask again later", c.maxReads).After(retryBusy)
		}
	}
	if c.authenticate != nil {
		return c.authenticate(ctx, x.rpc.method)
	}
	return ctx, nil
}

// receive reads one request with recv, gRPC's own function, and decodes it into m.
func (x *call) receive(recv func(any) error, m any) error {
	msg, ok := m.(proto.Message)
	if !ok {
		return recv(m)
	}
	x.release()
	x.in = inbound{chain: x.chain, msg: msg}
	// An error of recv's own, such as for a message above gRPC's bound, has been sent to the
	// client already: gRPC does that as it returns it.
	if err := recv(&x.in); err != nil {
		return err
	}
	if x.in.err != nil {
		return x.in.err
	}
	return nil
}

// hold takes size bytes of the budget for a request that is about to be decoded.
func (c *chain) hold(in *inbound, size int) *api.Error {
	in.held += int64(size) // a faulty client may send more than the one request of a call
	if c.bytes.Add(int64(size)) > c.maxBytes {
		return api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY,
			"requests of %d bytes are at work on this node, which is its limit; ask again later", c.maxBytes).After(retryBusy)
	}
	return nil
}

// release gives the budget back.
func (x *call) release() {
	if x.in.held != 0 {
		x.chain.bytes.Add(-x.in.held)
		x.in.held = 0
	}
}

// end turns whatever a handler ended with into the call's status.
func (x *call) end(panicked any, err error) error {
	c := x.chain
	x.release()
	if x.counted {
		c.calls.Add(-1)
	}
	if x.reads != nil {
		x.reads.abandon()
		if x.rpc.subscribe {
			c.subscribers.Add(-1)
		} else {
			c.reads.Add(-1)
		}
	}
	if panicked != nil {
		c.meter.panics.Add(1)
		c.log.Error("a call panicked", zap.String("method", x.rpc.method),
			zap.Any("panic", panicked), zap.ByteString("stack", debug.Stack()))
		err = api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL,
			"the node met a bug in %s; its log has the stack. If this was a write, its outcome is unknown", x.rpc.method)
	} else if err != nil {
		err = c.answer(x.rpc.method, err)
	}
	grpcCode, code := codesOf(err)
	took := time.Since(x.start)
	c.meter.ended(&x.rpc, grpcCode, code, took)
	if c.observe != nil {
		c.observe(x.rpc.method, grpcCode, code, took)
	}
	return err
}

// answer makes an error one that a client may see: the contract's, a deadline, a
// cancellation, or a status of gRPC's own. Anything else is a fault of this node.
func (c *chain) answer(method string, err error) error {
	answer := c.answerOf(method, err)
	var own *api.Error
	if c.onDamage != nil && errors.As(answer, &own) && own.Corrupt {
		c.onDamage(answer)
	}
	return answer
}

func (c *chain) answerOf(method string, err error) error {
	var own *api.Error
	if errors.As(err, &own) {
		switch own.Code {
		case pb.ErrorCode_ERROR_CODE_INTERNAL:
			c.log.Error("a call failed", zap.String("method", method), zap.Error(err))
		case pb.ErrorCode_ERROR_CODE_SERVER_BUSY:
			c.refused.Add(1)
		}
		return own
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return status.Error(codes.DeadlineExceeded, err.Error())
	case errors.Is(err, context.Canceled):
		return status.Error(codes.Canceled, err.Error())
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	c.log.Error("a call failed", zap.String("method", method), zap.Error(err))
	if errors.Is(err, record.ErrCorrupt) {
		return api.Corruptf("%w", err)
	}
	return api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "%w", err)
}

// codesOf is the gRPC code and the contract's of an answer.
func codesOf(err error) (codes.Code, pb.ErrorCode) {
	var own *api.Error
	if !errors.As(err, &own) {
		return status.Code(err), pb.ErrorCode_ERROR_CODE_UNSPECIFIED
	}
	row, _ := api.Lookup(own.Code)
	if own.Corrupt && row.GRPCCorrupt != codes.OK {
		return row.GRPCCorrupt, own.Code
	}
	return row.GRPC, own.Code
}
