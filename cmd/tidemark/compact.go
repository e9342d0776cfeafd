package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/leader"
)

func newCompactCommand() *cobra.Command {
	var client clientFlags
	var node string
	cmd := &cobra.Command{
		Use:   "compact",
		Short: "Reclaim the space of what was trimmed and deleted, now",
		Long: `Reclaim the space of what was trimmed and deleted on every node of the cluster, one after
the other, the leader first; in the background the same happens in its own time. It
reads and writes all data of a node in the worst case. Of each node it prints how many bytes its
directory took before and after: more than before if it is written to meanwhile, or if there was
nothing to reclaim.

Afterwards no file of a node's data directory holds a byte of what was deleted before
the command began: tables, logs, snapshots. If some may be left, the command says on
which node and why, and exits with 1. Backups are not reached, and event ids and
hashes of contents outlive a delete: docs/deleting.md has the bounds.`,
		Example: `  tidemark compact
  tidemark compact --node n2`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := client.context(cmd.Context())
			defer cancel()
			return compactNodes(ctx, cmd, &client, node)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVar(&node, "node", "", "compact this node, by its `ID`, and no other")
	client.register(cmd, time.Hour)
	return cmd
}

// compactNodes asks each node in turn. One that fails does not keep the others from it.
func compactNodes(ctx context.Context, cmd *cobra.Command, client *clientFlags, only string) error {
	nodes, err := nodesToCompact(ctx, client, only)
	if err != nil {
		return err
	}
	var failed error
	incomplete := false
	for _, n := range nodes {
		resp, err := compactNode(ctx, client, n)
		if err != nil {
			failure := callError(err)
			fmt.Fprintln(cmd.ErrOrStderr(), printable(fmt.Sprintf("%s: %s", n.GetId(), failure)))
			failed = &exitError{code: exitFailure, err: fmt.Errorf("not every node was compacted; the same command may be given again")}
			continue
		}
		incomplete = incomplete || len(resp.GetIncomplete()) > 0
		if err := printCompacted(cmd, client, resp); err != nil {
			return err
		}
	}
	if failed == nil && incomplete {
		failed = &exitError{code: exitFailure, err: fmt.Errorf("something that was deleted may be left, see above; docs/deleting.md says what to do about each")}
	}
	return failed
}

func printCompacted(cmd *cobra.Command, client *clientFlags, resp *pb.CompactResponse) error {
	if client.output == outputJSON {
		return writeJSON(cmd.OutOrStdout(), resp)
	}
	out := cmd.OutOrStdout()
	if _, err := fmt.Fprintln(out, printable(fmt.Sprintf("%s: %d bytes before, %d after", resp.GetNodeId(), resp.GetBytesBefore(), resp.GetBytesAfter()))); err != nil {
		return err
	}
	for _, why := range resp.GetIncomplete() {
		if _, err := fmt.Fprintln(out, printable(fmt.Sprintf("%s: not all: %s", resp.GetNodeId(), why))); err != nil {
			return err
		}
	}
	return nil
}

// nodesToCompact lists the nodes, the leader first: it logs what lets the others replace their
// snapshots.
func nodesToCompact(ctx context.Context, client *clientFlags, only string) ([]*pb.Node, error) {
	var st *pb.GetStatusResponse
	err := client.do(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) (err error) {
		st, err = pb.NewClusterServiceClient(conn).GetStatus(ctx, &pb.GetStatusRequest{})
		return err
	})
	if err != nil {
		return nil, callError(err)
	}
	var nodes []*pb.Node
	for _, n := range st.GetNodes() {
		switch {
		case only != "" && n.GetId() != only:
		case len(st.GetNodes()) == 1:
			return []*pb.Node{{Id: n.GetId()}}, nil // at --server, whatever it says of itself
		case n.GetClientAddress() == "":
			return nil, &exitError{code: exitFailure, err: fmt.Errorf("node %s has told nobody yet where clients reach it; is it up?", n.GetId())}
		case n.GetId() == st.GetLeaderId():
			nodes = append([]*pb.Node{n}, nodes...)
		default:
			nodes = append(nodes, n)
		}
	}
	if len(nodes) == 0 {
		return nil, &exitError{code: exitFailure, err: fmt.Errorf("the cluster has no node %q; \"tidemark cluster status\" lists them", only)}
	}
	return nodes, nil
}

// compactNode asks one node; one without an address is the only one, at --server.
func compactNode(ctx context.Context, client *clientFlags, n *pb.Node) (resp *pb.CompactResponse, err error) {
	call := func(ctx context.Context, conn grpc.ClientConnInterface) (err error) {
		resp, err = pb.NewClusterServiceClient(conn).Compact(ctx, &pb.CompactRequest{})
		return err
	}
	if n.GetClientAddress() == "" {
		err = client.do(ctx, call)
		return resp, err
	}
	conn := leader.New([]string{n.GetClientAddress()})
	defer func() { _ = conn.Close() }()
	err = notTaken(conn.Do(ctx, call))
	return resp, err
}
