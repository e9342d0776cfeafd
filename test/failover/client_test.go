package failover

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

const (
	// attempt bounds one call: a leader that lost its followers says nothing.
	attempt = time.Second
	// pause is between two calls when nobody says who leads.
	pause = 20 * time.Millisecond
)

// ack is an acknowledged write.
type ack struct {
	at       time.Time
	node     int
	position uint64
	timeline string
}

// writer writes one event after the other to an aggregate of its own, with enforcement and
// guard, and follows the leader.
type writer struct {
	id     string
	nodes  []*node
	leader *atomic.Int64 // where the last answer of any writer came from: the first to ask
	acks   chan<- ack
	landed uint64 // sequences 1 to landed are acknowledged
}

func (w *writer) key() *pb.AggregateKey {
	return &pb.AggregateKey{Org: "acme", Type: "orders", Id: w.id}
}

func (w *writer) event(seq uint64) string { return fmt.Sprintf("%s-%d", w.id, seq) }

func (w *writer) request(seq uint64) *pb.AppendRequest {
	expected := seq - 1
	return &pb.AppendRequest{ClientId: w.id, Writes: []*pb.Write{{
		Aggregate: w.key(), AllowCreate: true, EnforceClientIdempotency: true, ExpectedVersion: &expected,
		Events: []*pb.NewEvent{{ClientSeq: seq, EventId: w.event(seq), Type: "placed", Payload: make([]byte, 100)}},
	}}}
}

// run writes until ctx ends, and then finishes the write that it is at, or until an answer
// is wrong.
func (w *writer) run(ctx context.Context) error {
	for ctx.Err() == nil {
		if err := w.write(w.landed + 1); err != nil {
			return err
		}
		w.landed++
	}
	return nil
}

// write sends one request until it is known to have landed. Nobody else writes there, so
// every definite refusal that does not say that it has landed is wrong.
func (w *writer) write(seq uint64) error {
	request := w.request(seq)
	unknown := false // an earlier attempt may have landed
	deadline := time.Now().Add(time.Minute)
	for at := int(w.leader.Load()); ; {
		ctx, cancel := context.WithTimeout(context.Background(), attempt)
		resp, err := w.nodes[at].client().Append(ctx, request)
		cancel()
		if err == nil {
			w.leader.Store(int64(at))
			r := resp.GetResults()
			if len(r) != 1 || r[0].GetVersion() != seq {
				return fmt.Errorf("%s wrote sequence %d and got %v, expected version %d", w.id, seq, resp, seq)
			}
			w.acks <- ack{time.Now(), at, r[0].GetPosition(), resp.GetTimeline()}
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s wrote sequence %d for a minute, at last: %w", w.id, seq, err)
		}
		f, _ := api.DetailOf[*pb.AppendFailure](err)
		switch api.CodeOf(err) {
		case pb.ErrorCode_ERROR_CODE_NOT_LEADER:
			at = w.next(at, err)
		case pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY:
			<-time.After(pause)
		case pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN, pb.ErrorCode_ERROR_CODE_UNSPECIFIED:
			unknown = true // the connection was lost, or the attempt took too long
			at = (at + 1) % len(w.nodes)
			<-time.After(pause)
		case pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE:
			<-time.After(pause)
		case pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION:
			h := f.GetHolder()
			if !unknown || h.GetEventId() != w.event(seq) || h.GetVersion() != seq {
				return fmt.Errorf("%s wrote sequence %d (an attempt may have landed: %t) and was refused: %w; %v", w.id, seq, unknown, err, f)
			}
			w.leader.Store(int64(at))
			w.acks <- ack{at: time.Now(), node: at, position: h.GetPosition()}
			return nil
		default:
			return fmt.Errorf("%s wrote sequence %d (an attempt may have landed: %t) and was refused: %w; %v", w.id, seq, unknown, err, f)
		}
	}
}

// next is where to ask after a NotLeader: where it says, or one further.
func (w *writer) next(at int, err error) int {
	if d, ok := api.DetailOf[*pb.NotLeader](err); ok && d.GetLeaderAddress() != "" {
		for i, n := range w.nodes {
			if n.address() == d.GetLeaderAddress() && i != at {
				// It may name one that has just died; then the next answer leads away again.
				<-time.After(time.Millisecond)
				return i
			}
		}
	}
	<-time.After(pause)
	return (at + 1) % len(w.nodes)
}
