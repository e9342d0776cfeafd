package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// catchUpTimeout is the default --timeout of what waits for a node to copy everything.
const catchUpTimeout = 10 * time.Minute

func newClusterAddCommand() *cobra.Command {
	var client clientFlags
	var req pb.AddNodeRequest
	var promote bool
	cmd := &cobra.Command{
		Use:   "add ID",
		Short: "Take a running, empty node into the cluster",
		Long: `Take a node into the cluster, as a non-voter: it gets a copy of everything, and counts for
no majority until it is promoted. With --promote the command waits until the node has
caught up, and makes it a voter.

Start the node first, with an empty data directory, its own --node-id, and --peers naming
the cluster's nodes; it waits to be added. Adding a node again changes nothing.`,
		Example: `  tidemark serve --node-id n4 --listen 10.0.0.4:7440 \
      --raft-listen 10.0.0.4:7441 --peers n1=10.0.0.1:7441,n2=10.0.0.2:7441
  tidemark cluster add n4 --raft-address 10.0.0.4:7441 --promote`,
		Args: exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.Id = args[0]
			ctx, cancel := client.context(cmd.Context())
			defer cancel()
			m := member{ID: req.Id}
			err := client.change(ctx, func(ctx context.Context, cluster pb.ClusterServiceClient) error {
				_, err := cluster.AddNode(ctx, &req)
				if err == nil {
					m.Voter, m.Waiting = joined(ctx, cluster, req.Id)
				}
				return err
			})
			if err != nil {
				return err
			}
			if promote && (m.Voter == nil || !*m.Voter) {
				if client.output == outputTable {
					fmt.Fprintf(cmd.ErrOrStderr(), "%s; waiting until it has caught up\n", printable(m.place()))
				}
				return client.promote(ctx, cmd, req.Id)
			}
			switch {
			case m.Voter == nil:
				return client.changed(cmd, m, "%s. If it is no voter yet, to make it one, once it has caught up: tidemark cluster promote %s", m.place(), req.Id)
			case *m.Voter:
				return client.changed(cmd, m, "%s", m.place())
			case m.Waiting != "":
				return client.changed(cmd, m, "%s, but has not joined yet. It says: %s. To look again: tidemark cluster status", m.place(), m.Waiting)
			}
			return client.changed(cmd, m, "%s and copies what there is. To make it a voter, once it has caught up: tidemark cluster promote %s", m.place(), req.Id)
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&req.RaftAddress, "raft-address", "", "`HOST:PORT` where the other nodes reach it, its --raft-advertise (required)")
	flags.StringVar(&req.ClientAddress, "client-address", "", "`HOST:PORT` where clients reach it; refuse if it says another one itself")
	flags.BoolVar(&promote, "promote", false, "wait until it has caught up, then make it a voter")
	client.register(cmd, catchUpTimeout)
	_ = cmd.MarkFlagRequired("raft-address") // the flag exists: this cannot fail
	return cmd
}

func newClusterPromoteCommand() *cobra.Command {
	var client clientFlags
	cmd := &cobra.Command{
		Use:   "promote ID",
		Short: "Make a non-voter a voter, once it has caught up",
		Long: `Make a non-voter a voter: from then on it counts for majorities, and can lead. The command
waits until the node has caught up, up to --timeout; if it has not, the node stays what it
is and the command exits with 1. Promoting a voter changes nothing.`,
		Example: `  tidemark cluster promote n4`,
		Args:    exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := client.context(cmd.Context())
			defer cancel()
			return client.promote(ctx, cmd, args[0])
		},
	}
	cmd.Flags().SortFlags = false
	client.register(cmd, catchUpTimeout)
	return cmd
}

func (f *clientFlags) promote(ctx context.Context, cmd *cobra.Command, id string) error {
	err := f.change(ctx, func(ctx context.Context, cluster pb.ClusterServiceClient) error {
		_, err := cluster.PromoteNode(ctx, &pb.PromoteNodeRequest{Id: id})
		return err
	})
	if err != nil {
		return err
	}
	voter := true
	return f.changed(cmd, member{ID: id, Voter: &voter}, "%s is a voter", id)
}

func newClusterRemoveCommand() *cobra.Command {
	var client clientFlags
	cmd := &cobra.Command{
		Use:   "remove ID",
		Short: "Take a node out of the cluster, for good",
		Long: `Take a node out of the cluster, for good. Its process ends with exit code 73 as soon as it
learns of it, and again whenever it is started on that data directory; empty that, and the
node can be added anew. A node that is down can be removed too. The leader, if it is the one to go,
hands leadership over first.

It is refused if the voters that would be left have no majority that answers: the cluster
could not go on without the node.`,
		Example: `  tidemark cluster remove n4`,
		Args:    exactly("ID"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := client.context(cmd.Context())
			defer cancel()
			err := client.change(ctx, func(ctx context.Context, cluster pb.ClusterServiceClient) error {
				_, err := cluster.RemoveNode(ctx, &pb.RemoveNodeRequest{Id: args[0]})
				return err
			})
			if err != nil {
				return err
			}
			return client.changed(cmd, member{ID: args[0], Voter: new(bool), Removed: true}, "%s is no member of the cluster any more", args[0])
		},
	}
	cmd.Flags().SortFlags = false
	client.register(cmd, 30*time.Second)
	return cmd
}

