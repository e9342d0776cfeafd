package network

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// namespaces is a namespace for each node and one, the hub, with a bridge and the clients.
type namespaces struct {
	prefix string // of the names
	nodes  int
	hub    *os.File // the hub's namespace
	cut    links
}

const namePrefix = "tidemark-"

func newNamespaces(tb testing.TB, nodes int) (*namespaces, error) {
	for _, command := range []string{"ip", "nft"} {
		if _, err := exec.LookPath(command); err != nil {
			return nil, err
		}
	}
	if err := sweep(); err != nil {
		return nil, err
	}
	n := &namespaces{prefix: fmt.Sprintf("%s%d-", namePrefix, os.Getpid()), nodes: nodes, cut: links{}}
	for i := 0; ; i++ { // several networks in one test binary
		prefix := fmt.Sprintf("%s%d-", n.prefix, i)
		if _, err := os.Stat("/run/netns/" + prefix + "hub"); os.IsNotExist(err) {
			n.prefix = prefix
			break
		}
	}
	hub := n.prefix + "hub"
	steps := []string{
		"netns add " + hub,
		"-n " + hub + " link set lo up",
		"-n " + hub + " link add bridge0 type bridge",
		"-n " + hub + " addr add " + hostOf(0) + "/24 dev bridge0",
		"-n " + hub + " link set bridge0 up",
	}
	for i := 1; i <= nodes; i++ {
		name, port := n.name(i), "node"+strconv.Itoa(i)
		steps = append(steps,
			"netns add "+name,
			"-n "+hub+" link add "+port+" type veth peer name eth0 netns "+name,
			"-n "+hub+" link set "+port+" master bridge0 up",
			"-n "+name+" link set lo up",
			"-n "+name+" addr add "+hostOf(i)+"/24 dev eth0",
			"-n "+name+" link set eth0 up")
	}
	tb.Cleanup(func() {
		if n.hub != nil {
			_ = n.hub.Close() // only read
		}
		for i := 0; i <= nodes; i++ {
			_ = ip("netns del " + n.name(i)) // those that were not made
		}
	})
	for _, s := range steps {
		if err := ip(s); err != nil {
			return nil, err
		}
	}
	var err error
	n.hub, err = os.Open("/run/netns/" + hub)
	return n, err
}

// sweep removes what tests have left that are no more.
func sweep() error {
	entries, err := os.ReadDir("/run/netns")
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), namePrefix)
		pid, _, _ := strings.Cut(rest, "-")
		if number, err := strconv.Atoi(pid); ours && err == nil && syscall.Kill(number, 0) == syscall.ESRCH {
			if err := ip("netns del " + e.Name()); err != nil {
				return err
			}
		}
	}
	return nil
}

func ip(args string) error {
	if text, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		return fmt.Errorf("ip %s: %w: %s", args, err, text)
	}
	return nil
}

// name is the name of a node's namespace; 0 = the hub's.
func (n *namespaces) name(node int) string {
	if node == 0 {
		return n.prefix + "hub"
	}
	return n.prefix + "n" + strconv.Itoa(node)
}

// hostOf is a node's address, and the clients' for 0.
func hostOf(node int) string {
	if node == 0 {
		node = 254
	}
	return "10.71.0." + strconv.Itoa(node)
}

func (n *namespaces) Host(node int) string        { return hostOf(node) }
func (n *namespaces) RaftAddress(node int) string { return hostOf(node) + ":7441" }
func (n *namespaces) Prefix(node int) []string {
	return []string{"ip", "netns", "exec", n.name(node)}
}
func (n *namespaces) Started(int, int) {}

// Dial makes the socket in the hub's namespace: a socket stays in the namespace that its
// thread was in when it was made. The thread goes back, because it may be the one that started
// a node, and such a node is killed with its thread (see package process).
func (n *namespaces) Dial(ctx context.Context, address string) (net.Conn, error) {
	type result struct {
		conn net.Conn
		err  error
	}
	done := make(chan result, 1)
	go func() { // ends with the dial, at the latest with ctx
		runtime.LockOSThread()
		home, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			done <- result{nil, err}
			return
		}
		defer home.Close()
		if err := unix.Setns(int(n.hub.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- result{nil, fmt.Errorf("enter the clients' namespace: %w", err)}
			return
		}
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- result{nil, fmt.Errorf("leave the clients' namespace: %w", err)} // and the thread stays locked
			return
		}
		runtime.UnlockOSThread()
		done <- result{conn, err}
	}()
	r := <-done
	return r.conn, r.err
}

func (n *namespaces) Cut(tb testing.TB, a, b int) {
	tb.Helper()
	n.cut[link{a, b}], n.cut[link{b, a}] = true, true
	n.apply(tb, a, b)
}

func (n *namespaces) CutOneWay(tb testing.TB, from, to int) {
	tb.Helper()
	n.cut[link{from, to}] = true
	n.apply(tb, to)
}

func (n *namespaces) Isolate(tb testing.TB, node int) {
	tb.Helper()
	n.cut.isolate(node, n.nodes)
	for i := 1; i <= n.nodes; i++ {
		n.apply(tb, i)
	}
}

func (n *namespaces) Heal(tb testing.TB) {
	tb.Helper()
	touched := map[int]bool{}
	for l := range n.cut {
		touched[l.to] = true
	}
	clear(n.cut)
	for node := range touched {
		n.apply(tb, node)
	}
}

// apply makes nodes drop what comes from those that they are cut from.
func (n *namespaces) apply(tb testing.TB, nodes ...int) {
	tb.Helper()
	for _, to := range nodes {
		rules := "flush ruleset\n"
		for from := 1; from <= n.nodes; from++ {
			if n.cut[link{from, to}] {
				rules += "add rule inet cut in ip saddr " + hostOf(from) + " drop\n"
			}
		}
		if strings.Contains(rules, "drop") {
			rules = strings.Replace(rules, "\n", "\nadd table inet cut\nadd chain inet cut in { type filter hook input priority 0; }\n", 1)
		}
		cmd := exec.Command("ip", "netns", "exec", n.name(to), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if text, err := cmd.CombinedOutput(); err != nil {
			tb.Fatalf("cut %v at node %d: %v: %s", n.cut, to, err, text)
		}
	}
}
