package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// devNode is one node of a "tidemark dev": a child process.
type devNode struct {
	ID         string `json:"id"`
	Listen     string `json:"listen"`
	RaftListen string `json:"raft_listen"`
	HTTPListen string `json:"http_listen"`

	dataDir string
	command []string  // its command line
	log     io.Writer // of its output, line by line
	// process is what runs now; nil = nothing does.
	process atomic.Pointer[os.Process]
	// told: the process was told to end. A second time would cut it off.
	told atomic.Bool
}

// prepare makes the node's command line. more are further flags, which win.
func (n *devNode) prepare(self, dir, peers, logLevel string, more []string) {
	n.dataDir = filepath.Join(dir, n.ID)
	n.command = append([]string{self, "serve", "--node-id", n.ID, "--data-dir", n.dataDir,
		"--listen", n.Listen, "--raft-listen", n.RaftListen, "--http-listen", n.HTTPListen, "--peers", peers,
		"--log-level", logLevel, "--memory-limit", devMemory}, more...)
}

// devMemory is each node's --memory-limit: several share a machine with a developer.
const devMemory = "256MiB"

// devExit is how a node's process ended, or that it could not be started.
type devExit struct {
	node *devNode
	// code is the exit code; -1 = a signal ended it, or it was not started.
	code int
	text string
	// again: it is started again.
	again bool
}

// run runs the process once, until it ends; it is told to when ctx is done. The thread that starts it stays with it: the
// kernel kills a child when the thread that started it ends, not when the process does.
func (n *devNode) run(ctx context.Context) devExit {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.Command(n.command[0], n.command[1:]...)
	cmd.Stdout, cmd.Stderr = n.log, n.log
	cmd.SysProcAttr = childAttributes()
	// Settings of the environment would be the same for all nodes, and are not what the
	// command line of "tidemark dev" says.
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TIDEMARK_") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	if err := cmd.Start(); err != nil {
		return devExit{node: n, code: -1, text: fmt.Sprintf("could not be started: %v", err)}
	}
	n.told.Store(false)
	n.process.Store(cmd.Process)
	defer context.AfterFunc(ctx, n.end)()
	err := cmd.Wait()
	n.process.Store(nil)
	e := devExit{node: n, code: cmd.ProcessState.ExitCode()}
	switch status, _ := cmd.ProcessState.Sys().(syscall.WaitStatus); {
	case status.Signaled():
		e.text = fmt.Sprintf("was ended by a signal (%v)", status.Signal())
	case err != nil && !errors.As(err, new(*exec.ExitError)):
		e.text = fmt.Sprintf("ended: %v", err)
	default:
		e.text = fmt.Sprintf("ended with exit code %d", e.code)
	}
	return e
}

// end tells the process to end in order.
func (n *devNode) end() {
	if p := n.process.Load(); p != nil && n.told.CompareAndSwap(false, true) {
		_ = p.Signal(syscall.SIGTERM) // the error says that it has ended
	}
}

// kill ends the process at once, and says whether there was one.
func (n *devNode) kill() bool {
	p := n.process.Load()
	return p != nil && p.Kill() == nil
}

// pid is the process's id; 0 = none runs.
func (n *devNode) pid() int {
	if p := n.process.Load(); p != nil {
		return p.Pid
	}
	return 0
}

// shell is the node's command line, to be given by hand.
func (n *devNode) shell(program string) string {
	return shellWords(append([]string{program}, n.command[1:]...))
}

// shellWords are words as a shell reads them.
func shellWords(words []string) string {
	words = slices.Clone(words)
	for i, w := range words {
		if strings.ContainsAny(w, " '\"\\$`&|;<>()*?[]#~{}!\t\n") || w == "" {
			words[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

// restartPause is how long a node that ended waits before it is started again, so that one
// that ends at once does not keep a processor busy.
const restartPause = time.Second

// supervise runs the process, and again after each end that a restart can mend, until ctx is
// done. It tells of every end.
func (n *devNode) supervise(ctx context.Context, restart bool, ended chan<- devExit) {
	for {
		e := n.run(ctx)
		e.again = restart && ctx.Err() == nil && e.code != exitRemoved && e.code != exitDiverged && e.code != exitUsage
		select {
		case ended <- e:
		case <-ctx.Done():
		}
		if !e.again {
			return
		}
		timer := time.NewTimer(restartPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// prefixed writes whole lines to out, each after a prefix. Several share out and its lock.
type prefixed struct {
	mu     *sync.Mutex
	out    io.Writer
	prefix string
	rest   []byte // of a line whose end has not come yet
}

// longestLine is where a line is broken that does not end.
const longestLine = 64 << 10

func (p *prefixed) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rest = append(p.rest, b...)
	for {
		end := bytes.IndexByte(p.rest, '\n')
		if end < 0 && len(p.rest) < longestLine {
			return len(b), nil
		}
		line := p.rest
		if end >= 0 {
			line = p.rest[:end]
		}
		_, _ = fmt.Fprintf(p.out, "%s%s\n", p.prefix, line) // a terminal that has gone ends no node
		p.rest = append(p.rest[:0], p.rest[min(len(line)+1, len(p.rest)):]...)
	}
}
