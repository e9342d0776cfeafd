package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"github.com/tidemark-db/tidemark/internal/inspect"
)

// verifyFlags are what the command line says about verifying.
type verifyFlags struct {
	client        clientFlags
	org, typ      string
	aggregate     string
	tempDir       string
	checksumsOnly bool
}

func newVerifyCommand() *cobra.Command {
	f := &verifyFlags{}
	cmd := &cobra.Command{
		Use:   "verify [DIR|BACKUP]",
		Short: "Check a stopped node's data directory, a backup, or a node at work",
		Long: `Without an argument, have the node at --server check what it has applied, while it works: the
audit chain of every aggregate is recomputed, or of those that --org, --type or --aggregate
name, and heads and writer rows are compared with the batches. A batch that was changed, is
missing or stands in another's place is named. Of several addresses the first that answers is asked; ask
each node in turn, since each has files of its own.

With an argument, check everything in the data directory of a node that does not run: the checksum of every
record of the log, of every block of every table and blob file of the history and of the
snapshots, and of every value of the stable store; that versions, event numbers, positions
and entries have no gaps; every content and chain hash; heads and writer rows against the
batches; and that the files belong together. The entries that the history has applied are
decided over anew, and the outcome is compared. It is read without the code that a node reads
it with, and nothing is changed: a mount that is read-only will do.

Each finding names the file, and the key or the offset. What a crash leaves and the next start
repairs is a note, not damage.

Of a BACKUP (a file, or - for one on standard input) first its own checksums are compared, over
every byte; then, if all are right, it is unpacked below --temp-dir, which needs room for all of
it, what is in it is checked like the history of a data directory, and what was unpacked is
removed.

docs/verify.md says what each finding means, and what to do.

Exit codes: 0 there is no damage, 71 there is, 72 a node has the directory open, 1 it could not
be checked, or not all of it, 2 it is no data directory and no backup. --output json prints one finding a line, and a summary last.`,
		Example: `  tidemark verify tidemark-data
  tidemark verify tidemark-data --output json
  tidemark verify monday.backup --temp-dir /var/tmp
  tidemark verify --server n2.example:7440
  tidemark verify --server n2.example:7440 --aggregate acme/orders/4821`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return exactly("DIR|BACKUP")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return f.online(cmd)
			}
			for _, name := range []string{"server", "timeout", "org", "type", "aggregate"} {
				if cmd.Flags().Changed(name) {
					return usageError("--%s is about a node at work; found an argument, %q, which is checked offline", name, args[0])
				}
			}
			return f.run(cmd, args[0])
		},
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.tempDir, "temp-dir", "", "unpack a backup below this `DIR`; empty = the system's for temporary files")
	flags.BoolVar(&f.checksumsOnly, "checksums-only", false, "of a backup, compare its own checksums alone: nothing is unpacked")
	flags.StringVar(&f.org, "org", "", "of a node at work, the aggregates of this `ORG` alone")
	flags.StringVar(&f.typ, "type", "", "of --org, those of this `TYPE` alone")
	flags.StringVar(&f.aggregate, "aggregate", "", "of a node at work, this `ORG/TYPE/ID` alone")
	f.client.register(cmd, 0)
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

func (f *verifyFlags) run(cmd *cobra.Command, what string) (err error) {
	v := &verification{cmd: cmd, json: f.client.output == outputJSON, progress: newProgress(cmd.ErrOrStderr(), -1)}
	if what == "-" {
		return f.backup(v, "standard input", cmd.InOrStdin())
	}
	info, err := os.Stat(what)
	if err != nil {
		return usageError("expected a data directory or a backup: %w", err)
	}
	if info.IsDir() {
		report, err := inspect.Verify(cmd.Context(), what, v.options())
		return v.end(cmd.Context(), what, report, err)
	}
	file, err := os.Open(what)
	if err != nil {
		return &exitError{code: exitFailure, err: err}
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	return f.backup(v, what, file)
}

// backup verifies a backup.
func (f *verifyFlags) backup(v *verification, name string, r io.Reader) error {
	o := inspect.BackupOptions{VerifyOptions: v.options(), Name: name}
	if !f.checksumsOnly {
		o.Unpack = f.tempDir
		if o.Unpack == "" {
			o.Unpack = os.TempDir()
		}
	}
	report, err := inspect.VerifyBackup(v.cmd.Context(), r, o)
	return v.end(v.cmd.Context(), name, report, err)
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
