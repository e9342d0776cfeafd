package writers

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// Retry sends each writer's last acknowledged request again, as a writer does that has not
// seen the answer. It expects 2002 without the guard, 2003 with it, both with the batch
// that recorded it, and the original result with CONFIRM.
func (s *Set) Retry(ctx context.Context, client pb.EventStoreServiceClient) error {
	var errs []error
	for _, w := range s.writers {
		if n := w.acknowledged() - 1; n >= 0 {
			errs = append(errs, w.retry(ctx, client, n))
		}
	}
	return errors.Join(errs...)
}

func (w *writer) retry(ctx context.Context, client pb.EventStoreServiceClient, n int) error {
	r := w.requests[n]
	_, err := client.Append(ctx, w.message(n, r, false, pb.OnDuplicate_ON_DUPLICATE_REJECT))
	if err := w.refusedAs(err, pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION, r); err != nil {
		return fmt.Errorf("writer %s sent request %d again: %w", w.id, n, err)
	}
	if r.guards != nil {
		_, err := client.Append(ctx, w.message(n, r, true, pb.OnDuplicate_ON_DUPLICATE_REJECT))
		if err := w.refusedAs(err, pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION, r); err != nil {
			return fmt.Errorf("writer %s sent request %d again with its guard: %w", w.id, n, err)
		}
	}
	resp, err := client.Append(ctx, w.message(n, r, true, pb.OnDuplicate_ON_DUPLICATE_CONFIRM))
	if err != nil {
		return fmt.Errorf("writer %s asked to confirm request %d: %w", w.id, n, err)
	}
	for i, res := range resp.GetResults() {
		want := proto.Clone(r.results[i]).(*pb.WriteResult)
		want.AlreadyCommitted = true
		if !proto.Equal(res, want) {
			return fmt.Errorf("writer %s asked to confirm request %d: the answer is %v, expected %v", w.id, n, res, want)
		}
	}
	if len(resp.GetResults()) != len(r.results) {
		return fmt.Errorf("writer %s asked to confirm request %d: %d results, expected %d", w.id, n, len(resp.GetResults()), len(r.results))
	}
	return nil
}

// refusedAs checks that err is code about the first write, held by the batch that the
// request made.
func (w *writer) refusedAs(err error, code pb.ErrorCode, r request) error {
	if got := api.CodeOf(err); got != code {
		return fmt.Errorf("answered with %v (%w), expected %v", got, err, code)
	}
	f, ok := api.DetailOf[*pb.AppendFailure](err)
	if !ok {
		return fmt.Errorf("%w comes without an AppendFailure", err)
	}
	h, res := f.GetHolder(), r.results[0]
	last := r.first + uint64(r.events) - 1
	if f.GetWriteIndex() != 0 || f.GetAttemptedSeq() != r.first || f.GetMark() < last ||
		h.GetVersion() != res.GetVersion() || h.GetPosition() != res.GetPosition() || h.GetClientSeq() != r.first ||
		h.GetFirstClientSeq() != r.first || h.GetLastClientSeq() != last || int(h.GetEventCount()) != r.events ||
		h.GetEventId() != w.events(r, 0)[0].GetEventId() || h.GetOthers() || h.GetTrimmed() {
		return fmt.Errorf("refused with %v, expected the holder to be version %d at position %d with sequences %d..%d", f, res.GetVersion(), res.GetPosition(), r.first, last)
	}
	return nil
}

// Settle finds out about the requests without an answer: it sends each again with CONFIRM,
// as a writer should. It expects the original result if Check has found the request, and a
// new one if not.
func (s *Set) Settle(ctx context.Context, client pb.EventStoreServiceClient) error {
	var errs []error
	for _, w := range s.writers {
		if n := w.acknowledged(); n < len(w.requests) {
			errs = append(errs, w.settle(ctx, client, n))
		}
	}
	return errors.Join(errs...)
}

func (w *writer) settle(ctx context.Context, client pb.EventStoreServiceClient, n int) error {
	r := &w.requests[n]
	there := w.seen[0] > n
	resp, err := client.Append(ctx, w.message(n, *r, true, pb.OnDuplicate_ON_DUPLICATE_CONFIRM))
	if err != nil {
		return fmt.Errorf("writer %s asked to confirm request %d, which is there: %t: %w", w.id, n, there, err)
	}
	for _, res := range resp.GetResults() {
		if res.GetAlreadyCommitted() != there {
			return fmt.Errorf("writer %s asked to confirm request %d, which is there: %t: the answer is %v", w.id, n, there, res)
		}
	}
	if err := w.acknowledge(n, r, resp, true); err != nil {
		return err
	}
	for _, res := range r.results {
		res.AlreadyCommitted = false // from here on it is like any other
	}
	return nil
}
