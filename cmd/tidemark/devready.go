package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/leader"
)

const (
	// devAskEvery is how often the nodes are asked whether they are ready.
	devAskEvery = 100 * time.Millisecond
	// devSayEvery is how often it is said what is waited for.
	devSayEvery = 10 * time.Second
)

// awaitReady waits until all nodes are ready; false = ctx ended first.
func (c *devCluster) awaitReady(ctx context.Context) (*pb.GetStatusResponse, bool) {
	ticker := time.NewTicker(devAskEvery)
	defer ticker.Stop()
	said := time.Now()
	for {
		var why string
		for _, n := range c.nodes {
			if err := askReady(ctx, n.HTTPListen); err != nil {
				why = fmt.Sprintf("%s: %v", n.ID, err)
				break
			}
		}
		if why == "" {
			status, err := askStatus(ctx, c.nodes[0].Listen)
			if err == nil {
				return status, true
			}
			why = err.Error()
		}
		if time.Since(said) > devSayEvery {
			said = time.Now()
			c.say("not ready yet: %s", why)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, false
		}
	}
}

// askReady asks a node's /readyz.
func askReady(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 16<<10))
	if err != nil {
		return err
	}
	if resp.StatusCode == http.StatusOK {
		return nil
	}
	for line := range strings.Lines(string(body)) {
		if failed, ok := strings.CutPrefix(line, "[-]"); ok {
			return fmt.Errorf("%s", strings.TrimSpace(failed))
		}
	}
	return fmt.Errorf("/readyz answers %s", resp.Status)
}

func askStatus(ctx context.Context, address string) (*pb.GetStatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	conn, err := leader.Dial(ctx, address)
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	return pb.NewClusterServiceClient(conn).GetStatus(ctx, &pb.GetStatusRequest{})
}

// print prints where the cluster is and what to try.
func (c *devCluster) print(st *pb.GetStatusResponse) error {
	out := c.cmd.OutOrStdout()
	var servers []string
	roles := map[string]string{}
	for _, n := range c.nodes {
		servers = append(servers, n.Listen)
	}
	for _, n := range st.GetNodes() {
		roles[n.GetId()] = n.GetRole()
	}
	if c.flags.output == outputJSON {
		type node struct {
			*devNode
			DataDir string `json:"data_dir"`
			PID     int    `json:"pid"`
			Role    string `json:"role"`
		}
		var nodes []node
		for _, n := range c.nodes {
			nodes = append(nodes, node{n, n.dataDir, n.pid(), roles[n.ID]})
		}
		return json.NewEncoder(out).Encode(map[string]any{
			"cluster_id": st.GetClusterId(), "server": strings.Join(servers, ","), "nodes": nodes,
		})
	}
	removed := ""
	if c.flags.dir == "" {
		removed = ", removed at the end"
	}
	if _, err := fmt.Fprintf(out, "\nThe cluster is ready: %s; data in %s%s.\n\n", count(len(c.nodes), "node", "nodes"), c.dir, removed); err != nil {
		return err
	}
	t := newTable(out, "NODE", "ROLE", "CLIENTS (gRPC)", "NODES (RAFT)", "HTTP", "PID")
	lead := c.nodes[0]
	for _, n := range c.nodes {
		if n.ID == st.GetLeaderId() {
			lead = n
		}
		if err := t.row(n.ID, roles[n.ID], n.Listen, n.RaftListen, n.HTTPListen, n.pid()); err != nil {
			return err
		}
	}
	if err := t.flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, `
Try, in another terminal:

  export TIDEMARK_SERVER=%[1]s
  %[2]s cluster status
  %[2]s append acme/orders/1 --client-id me --seq 1 --event-type Tried --data '{}' --create
  %[2]s cluster transfer
  kill -9 %[3]d      # ends %[4]s
  curl 'http://%[5]s/readyz?verbose'

Ctrl-C stops all nodes.

`, strings.Join(servers, ","), shellWords([]string{c.program}), lead.pid(), lead.ID, lead.HTTPListen)
	return err
}
