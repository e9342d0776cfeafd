package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

func newClusterCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "cluster",
		Short: "Look at a cluster, and change who is in it",
		Long: `Look at a cluster, and change who is in it.

Any node answers "status". The changes are the leader's to make: they find it from any of
the --server addresses. Exit codes: 0 done, 1 refused or not reached, and nothing was changed,
2 wrong usage, 23 the change may or may not have happened ("tidemark cluster status" shows;
giving the command again does no harm).`,
		Args: cobra.NoArgs, // with RunE, so that a word that is no command is an error
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newClusterStatusCommand(), newClusterAddCommand(), newClusterPromoteCommand(), newClusterRemoveCommand(), newClusterTransferCommand())
	return cmd
}

func newClusterStatusCommand() *cobra.Command {
	var client clientFlags
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show every node: its role, how far it is, and what is wrong",
		Long: `Show the cluster as one node sees it, the first of the --server addresses that
answers; it asks the others, for a second at most. LAG is how many log entries a
node is behind the newest one that any node is known to have committed. A node that does not answer is
"unreachable". --output json prints what GetStatus answers.

Exits with 0 if a node answered, whatever it said, and with 1 if none did.`,
		Example: `  tidemark cluster status
  tidemark cluster status --server 10.0.0.1:7440,10.0.0.2:7440 --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, cancel := client.context(cmd.Context())
			defer cancel()
			var resp *pb.GetStatusResponse
			err := client.do(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) (err error) {
				resp, err = pb.NewClusterServiceClient(conn).GetStatus(ctx, &pb.GetStatusRequest{})
				return err
			})
			if err != nil {
				return callError(err)
			}
			if client.output == outputJSON {
				return writeJSON(cmd.OutOrStdout(), resp)
			}
			return printStatus(cmd, resp)
		},
	}
	cmd.Flags().SortFlags = false
	client.register(cmd, 10*time.Second)
	return cmd
}

// printStatus prints the cluster, then a table of its nodes.
func printStatus(cmd *cobra.Command, st *pb.GetStatusResponse) error {
	out := cmd.OutOrStdout()
	pairs := []any{
		"cluster", dash(st.GetClusterId()),
		"timeline", dash(st.GetTimeline()),
		"leader", formatLeader(st.GetLeaderId(), st.GetLeaderAddress()),
		"term", st.GetTerm(),
		"answered by", fmt.Sprintf("%s, %s", st.GetNodeId(), st.GetRole()),
		"applied", fmt.Sprintf("%d of %d committed entries, position %d", st.GetAppliedIndex(), st.GetCommitIndex(), st.GetLastPosition()),
		"version", st.GetVersion(),
	}
	if st.GetWaitingFor() != "" {
		pairs = append(pairs, "waits for", st.GetWaitingFor())
	}
	if st.GetInsecure() {
		pairs = append(pairs, "security", "none: no TLS, no authentication")
	}
	if err := fields(out, pairs...); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return err
	}
	newest := st.GetCommitIndex()
	for _, n := range st.GetNodes() {
		newest = max(newest, n.GetAppliedIndex())
	}
	t := newTable(out, "ID", "ROLE", "VOTER", "RAFT ADDRESS", "CLIENT ADDRESS", "APPLIED", "LAG", "HEALTHY", "PROBLEMS")
	for _, n := range st.GetNodes() {
		applied, lag := "-", "-"
		if n.AppliedIndex != nil {
			applied, lag = fmt.Sprint(n.GetAppliedIndex()), fmt.Sprint(newest-n.GetAppliedIndex())
		}
		if err := t.row(n.GetId(), n.GetRole(), yes(n.GetVoter()), dash(n.GetRaftAddress()), dash(n.GetClientAddress()),
			applied, lag, yes(n.GetHealthy()), strings.Join(n.GetProblems(), "; ")); err != nil {
			return err
		}
	}
	return t.flush()
}

func formatLeader(id, address string) string {
	switch {
	case id == "":
		return "not known"
	case address == "":
		return id
	}
	return id + " at " + address
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func yes(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
