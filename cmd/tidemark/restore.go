package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-db/tidemark/config"
	"github.com/tidemark-db/tidemark/internal/archive"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/wal/history"
)

// restoreFlags are those of restore.
type restoreFlags struct {
	dataDir, nodeID, raftAdvertise, output string
}

func newRestoreCommand() *cobra.Command {
	f := &restoreFlags{}
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make the data directory of a new cluster from a backup",
		Long: `Make an empty directory the data directory of a new cluster from a backup that "tidemark
backup" has taken; "-" reads it from standard input. All checksums are compared before there is
anything that could be started.

What is restored is a cluster of one node, of its own: it has a new cluster id and a new timeline,
so that no node of the old one takes part in it. Positions of the old timeline are refused (2031);
aggregates, versions, positions, chain hashes, marks and writers' rows are those of the backup, so
that the resend of whatever is in it is refused or confirmed as before. What was acknowledged later
is gone: stop the old cluster's writers first, and have them read their marks again.

Start it with "tidemark serve", with the same --data-dir and --node-id. For a cluster of several
nodes give it --peers with its own name and raft address, and take the others in with "tidemark
cluster add", with empty directories. docs/backup.md shows each step.

If it is cut short the node does not start; restore again, into the same directory, begins anew.

Exit codes: 0 restored; 1 it failed, and the directory is empty; 2 the command line is wrong, or
the directory is not empty; 71 the backup is damaged, and the directory is empty; 72 another
process has the directory open.`,
		Example: `  tidemark restore nightly.tidemark --data-dir /var/lib/tidemark --node-id n1
  zstd -dc nightly.tidemark.zst | tidemark restore - --data-dir tidemark-data`,
		Args: exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVar(&f.dataDir, "data-dir", "tidemark-data", "`DIRECTORY` to restore into; it must be empty, or not exist")
	flags.StringVar(&f.nodeID, "node-id", "n1", "`NAME` of the node that the directory is for")
	flags.StringVar(&f.raftAdvertise, "raft-advertise", "", "where other nodes will reach it, `HOST:PORT`; serve corrects it")
	registerOutput(cmd, &f.output)
	return cmd
}

// errBackupDamaged is a backup whose checksums do not match.
var errBackupDamaged = errors.New("the backup is damaged")

func (f *restoreFlags) run(cmd *cobra.Command, name string) error {
	if !config.IsNodeID(f.nodeID) {
		return usageError("--node-id: expected 1 to 64 characters from a-z A-Z 0-9 . _ -, found %q", f.nodeID)
	}
	if f.raftAdvertise != "" && !config.IsAddress(f.raftAdvertise) {
		return usageError("--raft-advertise: expected host:port, found %q", f.raftAdvertise)
	}
	began := time.Now()
	in, _, err := openInput(cmd.Context(), cmd.InOrStdin(), name)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	if name != "-" {
		in = interruptible(cmd.Context(), in)
	}
	bar := newProgress(cmd.ErrOrStderr(), 0)
	var content *archive.Content
	made, err := replication.RestoreBackup(replication.RestoreOptions{Dir: f.dataDir, NodeID: f.nodeID, RaftAddress: f.raftAdvertise}, func(dir string) (applied history.Applied, err error) {
		content, err = archive.Extract(in, func(file archive.File) (io.WriteCloser, error) {
			return newRestoredFile(filepath.Join(dir, strings.TrimPrefix(file.Name, archive.Directory)))
		}, func(done, total int64) { bar.of(done, total) })
		if err != nil {
			return applied, err
		}
		return appliedOf(content)
	})
	bar.clear()
	if err != nil {
		return f.failure(name, content, err)
	}
	return f.tell(cmd, name, content, made, time.Since(began))
}

// restoredFile is a file that is on disk once it is closed.
type restoredFile struct{ *os.File }

func newRestoredFile(path string) (io.WriteCloser, error) {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	return restoredFile{file}, err
}

// Close implements io.Closer.
func (f restoredFile) Close() error { return errors.Join(f.Sync(), f.File.Close()) }

// appliedOf is the state that a backup says it holds, if it is whole.
func appliedOf(c *archive.Content) (history.Applied, error) {
	if len(c.Findings) > 0 {
		const most = 5
		var lines []string
		for _, f := range c.Findings[:min(most, len(c.Findings))] {
			lines = append(lines, f.String())
		}
		if more := len(c.Findings) + c.Unlisted - len(lines); more > 0 {
			lines = append(lines, fmt.Sprintf("and %d more", more))
		}
		return history.Applied{}, fmt.Errorf("%w: %s", errBackupDamaged, strings.Join(lines, "; "))
	}
	m := c.Manifest
	a := history.Applied{Index: m.AppliedIndex, Term: m.AppliedTerm, Position: m.LastPosition, Timeline: m.Timeline}
	if m.CommittedAt != nil {
		a.CommittedAt = m.CommittedAt.UnixNano()
	}
	return a, nil
}

func (f *restoreFlags) failure(name string, content *archive.Content, err error) error {
	failure := &exitError{code: exitFailure, err: fmt.Errorf("%s was not restored: %w", name, err)}
	switch {
	case errors.Is(err, replication.ErrInUse):
		failure.code = exitInUse
	case errors.Is(err, replication.ErrNotEmpty), errors.Is(err, fs.ErrPermission):
		failure.code = exitUsage
	case errors.Is(err, errBackupDamaged), damaged(err):
		failure.code = exitDamaged
		failure.advice = "Restore another backup, or another copy of this one. Nothing was left in " + f.dataDir + "."
	case errors.Is(err, archive.ErrNotArchive), errors.Is(err, archive.ErrFormat):
		failure.code = exitUsage
	}
	return failure
}

func (f *restoreFlags) tell(cmd *cobra.Command, name string, c *archive.Content, made replication.Restored, took time.Duration) error {
	b := backupOf(name, c, took)
	if f.output == outputJSON {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(struct {
			DataDir   string     `json:"data_dir"`
			NodeID    string     `json:"node_id"`
			ClusterID string     `json:"cluster_id"`
			Timeline  string     `json:"timeline"`
			Backup    backupJSON `json:"backup"`
		}{f.dataDir, made.NodeID, made.ClusterID, made.Timeline, b})
	}
	err := fields(cmd.OutOrStdout(), "restored", name, "into", f.dataDir, "took", b.Duration, "backup of", b.CreatedAt.UTC().Format(time.RFC3339Nano),
		"last position", b.LastPosition, "old cluster", b.ClusterID, "old timeline", b.Timeline, "new cluster", made.ClusterID, "new timeline", made.Timeline, "node", made.NodeID)
	if err != nil {
		return err
	}
	if !b.Confirmed {
		cmd.PrintErrln("tidemark: this backup was taken without asking a majority (--local): what other nodes had acknowledged may not be in it")
	}
	_, err = fmt.Fprintf(cmd.ErrOrStderr(), "Start it with: tidemark serve --data-dir %s --node-id %s\n", f.dataDir, made.NodeID)
	return err
}
