package replication

import (
	"time"

	"github.com/hashicorp/raft"
	"go.uber.org/zap"

	"github.com/tidemark-db/tidemark/wal/history"
)

// maxStepBytes bounds what one step collects before it is committed: a replay hands over
// up to 64 entries of 512 KiB at once, and a step that large would not fit a memtable.
const maxStepBytes = 4 << 20

// fsm is the thin shell between raft and the processor. Raft calls it from one goroutine.
type fsm struct{ s *Shard }

var _ raft.BatchingFSM = (*fsm)(nil)

func (f *fsm) Apply(l *raft.Log) any { return f.ApplyBatch([]*raft.Log{l})[0] }

// ApplyBatch applies committed entries in steps: decide and collect, commit to the history,
// publish. A storage error or a damaged entry ends the process: another answer would make
// this node differ from the log.
func (f *fsm) ApplyBatch(logs []*raft.Log) []any {
	responses := make([]any, len(logs))
	for start := 0; start < len(logs); {
		n, err := f.s.step(logs[start:])
		if err != nil {
			f.s.fatal(err)
			return responses // the process is ending; nobody is told anything definite
		}
		start += n
	}
	return responses
}

// step applies a first part of logs and returns how many.
func (s *Shard) step(logs []*raft.Log) (int, error) {
	began := time.Now()
	if s.failed() {
		return len(logs), nil // after a fatal error nothing is applied, and nobody is answered
	}
	view := s.currentView()
	defer view.Release()
	s.proc.begin(view)
	results := s.results[:0]
	n := 0
	for n < len(logs) && (n == 0 || s.proc.batch.Bytes() < maxStepBytes) {
		l := logs[n]
		n++
		if l.Type != raft.LogCommand {
			continue
		}
		r, err := s.proc.entry(l.Index, l.Term, l.Data, s.wanted)
		if err != nil {
			return n, err
		}
		results = append(results, r)
	}
	for _, bug := range s.proc.schemas.bugs {
		s.log.Error("an entry was validated against other schemas than there are", zap.Error(bug))
	}
	s.results = results
	if s.proc.applied == view.Applied() {
		s.proc.end()
		return n, nil // nothing but old or internal entries
	}
	changes := s.proc.takeLogged()
	if err := s.store.Commit(s.proc.finish()); err != nil {
		return n, err
	}
	if hook := s.opts.Hooks.BeforePublish; hook != nil {
		hook()
	}
	s.publish(s.store.View(), results, changes, began)
	s.meter.apply.Observe(time.Since(began).Seconds())
	s.proc.end()
	clear(results)
	return n, nil
}

// wanted says whether a call on this node waits for an entry's outcomes.
func (s *Shard) wanted(term, ticket uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tenure != nil && s.tenure.term == term && s.tenure.proposed[ticket] != nil
}

// publish makes a step visible at one moment: the new view, the heads and marks that
// changed, and with them the departure of its requests from the overlay. Then it hands the
// changes to those who follow the log, and wakes the callers. The step began when its entries
// were committed and their turn had come.
func (s *Shard) publish(view *history.View, results []entryResult, changes []LogChange, began time.Time) {
	index := s.proc.applied.Index
	s.digests.addAll(results)
	finished := s.finished[:0]
	s.mu.Lock()
	old := s.view
	s.view = view
	for _, w := range s.proc.order {
		if w.dirty {
			s.cache.PutHead(w.key, w.head, index)
		}
	}
	s.proc.writeMarks(s.cache)
	for _, typ := range s.proc.schemas.changed {
		s.revisions[typ] = s.proc.schemas.revisions[typ]
	}
	if t := s.tenure; t != nil {
		for i := range results {
			r := &results[i]
			g := t.proposed[r.ticket]
			if g == nil || r.term != t.term || len(r.outcomes) != len(g.requests) {
				continue
			}
			delete(t.proposed, r.ticket)
			s.meter.replication.Observe(began.Sub(g.handed).Seconds())
			for j, p := range g.requests {
				t.leave(p)
				if !g.answered {
					p.outcome = r.outcomes[j]
					if ref := p.outcome.refusal; ref != nil {
						// Requests leave in the order of the log: what is left of the writer's
						// was in flight when this one was judged.
						w := &p.writes[ref.failure.WriteIndex]
						ref.failure.InFlightMark = t.overlay.mark(w.Key, p.client)
					}
					p.sent.settled(p.outcome.kind == committed)
					finished = append(finished, p)
				}
			}
		}
	}
	s.progressed()
	s.mu.Unlock()
	old.Release()
	// After the view, which must hold what followers are told of; before the callers, who may
	// have made batches unreadable that the ring still holds.
	s.feed.Publish(changes)
	for _, p := range finished {
		close(p.done)
	}
	deliverAll(finished)
	clear(finished)
	s.finished = finished[:0]
}
