package metrics

import (
	"context"
	"io"
	"net"
	"net/http"
	"testing"
	"time"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/cluster"
	"github.com/tidemark-db/tidemark/test/process"
)

func TestMain(m *testing.M) { process.Main(m) }

// scraper returns what asks a node for its page.
func scraper(t *testing.T, c *cluster.Cluster, n *cluster.Node) func() page {
	t.Helper()
	dial := func(ctx context.Context, _, address string) (net.Conn, error) { return c.Network.Dial(ctx, address) }
	web := &http.Client{Transport: &http.Transport{DialContext: dial}, Timeout: 10 * time.Second}
	t.Cleanup(web.CloseIdleConnections)
	return func() page {
		t.Helper()
		resp, err := web.Get("http://" + c.Network.Host(n.Number) + ":7442/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = resp.Body.Close() }() // it was read
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("/metrics of %s: %s, %v", n.ID, resp.Status, err)
		}
		return parse(t, string(text))
	}
}

// TestThreeNodes runs the steps of three nodes.
func TestThreeNodes(t *testing.T) {
	c := cluster.Start(t, cluster.Options{Nodes: 3, Args: []string{
		"--memtable-bytes", "1MiB", "--block-cache-bytes", "8MiB", "--snapshot-log-bytes", "1MiB", "--trailing-log-bytes", "1MiB",
	}})
	leader := c.Leader()
	client := pb.NewEventStoreServiceClient(leader.Conn())
	ofLeader := scraper(t, c, leader)
	at := shows(t, formed, nil, ofLeader)
	follower := c.Others(leader)[0]
	shows(t, followed, nil, scraper(t, c, follower))
	writeAll(t, client, "first")
	at = shows(t, replicated, at, ofLeader)
	onlyNodesAreLabels(t, at, map[string]bool{c.Others(leader)[0].ID: true, c.Others(leader)[1].ID: true})

	follower.Kill()
	follower.Wipe()
	writeAll(t, client, "second")
	follower.Launch()
	c.Settle()
	shows(t, caughtUp, at, ofLeader)
	shows(t, onReceiver, nil, scraper(t, c, follower))

	before := map[*cluster.Node]page{}
	for _, n := range c.Others(leader) {
		before[n] = scraper(t, c, n)()
	}
	leader.Kill()
	next := c.Leader(c.Others(leader)...)
	at = shows(t, leaderDies, before[next], scraper(t, c, next))
	c.Others(leader, next)[0].Kill()
	shows(t, alone, at, scraper(t, c, next))
}

// onlyNodesAreLabels: the label of a node is one of the others in the configuration.
func onlyNodesAreLabels(t *testing.T, p page, nodes map[string]bool) {
	t.Helper()
	for _, s := range p {
		if id, ok := s.labels["node"]; ok && !nodes[id] {
			t.Errorf("%s has the label node=%q", s.name, id)
		}
	}
}
