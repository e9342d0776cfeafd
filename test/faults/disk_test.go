package faults

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/process"
	"github.com/tidemark-db/tidemark/test/writers"
)

// smallDisk mounts a tmpfs and returns a directory on it and a way to change its size.
func smallDisk(t *testing.T, size int) (dir string, resize func(size int)) {
	t.Helper()
	dir = t.TempDir()
	if err := syscall.Mount("tidemark-test", dir, "tmpfs", 0, "size="+strconv.Itoa(size)); err != nil {
		t.Fatalf("mount a tmpfs of %d bytes: %v", size, err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Errorf("unmount %s: %v", dir, err)
		}
	})
	return dir, func(size int) {
		if err := syscall.Mount("tidemark-test", dir, "tmpfs", syscall.MS_REMOUNT, "size="+strconv.Itoa(size)); err != nil {
			t.Fatalf("remount with %d bytes: %v", size, err)
		}
	}
}

// limitFiles makes every write beyond a file size fail with EFBIG. It is what a user
// without root can do, and a second way to run out of room.
func limitFiles(size int) []string { return []string{"prlimit", "--fsize=" + strconv.Itoa(size)} }

// refusedForSpace says whether all writers were stopped by 2018.
func refusedForSpace(endings []writers.Ending) bool {
	for _, e := range endings {
		if !e.Definite || api.CodeOf(e.Err) != pb.ErrorCode_ERROR_CODE_INSUFFICIENT_DISK_SPACE {
			return false
		}
	}
	return true
}

// Below the reserve writes are refused and everything else goes on.
func TestBelowTheReserveWritesAreRefusedBeforeTheDiskIsFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Log("without root there is no small disk: the reserve is set to all there is instead")
		testReserveAboveDisk(t)
		return
	}
	f := newFixture(t, "--min-free-disk-bytes", "16MiB")
	disk, resize := smallDisk(t, 28<<20)
	f.options.DataDir = filepath.Join(disk, "data")
	n := process.Start(t, f.options)
	to := clients(t, n)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if e := f.set.Run(ctx, to, nil); !refusedForSpace(e) {
		t.Fatalf("the writers were stopped by %v, expected 2018 for all", e)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(disk, &st); err != nil {
		t.Fatal(err)
	}
	if free := int64(st.Bavail) * st.Bsize; free < 4<<20 {
		t.Errorf("%d bytes are free, so the refusal came late for a reserve of 16 MiB", free)
	}
	// A retry is told that it landed, on a full disk too; reads go on.
	if err := f.set.Retry(ctx, to[0]); err != nil {
		t.Errorf("retries below the reserve: %v", err)
	}
	if err := f.set.Check(ctx, to[0]); err != nil {
		t.Errorf("reads below the reserve: %v", err)
	}
	// Space comes back: so do writes, without a restart.
	resize(256 << 20)
	accepted := make(chan struct{}, 1)
	for deadline := time.After(20 * time.Second); len(accepted) == 0; {
		once, stop := context.WithCancel(ctx)
		f.set.Run(once, to, func() {
			select {
			case accepted <- struct{}{}:
			default:
			}
			stop()
		})
		stop()
		select {
		case <-deadline:
			t.Fatal("there is room again, and 20 s later writes are still refused")
		default:
		}
	}
	n.Kill(t)
	f.verify(t)
}

func testReserveAboveDisk(t *testing.T) {
	f := newFixture(t)
	n := process.Start(t, f.options)
	f.load(t, n, 100)
	n.Kill(t)
	f.options.Args = append(f.options.Args, "--min-free-disk-bytes", "1TiB")
	n = process.Start(t, f.options)
	if e := f.set.Run(t.Context(), clients(t, n), nil); !refusedForSpace(e) {
		t.Fatalf("the writers were stopped by %v, expected 2018 for all", e)
	}
	if err := f.set.Check(t.Context(), clients(t, n)[0]); err != nil {
		t.Errorf("reads below the reserve: %v", err)
	}
}

// When the disk is really full the process ends, and with room it comes back.
func TestAFullDiskEndsTheProcess(t *testing.T) {
	f := newFixture(t, "--min-free-disk-bytes", "0")
	roomy := f.options
	if os.Geteuid() == 0 {
		disk, resize := smallDisk(t, 12<<20)
		f.options.DataDir = filepath.Join(disk, "data")
		roomy.DataDir = f.options.DataDir
		n := process.Start(t, f.options)
		f.set.Run(t.Context(), clients(t, n), nil)
		expectExit(t, n, 20*time.Second, exitStorage, f.options.DataDir, "no space left on device")
		resize(256 << 20)
	} else {
		f.options.Prefix = limitFiles(256 << 10)
		n := process.Start(t, f.options)
		f.set.Run(t.Context(), clients(t, n), nil)
		expectExit(t, n, 20*time.Second, exitStorage, f.options.DataDir, "file too large")
	}
	f.options = roomy
	f.verify(t)
}

// A file that cannot grow is a failed write like any other.
func TestAFileSizeLimitEndsTheProcess(t *testing.T) {
	f := newFixture(t)
	f.options.Prefix = limitFiles(256 << 10)
	n := process.Start(t, f.options)
	f.set.Run(t.Context(), clients(t, n), nil)
	expectExit(t, n, 20*time.Second, exitStorage, f.options.DataDir, "file too large")
	f.options.Prefix = nil
	f.verify(t)
}

