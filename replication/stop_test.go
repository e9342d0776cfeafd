package replication

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/hashicorp/raft"
)

// stopWithin stops the shard and fails the test, with every goroutine's stack, if that hangs.
func stopWithin(t *testing.T, s *Shard, d time.Duration) {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- s.Stop(context.Background()) }()
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(d):
		panic("Stop hangs")
	}
}

// A stop at the moment of the election used to wait for a barrier that raft had not taken up
// when it was shut down and never resolves.
func TestStopWhileLeadershipBegins(t *testing.T) {
	dir := t.TempDir()
	for range 20 {
		s, err := Open(Options{Dir: dir, MinFreeDiskBytes: -1, BlockCacheBytes: 1 << 20, MemTableBytes: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		for leading := false; !leading; {
			s.mu.Lock()
			leading = s.tenure != nil
			changed := s.leaderWait
			s.mu.Unlock()
			if !leading {
				<-changed
			}
		}
		stopWithin(t, s, 20*time.Second)
	}
}

// Stop waits for what is in flight. It used to go on waiting when that ended without being
// applied: given back by raft, lost to it, or dropped with the leadership.
func TestStopAfterWhatWasInFlightEndedUnapplied(t *testing.T) {
	for name, end := range map[string]func(*Shard, *gate){
		"given back":      func(_ *Shard, g *gate) { g.lift(raft.ErrEnqueueTimeout) },
		"unknown":         func(_ *Shard, g *gate) { g.lift(errors.New("a raft error")) },
		"leadership lost": func(s *Shard, g *gate) { s.endTenure("a test"); g.lift() },
	} {
		t.Run(name, func(t *testing.T) {
			g := newGate()
			s := openShard(t, Options{Dir: t.TempDir(), Hooks: g.hooks()})
			g.shut()
			c := start(t, s, appendOf("a", "1", seqs(1)))
			stopped := make(chan struct{})
			go func() {
				defer close(stopped)
				stopWithin(t, s, 20*time.Second)
			}()
			await(t, "Stop waits", func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.progressWait != nil
			})
			end(s, g)
			if resp, err := c.wait(t); err == nil {
				t.Fatalf("append: ok %v, want an error", resp)
			}
			<-stopped
		})
	}
}
