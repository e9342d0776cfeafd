package follow

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

const (
	firstPause = 20 * time.Millisecond
	maxPause   = 500 * time.Millisecond
	// defaultRetryFor is how long nothing may come before the last failure is the result.
	defaultRetryFor = time.Minute
)

// Options say how to follow.
type Options struct {
	// RetryFor bounds how long streams that bring nothing are begun again; 0 = a minute.
	RetryFor time.Duration
	// Waiting is told of each failure that is waited out. May be nil.
	Waiting func(error)
	// Reconnected is told when a stream begins again, and where. May be nil.
	Reconnected func(next uint64)
}

// Run subscribes as req says and gives handle every message; next is where a subscription goes
// on once the message is dealt with. When a stream ends that can go on, the next one begins
// there. It returns what handle does, nil if that is io.EOF.
func Run(ctx context.Context, client pb.EventStoreServiceClient, req *pb.SubscribeRequest, o Options,
	handle func(m *pb.SubscribeResponse, next uint64) error) error {
	if o.RetryFor == 0 {
		o.RetryFor = defaultRetryFor
	}
	r := &run{client: client, req: proto.Clone(req).(*pb.SubscribeRequest), handle: handle}
	pause, since := firstPause, time.Now()
	for {
		heard, err := r.stream(ctx)
		var handled *handlerError
		switch {
		case errors.As(err, &handled):
			if errors.Is(handled.err, io.EOF) {
				return nil
			}
			return handled.err
		case ctx.Err() != nil:
			return ctx.Err()
		case heard:
			pause, since = firstPause, time.Now()
		}
		if !passes(err) || time.Since(since) > o.RetryFor {
			return err
		}
		if detail, ok := api.DetailOf[*pb.SubscriptionMoved](err); ok && r.next != 0 {
			r.next = max(r.next, detail.GetNextPosition())
		}
		if o.Waiting != nil {
			o.Waiting(err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
		pause = min(2*pause, maxPause)
		if r.next != 0 {
			r.req.Start, r.req.Timeline = &pb.SubscribeRequest_FromPosition{FromPosition: r.next}, r.timeline
		}
		if o.Reconnected != nil {
			o.Reconnected(r.next)
		}
	}
}

// run is what one Run knows.
type run struct {
	client   pb.EventStoreServiceClient
	req      *pb.SubscribeRequest
	handle   func(*pb.SubscribeResponse, uint64) error
	next     uint64 // where to go on; 0 = nothing has said
	timeline string
	caughtUp bool
}

// handlerError is an error of the handler's.
type handlerError struct{ err error }

func (e *handlerError) Error() string { return e.err.Error() }

// stream follows one stream to its end; heard says that something came on it.
func (r *run) stream(ctx context.Context) (heard bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := r.client.Subscribe(ctx, r.req)
	if err != nil {
		return false, err
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return heard, status.Error(codes.Unavailable, "the node ended the subscription without saying why")
		}
		if err != nil {
			return heard, err
		}
		heard = true
		if t := m.GetTimeline(); t != "" {
			r.timeline = t
		}
		if err := r.advance(m); err != nil {
			return heard, &handlerError{err}
		}
		if m.GetCaughtUp() != nil {
			if r.caughtUp { // of an earlier stream
				m.CaughtUp = nil
			}
			r.caughtUp = true
		}
		if err := r.handle(m, r.next); err != nil {
			return heard, &handlerError{err}
		}
	}
}

// advance moves next behind what a message brings, which must not lie before it.
func (r *run) advance(m *pb.SubscribeResponse) error {
	next := r.next
	for _, b := range m.GetBatches() {
		if b.GetPosition() < next {
			return fmt.Errorf("the node sent position %d where %d or a later one was expected: a bug of the node", b.GetPosition(), next)
		}
		next = b.GetPosition() + 1
	}
	last := next
	next = r.next
	for _, n := range m.GetNotices() {
		if n.GetPosition() < next {
			return fmt.Errorf("the node sent a notice of position %d where %d or a later one was expected: a bug of the node", n.GetPosition(), next)
		}
		next = n.GetPosition() + 1
	}
	r.next = max(last, next, m.GetCaughtUp().GetNextPosition(), m.GetCheckpoint().GetNextPosition())
	return nil
}

// passes says whether a failure may pass: another node, or the same one later, may answer.
func passes(err error) bool {
	switch api.CodeOf(err) {
	case pb.ErrorCode_ERROR_CODE_SUBSCRIPTION_MOVED, pb.ErrorCode_ERROR_CODE_NOT_LEADER, pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY,
		pb.ErrorCode_ERROR_CODE_SERVER_BUSY, pb.ErrorCode_ERROR_CODE_TOO_MANY_SUBSCRIBERS:
		return true
	case pb.ErrorCode_ERROR_CODE_UNSPECIFIED:
		switch status.Code(err) {
		case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown, codes.Internal:
			return true // the connection was lost, in one of the ways that gRPC says so
		}
	}
	return false
}