// Where nothing can be written a start fails, and leaves all for the next one.
func TestAStartOnAFullDiskEndsTheProcess(t *testing.T) {
	f := newFixture(t)
	n := process.Start(t, f.options)
	f.load(t, n, 200)
	n.Kill(t)
	full := f.options
	full.Prefix = limitFiles(1)
	expectExit(t, process.Launch(t, full), 10*time.Second, exitStorage, "the node did not start", f.options.DataDir, "file too large")
	f.verify(t)
}

// Pebble stops the goroutine that cannot write the first MANIFEST of a store for good, in the
// middle of its own Open: the start used to hang.
func TestAStartThatCannotMakeTheHistoryEndsTheProcess(t *testing.T) {
	f := newFixture(t)
	n := process.Start(t, f.options)
	f.load(t, n, 200)
	n.Kill(t)
	history := filepath.Join(f.options.DataDir, "history")
	if err := os.RemoveAll(history); err != nil {
		t.Fatal(err)
	}
	full := f.options
	// timeout: a node that hangs outlives strace, and the test would wait for it.
	full.Prefix = []string{"strace", "-f", "-o", filepath.Join(t.TempDir(), "trace"), "-P", filepath.Join(history, "0000000001", "MANIFEST-000001"),
		"-e", "trace=write", "-e", "inject=write:error=ENOSPC", "timeout", "-s", "KILL", "20"}
	expectExit(t, process.Launch(t, full), 10*time.Second, exitStorage, "the node did not start", "pebble cannot go on: MANIFEST flush failed", history, "no space left on device")
	f.verify(t)
}

// What a stop flushes cannot be written, and Pebble tries for ever: the stop used to take the
// whole shutdown-timeout, and to end with 1.
func TestAStopOnADiskThatStaysFullIsPrompt(t *testing.T) {
	f := newFixture(t, "--shutdown-timeout", "1m")
	n := process.Start(t, f.options)
	f.load(t, n, 100)
	// No file of the process can grow from now on.
	if out, err := exec.Command("prlimit", "--pid", strconv.Itoa(n.PID), "--fsize=1").CombinedOutput(); err != nil {
		t.Fatalf("prlimit: %v: %s", err, out)
	}
	n.Signal(t, syscall.SIGTERM)
	expectExit(t, n, 10*time.Second, exitStorage, filepath.Join(f.options.DataDir, "history"), "file too large")
	f.verify(t)
}

// inject attaches strace to a running node and makes system calls fail from now on.
func inject(t *testing.T, n *process.Node, args ...string) {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Fatal("strace is not installed, and nothing else here makes system calls fail: install it (apt-get install strace)")
	}
	cmd := exec.Command(strace, append([]string{"-f", "-p", strconv.Itoa(n.PID), "-o", filepath.Join(t.TempDir(), "trace")}, args...)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	attached := make(chan string, 1)
	ended := make(chan struct{})
	// Ends when strace does, which is when the node does, or by the cleanup.
	go func() {
		defer close(ended)
		var said strings.Builder
		buf := make([]byte, 4096)
		for {
			k, err := stderr.Read(buf)
			said.Write(buf[:k])
			if strings.Contains(said.String(), "attached") {
				select {
				case attached <- "":
				default:
				}
			}
			if err != nil {
				break
			}
		}
		_ = cmd.Wait() // it mirrors the node's end
		select {
		case attached <- said.String():
		default:
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the error says that it has ended already
		<-ended
	})
	select {
	case failed := <-attached:
		if failed != "" {
			t.Fatalf("strace: %s", failed)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("strace has not attached within 10 s")
	}
}

// A write that fails leaves the file and the memory of the log library in disagreement: no
// second attempt, the process ends.
func TestAFailingWriteEndsTheProcess(t *testing.T) {
	f := newFixture(t)
	n := process.Start(t, f.options)
	ended, _ := f.background(t, n)
	path := lastSegment(t, f.options.DataDir)
	inject(t, n, "-P", path, "-e", "trace=write,pwrite64,writev", "-e", "inject=write,pwrite64,writev:error=EIO")
	expectExit(t, n, 20*time.Second, exitStorage, filepath.Join(f.options.DataDir, "tail"), "input/output error")
	<-ended
	f.verify(t)
}

// A flush that never returns gives no error to act on. The watchdog ends the process, so
// that its clients, and other nodes, learn of it.
func TestADiskThatHangsEndsTheProcess(t *testing.T) {
	f := newFixture(t, "--disk-stall-timeout", "1s")
	n := process.Start(t, f.options)
	ended, _ := f.background(t, n)
	inject(t, n, "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:delay_enter=3s")
	expectExit(t, n, 15*time.Second, exitStorage, "the disk does not answer", "disk-stall-timeout")
	<-ended
	f.verify(t)
}

// After a failed fsync nobody knows what is on the disk: the process must end, and must
// not acknowledge what the fsync was for.
func TestAFailingFsyncEndsTheProcess(t *testing.T) {
	f := newFixture(t)
	n := process.Start(t, f.options)
	ended, _ := f.background(t, n)
	inject(t, n, "-e", "trace=fsync,fdatasync", "-e", "inject=fsync,fdatasync:error=EIO")
	expectExit(t, n, 20*time.Second, exitStorage, filepath.Join(f.options.DataDir, "tail"), "input/output error")
	acked := f.set.Acknowledged()
	<-ended
	if f.set.Acknowledged() != acked {
		t.Error("something was acknowledged after the process had ended")
	}
	f.verify(t)
}
