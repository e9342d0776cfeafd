package deploy

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/process"
)

func TestMain(m *testing.M) { process.Main(m) }

// patience bounds every wait.
const patience = 30 * time.Second

// TestHAProxyFollowsTheLeader: a client that knows one address and nothing of leaders goes on
// writing when leadership moves on, with the old leader alive, and when the leader is killed.
func TestHAProxyFollowsTheLeader(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	nodes := startCluster(t, 3)
	proxy := startHAProxy(t, nodes)
	c := &client{t: t, store: pb.NewEventStoreServiceClient(proxy)}

	c.write(ctx)
	first := leader(ctx, t, nodes)
	c.goesTo(ctx, proxy, first)

	// A connection to a node that does not lead any more would be told 2011 for ever.
	if _, err := pb.NewClusterServiceClient(proxy).TransferLeadership(ctx, &pb.TransferLeadershipRequest{}); err != nil {
		t.Fatal(err)
	}
	second := leader(ctx, t, nodes, first)
	c.write(ctx)
	c.goesTo(ctx, proxy, second)

	second.process.Kill(t)
	third := leader(ctx, t, nodes, second)
	c.write(ctx)
	c.goesTo(ctx, proxy, third)

	c.check(ctx)
}

// clusterNode is one node, at ports 7440 to 7442 of an address of its own, as on a machine of
// its own.
type clusterNode struct {
	id, host string
	process  *process.Node
	conn     *grpc.ClientConn
}

func startCluster(t *testing.T, count int) []*clusterNode {
	t.Helper()
	var nodes []*clusterNode
	var peers []string
	for i := 1; i <= count; i++ {
		n := &clusterNode{id: fmt.Sprint("n", i), host: fmt.Sprintf("%s.%d", network(), i)}
		nodes = append(nodes, n)
		peers = append(peers, n.id+"="+n.host+":7441")
	}
	for _, n := range nodes {
		n.process = process.Launch(t, process.Options{
			DataDir: filepath.Join(t.TempDir(), "data"), Host: n.host,
			Args: []string{"--node-id", n.id, "--peers", strings.Join(peers, ","), "--memory-limit", "256MiB"},
		})
		n.conn = dial(t, n.host+":7440")
	}
	return nodes
}

// network is a piece of the loopback network that no other process uses.
func network() string {
	pid := os.Getpid()
	return fmt.Sprintf("127.%d.%d", 1+pid/250%250, 1+pid%250)
}

func dial(t *testing.T, address string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// leader waits until one of the nodes serves as leader.
func leader(ctx context.Context, t *testing.T, nodes []*clusterNode, not ...*clusterNode) *clusterNode {
	t.Helper()
	found := make(chan *clusterNode, len(nodes))
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for _, n := range nodes {
		if len(not) > 0 && n == not[0] {
			continue
		}
		go func() { // ends with ctx
			w, err := grpc_health_v1.NewHealthClient(n.conn).Watch(ctx,
				&grpc_health_v1.HealthCheckRequest{Service: "tidemark.leader"}, grpc.WaitForReady(true))
			for err == nil {
				var r *grpc_health_v1.HealthCheckResponse
				if r, err = w.Recv(); err == nil && r.GetStatus() == grpc_health_v1.HealthCheckResponse_SERVING {
					found <- n
					return
				}
			}
		}()
	}
	select {
	case n := <-found:
		return n
	case <-ctx.Done():
		t.Fatalf("no node leads: %v", ctx.Err())
		return nil
	}
}

// client writes one event after the other, and sends each until it is known to have landed.
type client struct {
	t     *testing.T
	store pb.EventStoreServiceClient
	seq   uint64
}

func key() *pb.AggregateKey { return &pb.AggregateKey{Org: "acme", Type: "orders", Id: "1"} }

func (c *client) write(ctx context.Context) {
	c.t.Helper()
	c.seq++
	expected := c.seq - 1
	request := &pb.AppendRequest{
		ClientId: "w", OnDuplicate: pb.OnDuplicate_ON_DUPLICATE_CONFIRM,
		Writes: []*pb.Write{{
			Aggregate: key(), AllowCreate: true, EnforceClientIdempotency: true, ExpectedVersion: &expected,
			Events: []*pb.NewEvent{{ClientSeq: c.seq, EventId: fmt.Sprint(c.seq), Type: "placed"}},
		}},
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		attempt, cancel := context.WithTimeout(ctx, time.Second)
		resp, err := c.store.Append(attempt, request, grpc.WaitForReady(true))
		cancel()
		if err == nil {
			if r := resp.GetResults(); len(r) != 1 || r[0].GetVersion() != c.seq {
				c.t.Fatalf("write %d is answered with %v, expected version %d", c.seq, resp, c.seq)
			}
			return
		}
		if ctx.Err() != nil {
			c.t.Fatalf("write %d does not land: %v", c.seq, err)
		}
		if refusal, ok := api.FromStatus(err); ok && refusal.MayHaveHappened() == api.Yes {
			c.t.Fatalf("write %d, sent again, is refused: %v", c.seq, err)
		}
	}
}

// goesTo waits until calls through the proxy reach a node. The connection that it comes by
// may still be the one that a failed write has just lost.
func (c *client) goesTo(ctx context.Context, proxy *grpc.ClientConn, n *clusterNode) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		st, err := pb.NewClusterServiceClient(proxy).GetStatus(ctx, &pb.GetStatusRequest{}, grpc.WaitForReady(true))
		if err == nil && st.GetNodeId() == n.id {
			return
		}
		if ctx.Err() != nil {
			c.t.Fatalf("calls through HAProxy reach %q (%v), expected the leader, %s", st.GetNodeId(), err, n.id)
		}
	}
}

