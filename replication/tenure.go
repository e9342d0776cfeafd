package replication

import (
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/tidemark-db/tidemark/wal/record"
)

// Limits of the batcher. An entry beyond 512 KiB delays the heartbeats and the votes that
// share its connection (raft's own advice); one request may be larger and then goes alone.
const (
	maxEntryBytes    = 512 << 10
	maxEntryRequests = 4096
)

// tenure is this node's leadership in one term. All that is in flight belongs to it and
// ends with it. Its fields are guarded by Shard.mu, but for the channels.
type tenure struct {
	term  uint64
	group group
	ready bool // inherited entries are applied; requests are admitted
	// lost: raft said that leadership is gone, and the end of the tenure is on its way. What
	// is queued is not handed over any more, so that it gets a definite answer.
	lost bool
	// overlay holds what is in flight: queued, or proposed.
	overlay *overlay
	queue   []*pending
	bytes   int64 // of everything in flight
	// proposed are the requests handed to raft, by ticket.
	proposed map[uint64]*proposal

	wake chan struct{} // one token: the queue is not empty
	done chan struct{} // closed when the tenure ends
}

// proposal is one entry's worth of requests, handed to raft together.
type proposal struct {
	ticket   uint64
	requests []*pending
	// answered: the callers were told that the outcome is unknown. The requests stay in the
	// overlay until Apply has run or the term ends.
	answered bool
	// handed is when raft got the entry. The batcher sets it before that, so whoever has the
	// entry from raft may read it.
	handed time.Time
}

func newTenure(term uint64, g group) *tenure {
	return &tenure{
		term:     term,
		group:    g,
		overlay:  newOverlay(),
		proposed: make(map[uint64]*proposal),
		wake:     make(chan struct{}, 1),
		done:     make(chan struct{}),
	}
}

// enqueue takes a request in. Shard.mu is held.
func (t *tenure) enqueue(p *pending) {
	t.overlay.add(p)
	t.bytes += p.bytes()
	t.queue = append(t.queue, p)
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

// leave takes a request out once its fate is published. Shard.mu is held.
func (t *tenure) leave(p *pending) {
	t.overlay.remove(p)
	t.bytes -= p.bytes()
}

// awaited says whether somebody waits for something in flight. Shard.mu is held.
func (t *tenure) awaited() bool {
	for _, g := range t.proposed {
		if !g.answered {
			return true
		}
	}
	return len(t.queue) > 0
}

// take moves what is waiting, up to one entry's worth, from the queue to proposed. Shard.mu
// is held.
func (t *tenure) take(ticket uint64) *proposal {
	size, n := 0, 0
	for n < len(t.queue) && n < maxEntryRequests {
		size += len(t.queue[n].buf)
		if n > 0 && size > maxEntryBytes {
			break
		}
		n++
	}
	if n == 0 {
		return nil
	}
	g := &proposal{ticket: ticket, requests: append([]*pending(nil), t.queue[:n]...)}
	rest := copy(t.queue, t.queue[n:])
	clear(t.queue[rest:])
	t.queue = t.queue[:rest]
	t.proposed[g.ticket] = g
	return g
}

// entry encodes the proposal.
func (g *proposal) entry(term uint64) []byte {
	size := record.EntryHeaderSize
	for _, p := range g.requests {
		size += len(p.buf)
	}
	data := record.AppendEntryHeader(make([]byte, 0, size), term, g.ticket, uint32(len(g.requests)))
	for _, p := range g.requests {
		data = append(data, p.buf...)
	}
	return data
}

// batch is the tenure's batcher: the only goroutine that proposes in its term. It takes a
// slot first and then what is waiting, so that entries grow by back-pressure alone, and
// ends with the tenure.
func (s *Shard) batch(t *tenure) {
	slots := make(chan struct{}, s.opts.MaxOutstandingEntries)
	for {
		select {
		case slots <- struct{}{}:
		case <-t.done:
			return
		}
		g := s.next(t)
		if g == nil {
			return
		}
		if hook := s.opts.Hooks.BeforePropose; hook != nil {
			hook()
		}
		data := g.entry(t.term)
		s.meter.proposes(g, len(data))
		future := t.group.propose(data)
		// At most MaxOutstandingEntries of these, each ends with its future. Should raft
		// never resolve one, its callers still have their deadlines, and the tenure its end.
		go func() {
			s.resolved(t, g, future())
			<-slots
		}()
	}
}

// next waits until something is queued; nil when the tenure has ended.
func (s *Shard) next(t *tenure) *proposal {
	for {
		if g := s.takeNext(t); g != nil {
			return g
		}
		select {
		case <-t.wake:
		case <-t.done:
			return nil
		}
	}
}

// takeNext is next without waiting.
func (s *Shard) takeNext(t *tenure) *proposal {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tenure != t || t.lost {
		return nil
	}
	g := t.take(s.lastTicket + 1)
	if g != nil {
		s.lastTicket++
	}
	return g
}

// resolved handles raft's answer to a proposal. On success there is nothing to do: Apply
// has published the outcomes before raft resolved the future.
func (s *Shard) resolved(t *tenure, g *proposal, err error) {
	if err == nil {
		return
	}
	o := outcome{kind: unknown, reason: fmt.Sprintf("replication failed (%v)", err)}
	if errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrEnqueueTimeout) || errors.Is(err, raft.ErrLeadershipTransferInProgress) {
		// The only answers by which raft promises that the entry is in no log.
		o = outcome{kind: notProposed, reason: fmt.Sprintf("this node gave the write back before it was logged (%v)", err)}
	}
	s.mu.Lock()
	t.lost = t.lost || errors.Is(err, raft.ErrLeadershipLost)
	if t.proposed[g.ticket] != g || g.answered {
		s.mu.Unlock()
		return // ended with the tenure, or applied after all
	}
	if o.kind == notProposed {
		// Only a definite no may leave before Apply: an unknown one can still land, and the
		// overlay must go on saying so until the term ends.
		delete(t.proposed, g.ticket)
		for _, p := range g.requests {
			t.leave(p)
		}
	} else {
		g.answered = true
	}
	for _, p := range g.requests {
		p.sent.settled(false)
	}
	s.progressed()
	s.mu.Unlock()
	s.log.Warn("a proposal failed", zap.Uint64("term", t.term), zap.Int("requests", len(g.requests)), zap.Error(err))
	for _, p := range g.requests {
		p.finish(o)
	}
}

// endTenure drops everything that is in flight: what was not handed to raft did not land,
// the rest may.
func (s *Shard) endTenure(reason string) {
	s.mu.Lock()
	t := s.tenure
	if t == nil {
		s.mu.Unlock()
		return
	}
	s.tenure = nil
	queued := t.queue
	t.queue = nil
	var handed []*pending
	for _, g := range t.proposed {
		if !g.answered {
			handed = append(handed, g.requests...)
		}
	}
	t.proposed = nil
	for _, ps := range [][]*pending{queued, handed} {
		for _, p := range ps {
			p.sent.settled(false)
		}
	}
	t.overlay.end()
	close(t.done)
	s.progressed()
	s.leadershipChanged()
	s.mu.Unlock()
	for _, p := range queued {
		p.finish(outcome{kind: notProposed, reason: reason})
	}
	for _, p := range handed {
		p.finish(outcome{kind: unknown, reason: reason})
	}
	s.log.Info("leadership ended", zap.Uint64("term", t.term), zap.Int("given_back", len(queued)), zap.Int("outcome_unknown", len(handed)), zap.String("reason", reason))
}
