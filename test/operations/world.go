package operations

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// world is where commands run: namespaces of its own for network, mounts and processes, whose
// first process ends with the test and takes all others with it.
type world struct {
	dir  string // what is shared by the machines
	init int    // its first process, as this test sees it
	path string // PATH of the commands
}

// initScript makes the loopback of the world answer at some addresses, says so, and then does
// nothing but inherit the processes that others leave.
const initScript = `set -e
mount --make-rprivate /
mount -t proc proc /proc
ip link set lo up
for a in "$@"; do ip addr add "$a/32" dev lo; done
echo ready
read -r _`

// newWorld makes a world whose machines have some addresses; commands are first looked for in
// bin.
func newWorld(t *testing.T, bin string, addresses ...string) *world {
	t.Helper()
	w := &world{dir: t.TempDir(), path: bin + ":" + os.Getenv("PATH")}
	cmd := exec.Command("bash", append([]string{"-c", initScript, "world"}, addresses...)...)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Pdeathsig:  syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatalf("make namespaces (expected root): %v", err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Process.Kill() // and the kernel all that is in the world
		_ = cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "ready\n" {
		t.Fatalf("make a world: found %q (%v), expected \"ready\"", line, err)
	}
	w.init = cmd.Process.Pid
	return w
}

// command is one that runs in the world.
func (w *world) command(ctx context.Context, args ...string) *exec.Cmd {
	enter := []string{"-t", strconv.Itoa(w.init), "--net", "--mount", "--pid", "--wd=" + w.dir, "--"}
	cmd := exec.CommandContext(ctx, "nsenter", append(enter, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+w.path)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// patience bounds every wait, that for a build on a busy machine too. None else takes more than some
// seconds.
const patience = 2 * time.Minute

// run runs a script with bash, which ends at the first command that fails, and returns what it
// has printed.
func (w *world) run(t *testing.T, script string) string {
	t.Helper()
	out, err := w.try(t, script)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

func (w *world) try(t *testing.T, script string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	// A file and no pipe: what a script leaves running holds its output open.
	file, err := os.CreateTemp(w.dir, "output-")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	cmd := w.command(ctx, "bash", "-euo", "pipefail", "-c", script)
	cmd.Stdout, cmd.Stderr = file, file
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("%w of\n%s", err, script)
	}
	out, readErr := os.ReadFile(file.Name())
	if readErr != nil {
		t.Fatal(readErr)
	}
	return string(out), err
}

// until runs a script again and again until it succeeds and prints what it should.
func (w *world) until(t *testing.T, what, script string, met func(out string) bool) {
	t.Helper()
	deadline, ticker := time.After(patience), time.NewTicker(200*time.Millisecond)
	defer ticker.Stop()
	for begun := time.Now(); ; {
		out, err := w.try(t, script)
		if err == nil && met(out) {
			t.Logf("%v for %s", time.Since(begun).Round(time.Millisecond), what)
			return
		}
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("waited %v for %s; found (%v)\n%s", patience, what, err, out)
		}
	}
}

// write makes a file of the world.
func (w *world) write(t *testing.T, name, content string, mode os.FileMode) {
	t.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
}

// shell is an interactive one, nearly: it has jobs, and takes commands one after the other.
type shell struct {
	in   io.WriteCloser
	file string
	asks int
}

// newShell starts one in a directory.
func (w *world) newShell(t *testing.T, dir string) *shell {
	t.Helper()
	cmd := w.command(t.Context(), "bash", "-m")
	s := &shell{file: filepath.Join(w.dir, "terminal")}
	file, err := os.Create(s.file)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = file, file
	if s.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.in.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("the terminal shows:\n%s", s.shows(t))
		}
		_ = file.Close()
	})
	s.give(t, "cd "+dir)
	return s
}

// shows is everything that was printed.
func (s *shell) shows(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(s.file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// give gives a command and waits for the prompt: until it ended or is in the background. It
// fails the test if the command has.
func (s *shell) give(t *testing.T, command string) {
	t.Helper()
	s.asks++
	end := fmt.Sprintf("\n[prompt %d: ", s.asks)
	// Commands must not read what comes after them.
	if _, err := fmt.Fprintf(s.in, "{ %s\n} </dev/null\necho; echo \"[prompt %d: $?]\"\n", command, s.asks); err != nil {
		t.Fatal(err)
	}
	deadline, ticker := time.After(patience), time.NewTicker(50*time.Millisecond)
	defer ticker.Stop()
	for {
		if _, rest, ok := strings.Cut(s.shows(t), end); ok {
			if !strings.HasPrefix(rest, "0]") {
				t.Fatalf("exit code %.2s of: %s", rest, command)
			}
			return
		}
		select {
		case <-ticker.C:
		case <-deadline:
			t.Fatalf("after %v this does not end: %s", patience, command)
		}
	}
}
