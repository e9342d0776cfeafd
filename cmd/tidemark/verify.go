package main

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tidemark-db/tidemark/internal/inspect"
)

func newVerifyCommand() *cobra.Command {
	output := ""
	cmd := &cobra.Command{
		Use:   "verify DIR",
		Short: "Check a stopped node's data directory, byte by byte, offline",
		Long: `Check everything in the data directory of a node that does not run: the checksum of every
record of the log, of every block of every table and blob file of the history and of the
snapshots, and of every value of the stable store; that versions, event numbers, positions
and entries have no gaps; every content and chain hash; heads and writer rows against the
batches; and that the files belong together. The entries that the history has applied are
decided over anew, and the outcome is compared. It is read without the code that a node reads
it with, and nothing is changed: a mount that is read-only will do.

Each finding names the file, and the key or the offset. What a crash leaves and the next start
repairs is a note, not damage. docs/verify.md says what each finding means, and what to do.

Exit codes: 0 there is no damage, 71 there is, 72 a node has the directory open, 1 it could not
be checked. --output json prints one finding a line, and a summary last.`,
		Example: `  tidemark verify tidemark-data
  tidemark verify tidemark-data --output json`,
		Args: exactly("DIR"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return verify(cmd, args[0], output)
		},
	}
	cmd.Flags().SortFlags = false
	registerOutput(cmd, &output)
	return cmd
}

// verification prints findings as they come.
type verification struct {
	cmd      *cobra.Command
	json     bool
	progress *progress
	read     int64
	failed   error // of printing
}

func verify(cmd *cobra.Command, dir, output string) error {
	v := &verification{cmd: cmd, json: output == outputJSON, progress: newProgress(cmd.ErrOrStderr(), -1)}
	report, err := inspect.Verify(cmd.Context(), dir, v.options())
	return v.end(cmd.Context(), dir, report, err)
}

func (v *verification) options() inspect.VerifyOptions {
	return inspect.VerifyOptions{
		Found: v.found,
		Doing: func(what string) { v.progress.say(func() string { return printable(what) }) },
		Read: func(n int64) {
			v.read += n
			v.progress.set(v.read)
		},
	}
}

// found prints a finding.
func (v *verification) found(f inspect.Finding) {
	if v.failed != nil {
		return
	}
	v.progress.clear()
	if v.json {
		v.failed = json.NewEncoder(v.cmd.OutOrStdout()).Encode(map[string]any{"finding": f})
		return
	}
	sort := "note  "
	if f.Damage {
		sort = "DAMAGE"
	}
	_, v.failed = fmt.Fprintf(v.cmd.OutOrStdout(), "%s  %s\n", sort, printable(f.String()))
}

// end prints the summary and returns what the exit code is for.
func (v *verification) end(ctx context.Context, what string, r inspect.Report, err error) error {
	v.progress.clear()
	switch {
	case err == nil:
		err = v.failed
	case ctx.Err() != nil:
		err = fmt.Errorf("verifying %s was interrupted: %w", what, ctx.Err())
	}
	if err != nil {
		return inspectError(err)
	}
	if v.json {
		err = json.NewEncoder(v.cmd.OutOrStdout()).Encode(map[string]any{"summary": r})
	} else {
		_, err = fmt.Fprintf(v.cmd.ErrOrStderr(), "Checked %d entries of the log (%d applied anew), %d blocks, %d aggregates, %d batches, %d writer rows, %d positions: %s, %s.\n",
			r.Entries, r.Applied, r.Blocks, r.Heads, r.Batches, r.Rows, r.Positions, count(r.Damage, "place is damaged", "places are damaged"), count(r.Notes, "note", "notes"))
	}
	if err != nil {
		return &exitError{code: exitFailure, err: err}
	}
	if r.Damage > 0 {
		return &exitError{code: exitDamaged, reported: v.json, err: fmt.Errorf("%s is damaged", what),
			advice: "keep it for examination and restore this node's data from another node or from a backup; docs/verify.md says how"}
	}
	return nil
}
