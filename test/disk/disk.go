package disk

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
)

// Disk is a mounted file system.
type Disk struct {
	// Dir is where it is mounted.
	Dir    string
	thaw   io.Closer // closing it thaws; nil = not frozen
	frozen *exec.Cmd
}

// New makes a disk of some bytes under dir, which must exist. It is gone after the test.
func New(tb testing.TB, dir, name string, size int64) *Disk {
	tb.Helper()
	image := filepath.Join(dir, name+".img")
	d := &Disk{Dir: filepath.Join(dir, name)}
	f, err := os.Create(image)
	if err == nil {
		err = f.Truncate(size)
	}
	if err == nil {
		err = f.Close()
	}
	if err == nil {
		err = os.Mkdir(d.Dir, 0o700)
	}
	if err != nil {
		tb.Fatal(err)
	}
	run(tb, "mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=1,nodiscard", image)
	run(tb, "mount", "-o", "loop", image, d.Dir)
	tb.Cleanup(func() {
		d.Thaw(tb)
		run(tb, "umount", d.Dir)
		if err := os.Remove(image); err != nil {
			tb.Error(err)
		}
	})
	return d
}

func run(tb testing.TB, command string, args ...string) {
	tb.Helper()
	if text, err := exec.Command(command, args...).CombinedOutput(); err != nil {
		tb.Fatalf("%s %q: %v (expected root, loop devices and the command)\n%s", command, args, err, text)
	}
}

func (d *Disk) ballast() string { return filepath.Join(d.Dir, "ballast") }

// Free is how many bytes are free.
func (d *Disk) Free(tb testing.TB) int64 {
	tb.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs(d.Dir, &st); err != nil {
		tb.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// Fill takes all space but what is to be left. A node that is writing may meet the full disk
// while this runs.
func (d *Disk) Fill(tb testing.TB, leave int64) {
	tb.Helper()
	f, err := os.OpenFile(d.ballast(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		tb.Fatal(err)
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		tb.Fatal(err)
	}
	size := st.Size()
	// What is free may be in use by the time it is asked for: then take what is left of it.
	for step := d.Free(tb) - leave; step >= 4096; {
		err := syscall.Fallocate(int(f.Fd()), 0, size, step)
		switch err {
		case nil:
			size += step
			step = min(step, d.Free(tb)-leave)
		case syscall.ENOSPC:
			step /= 2
		case syscall.EINTR:
		default:
			tb.Fatalf("take %d bytes of %s: %v", step, d.Dir, err)
		}
	}
}

// Empty gives the space back.
func (d *Disk) Empty(tb testing.TB) {
	tb.Helper()
	if err := os.Remove(d.ballast()); err != nil && !os.IsNotExist(err) {
		tb.Fatal(err)
	}
}

// Freeze stops every write and flush until Thaw. A process that waits for one cannot even
// end.
func (d *Disk) Freeze(tb testing.TB) {
	tb.Helper()
	const script = `fsfreeze -f "$1" && echo frozen; read -r _; fsfreeze -u "$1"`
	d.frozen = exec.Command("sh", "-c", script, "sh", d.Dir)
	in, err := d.frozen.StdinPipe()
	if err != nil {
		tb.Fatal(err)
	}
	out, err := d.frozen.StdoutPipe()
	if err != nil {
		tb.Fatal(err)
	}
	d.frozen.Stderr = os.Stderr
	if err := d.frozen.Start(); err != nil {
		tb.Fatal(err)
	}
	d.thaw = in
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "frozen\n" {
		tb.Fatal(fmt.Errorf("freeze %s: found %q (%v), expected \"frozen\"", d.Dir, line, err))
	}
}

// Thaw lets a frozen disk go on. It does nothing if it is not frozen.
func (d *Disk) Thaw(tb testing.TB) {
	tb.Helper()
	if d.thaw == nil {
		return
	}
	err := d.thaw.Close()
	if err == nil {
		err = d.frozen.Wait()
	}
	d.thaw = nil
	if err != nil {
		tb.Errorf("thaw %s: %v", d.Dir, err)
	}
}
