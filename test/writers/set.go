package writers

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// Set is a number of writers and what they were told. Its methods are called one at a time.
type Set struct {
	seed       uint64
	writers    []*writer
	aggregates []*aggregate
	position   uint64 // checked up to here
}

// New makes n writers of all kinds. Two sets with other names share no aggregate.
func New(name string, seed uint64, n int) *Set {
	s := &Set{seed: seed}
	for i := range n {
		w := &writer{set: s, number: i, id: fmt.Sprintf("%s-w%d", name, i), kind: kind(i) % kinds}
		count := 1
		if w.kind == multi {
			count = 2 + i%3
		}
		for j := range count {
			k := &pb.AggregateKey{Org: "acme", Type: "orders", Id: fmt.Sprintf("%s-%d-%d", name, i, j)}
			if other := i - int(kinds); w.kind == shared && other >= 0 && i/int(kinds)%2 == 1 {
				w.aggregates = append(w.aggregates, s.writers[other].aggregates[0])
				continue
			}
			a := &aggregate{key: k}
			s.aggregates = append(s.aggregates, a)
			w.aggregates = append(w.aggregates, a)
		}
		w.seen = make([]int, len(w.aggregates))
		s.writers = append(s.writers, w)
	}
	return s
}

// Acknowledged is how many requests have been acknowledged.
func (s *Set) Acknowledged() int {
	n := 0
	for _, w := range s.writers {
		n += w.acknowledged()
	}
	return n
}

// Unknown is how many requests have no answer.
func (s *Set) Unknown() int {
	n := 0
	for _, w := range s.writers {
		n += len(w.requests) - w.acknowledged()
	}
	return n
}

func (w *writer) acknowledged() int {
	n := len(w.requests)
	if n > 0 && w.requests[n-1].results == nil {
		n--
	}
	return n
}

// Ending is why a writer stopped.
type Ending struct {
	Writer string
	// Sent is when its last call began.
	Sent time.Time
	// Err is what the call returned, nil if the writer was told to stop.
	Err error
	// Definite says that the write did not land and will not.
	Definite bool
}

// Run lets every writer write until ctx ends or one of its calls fails. A call that has
// begun is not cut short when ctx ends: it has 30 s to be answered. acked, if not nil, is
// called after every acknowledgement, from all writers' goroutines.
func (s *Set) Run(ctx context.Context, clients []pb.EventStoreServiceClient, acked func()) []Ending {
	endings := make([]Ending, len(s.writers))
	var all sync.WaitGroup
	for i, w := range s.writers {
		// Ends with ctx, or with the server; Run waits.
		all.Go(func() { endings[i] = w.run(ctx, clients[i%len(clients)], acked) })
	}
	all.Wait()
	return endings
}

func (w *writer) run(ctx context.Context, client pb.EventStoreServiceClient, acked func()) Ending {
	if w.acknowledged() != len(w.requests) {
		return Ending{Writer: w.id, Err: fmt.Errorf("the outcome of the last request must be settled first")}
	}
	e := Ending{Writer: w.id}
	for ctx.Err() == nil {
		r, n := w.next(), len(w.requests)
		m := w.message(n, r, true, pb.OnDuplicate_ON_DUPLICATE_REJECT)
		e.Sent = time.Now()
		call, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		resp, err := client.Append(call, m)
		cancel()
		if err != nil {
			e.Err = err
			if known, ok := api.FromStatus(err); ok && known.MayHaveHappened() == api.No {
				e.Definite = true
				return e
			}
			w.requests = append(w.requests, r)
			return e
		}
		if err := w.acknowledge(n, &r, resp, false); err != nil {
			e.Err = err
			return e
		}
		w.requests = append(w.requests, r)
		if acked != nil {
			acked()
		}
	}
	return e
}

// acknowledge takes an answer and checks what can be checked at once.
func (w *writer) acknowledge(n int, r *request, resp *pb.AppendResponse, mayBeThere bool) error {
	if len(resp.GetResults()) != len(w.aggregates) {
		return fmt.Errorf("writer %s request %d: %d results for %d writes", w.id, n, len(resp.GetResults()), len(w.aggregates))
	}
	for i, res := range resp.GetResults() {
		if res.GetAlreadyCommitted() && !mayBeThere {
			return fmt.Errorf("writer %s request %d: already_committed on its first attempt", w.id, n)
		}
		if w.kind != shared && res.GetVersion() != uint64(n)+1 {
			return fmt.Errorf("writer %s request %d on %v: version %d, expected %d", w.id, n, w.aggregates[i].key, res.GetVersion(), n+1)
		}
	}
	r.results = resp.GetResults()
	return nil
}