func newClusterTransferCommand() *cobra.Command {
	var client clientFlags
	cmd := &cobra.Command{
		Use:   "transfer [ID]",
		Short: "Hand leadership to another voter",
		Long: `Hand leadership to a voter, the one that is furthest along if no ID is given, and print who
leads then. Writes wait for a moment; none is lost. Do it before the leader's machine is
worked on: "tidemark serve" does it by itself when it is stopped in order.`,
		Example: `  tidemark cluster transfer
  tidemark cluster transfer n2`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &pb.TransferLeadershipRequest{}
			if len(args) > 0 {
				req.ToId = args[0]
			}
			ctx, cancel := client.context(cmd.Context())
			defer cancel()
			var resp *pb.TransferLeadershipResponse
			err := client.change(ctx, func(ctx context.Context, cluster pb.ClusterServiceClient) (err error) {
				resp, err = cluster.TransferLeadership(ctx, req)
				return err
			})
			if err != nil {
				return err
			}
			const done = "leadership was handed over"
			if client.output == outputJSON {
				return unprinted(done, writeJSON(cmd.OutOrStdout(), resp))
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "leader: %s\n", printable(formatLeader(resp.GetLeaderId(), resp.GetLeaderAddress())))
			return unprinted(done, err)
		},
	}
	cmd.Flags().SortFlags = false
	client.register(cmd, 30*time.Second)
	return cmd
}

// change has the leader change the cluster; the error is the command's.
func (f *clientFlags) change(ctx context.Context, call func(context.Context, pb.ClusterServiceClient) error) error {
	return changeError(f.do(ctx, func(ctx context.Context, conn grpc.ClientConnInterface) error {
		return call(ctx, pb.NewClusterServiceClient(conn))
	}))
}

// member is what --output json says of a node that was changed.
type member struct {
	ID string `json:"id"`
	// Voter is nil if it is not known.
	Voter   *bool `json:"voter"`
	Removed bool  `json:"removed"`
	// Waiting is what a node that was added and has not joined yet says that is in its way.
	Waiting string `json:"waiting_for,omitempty"`
}

// place says how a node that was added is in the cluster.
func (m member) place() string {
	switch {
	case m.Voter == nil:
		return m.ID + " is in the cluster"
	case *m.Voter:
		return m.ID + " is in the cluster as a voter"
	}
	return m.ID + " is in the cluster as a non-voter"
}

const (
	// memberTimeout bounds how long joined waits. A node that can join does so in less; one
	// that answers takes a second at most to ask others.
	memberTimeout = 5 * time.Second
	memberEvery   = 200 * time.Millisecond
)

// joined waits until a node that was added knows that it is in the cluster, and says whether it
// is a voter, nil = that is not known: a node that is added again, or comes back with an empty
// directory, can be one, and the answer does not say so. waiting is what the node says that is
// in its way, if it has not joined in time.
func joined(ctx context.Context, cluster pb.ClusterServiceClient, id string) (voter *bool, waiting string) {
	ctx, cancel := context.WithTimeout(ctx, memberTimeout)
	defer cancel()
	for {
		st, err := cluster.GetStatus(ctx, &pb.GetStatusRequest{})
		if err != nil {
			return voter, waiting // the node was added all the same
		}
		if voter, waiting = memberOf(st, id); waiting == "" {
			return voter, ""
		}
		select {
		case <-time.After(memberEvery):
		case <-ctx.Done():
			return voter, waiting
		}
	}
}

// memberOf is what a status says of a node.
func memberOf(st *pb.GetStatusResponse, id string) (voter *bool, waiting string) {
	for _, n := range st.GetNodes() {
		if n.GetId() != id {
			continue
		}
		if n.GetRole() == "joining" {
			waiting = strings.Join(n.GetProblems(), "; ")
		}
		if voter != nil && *voter != n.GetVoter() {
			return nil, waiting // its former self is still there
		}
		v := n.GetVoter()
		voter = &v
	}
	return voter, waiting
}

// changed reports a change that is done.
func (f *clientFlags) changed(cmd *cobra.Command, m member, format string, args ...any) error {
	const done = "the cluster is changed"
	if f.output == outputJSON {
		return unprinted(done, json.NewEncoder(cmd.OutOrStdout()).Encode(m))
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), printable(fmt.Sprintf(format, args...)))
	return unprinted(done, err)
}

// changeError turns what a change of the cluster failed with into the command's error.
func changeError(err error) error {
	if err == nil || errors.As(err, new(*exitError)) {
		return err
	}
	unknown := &exitError{
		code: exitUnknown, err: plainError(err), mayHaveHappened: true,
		advice: "The change may or may not have happened. \"tidemark cluster status\" shows; giving the same command again does no harm.",
	}
	if refusal, ok := api.FromStatus(err); ok {
		if refusal.MayHaveHappened() == api.Yes {
			unknown.err = refusal
			return unknown
		}
		failure := &exitError{code: exitFailure, err: refusal}
		if refusal.Code != pb.ErrorCode_ERROR_CODE_INVALID_REQUEST { // which says it better itself
			failure.advice = tableAdvice(refusal)
		}
		return failure
	}
	if status.Code(err) == codes.Unimplemented {
		return &exitError{code: exitFailure, err: plainError(err)}
	}
	return unknown
}
