package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/archive"
)

func newBackupCommand() *cobra.Command {
	var client clientFlags
	local := false
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Copy everything that a node holds into a file, while it serves",
		Long: `Copy everything that a node holds into one file, which "tidemark restore" makes a new cluster
from: aggregates, batches, positions, marks and writers' rows, as of one moment. The node goes on
serving meanwhile. It is the first of the --server addresses that can be reached, leader or not;
a follower has the least to do.

Everything that was acknowledged before the backup began is in it: the node asks a majority of its
cluster, and waits until it has applied what that knows of, for 30 s at most. With --local it asks
nobody and what it has is taken: for a cluster that has lost its majority.

The copy goes to FILE.partial, is compared with its checksums as it comes, and flushed, and only
then gets its name. A FILE that is there already is never overwritten. "-" writes to standard
output; a copy that was cut short there is found by its checksums, and by the exit code.

Exit codes: 0 the backup is whole and on disk; 1 it is not, and there is no FILE; 2 the command
line is wrong, or FILE is there already.`,
		Example: `  tidemark backup --server n2.example:7440 nightly.tidemark
  tidemark backup - | zstd | ssh archive.example 'cat > nightly.tidemark.zst'`,
		Args: exactly("FILE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runBackup(cmd, &client, args[0], local)
		},
	}
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&local, "local", false, "take what the node has, without asking a majority; the backup says so")
	client.register(cmd, 0)
	return cmd
}

// chunks reads a backup's stream as the bytes that it is.
type chunks struct {
	stream pb.ClusterService_BackupClient
	rest   []byte
}

