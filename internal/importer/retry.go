package importer

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// verdict is what an error of a call means for the import.
type verdict int

const (
	again    verdict = iota // temporary, or the outcome is unknown: send the same bytes again
	no                      // the row is refused
	hopeless                // every row would fail like this
)

// classify sorts an error of an append. Sending again is safe whatever became of the first
// sending: the request is confirmed, or guarded by version.
func classify(err error) verdict {
	if e, ok := api.FromStatus(err); ok {
		switch e.Code {
		case pb.ErrorCode_ERROR_CODE_NOT_LEADER, pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY,
			pb.ErrorCode_ERROR_CODE_REPLICATION_BACKPRESSURE, pb.ErrorCode_ERROR_CODE_SERVER_BUSY,
			pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE, pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN,
			pb.ErrorCode_ERROR_CODE_INSUFFICIENT_DISK_SPACE:
			return again
		case pb.ErrorCode_ERROR_CODE_IDENTITY_MISMATCH, pb.ErrorCode_ERROR_CODE_AUTH_REQUIRED,
			pb.ErrorCode_ERROR_CODE_AUTH_INVALID_KEY, pb.ErrorCode_ERROR_CODE_AUTH_INSUFFICIENT_PERMISSIONS,
			pb.ErrorCode_ERROR_CODE_TIMELINE_MISMATCH, pb.ErrorCode_ERROR_CODE_INTERNAL:
			return hopeless
		}
		if f, ok := api.DetailOf[*pb.AppendFailure](err); ok && f.InFlightVersion != nil {
			return again // not decided yet
		}
		return no
	}
	switch status.Code(err) {
	case codes.Unimplemented, codes.Unauthenticated, codes.PermissionDenied:
		return hopeless
	case codes.InvalidArgument, codes.ResourceExhausted, codes.FailedPrecondition, codes.OutOfRange, codes.NotFound:
		return no // a proxy's or gRPC's own limit, such as the size of a message
	}
	return again
}

// patience says how calls are repeated.
type patience struct {
	// callTimeout bounds one attempt; 0 = no bound.
	callTimeout time.Duration
	// retryFor bounds how long attempts may go on failing.
	retryFor time.Duration
	// waiting is told of calls that could not reach the store and are repeated; may be nil.
	waiting func(error)
}

const (
	defaultCallTimeout = 30 * time.Second
	defaultRetryFor    = time.Minute
)

// retry calls until an answer is not temporary, at most for retryFor from the first failure
// on; a call that made progress before it failed begins that anew.
func (p *patience) retry(ctx context.Context, call func(context.Context) (progress bool, err error)) error {
	var failing time.Time
	for attempt := 0; ; attempt++ {
		progress, err := p.attempt(ctx, call)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if classify(err) != again {
			return err
		}
		now := time.Now()
		if progress || failing.IsZero() {
			failing, attempt = now, 0
		}
		wait := backoff(attempt, err)
		if now.Add(wait).Sub(failing) > p.retryFor {
			return &gaveUpError{after: now.Sub(failing), err: err}
		}
		if _, answered := api.FromStatus(err); !answered && p.waiting != nil {
			p.waiting(err)
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		}
	}
}

func (p *patience) attempt(ctx context.Context, call func(context.Context) (bool, error)) (bool, error) {
	var cancel context.CancelFunc
	if p.callTimeout > 0 {
		ctx, cancel = context.WithTimeout(ctx, p.callTimeout)
	} else {
		// A stream that is given up must end.
		ctx, cancel = context.WithCancel(ctx)
	}
	defer cancel()
	return call(ctx)
}

const (
	firstBackoff = 20 * time.Millisecond
	maxBackoff   = 2 * time.Second
)

// backoff is how long to wait before the next attempt: doubling, spread so that the many
// rows that failed together do not come back together, and no less than the server asks for.
func backoff(attempt int, err error) time.Duration {
	wait := maxBackoff
	if attempt < 7 {
		wait = min(firstBackoff<<attempt, maxBackoff)
	}
	wait = wait/2 + rand.N(wait/2)
	if e, ok := api.FromStatus(err); ok && e.RetryAfter > 0 {
		wait = max(wait, e.RetryAfter+rand.N(e.RetryAfter/2+1))
	}
	return wait
}

// gaveUpError is returned when calls have failed for as long as the options allow.
type gaveUpError struct {
	after time.Duration
	err   error
}

func (e *gaveUpError) Error() string {
	return fmt.Sprintf("gave up after %s of retries: %s", e.after.Round(time.Millisecond), explain(e.err))
}

func (e *gaveUpError) Unwrap() error { return e.err }
