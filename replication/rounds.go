package replication

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/status"

	peerpb "github.com/tidemark-db/tidemark/api/tidemark/peer/v1"
)

// roundTimeout bounds one round of asking the voters for their term.
const roundTimeout = 2 * time.Second

// termRounds batches the question whether a majority of voters still knows no newer term.
// A caller is only served by a round that began after its call: the answers of one that is
// under way may be older than what the caller has seen. So there is at most one round under
// way and one that waits, however many calls there are.
//
// raft's VerifyLeader is not used: it can credit an answer to a request that was sent before
// the call.
type termRounds struct {
	ask func(ctx context.Context, term uint64) error

	mu      sync.Mutex
	running bool
	next    *termRound // collects callers while one is under way
}

type termRound struct {
	term    uint64
	callers int // who waits for it
	done    chan struct{}
	err     error
}

func newTermRounds(ask func(ctx context.Context, term uint64) error) *termRounds {
	return &termRounds{ask: ask}
}

// confirm returns nil once a round that began after the call has confirmed the term.
func (r *termRounds) confirm(ctx context.Context, term uint64) error {
	r.mu.Lock()
	if r.next != nil && r.next.term != term {
		// Whoever waits in it is of another term, and loses nothing: a newer term refutes an
		// older one, and this one is refuted by it.
		r.mu.Unlock()
		return errors.New("the term changed while others asked")
	}
	if r.next == nil {
		r.next = &termRound{term: term, done: make(chan struct{})}
	}
	round := r.next
	round.callers++
	if !r.running {
		r.running = true
		go r.run()
	}
	r.mu.Unlock()
	select {
	case <-round.done:
		return round.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// run runs rounds until nobody waits for one. There is one such goroutine at most, and each
// of its rounds ends within roundTimeout.
func (r *termRounds) run() {
	for {
		r.mu.Lock()
		round := r.next
		r.next = nil
		if round == nil {
			r.running = false
			r.mu.Unlock()
			return
		}
		r.mu.Unlock()
		ctx, cancel := context.WithTimeout(context.Background(), roundTimeout)
		round.err = r.ask(ctx, round.term)
		cancel()
		close(round.done)
	}
}

// askTerm asks all voters for their newest term and returns nil once a majority, this node
// included, has said that it is term.
func (s *Shard) askTerm(ctx context.Context, g *raftGroup, term uint64) error {
	var others []raft.Server
	voters, needed := 0, 1
	self := s.identity().serverID()
	for _, v := range g.servers() {
		switch {
		case v.Suffrage != raft.Voter:
			continue
		case v.ID == self:
			needed-- // this node confirms itself
		default:
			others = append(others, v)
		}
		voters++
	}
	if needed += voters / 2; needed <= 0 {
		return nil // this node is its own majority
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	answers := make(chan error, len(others))
	for _, v := range others {
		go func() { // ends with the call, which ends with ctx
			answers <- s.askVoter(ctx, v, term)
		}()
	}
	for waiting := len(others); waiting >= needed; {
		err := <-answers
		waiting--
		if err == nil {
			if needed--; needed == 0 {
				return nil
			}
		} else if waiting < needed {
			return fmt.Errorf("no majority of voters confirmed term %d: %w", term, err)
		}
	}
	return fmt.Errorf("no majority of voters to confirm term %d: the configuration has %d", term, voters)
}

func (s *Shard) askVoter(ctx context.Context, v raft.Server, term uint64) error {
	resp, err := s.clientOf(v).ConfirmTerm(ctx, &peerpb.ConfirmTermRequest{Term: term})
	switch {
	case err != nil:
		return fmt.Errorf("%s: %s", v.ID, status.Convert(err).Message())
	case resp.GetTerm() != term:
		return fmt.Errorf("%s is in term %d", v.ID, resp.GetTerm())
	}
	return nil
}
