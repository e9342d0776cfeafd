package replication

import (
	"context"
	"errors"

	"go.uber.org/zap"

	"github.com/tidemark-db/tidemark/replication/peer"
)

// supervise owns raft's life until the shard stops: it waits until this node is a member of
// a cluster, starts raft, unless it runs already, starts it again when asked to, and shuts
// it down.
func (s *Shard) supervise(running bool) {
	defer s.wg.Done()
	if !running {
		if !s.formOrJoin() {
			return
		}
		if err := s.startMember(); err != nil {
			s.fatal(err)
			return
		}
	}
	for {
		select {
		case <-s.stopped:
			s.stopErr = s.raftGroup().shutdown()
			return
		case reason := <-s.restarts:
			s.log.Warn("raft is started again", zap.String("reason", reason))
			s.endTenure("raft was started again")
			err := s.raftGroup().shutdown()
			s.endTenure("raft was started again") // one that began meanwhile
			if err = errors.Join(err, s.startRaft()); err != nil {
				s.fatal(err)
				return
			}
		}
	}
}

// restartRaft has raft started again, because what it remembers of the log is not true any
// more. It does not wait for that, so that raft's own goroutines may call it.
func (s *Shard) restartRaft(reason string) {
	select {
	case s.restarts <- reason:
	default: // one is due already
	}
}

// startMember starts what runs on a member of a cluster.
func (s *Shard) startMember() error {
	if err := s.nameTimeline(); err != nil {
		return err
	}
	if err := s.startRaft(); err != nil {
		return err
	}
	s.wg.Add(1)
	go s.compact()
	if s.net != nil {
		s.wg.Add(3)
		go s.tendMembers()
		go s.compareDigests()
		go s.watchPeers()
	}
	return nil
}

// nameTimeline writes the timeline into a history that has applied nothing, so that reads
// before the first write name it, too. Nothing is applied meanwhile.
func (s *Shard) nameTimeline() error {
	s.proc.applied.Timeline = s.identity().Timeline
	if s.store.Applied().Timeline != "" {
		return nil
	}
	b := s.store.NewBatch()
	b.SetApplied(s.proc.applied)
	if err := s.store.Commit(b); err != nil {
		return err
	}
	view := s.store.View()
	s.mu.Lock()
	old := s.view
	s.view = view
	s.mu.Unlock()
	old.Release()
	return nil
}

// acceptRaft lets raft's connections in once raft runs.
func (s *Shard) acceptRaft(peer.Identity) error {
	if s.raftGroup() == nil {
		return errors.New("raft does not run here yet: this node has only just become a member")
	}
	return nil
}

// setWaiting keeps what a node that is not a member waits for.
func (s *Shard) setWaiting(text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting = text
}

// wakeForming makes formOrJoin look again at once.
func (s *Shard) wakeForming() {
	select {
	case s.formWake <- struct{}{}:
	default:
	}
}

// Stop stops admitting, waits until what is in flight is answered or ctx ends, hands
// leadership to another node if there is one, and closes the shard with everything flushed, so that the next start replays nothing.
func (s *Shard) Stop(ctx context.Context) error {
	s.mu.Lock()
	s.stopping = true
	s.leadershipChanged()
	s.mu.Unlock()
	s.drain(ctx)
	s.HandOver(ctx)
	return s.close(true)
}

// Abandon closes the shard as a crash would leave it: what waits is answered as unknown,
// and nothing is flushed.
func (s *Shard) Abandon() error { return s.close(false) }

func (s *Shard) drain(ctx context.Context) {
	for {
		s.mu.Lock()
		if t := s.tenure; t == nil || !t.awaited() {
			s.mu.Unlock()
			return
		}
		wait := s.progress()
		s.mu.Unlock()
		select {
		case <-wait:
		case <-ctx.Done():
			return
		}
	}
}

// progress returns a channel that is closed at the next progress. s.mu is held.
func (s *Shard) progress() <-chan struct{} {
	if s.progressWait == nil {
		s.progressWait = make(chan struct{})
	}
	return s.progressWait
}

// progressed wakes who waits for progress. s.mu is held.
func (s *Shard) progressed() {
	if s.progressWait != nil {
		close(s.progressWait)
		s.progressWait = nil
	}
}

func (s *Shard) close(flush bool) (err error) {
	s.stopOnce.Do(func() {
		s.mu.Lock()
		s.stopping = true
		s.mu.Unlock()
		s.endTenure("the node is stopping")
		close(s.stopped)
		s.wg.Wait()
		err = errors.Join(s.stopErr, s.closeFiles(flush && !s.failed()))
	})
	return err
}

// closeFiles closes what is open; also after a start that failed half way.
func (s *Shard) closeFiles(flush bool) error {
	var errs []error
	select {
	case <-s.stopped:
	default: // the start failed half way
		close(s.stopped)
		s.wg.Wait()
	}
	if s.net != nil {
		errs = append(errs, s.net.Close())
	} else if s.opts.Listener != nil {
		errs = append(errs, s.opts.Listener.Close())
	}
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	if s.view != nil {
		s.view.Release()
	}
	switch {
	case s.store == nil:
	case flush:
		errs = append(errs, s.store.Close())
	default:
		errs = append(errs, s.store.Abandon())
	}
	errs = append(errs, s.hist.close())
	if s.tail != nil {
		errs = append(errs, s.tail.Close())
	}
	if s.stable != nil {
		errs = append(errs, s.stable.Close())
	}
	if s.lock != nil {
		errs = append(errs, s.lock.release())
	}
	return errors.Join(errs...)
}