func (c *chunks) Read(p []byte) (int, error) {
	for len(c.rest) == 0 {
		m, err := c.stream.Recv()
		if err != nil {
			return 0, err
		}
		c.rest = m.GetChunk()
	}
	n := copy(p, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

func runBackup(cmd *cobra.Command, client *clientFlags, name string, local bool) (err error) {
	began := time.Now()
	out, err := newBackupFile(cmd.OutOrStdout(), name)
	if err != nil {
		return err
	}
	defer func() { out.abandon() }()
	ctx, cancel := client.context(cmd.Context())
	defer cancel()
	conn, err := client.connect(notice())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	bar := newProgress(cmd.ErrOrStderr(), 0)
	if name == "-" && !isRegular(cmd.OutOrStdout()) {
		bar = &progress{} // what a pipe leads to may print on the same terminal
	}
	stream, err := pb.NewClusterServiceClient(conn).Backup(ctx, &pb.BackupRequest{Local: local})
	if err != nil {
		return backupError(ctx, err)
	}
	content, err := archive.Verify(io.TeeReader(&chunks{stream: stream}, out), func(done, total int64) { bar.of(done, total) })
	bar.clear()
	if err != nil {
		return backupError(ctx, err)
	}
	if len(content.Findings) > 0 {
		return &exitError{code: exitFailure, err: fmt.Errorf("the backup did not arrive whole: %s", content.Findings[0]),
			advice: "There is no backup. Take it again; if this happens again, \"tidemark verify\" checks the node's directory, and the network may damage what it carries."}
	}
	if err := out.commit(); err != nil {
		return &exitError{code: exitFailure, err: fmt.Errorf("the backup could not be written: %w", err)}
	}
	to := cmd.OutOrStdout()
	if name == "-" {
		to = cmd.ErrOrStderr()
	}
	return tellBackup(to, client.output, name, content, time.Since(began))
}

// backupError says what a backup failed with.
func backupError(ctx context.Context, err error) error {
	const nothing = "There is no backup."
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return &exitError{code: exitFailure, err: errors.New("the backup did not end within --timeout"), advice: nothing}
	case ctx.Err() != nil:
		return &exitError{code: exitFailure, err: errors.New("interrupted"), advice: nothing}
	}
	failure := &exitError{code: exitFailure, err: err, advice: nothing}
	if refusal, ok := api.FromStatus(err); ok {
		failure.err = refusal
		if refusal.Code == pb.ErrorCode_ERROR_CODE_NOT_LEADER {
			failure.advice += " Once a majority of the cluster is up, ask again; \"tidemark cluster status\" shows it. If it is lost, --local takes what this node has."
		}
		return failure
	}
	var file *fs.PathError
	if !errors.As(err, &file) {
		failure.err = plainError(err)
	}
	return failure
}

// backupJSON is what backup and restore print of a backup as JSON. 64-bit numbers are strings, as
// everywhere.
type backupJSON struct {
	File         string     `json:"file"`
	Digest       string     `json:"digest"`
	Bytes        int64      `json:"bytes,string"`
	Duration     string     `json:"duration"`
	ID           string     `json:"id"`
	CreatedAt    time.Time  `json:"created_at"`
	ClusterID    string     `json:"cluster_id"`
	Timeline     string     `json:"timeline"`
	NodeID       string     `json:"node_id"`
	Version      string     `json:"version"`
	AppliedIndex uint64     `json:"applied_index,string"`
	LastPosition uint64     `json:"last_position,string"`
	CommittedAt  *time.Time `json:"committed_at"`
	Confirmed    bool       `json:"confirmed"`
}

func backupOf(name string, c *archive.Content, took time.Duration) backupJSON {
	m := c.Manifest
	return backupJSON{
		File: name, Digest: c.Digest, Bytes: c.Size, Duration: took.Round(time.Millisecond).String(),
		ID: m.ID, CreatedAt: m.CreatedAt, ClusterID: m.ClusterID, Timeline: m.Timeline, NodeID: m.NodeID, Version: m.Version,
		AppliedIndex: m.AppliedIndex, LastPosition: m.LastPosition, CommittedAt: m.CommittedAt, Confirmed: m.Confirmed,
	}
}

func tellBackup(w io.Writer, output, name string, c *archive.Content, took time.Duration) error {
	b := backupOf(name, c, took)
	if output == outputJSON {
		return json.NewEncoder(w).Encode(b)
	}
	holds := "everything that was acknowledged before it began"
	if !b.Confirmed {
		holds = "what this node had; nobody else was asked (--local)"
	}
	committed := "-"
	if b.CommittedAt != nil {
		committed = b.CommittedAt.UTC().Format(time.RFC3339Nano)
	}
	return fields(w, "backup", name, "size", fmt.Sprintf("%d bytes", b.Bytes), "took", b.Duration, "taken at", b.CreatedAt.UTC().Format(time.RFC3339Nano),
		"cluster", b.ClusterID, "timeline", b.Timeline, "node", b.NodeID, "last position", b.LastPosition, "last commit", committed, "holds", holds, "digest", b.Digest)
}

// backupFile is where a backup goes: FILE.partial until it is whole, or standard output.
type backupFile struct {
	w    io.Writer
	name string
	file *os.File // nil: standard output
}

const partial = ".partial"

func newBackupFile(stdout io.Writer, name string) (*backupFile, error) {
	if name == "-" {
		if isTerminal(stdout) {
			return nil, usageError("FILE: is \"-\", but standard output is a terminal; a backup is not text")
		}
		return &backupFile{w: stdout}, nil
	}
	if _, err := os.Lstat(name); err == nil {
		return nil, usageError("FILE: %s is there already and is not overwritten; name another one, or move it away", name)
	}
	f, err := os.OpenFile(name+partial, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return nil, usageError("FILE: %w", err)
	}
	// What a backup that was killed has left is taken over, that of one at work is not.
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, usageError("FILE: another backup writes %s (%v); name another one, or wait for it", name+partial, err)
	}
	if err := f.Truncate(0); err != nil {
		_ = f.Close()
		return nil, usageError("FILE: %w", err)
	}
	return &backupFile{w: f, name: name, file: f}, nil
}

func (b *backupFile) Write(p []byte) (int, error) { return b.w.Write(p) }

// commit makes the backup durable under its name.
func (b *backupFile) commit() error {
	f := b.file
	if f == nil {
		return nil
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if _, err := os.Lstat(b.name); err == nil {
		return fmt.Errorf("%s was made meanwhile, and is not overwritten", b.name)
	}
	if err := os.Rename(f.Name(), b.name); err != nil {
		return err
	}
	b.file = nil
	dir, err := os.Open(filepath.Dir(b.name))
	if err != nil {
		return errors.Join(err, f.Close())
	}
	return errors.Join(dir.Sync(), dir.Close(), f.Close())
}

// abandon removes what was written of a backup that was not committed.
func (b *backupFile) abandon() {
	if b.file != nil {
		_ = os.Remove(b.file.Name())
		_ = b.file.Close()
	}
}
