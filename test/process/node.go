package process

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// Options say which node to run.
type Options struct {
	DataDir string
	// Args are further flags of serve.
	Args []string
	// Prefix is a command that runs the binary, such as prlimit with its flags.
	Prefix []string
	// Binary is the one to run; empty = the one that Main built.
	Binary string
	// Host is the address to listen on, at ports 7440 to 7442; empty = any free ports of
	// 127.0.0.1.
	Host string
	// Dial reaches the node's ports, which may be in another network; nil = directly.
	Dial func(ctx context.Context, address string) (net.Conn, error)
	// LogFile, if set, is where the log goes, at its end; if the test fails, it is named
	// instead of shown.
	LogFile string
}

// Node is a running (or ended) tidemark serve.
type Node struct {
	// PID of the process that was started: the prefix's, which replaces itself by the node.
	PID     int
	options Options
	started time.Time
	cmd     *exec.Cmd
	log     *capture
	exited  chan struct{}
	exit    Exit
	conns   []*grpc.ClientConn
}

// Exit is how a process ended.
type Exit struct {
	// Code is the exit code, -1 if a signal ended the process.
	Code   int
	Signal syscall.Signal
}

// Launch starts a node and does not wait for it. The test's cleanup kills it.
func Launch(tb testing.TB, o Options) *Node {
	tb.Helper()
	if o.Binary == "" {
		o.Binary = Binary(tb)
	}
	listen, raftListen, httpListen := "127.0.0.1:0", "127.0.0.1:0", "127.0.0.1:0"
	if o.Host != "" {
		listen, raftListen, httpListen = o.Host+":7440", o.Host+":7441", o.Host+":7442"
	}
	args := append(append([]string{}, o.Prefix...), o.Binary, "serve", "--data-dir", o.DataDir,
		"--listen", listen, "--raft-listen", raftListen, "--http-listen", httpListen, "--log-format", "json")
	args = append(args, o.Args...)
	n := &Node{options: o, log: newCapture(), exited: make(chan struct{}), started: time.Now()}
	var output io.Writer = n.log
	if o.LogFile != "" {
		f, err := os.OpenFile(o.LogFile, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		if err != nil {
			tb.Fatal(err)
		}
		tb.Cleanup(func() { _ = f.Close() }) // nobody waits for the last line of a log
		output = io.MultiWriter(n.log, f)
	}
	n.cmd = exec.Command(args[0], args[1:]...)
	n.cmd.Stderr = output
	n.cmd.Stdout = output
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := n.cmd.Start(); err != nil {
		tb.Fatalf("start %q: %v", args, err)
	}
	n.PID = n.cmd.Process.Pid
	// Ends with the process, which the cleanup below kills at the latest.
	go n.wait()
	tb.Cleanup(func() {
		n.closeConns()
		_ = n.cmd.Process.Kill() // the error says that it has ended already
		<-n.exited
		if strings.Contains(n.Log(), "WARNING: DATA RACE") {
			tb.Errorf("process %d reports a data race", n.PID)
		}
		switch {
		case tb.Failed() && o.LogFile != "":
			tb.Logf("process %d logged to %s", n.PID, o.LogFile)
		case tb.Failed():
			tb.Logf("log of process %d, from its end:\n%s", n.PID, n.log.tail(8<<10))
		}
	})
	return n
}

func (n *Node) wait() {
	err := n.cmd.Wait()
	n.exit = Exit{Code: n.cmd.ProcessState.ExitCode()}
	if ws, ok := n.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		n.exit.Signal = ws.Signal()
	}
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		fmt.Fprintf(n.log, "wait for process %d: %v\n", n.PID, err)
	}
	close(n.exited)
}

// Start starts a node and waits until it takes writes.
func Start(tb testing.TB, o Options) *Node {
	tb.Helper()
	n := Launch(tb, o)
	if err := n.Ready(tb.Context(), 20*time.Second); err != nil {
		tb.Fatal(err)
	}
	return n
}

// Ready waits until the node leads, which is when it takes writes.
func (n *Node) Ready(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	address, err := n.Address(ctx)
	if err != nil {
		return err
	}
	conn, err := n.dial(address)
	if err != nil {
		return err
	}
	defer conn.Close()
	// The node may end while it is waited for.
	stop := context.AfterFunc(ctx, cancel)
	defer stop()
	go func() {
		select {
		case <-n.exited:
			cancel()
		case <-ctx.Done():
		}
	}()
	w, err := grpc_health_v1.NewHealthClient(conn).Watch(ctx,
		&grpc_health_v1.HealthCheckRequest{Service: "tidemark.leader"}, grpc.WaitForReady(true))
	for err == nil {
		var r *grpc_health_v1.HealthCheckResponse
		if r, err = w.Recv(); err == nil && r.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING {
			return nil
		}
	}
	return fmt.Errorf("process %d does not take writes %v after its start: %w\n%s", n.PID, time.Since(n.started).Round(time.Millisecond), err, n.log.tail(8<<10))
}

// Address waits for the node to say where it listens for clients.
func (n *Node) Address(ctx context.Context) (string, error) {
	s, err := n.serving(ctx)
	return s.Listen, err
}

