package replication

import (
	"context"
	"testing"
	"time"
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
