package powerloss

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// maxString is the longest write that strace prints whole. The largest that any part of
// Tidemark does is below 16 MiB; a longer one fails the recording.
const maxString = 16 << 20

// calls are the system calls that change a directory, or that the model must refuse.
const calls = "openat,close,write,writev,pwrite64,pwritev,pwritev2,lseek,ftruncate,truncate,fallocate," +
	"fsync,fdatasync,sync_file_range,msync,mkdirat,mkdir,renameat,renameat2,rename,unlinkat,unlink,rmdir," +
	"linkat,link,symlinkat,symlink,dup,dup2,dup3,fcntl,mmap,copy_file_range,sendfile,splice,io_uring_setup"

// programEnv names the program that the test binary is to be, and rootEnv its directory.
const (
	programEnv = "TIDEMARK_POWERLOSS_PROGRAM"
	rootEnv    = "TIDEMARK_POWERLOSS_ROOT"
)

// ErrNoStrace is returned when strace is not installed.
var ErrNoStrace = errors.New("strace is not installed, and nothing else here records file operations: install it (apt-get install strace)")

// Record runs this binary again as the named program, with args as its flags, on the empty directory
// root, under strace, and returns its calls.
func Record(ctx context.Context, program, root, scratch string, args ...string) ([]Call, error) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		return nil, ErrNoStrace
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if root, err = filepath.EvalSymlinks(root); err != nil {
		return nil, err
	}
	trace := filepath.Join(scratch, "trace")
	cmd := exec.CommandContext(ctx, strace, "-f", "-y", "-xx", "-q", "--seccomp-bpf", "-s", strconv.Itoa(maxString),
		"-o", trace, "-e", "trace="+calls, "-e", "signal=none", self)
	// Preemption by signals interrupts system calls and fills the trace.
	cmd.Env = append(os.Environ(), programEnv+"="+program, rootEnv+"="+root, "GODEBUG=asyncpreemptoff=1")
	cmd.Args = append(cmd.Args, args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.Stdout = &bytes.Buffer{}
	// strace would leave the program behind if it alone were killed.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("record %s: %w\n%s", program, err, stderr.Bytes())
	}
	f, err := os.Open(trace)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	parsed, err := ParseTrace(f)
	if err != nil {
		return nil, err
	}
	return parsed, os.Remove(trace)
}

// Program is the program that this process was started as by Record and its directory;
// the name is empty in a test run.
func Program() (name, root string) { return os.Getenv(programEnv), os.Getenv(rootEnv) }
