package cluster

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/disk"
	"github.com/tidemark-db/tidemark/test/process"
)

// Node is one place for a node: its name, its address, its disk, and the process if it runs.
type Node struct {
	ID     string
	Number int // in the network
	Disk   *disk.Disk
	// Member says that the node should be in the cluster.
	Member bool

	cluster *Cluster
	data    string
	conn    *grpc.ClientConn
	process *process.Node // nil = not running
	mayEnd  bool          // the process may end by itself
}

// statusTimeout bounds a question to a node that may be paused.
const statusTimeout = 2 * time.Second

// Conn is the connection to the node. It survives the process.
func (n *Node) Conn() *grpc.ClientConn { return n.conn }

// Status is what the node says of the cluster.
func (n *Node) Status() (*pb.GetStatusResponse, error) {
	ctx, cancel := context.WithTimeout(n.cluster.tb.Context(), statusTimeout)
	defer cancel()
	return pb.NewClusterServiceClient(n.conn).GetStatus(ctx, &pb.GetStatusRequest{})
}

// leads says whether the node takes writes.
func (n *Node) leads() bool {
	ctx, cancel := context.WithTimeout(n.cluster.tb.Context(), statusTimeout)
	defer cancel()
	r, err := grpc_health_v1.NewHealthClient(n.conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "tidemark.leader"})
	return err == nil && r.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING
}

// DataDir is the node's data directory.
func (n *Node) DataDir() string { return n.data }

// Running says whether the node has a process, paused or not.
func (n *Node) Running() bool { return n.process != nil }

func (n *Node) logFile() string { return filepath.Join(n.cluster.Dir, n.ID+".log") }

// Launch starts the node with its flags, always the same, and does not wait.
func (n *Node) Launch(extra ...string) {
	n.cluster.tb.Helper()
	network := n.cluster.Network
	if n.Disk == nil {
		if err := os.MkdirAll(filepath.Dir(n.data), 0o700); err != nil {
			n.cluster.tb.Fatal(err)
		}
	}
	args := append([]string{
		"--node-id", n.ID, "--peers", n.cluster.peers, "--raft-advertise", network.RaftAddress(n.Number),
	}, n.cluster.options.Args...)
	n.process = process.Launch(n.cluster.tb, process.Options{
		DataDir: n.data, Host: network.Host(n.Number), Prefix: network.Prefix(n.Number), Dial: network.Dial,
		Args: append(args, extra...), LogFile: n.logFile(),
	})
	n.mayEnd = false
	network.Started(n.Number, n.process.PID)
}

// Kill ends the process with SIGKILL. It fails the test if it had ended by itself.
func (n *Node) Kill() {
	n.cluster.tb.Helper()
	n.process.Kill(n.cluster.tb)
	n.process = nil
}

// Stop ends the process in order.
func (n *Node) Stop() {
	n.cluster.tb.Helper()
	n.process.Signal(n.cluster.tb, syscall.SIGTERM)
	n.WaitExit(0)
}

// WaitExit waits for the process to end with a code, as the test expects it to.
func (n *Node) WaitExit(code int) {
	n.cluster.tb.Helper()
	exit := n.process.Wait(n.cluster.tb, Patience)
	n.process = nil
	if exit.Code != code || exit.Signal != 0 {
		n.cluster.tb.Fatalf("%s ended with %+v, expected code %d; its log is %s", n.ID, exit, code, n.logFile())
	}
}

// MayEnd says that the process may end by itself from now on. What ended it is for WaitExit or
// EndedWith to find out.
func (n *Node) MayEnd() { n.mayEnd = true }

// EndedWith says whether the process has ended by itself; it must have done so with a code. If
// it has not, it may not any more.
func (n *Node) EndedWith(code int) bool {
	n.cluster.tb.Helper()
	select {
	case <-n.process.Exited():
		n.WaitExit(code)
		return true
	default:
		n.mayEnd = false
		return false
	}
}

// Exited is closed once the process has ended.
func (n *Node) Exited() <-chan struct{} { return n.process.Exited() }

// Pause stops the process with SIGSTOP, Resume lets it go on.
func (n *Node) Pause() {
	n.cluster.tb.Helper()
	n.process.Signal(n.cluster.tb, syscall.SIGSTOP)
}

// Resume lets a paused process go on.
func (n *Node) Resume() {
	n.cluster.tb.Helper()
	n.process.Signal(n.cluster.tb, syscall.SIGCONT)
}

// Wipe removes the data of a node that does not run.
func (n *Node) Wipe() {
	n.cluster.tb.Helper()
	if err := os.RemoveAll(n.data); err != nil {
		n.cluster.tb.Fatal(err)
	}
}

// Logs waits some time for a line with a text in the running process's log, and says whether
// it came.
func (n *Node) Logs(text string, within time.Duration) bool {
	ctx, cancel := context.WithTimeout(n.cluster.tb.Context(), within)
	defer cancel()
	_, err := n.process.WaitLog(ctx, func(line string) bool { return strings.Contains(line, text) })
	return err == nil
}

// Logged counts the lines of the running process's log that have a text.
func (n *Node) Logged(text string) int { return strings.Count(n.process.Log(), text) }