// check reads what was written: every write once, in order.
func (c *client) check(ctx context.Context) {
	c.t.Helper()
	stream, err := c.store.Read(ctx, &pb.ReadRequest{Aggregate: key()}, grpc.WaitForReady(true))
	if err != nil {
		c.t.Fatal(err)
	}
	var seqs []uint64
	for {
		r, err := stream.Recv()
		if err == io.EOF {
			break
		}
		if err != nil {
			c.t.Fatal(err)
		}
		for _, b := range r.GetBatches() {
			for _, e := range b.GetEvents() {
				seqs = append(seqs, e.GetClientSeq())
			}
		}
	}
	if got, want := fmt.Sprint(seqs), "[1 2 3]"; got != want || c.seq != 3 {
		c.t.Errorf("the aggregate holds %s, expected %s", got, want)
	}
}

// startHAProxy runs deploy/haproxy/haproxy.cfg. What is replaced is what belongs to the
// machine: the name server, and the addresses that it listens on itself.
func startHAProxy(t *testing.T, nodes []*clusterNode) *grpc.ClientConn {
	t.Helper()
	text := read(t, "haproxy/haproxy.cfg")
	names := map[string]string{}
	for _, n := range nodes {
		names[n.id] = n.host
	}
	clients, toClients := listen(t)
	metrics, toMetrics := listen(t)
	for _, r := range []struct{ old, new string }{
		{"    parse-resolv-conf\n", "    nameserver test " + nameServer(t, names) + "\n"},
		{"bind :7440\n", "bind fd@3\n"},
		{"bind :7443\n", "bind fd@4\n"},
	} {
		if strings.Count(text, r.old) != 1 {
			t.Fatalf("haproxy.cfg: expected %q once", r.old)
		}
		text = strings.Replace(text, r.old, r.new, 1)
	}
	file := filepath.Join(t.TempDir(), "haproxy.cfg")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command("haproxy", "-db", "-f", file)
	cmd.Stdout, cmd.Stderr = &log, &log
	cmd.ExtraFiles = []*os.File{clients, metrics}
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start haproxy (package haproxy): %v", err)
	}
	// Its own now: the ports are closed if it ends.
	_ = clients.Close()
	_ = metrics.Close()
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the error says that it has ended already
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("haproxy said:\n%s", log.String())
		}
	})
	web := &http.Client{Timeout: patience}
	for path, want := range map[string]string{"/livez": "200 OK", "/metrics": "200 OK", "/": "404 Not Found"} {
		resp, err := web.Get("http://" + toMetrics + path)
		if err != nil {
			t.Fatal(err)
		}
		_ = resp.Body.Close()
		if resp.Status != want {
			t.Errorf("HAProxy answers %s with %q, expected %q", path, resp.Status, want)
		}
	}
	return dial(t, toClients)
}

// listen opens a port that a child process takes over.
func listen(t *testing.T) (listener *os.File, address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() // the file holds the port
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	return f, l.Addr().String()
}

// read reads a file of the directory deploy.
func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", filepath.FromSlash(name)))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
