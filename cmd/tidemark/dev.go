package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/config"
)

// devFlags are the flags of dev.
type devFlags struct {
	nodes    int
	dir      string
	port     int
	restart  bool
	logLevel string
	output   string
}

func newDevCommand() *cobra.Command {
	f := &devFlags{}
	cmd := &cobra.Command{
		Use:   "dev [-- FLAGS]",
		Short: "Run a whole cluster on this machine, to try things on",
		Long: `Run a cluster of 1, 3 or 5 nodes on this machine: each a "tidemark serve" of its own, on
127.0.0.1. Once it is ready its addresses are printed, and some commands to try. The nodes'
log lines go to stderr, after the node's name. FLAGS are further flags of serve, for every
node, but not its addresses, --node-id, --data-dir and --peers, which are chosen here; the
environment's settings are not used.

Ctrl-C or SIGTERM stops all nodes in order, and removes the data unless --dir says where to
keep it; a second one ends everything at once. A node that ends is reported, and how to start
it again by hand; the others go on. On Linux no node outlives this command, however that
ends.

Exit codes: 0 stopped by a signal, 1 the cluster did not start or all nodes have ended, 2
wrong usage.`,
		Example: `  tidemark dev --nodes 3
  tidemark dev --nodes 3 --port 7440 --dir ./cluster --restart
  tidemark dev --nodes 1 -- --max-request-bytes 8MiB`,
		Args: func(cmd *cobra.Command, args []string) error {
			if at := cmd.ArgsLenAtDash(); len(args) > 0 && at != 0 {
				return usageError("expected no arguments before --, found %q", args[0])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.IntVar(&f.nodes, "nodes", 3, "how many nodes: 1, 3 or 5")
	flags.IntVar(&f.port, "port", 0, "`PORT` for clients of the first node; its raft and HTTP ports follow, the next node's ports are 10 higher; 0 = any free ports")
	flags.StringVar(&f.dir, "dir", "", "`DIRECTORY` to keep the data in, and to find it again; not set = a temporary one, removed at the end")
	flags.BoolVar(&f.restart, "restart", false, "start a node again that has ended")
	f.logLevel = "warn"
	flags.Var(choice{&f.logLevel, []string{"debug", "info", "warn", "error"}}, "log-level", "least severe log line of the nodes that is shown")
	registerOutput(cmd, &f.output)
	return cmd
}

// devCluster is a running "tidemark dev".
type devCluster struct {
	flags *devFlags
	cmd   *cobra.Command
	dir   string
	nodes []*devNode
	// program is this one as its user typed it, for commands to try.
	program string
	// say prints a line about the cluster among the nodes' log lines.
	say func(format string, args ...any)

	ended chan devExit
	// supervisors end when their node has and is not started again; stop ends all.
	supervisors sync.WaitGroup
	stop        context.CancelFunc
}

func (f *devFlags) run(cmd *cobra.Command, more []string) error {
	if f.nodes != 1 && f.nodes != 3 && f.nodes != 5 {
		return usageError("--nodes: expected 1, 3 or 5, found %d: an even number survives no more failures than one node less", f.nodes)
	}
	if last := f.port + 10*(f.nodes-1) + 2; f.port > 0 && last > 65535 {
		return usageError("--port: expected at most %d, for the last of the ports that follow it is 65535, found %d", f.port-last+65535, f.port)
	}
	if err := checkNodeFlags(more); err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program, to start the nodes: %w", err)
	}
	c := &devCluster{flags: f, cmd: cmd, dir: f.dir, program: os.Args[0]}
	if c.dir == "" {
		if c.dir, err = os.MkdirTemp("", "tidemark-dev-"); err != nil {
			return fmt.Errorf("make a directory for the data: %w", err)
		}
		defer func() {
			if err := os.RemoveAll(c.dir); err != nil {
				fmt.Fprintf(cmd.ErrOrStderr(), "tidemark: the data was not removed: %v\n", err)
			}
		}()
	}
	if err := c.place(); err != nil {
		return err
	}
	var mu sync.Mutex
	stderr := cmd.ErrOrStderr()
	c.say = func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(stderr, "tidemark: "+format+"\n", args...)
	}
	var peers []string
	for _, n := range c.nodes {
		peers = append(peers, n.ID+"="+n.RaftListen)
	}
	for _, n := range c.nodes {
		n.prepare(self, c.dir, strings.Join(peers, ","), f.logLevel, more)
		n.log = &prefixed{mu: &mu, out: stderr, prefix: n.ID + " | "}
	}
	return c.run(cmd.Context())
}

// checkNodeFlags refuses what would give all nodes one value of a setting that dev chooses
// for each of them. Whatever else is wrong the nodes say themselves.
func checkNodeFlags(more []string) error {
	serve := newServeCommand()
	_ = serve.ParseFlags(more)
	c, _ := config.Load(serve.Flags(), nil)
	for _, key := range []string{"data-dir", "node-id", "listen", "raft-listen", "http-listen", "advertise", "raft-advertise", "peers"} {
		if source := c.Source(key); source.Origin == config.OriginFlag || source.Origin == config.OriginFile {
			return usageError("%s: expected not to be set, for \"tidemark dev\" chooses it for each node; leave it out (--dir says where the data goes, --port where the ports begin)", source)
		}
	}
	return nil
}

// devFile holds the nodes' addresses in a directory that is kept: the nodes know each other
// by their raft addresses.
const devFile = "dev.json"

// devPlan is the content of devFile.
type devPlan struct {
	Nodes []*devNode `json:"nodes"`
}

// place gives every node its ports: those of the directory, if it has been used before.
func (c *devCluster) place() error {
	path := filepath.Join(c.dir, devFile)
	text, err := os.ReadFile(path)
	switch {
	case err == nil:
		return c.placeAgain(path, text)
	case !errors.Is(err, fs.ErrNotExist):
		return usageError("--dir: %w", err)
	}
	if err := c.choosePorts(); err != nil {
		return err
	}
	if text, err = json.MarshalIndent(devPlan{c.nodes}, "", "  "); err != nil {
		return err
	}
	if err = os.MkdirAll(c.dir, 0o700); err == nil {
		err = os.WriteFile(path, append(text, '\n'), 0o600)
	}
	if err != nil {
		return usageError("--dir: %w", err)
	}
	return nil
}

// placeAgain takes the ports that the directory's nodes had before.
func (c *devCluster) placeAgain(path string, text []byte) error {
	var plan devPlan
	if err := json.Unmarshal(text, &plan); err != nil || len(plan.Nodes) == 0 {
		return usageError("--dir: %s is not what an earlier \"tidemark dev\" wrote (%v); name another directory", path, err)
	}
	if flags := c.cmd.Flags(); flags.Changed("nodes") && c.flags.nodes != len(plan.Nodes) {
		return usageError("--nodes is %d, but %s holds a cluster of %d nodes; \"tidemark cluster add\" and \"remove\" change a cluster", c.flags.nodes, c.dir, len(plan.Nodes))
	} else if _, port, _ := net.SplitHostPort(plan.Nodes[0].Listen); flags.Changed("port") && port != fmt.Sprint(c.flags.port) {
		return usageError("--port is %d, but the cluster in %s has %s, and its nodes know each other by their ports", c.flags.port, c.dir, port)
	}
	c.nodes = plan.Nodes
	return nil
}

// choosePorts finds three ports for each node. They are all open at one moment, so that none
// is given out twice; between then and the nodes' start another program can take one.
func (c *devCluster) choosePorts() error {
	next := c.flags.port
	for i := range c.flags.nodes {
		n := &devNode{ID: fmt.Sprintf("n%d", i+1)}
		c.nodes = append(c.nodes, n)
		for j, address := range []*string{&n.Listen, &n.RaftListen, &n.HTTPListen} {
			port := 0
			if next > 0 {
				port = next + 10*i + j
			}
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
			if err != nil {
				return &exitError{code: exitFailure, err: fmt.Errorf("port %d, for %s, is not free: %w", port, n.ID, err), advice: "Choose another --port, or 0 for any free ones."}
			}
			defer func() { _ = l.Close() }()
			*address = l.Addr().String()
		}
	}
	return nil
}

// run runs the cluster until ctx is done or it has failed, and then stops what is left.
func (c *devCluster) run(ctx context.Context) error {
	// Not with ctx: what the nodes say while they stop is about the stop.
	running, stop := context.WithCancel(context.Background())
	defer stop()
	c.stop = stop
	c.ended = make(chan devExit, len(c.nodes))
	for _, n := range c.nodes { // each ends with its node, which c.stop ends
		c.supervisors.Go(func() { n.supervise(running, c.flags.restart, c.ended) })
	}
	waiting, cancel := context.WithCancel(ctx)
	defer cancel()
	ready := make(chan *pb.GetStatusResponse, 1)
	go func() { // ends with waiting
		if r, ok := c.awaitReady(waiting); ok {
			ready <- r
		}
	}()
	isReady := false
	alive := len(c.nodes)
	for {
		select {
		case r := <-ready:
			isReady = true
			if err := c.print(r); err != nil {
				c.end()
				return err
			}
		case e := <-c.ended:
			if e.again {
				c.say("%s %s; it is started again", e.node.ID, e.text)
				continue
			}
			if !isReady {
				c.end()
				return &exitError{code: exitFailure, err: fmt.Errorf("the cluster did not start: %s %s; its log lines say why", e.node.ID, e.text)}
			}
			c.say("%s %s", e.node.ID, e.text)
			if alive--; alive == 0 {
				return &exitError{code: exitFailure, err: errors.New("all nodes have ended")}
			}
			c.say("to start it again: %s", e.node.shell(c.program))
		case <-ctx.Done():
			c.say("stopping all nodes")
			c.end()
			return nil
		}
	}
}

// devStopTimeout is more than the nodes' own shutdown-timeout, after which they cut
// themselves off.
const devStopTimeout = 15 * time.Second

// end stops what still runs, in order, and waits for it.
func (c *devCluster) end() {
	c.stop() // tells every process to end
	gone := make(chan struct{})
	go func() { // ends with the processes, which are killed at the latest
		c.supervisors.Wait()
		close(gone)
	}()
	timer := time.NewTimer(devStopTimeout)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			for _, n := range c.nodes {
				if n.kill() {
					c.say("%s did not stop within %v and is killed", n.ID, devStopTimeout)
				}
			}
		case <-gone:
			return
		}
	}
}
