package importer

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// retried calls a thing that fails with err until it has been called as often as attempts.
func retried(t *testing.T, p patience, attempts int, progress bool, err error) (calls int, took time.Duration, result error) {
	t.Helper()
	start := time.Now()
	result = p.retry(t.Context(), func(context.Context) (bool, error) {
		if calls++; calls == attempts {
			return progress, nil
		}
		return progress, err
	})
	return calls, time.Since(start), result
}

func TestRetriesEndUnlessThereIsProgress(t *testing.T) {
	gone := status.Error(codes.Unavailable, "gone")
	p := patience{retryFor: time.Second}
	synctest.Test(t, func(t *testing.T) {
		calls, took, err := retried(t, p, 1000, false, gone)
		if !errors.As(err, new(*gaveUpError)) || !errors.Is(err, gone) || took > time.Second || calls < 5 || calls > 12 {
			t.Errorf("%d calls in %s, then %v; want about ten in a second, growing apart, then giving up", calls, took, err)
		}
		if calls, took, err := retried(t, p, 1000, true, gone); err != nil || calls != 1000 || took < 5*time.Second {
			t.Errorf("%d calls in %s, %v; want all 1000: each made progress", calls, took, err)
		}
		if calls, took, err := retried(t, p, 5, false, status.Error(codes.InvalidArgument, "no")); calls != 1 || took != 0 || status.Code(err) != codes.InvalidArgument {
			t.Errorf("%d calls in %s, %v; want one, and its error", calls, took, err)
		}
	})
}

func TestRetriesWaitAsLongAsTheServerAsks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY, "full").After(10 * time.Second)
		calls, took, err := retried(t, patience{retryFor: time.Minute}, 3, false, busy)
		if err != nil || calls != 3 || took < 20*time.Second || took > 30*time.Second {
			t.Errorf("%d calls in %s, %v; want 3, ten seconds or a little more apart", calls, took, err)
		}
	})
}

func TestRetriesEndWithTheContextAndEachAttemptWithItsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeoutCause(t.Context(), 25*time.Second, errors.New("enough"))
		defer cancel()
		calls := 0
		err := (&patience{callTimeout: 10 * time.Second, retryFor: time.Hour}).retry(ctx, func(ctx context.Context) (bool, error) {
			calls++
			<-ctx.Done()
			return false, status.FromContextError(ctx.Err()).Err()
		})
		if calls != 3 || err == nil || err.Error() != "enough" {
			t.Errorf("%d calls, then %v; want 3 and the context's cause", calls, err)
		}
	})
}
