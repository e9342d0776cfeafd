package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// request is what the command line says about the scope.
func (f *verifyFlags) request(cmd *cobra.Command) (*pb.VerifyRequest, error) {
	switch {
	case f.tempDir != "" || f.checksumsOnly:
		return nil, usageError("--temp-dir and --checksums-only are about a backup; expected its name as an argument, found none")
	case f.aggregate != "" && (f.org != "" || f.typ != ""):
		return nil, usageError("expected --aggregate, or --org and --type; found both")
	case cmd.Flags().Changed("type") && f.org == "":
		return nil, usageError("--type: expected --org, too, found none")
	case cmd.Flags().Changed("aggregate"):
		k, err := parseAggregate(f.aggregate)
		if err != nil {
			return nil, err
		}
		return &pb.VerifyRequest{Org: k.GetOrg(), Type: k.GetType(), Id: k.GetId()}, nil
	}
	return &pb.VerifyRequest{Org: f.org, Type: f.typ}, nil
}

// online has a node verify what it has.
func (f *verifyFlags) online(cmd *cobra.Command) error {
	req, err := f.request(cmd)
	if err != nil {
		return err
	}
	ctx, cancel := f.client.context(cmd.Context())
	defer cancel()
	conn, err := f.client.connect(notice())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	v := &onlineVerification{cmd: cmd, flags: f, progress: newProgress(cmd.ErrOrStderr(), -1)}
	stream, err := pb.NewClusterServiceClient(conn).Verify(ctx, req)
	if err != nil {
		return callError(err)
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			v.progress.clear()
			return v.end(ctx, err)
		}
		if err := v.take(m); err != nil {
			return &exitError{code: exitFailure, err: err}
		}
	}
}

// onlineVerification prints findings as they come.
type onlineVerification struct {
	cmd      *cobra.Command
	flags    *verifyFlags
	progress *progress
	last     *pb.VerifyProgress
}

// take prints what a message tells. As JSON that is the message, if it has findings or is the
// last.
func (v *onlineVerification) take(m *pb.VerifyResponse) error {
	v.last = m.GetProgress()
	v.progress.set(int64(v.last.GetBytes()))
	v.progress.say(func() string { return printable(formatAggregate(v.last.GetAggregate())) })
	if len(m.GetFindings()) == 0 && !v.last.GetDone() {
		return nil
	}
	v.progress.clear()
	if v.flags.client.output == outputJSON {
		return writeJSON(v.cmd.OutOrStdout(), m)
	}
	for _, f := range m.GetFindings() {
		if _, err := fmt.Fprintf(v.cmd.OutOrStdout(), "DAMAGE  %s\n", printable(describeFinding(f))); err != nil {
			return err
		}
	}
	return nil
}

// describeFinding is a finding as one line.
func describeFinding(f *pb.VerifyFinding) string {
	where := "the node"
	if f.GetAggregate() != nil {
		where = formatAggregate(f.GetAggregate())
	}
	if f.GetIncarnation() > 1 {
		where += fmt.Sprintf(", incarnation %d", f.GetIncarnation())
	}
	if f.GetVersion() > 0 {
		where += fmt.Sprintf(", version %d", f.GetVersion())
	}
	kind := strings.ToLower(strings.TrimPrefix(f.GetKind().String(), "FINDING_KIND_"))
	return fmt.Sprintf("%s: %s: %s", where, kind, f.GetText())
}

// end prints the summary and returns what the exit code is for.
func (v *onlineVerification) end(ctx context.Context, err error) error {
	p := v.last
	json := v.flags.client.output == outputJSON
	whole := errors.Is(err, io.EOF) && p.GetDone()
	if p != nil && !json {
		checked := "Checked"
		if !whole {
			checked = "Checked only"
		}
		if _, err := fmt.Fprintf(v.cmd.ErrOrStderr(), "%s %d aggregates, %d batches, %d events of node %s up to position %d: %s.\n", checked,
			p.GetAggregates(), p.GetBatches(), p.GetEvents(), printable(p.GetNodeId()), p.GetPosition(), count(int(p.GetFindings()), "finding", "findings")); err != nil {
			return &exitError{code: exitFailure, err: err}
		}
	}
	const advice = "keep that node's data for examination and restore it from another node or from a backup; docs/verify.md says how"
	switch {
	case p.GetFindings() > 0:
		return &exitError{code: exitDamaged, reported: json, err: fmt.Errorf("the data of node %s is damaged", p.GetNodeId()), advice: advice}
	case whole:
		return nil
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &exitError{code: exitFailure, err: errors.New("not everything was verified within --timeout")}
	case ctx.Err() != nil:
		return &exitError{code: exitFailure, err: errors.New("interrupted: not everything was verified")}
	case errors.Is(err, io.EOF):
		return &exitError{code: exitFailure, err: errors.New("the node ended the answer before everything was verified")}
	}
	return callError(err)
}
