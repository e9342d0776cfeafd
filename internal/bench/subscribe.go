package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"time"

	"google.golang.org/grpc"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// CatchUpResult is how fast a subscription from the first position got to the newest one, and
// how fast a server that only sends gets the same number of the same batches across.
type CatchUpResult struct {
	Batches  uint64  `json:"batches"`
	Messages uint64  `json:"messages"`
	Seconds  float64 `json:"seconds"`
	Rate     float64 `json:"rate"`
	BareRate float64 `json:"bare_rate"`
	Ratio    float64 `json:"ratio"`
}

// CatchUp subscribes from the first position, stops at the marker or after most batches (0 =
// no limit), and has the echo at bare send as many, in messages of the same number.
func CatchUp(ctx context.Context, store, bare pb.EventStoreServiceClient, most uint64) (CatchUpResult, error) {
	req := &pb.SubscribeRequest{
		Scope: &pb.SubscribeRequest_All{All: &pb.AllScope{}}, Start: &pb.SubscribeRequest_FromPosition{FromPosition: 1},
	}
	r, sample, err := receive(ctx, store, req, most)
	if err != nil {
		return r, err
	}
	if r.Batches == 0 {
		return r, errors.New("the log is empty; expected some batches to catch up with, such as \"tidemark bench append --count 1000000\" writes")
	}
	r.Rate = float64(r.Batches) / r.Seconds
	size := len(sample.GetEvents()[0].GetPayload())
	b, _, err := receive(ctx, bare, bareRequest(r.Batches, max(r.Batches/r.Messages, 1), size), 0)
	if err != nil {
		return r, fmt.Errorf("the bare stream: %w", err)
	}
	r.BareRate = float64(b.Batches) / b.Seconds
	r.Ratio = r.Rate / r.BareRate
	return r, nil
}

// receive counts what a subscription brings up to its marker or its end.
func receive(ctx context.Context, client pb.EventStoreServiceClient, req *pb.SubscribeRequest, most uint64) (r CatchUpResult, sample *pb.Batch, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began := time.Now()
	stream, err := client.Subscribe(ctx, req)
	for err == nil {
		var m *pb.SubscribeResponse
		if m, err = stream.Recv(); err != nil {
			break
		}
		if n := len(m.GetBatches()); n > 0 {
			r.Batches, r.Messages, sample = r.Batches+uint64(n), r.Messages+1, m.GetBatches()[0]
		}
		if m.GetCaughtUp() != nil || most > 0 && r.Batches >= most {
			break
		}
	}
	r.Seconds = time.Since(began).Seconds()
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return r, sample, err
}

// bareRequest asks an echo for a number of batches, so many to a message, with payloads of a
// size: in fields that it has no other use for.
func bareRequest(batches, perMessage uint64, size int) *pb.SubscribeRequest {
	return &pb.SubscribeRequest{
		Start:  &pb.SubscribeRequest_FromPosition{FromPosition: batches},
		Filter: &pb.Filter{ClientSeqFrom: perMessage, ClientSeqTo: uint64(size)},
	}
}