// HTTPAddress waits for the node to say where it listens for probes.
func (n *Node) HTTPAddress(ctx context.Context) (string, error) {
	s, err := n.serving(ctx)
	return s.HTTPListen, err
}

// serving is the log line that tells where a node listens.
type serving struct {
	Message    string `json:"message"`
	Listen     string `json:"listen"`
	HTTPListen string `json:"http_listen"`
}

func (n *Node) serving(ctx context.Context) (serving, error) {
	var s serving
	_, err := n.WaitLog(ctx, func(line string) bool {
		s = serving{}
		return json.Unmarshal([]byte(line), &s) == nil && s.Message == "serving"
	})
	return s, err
}

// WaitLog waits for a line of the log that match accepts, from the first line on.
func (n *Node) WaitLog(ctx context.Context, match func(line string) bool) (string, error) {
	for from := 0; ; {
		lines, changed := n.log.lines(from)
		for _, l := range lines {
			if match(l) {
				return l, nil
			}
		}
		from += len(lines)
		select {
		case <-changed:
		case <-n.exited:
			if more, _ := n.log.lines(from); len(more) > 0 {
				continue
			}
			return "", fmt.Errorf("process %d ended (%v) without the expected line in its log:\n%s", n.PID, n.exit, n.log.tail(8<<10))
		case <-ctx.Done():
			return "", fmt.Errorf("process %d: expected line not in its log: %w\n%s", n.PID, ctx.Err(), n.log.tail(8<<10))
		}
	}
}

// Log is everything that the node has written to stdout and stderr.
func (n *Node) Log() string { return n.log.tail(1 << 30) }

// Dial connects to the node; the connection closes with the node.
func (n *Node) Dial(tb testing.TB) *grpc.ClientConn {
	tb.Helper()
	address, err := n.Address(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	conn, err := n.dial(address)
	if err != nil {
		tb.Fatal(err)
	}
	n.conns = append(n.conns, conn)
	return conn
}

func (n *Node) dial(address string) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)),
	}
	if n.options.Dial != nil {
		options = append(options, grpc.WithContextDialer(n.options.Dial))
	}
	return grpc.NewClient("passthrough:///"+address, options...)
}

func (n *Node) closeConns() {
	for _, c := range n.conns {
		_ = c.Close() // only ever "already closed"
	}
	n.conns = nil
}

// Signal sends a signal to the process.
func (n *Node) Signal(tb testing.TB, s syscall.Signal) {
	tb.Helper()
	if err := n.cmd.Process.Signal(s); err != nil {
		tb.Fatalf("send %v to process %d: %v", s, n.PID, err)
	}
}

// Exited is closed once the process has ended.
func (n *Node) Exited() <-chan struct{} { return n.exited }

// Wait waits for the process to end by itself.
func (n *Node) Wait(tb testing.TB, within time.Duration) Exit {
	tb.Helper()
	select {
	case <-n.exited:
	case <-time.After(within):
		tb.Fatalf("process %d still runs after %v\n%s", n.PID, within, n.log.tail(8<<10))
	}
	n.closeConns()
	return n.exit
}

// Kill ends the process with SIGKILL and waits until it is gone. It fails the test if the
// process had ended by itself.
func (n *Node) Kill(tb testing.TB) {
	tb.Helper()
	n.Signal(tb, syscall.SIGKILL)
	if exit := n.Wait(tb, 10*time.Second); exit.Signal != syscall.SIGKILL {
		tb.Fatalf("process %d ended by itself (%+v), before it was killed\n%s", n.PID, exit, n.log.tail(8<<10))
	}
}

// PeakRSS is the most memory that the process has had resident so far, in bytes.
func (n *Node) PeakRSS(tb testing.TB) int64 {
	tb.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(n.PID) + "/status")
	if err != nil {
		tb.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			if err != nil {
				tb.Fatal(err)
			}
			return kib << 10
		}
	}
	tb.Fatalf("process %d has no VmHWM", n.PID)
	return 0
}

// capture keeps what a process writes and tells who waits for more. Its lock guards all
// fields.
type capture struct {
	mu      sync.Mutex
	buf     bytes.Buffer
	ends    []int // offsets after each line's newline
	changed chan struct{}
}

func newCapture() *capture { return &capture{changed: make(chan struct{})} }

func (c *capture) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, b := range p {
		if b == '\n' {
			c.ends = append(c.ends, c.buf.Len()+i+1)
		}
	}
	c.buf.Write(p)
	close(c.changed)
	c.changed = make(chan struct{})
	return len(p), nil
}

// lines is the whole lines from a number on, and a channel that closes with the next write.
func (c *capture) lines(from int) ([]string, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []string
	start := 0
	if from > 0 {
		start = c.ends[from-1]
	}
	for _, end := range c.ends[min(from, len(c.ends)):] {
		out = append(out, string(c.buf.Bytes()[start:end-1]))
		start = end
	}
	return out, c.changed
}

// tail is the last n bytes.
func (c *capture) tail(n int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.buf.Bytes()
	return string(b[max(0, len(b)-n):])
}
