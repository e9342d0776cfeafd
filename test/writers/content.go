package writers

import (
	"fmt"
	"math/rand/v2"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// kind is how a writer writes.
type kind int

const (
	plain   kind = iota // one event, enforced
	guarded             // with expected_version
	chunked             // several events a batch
	multi               // several aggregates a request, all guarded
	shared              // on an aggregate that another writer writes to as well
	kinds
)

// aggregate is one aggregate and what has been checked of it.
type aggregate struct {
	key     *pb.AggregateKey
	version uint64 // checked up to here
	events  uint64
	chain   []byte
}

// request is one request of a writer, and its answer.
type request struct {
	first   uint64 // client_seq of its first event, on each of its aggregates
	events  int    // on each of its aggregates
	guards  []uint64
	results []*pb.WriteResult // nil = no answer yet
}

// writer is one client_id. Only one goroutine at a time uses it: its own while Run runs.
type writer struct {
	set        *Set
	number     int
	id         string
	kind       kind
	aggregates []*aggregate
	// requests that were sent, oldest first. All but the last have an answer.
	requests []request
	// seen counts the requests found by Check on each aggregate.
	seen []int
}

// next describes the request after the last.
func (w *writer) next() request {
	n := len(w.requests)
	rng := w.rng(uint64(n), 0)
	r := request{first: 1, events: 1}
	if n > 0 {
		last := w.requests[n-1]
		r.first = last.first + uint64(last.events)
	}
	if w.kind == chunked {
		r.events = 2 + rng.IntN(6)
	}
	if w.kind == guarded || w.kind == multi {
		r.guards = make([]uint64, len(w.aggregates))
		for i := range r.guards {
			r.guards[i] = uint64(n) // every request of a writer adds one version
		}
	}
	return r
}

func (w *writer) rng(a, b uint64) *rand.Rand {
	return rand.New(rand.NewPCG(w.set.seed<<20|uint64(w.number), a<<8|b))
}

// message is the request as it is sent. guard = false leaves the version guards out.
func (w *writer) message(n int, r request, guard bool, mode pb.OnDuplicate) *pb.AppendRequest {
	m := &pb.AppendRequest{ClientId: w.id, RequestId: fmt.Sprintf("%s-%d", w.id, n), OnDuplicate: mode}
	for i, a := range w.aggregates {
		wr := &pb.Write{Aggregate: a.key, Events: w.events(r, i), AllowCreate: true, EnforceClientIdempotency: true}
		if r.guards != nil && guard {
			wr.ExpectedVersion = &r.guards[i]
		}
		m.Writes = append(m.Writes, wr)
	}
	return m
}

// events are the events of a request on its aggregate i.
func (w *writer) events(r request, i int) []*pb.NewEvent {
	out := make([]*pb.NewEvent, r.events)
	for j := range out {
		seq := r.first + uint64(j)
		rng := w.rng(seq, uint64(i)+1)
		size := 40 + rng.IntN(1000)
		if rng.IntN(64) == 0 {
			size = 16 << 10
		}
		payload := make([]byte, size)
		for k := range payload {
			payload[k] = byte(rng.Uint32())
		}
		out[j] = &pb.NewEvent{
			ClientSeq:   seq,
			EventId:     fmt.Sprintf("%s/%d/%d", w.id, i, seq),
			Type:        "Recorded",
			Schema:      &pb.SchemaVersion{Major: 1, Minor: uint32(rng.IntN(3))},
			OccurredAt:  timestamppb.New(time.Unix(1_700_000_000+int64(seq), int64(rng.IntN(1e9)))),
			Payload:     payload,
			ContentType: "application/octet-stream",
			Metadata:    map[string]string{"writer": w.id, "kind": fmt.Sprint(int(w.kind))},
		}
	}
	return out
}