// Subscribe sends what bareRequest asks for: a message that is made once, again and again.
func (e *echo) Subscribe(req *pb.SubscribeRequest, stream grpc.ServerStreamingServer[pb.SubscribeResponse]) error {
	m := &pb.SubscribeResponse{}
	payload := make([]byte, min(req.GetFilter().GetClientSeqTo(), 1<<20))
	for i := range min(req.GetFilter().GetClientSeqFrom(), 1<<16) {
		m.Batches = append(m.Batches, &pb.Batch{
			Aggregate: &pb.AggregateKey{Org: "bench", Type: "append", Id: fmt.Sprintf("%016x-%d", i*0x9e3779b97f4a7c15, i)}, Version: 1000, Incarnation: 1,
			Position: 1 << 20, CommitFirstPosition: 1 << 20, CommitCount: 1, ClientId: fmt.Sprintf("%016x-%d", i, i), CommittedAt: e.committedAt,
			FirstEventNumber: 1000, PreviousChainHash: e.chainHash, ChainHash: e.chainHash,
			Events: []*pb.Event{{ClientSeq: 1000, EventId: "", Type: "Bench", Schema: &pb.SchemaVersion{Major: 1}, Payload: payload, EventNumber: 1000}},
		})
	}
	for sent := uint64(0); sent < req.GetFromPosition() && len(m.Batches) > 0; sent += uint64(len(m.Batches)) {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// LiveResult is how long appends take at a rate, and how long after the answer a subscriber gets
// what was appended.
type LiveResult struct {
	Rate        float64 `json:"rate"`
	AppendP50MS float64 `json:"append_p50_ms"`
	AppendP99MS float64 `json:"append_p99_ms"`
	LagP50MS    float64 `json:"lag_p50_ms"`
	LagP99MS    float64 `json:"lag_p99_ms"`
	Count       uint64  `json:"count"`
	Errors      uint64  `json:"errors"`
	Seconds     float64 `json:"seconds"`
}

// Live appends rate times a second for a while, over conns, and follows the log meanwhile over a
// connection of its own.
func Live(ctx context.Context, conns []grpc.ClientConnInterface, follower grpc.ClientConnInterface, rate, size int, duration time.Duration) (LiveResult, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := pb.NewEventStoreServiceClient(follower).Subscribe(ctx, &pb.SubscribeRequest{
		Scope: &pb.SubscribeRequest_All{All: &pb.AllScope{}}, Start: &pb.SubscribeRequest_FromNow{FromNow: true},
	})
	if err != nil {
		return LiveResult{}, err
	}
	if _, err := stream.Recv(); err != nil {
		return LiveResult{}, err
	}
	var appends, lags histogram
	var mu sync.Mutex
	at := map[uint64]time.Time{} // by position: when the first of answer and delivery came
	meet := func(position uint64, now time.Time, delivered bool) {
		mu.Lock()
		defer mu.Unlock()
		other, ok := at[position]
		if !ok {
			at[position] = now
			return
		}
		delete(at, position)
		lag := time.Duration(0) // it may come before the answer
		if delivered {
			lag = now.Sub(other)
		}
		lags.record(lag)
	}
	received := make(chan struct{})
	go func() { // ends with the stream
		defer close(received)
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			now := time.Now()
			for _, b := range m.GetBatches() {
				meet(b.GetPosition(), now, true)
			}
		}
	}()
	r := LiveResult{}
	run := rand.Uint64()
	// Each is due at its own time; a writer that is late makes up for it.
	const writers = 64
	due := make(chan int, rate)
	var group sync.WaitGroup
	began := time.Now()
	for w := range writers {
		client := pb.NewEventStoreServiceClient(conns[w%len(conns)])
		group.Go(func() {
			seq := uint64(0)
			for range due {
				seq++
				sent := time.Now()
				resp, err := client.Append(ctx, &pb.AppendRequest{ClientId: fmt.Sprintf("live-%x-%d", run, w), Writes: []*pb.Write{{
					Aggregate: &pb.AggregateKey{Org: "bench", Type: "live", Id: fmt.Sprintf("%x-%d", run, w)}, AllowCreate: true,
					Events: []*pb.NewEvent{{ClientSeq: seq, Type: "Bench", Payload: make([]byte, size)}},
				}}})
				now := time.Now()
				if err != nil {
					mu.Lock()
					r.Errors++
					mu.Unlock()
					continue
				}
				appends.record(now.Sub(sent))
				meet(resp.GetResults()[0].GetPosition(), now, false)
			}
		})
	}
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for sent := 0; time.Since(began) < duration && ctx.Err() == nil; <-ticker.C {
		for want := int(float64(rate) * time.Since(began).Seconds()); sent < want; sent++ {
			select {
			case due <- sent:
			case <-ctx.Done():
			}
		}
	}
	close(due)
	group.Wait()
	r.Seconds = time.Since(began).Seconds()
	for wait := time.Now().Add(5 * time.Second); time.Now().Before(wait); <-ticker.C {
		mu.Lock()
		left := len(at)
		mu.Unlock()
		if left == 0 {
			break
		}
	}
	cancel()
	<-received
	r.Count = lags.count.Load()
	r.Rate = float64(appends.count.Load()) / r.Seconds
	r.AppendP50MS, r.AppendP99MS = milliseconds(appends.quantile(.5)), milliseconds(appends.quantile(.99))
	r.LagP50MS, r.LagP99MS = milliseconds(lags.quantile(.5)), milliseconds(lags.quantile(.99))
	return r, nil
}

// IdleResult is how many subscriptions were open.
type IdleResult struct {
	Subscriptions int     `json:"subscriptions"`
	Opened        float64 `json:"opened_seconds"`
	Messages      uint64  `json:"messages"`
}

// Idle opens n subscriptions, each to an aggregate of its own that nothing happens to, tells
// ready once all are open, and holds them until ctx ends.
func Idle(ctx context.Context, conns []grpc.ClientConnInterface, n int, ready func(IdleResult)) (IdleResult, error) {
	began := time.Now()
	var mu sync.Mutex
	r := IdleResult{}
	failed := make(chan error, n)
	opened := make(chan struct{}, n)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	for i := range n {
		client := pb.NewEventStoreServiceClient(conns[i%len(conns)])
		group.Go(func() {
			stream, err := client.Subscribe(ctx, &pb.SubscribeRequest{
				Scope: &pb.SubscribeRequest_Aggregates{Aggregates: &pb.AggregatesScope{Aggregates: []*pb.AggregateKey{{Org: "bench", Type: "idle", Id: fmt.Sprint(i)}}}},
				Start: &pb.SubscribeRequest_FromNow{FromNow: true},
			})
			for first := true; ; first = false {
				if err == nil {
					_, err = stream.Recv()
				}
				if err != nil {
					failed <- err
					return
				}
				if first {
					opened <- struct{}{}
				}
				mu.Lock()
				r.Messages++
				mu.Unlock()
			}
		})
	}
	for r.Subscriptions < n {
		select {
		case <-opened:
			r.Subscriptions++
		case err := <-failed:
			cancel()
			group.Wait()
			return r, err
		}
	}
	r.Opened = time.Since(began).Seconds()
	mu.Lock()
	now := r
	mu.Unlock()
	ready(now)
	var err error
	select {
	case <-ctx.Done():
	case err = <-failed:
		if ctx.Err() != nil {
			err = nil
		}
	}
	cancel()
	group.Wait()
	return r, err
}
