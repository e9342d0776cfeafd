package network

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// proxies is one proxy in front of each node. Which node a connection comes from is found
// out from the process that has its other end.
type proxies struct {
	prefix string // of the addresses, in 127/8
	nodes  int
	ctx    context.Context // done when the test ends

	mu      sync.Mutex // guards what follows
	cut     links
	changed chan struct{} // closes when cut has changed
	pids    map[int]int   // node of a process
}

func newProxies(tb testing.TB, nodes int) *proxies {
	tb.Helper()
	pid := os.Getpid()
	p := &proxies{
		prefix: fmt.Sprintf("127.%d.%d.", 1+(pid>>8)&127, pid&255), nodes: nodes,
		cut: links{}, changed: make(chan struct{}), pids: map[int]int{},
	}
	var cancel context.CancelFunc
	p.ctx, cancel = context.WithCancel(context.Background())
	var running sync.WaitGroup
	tb.Cleanup(func() {
		cancel()
		running.Wait()
	})
	for i := 1; i <= nodes; i++ {
		l, err := net.Listen("tcp", p.RaftAddress(i))
		if err != nil {
			cancel()
			tb.Fatal(err)
		}
		// All of it ends with the context, and the cleanup above waits.
		context.AfterFunc(p.ctx, func() { _ = l.Close() })
		running.Go(func() { p.serve(l, i, &running) })
	}
	return p
}

func (p *proxies) Host(node int) string        { return p.prefix + strconv.Itoa(node) }
func (p *proxies) RaftAddress(node int) string { return p.prefix + strconv.Itoa(100+node) + ":7441" }
func (p *proxies) Prefix(int) []string         { return nil }

func (p *proxies) Started(node, pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pids[pid] = node
}

func (p *proxies) Dial(ctx context.Context, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", address)
}

func (p *proxies) Cut(_ testing.TB, a, b int) {
	p.change(func() { p.cut[link{a, b}], p.cut[link{b, a}] = true, true })
}

func (p *proxies) CutOneWay(_ testing.TB, from, to int) {
	p.change(func() { p.cut[link{from, to}] = true })
}

func (p *proxies) Isolate(_ testing.TB, node int) {
	p.change(func() { p.cut.isolate(node, p.nodes) })
}

func (p *proxies) Heal(testing.TB) { p.change(func() { clear(p.cut) }) }

func (p *proxies) change(change func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change()
	close(p.changed)
	p.changed = make(chan struct{})
}

// pass waits while a direction is cut. It returns an error when the test ends.
func (p *proxies) pass(l link) error {
	for {
		p.mu.Lock()
		cut, changed := p.cut[l], p.changed
		p.mu.Unlock()
		if !cut {
			return p.ctx.Err()
		}
		select {
		case <-changed:
		case <-p.ctx.Done():
			return p.ctx.Err()
		}
	}
}

func (p *proxies) serve(l net.Listener, to int, running *sync.WaitGroup) {
	for {
		in, err := l.Accept()
		if err != nil {
			return // closed
		}
		running.Go(func() { p.connection(in, to) })
	}
}

// connection copies one connection's bytes until either end closes or the test ends.
func (p *proxies) connection(in net.Conn, to int) {
	defer in.Close()
	stop := context.AfterFunc(p.ctx, func() { _ = in.Close() })
	defer stop()
	from := p.sender(in.RemoteAddr(), in.LocalAddr())
	if p.pass(link{from, to}) != nil || p.pass(link{to, from}) != nil { // a handshake needs both
		return
	}
	out, err := new(net.Dialer).DialContext(p.ctx, "tcp", p.Host(to)+":7441")
	if err != nil {
		return
	}
	defer out.Close()
	stopOut := context.AfterFunc(p.ctx, func() { _ = out.Close() })
	defer stopOut()
	var both sync.WaitGroup
	// Each ends when its source or its target is closed, which the other one does.
	both.Go(func() { p.copy(out, in, link{from, to}) })
	both.Go(func() { p.copy(in, out, link{to, from}) })
	both.Wait()
}

func (p *proxies) copy(out, in net.Conn, l link) {
	defer out.Close()
	defer in.Close()
	buf := make([]byte, 64<<10)
	for {
		n, err := in.Read(buf)
		if n > 0 {
			if p.pass(l) != nil {
				return
			}
			if _, err := out.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			if err == io.EOF {
				_ = p.pass(l) // an end does not get through a cut either
			}
			return
		}
	}
}

// sender finds the node that has the other end of a connection; 0 = none of them. The table of
// sockets changes while it is read, and what it holds can be missed.
func (p *proxies) sender(local, remote net.Addr) int {
	for range 5 {
		if inode := socketOf(local, remote); inode != "" {
			if node := p.owner(inode); node != 0 {
				return node
			}
		}
	}
	return 0
}

// owner finds the node that has a socket open.
func (p *proxies) owner(inode string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for pid, node := range p.pids {
		dir := fmt.Sprintf("/proc/%d/fd/", pid)
		files, err := os.ReadDir(dir)
		if err != nil {
			delete(p.pids, pid) // it has ended
			continue
		}
		for _, f := range files {
			if target, err := os.Readlink(dir + f.Name()); err == nil && target == "socket:["+inode+"]" {
				return node
			}
		}
	}
	return 0
}

// socketOf is the inode of the socket between two addresses.
func socketOf(local, remote net.Addr) string {
	table, err := os.ReadFile("/proc/thread-self/net/tcp")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(table)) {
		if f := strings.Fields(line); len(f) > 9 && f[1] == inTable(local) && f[2] == inTable(remote) {
			return f[9]
		}
	}
	return ""
}

// inTable is an address as the kernel's table of sockets has it.
func inTable(a net.Addr) string {
	address, ok := a.(*net.TCPAddr)
	if !ok || address.IP.To4() == nil {
		return ""
	}
	four := address.IP.To4()
	return fmt.Sprintf("%02X%02X%02X%02X:%04X", four[3], four[2], four[1], four[0], address.Port)
}
