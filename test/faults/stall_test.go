package faults

import (
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-db/tidemark/test/disk"
	"github.com/tidemark-db/tidemark/test/process"
)

// A node was paused (SIGSTOP) while its watchdog waited for the disk, and ended itself when it
// went on: the watchdog took the pause for the disk's.
func TestAPausedNodeIsNotTakenForAStalledDisk(t *testing.T) {
	f := newFixture(t, "--disk-stall-timeout", "2s", "--min-free-disk-bytes", "1MiB")
	d := disk.New(t, t.TempDir(), "d", 64<<20)
	f.options.DataDir = filepath.Join(d.Dir, "data")
	n := process.Start(t, f.options)
	f.load(t, n, 50)

	defer d.Thaw(t)
	d.Freeze(t)
	pass(t, n, 900*time.Millisecond) // a probe begins every 500 ms, and waits
	n.Signal(t, syscall.SIGSTOP)
	pass(t, n, 2500*time.Millisecond)
	d.Thaw(t)
	n.Signal(t, syscall.SIGCONT)
	pass(t, n, 500*time.Millisecond)
	f.load(t, n, 50)
	n.Kill(t)
	f.verify(t)
}

// pass lets time pass in which a node must not end.
func pass(t *testing.T, n *process.Node, d time.Duration) {
	t.Helper()
	select {
	case <-n.Exited():
		t.Fatalf("the node ended by itself: %+v\n%s", n.Wait(t, time.Second), n.Log())
	case <-time.After(d):
	}
}
