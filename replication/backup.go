package replication

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
)

const (
	// maxBackups is how many backups a node makes at once. Each keeps the files of its moment
	// on the disk until it ends.
	maxBackups = 2
	// retryBackup is when to ask again if as many are running.
	retryBackup = 10 * time.Second
	// backupWait bounds how long a backup waits until a majority has been asked, and until
	// this node has applied what it must hold.
	backupWait = 30 * time.Second
)

// backups are those that this node makes:
//
//	backups/<n>/       the checkpoint of one that is being sent; of an earlier process: removed
//	backups/last.json  the newest one that was sent to its end
type backups struct {
	dir     string
	failed  atomic.Uint64
	sent    atomic.Uint64
	bytes   atomic.Uint64
	mu      sync.Mutex
	n       uint64 // numbers the checkpoints
	running int
	last    lastBackup
}

// lastBackup is what last.json says. It survives restarts, so that an alarm about backups that
// are too old can be told from one about a node that was started.
type lastBackup struct {
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"created_at"`
	Position  uint64    `json:"position"`
	Bytes     uint64    `json:"bytes"`
}

// BackupStats is how many backups a node makes and has made.
type BackupStats struct {
	Running, Limit int
	// Sent to their ends, and not, since the process started; and the bytes of both.
	Sent, Failed, Bytes uint64
	// LastSent is the moment that the newest backup which was sent to its end is of; zero =
	// there is none.
	LastSent time.Time
}

const lastBackupFile = "last.json"

// open removes what an earlier process has left.
func (b *backups) open(dir string) error {
	b.dir = dir
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() == lastBackupFile {
			continue
		}
		if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
			return err
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, lastBackupFile))
	if err == nil && json.Unmarshal(text, &b.last) != nil {
		b.last = lastBackup{} // nothing rests on it
	}
	return nil
}

func (b *backups) stats() BackupStats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return BackupStats{
		Running: b.running, Limit: maxBackups, Sent: b.sent.Load(), Failed: b.failed.Load(), Bytes: b.bytes.Load(), LastSent: b.last.CreatedAt,
	}
}

// begin takes a place, and names a directory for the checkpoint.
func (b *backups) begin() (dir string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.running >= maxBackups {
		return "", api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY,
			"%d backups are being made on this node, which is its limit, because each keeps disk space; ask again later, or ask another node", b.running).After(retryBackup)
	}
	b.running++
	b.n++
	return filepath.Join(b.dir, strconv.FormatUint(b.n, 10)), nil
}

func (b *backups) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.running--
}

// Backup is a consistent copy of the history, as files that do not change until End.
type Backup struct {
	// ID names it, 32 hex digits.
	ID        string
	CreatedAt time.Time
	// ClusterID, Timeline, Shard and NodeID say whose it is.
	ClusterID, Timeline string
	Shard               uint32
	NodeID              string
	Version             string // of the program
	// Applied is the state that it holds.
	Applied history.Applied
	// Confirmed: it holds everything that was acknowledged before it was asked for.
	Confirmed bool
	Files     []BackupFile

	s     *Shard
	dir   string
	bytes uint64 // sent
	once  sync.Once
}

// BackupFile is a file of a Backup.
type BackupFile struct {
	Name string
	Size int64
}

// BackupOptions says what a backup must hold.
type BackupOptions struct {
	// Local: what this node has applied is enough, and nobody is asked.
	Local bool
}

// Backup makes a checkpoint that holds, unless o is Local, everything that was acknowledged
// before the call. The caller must End it. Errors: 11000 if enough of them are made already,
// 2018 if the disk is below its reserve, 2011 if no majority could be asked or the node is no
// member or stopping, DEADLINE_EXCEEDED if this node is too far behind.
func (s *Shard) Backup(ctx context.Context, o BackupOptions) (*Backup, error) {
	if id := s.identity(); id.State != stateMember || s.raftGroup() == nil {
		return nil, s.notLeader("this node is not a member of a cluster yet and has nothing to back up")
	}
	if err := s.roomForBackup(); err != nil {
		return nil, err
	}
	dir, err := s.backups.begin()
	if err != nil {
		return nil, err
	}
	id := s.identity()
	b := &Backup{
		ID: newHexID(16), ClusterID: id.ClusterID, Timeline: id.Timeline, Shard: s.opts.Shard, NodeID: id.NodeID, Version: s.opts.Version,
		Confirmed: !o.Local, s: s, dir: dir,
	}
	if !o.Local {
		err = s.awaitAcknowledged(ctx)
	}
	if err == nil {
		err = b.checkpoint()
	}
	if err != nil {
		b.End(err)
		return nil, err
	}
	s.log.Info("a backup begins", zap.String("id", b.ID), zap.Uint64("applied_index", b.Applied.Index), zap.Uint64("position", b.Applied.Position),
		zap.Bool("confirmed", b.Confirmed))
	return b, nil
}

// roomForBackup refuses one while the disk is below its reserve: the files that it keeps would
// be missed.
func (s *Shard) roomForBackup() error {
	if free := s.disk.low(); free >= 0 {
		return api.Errorf(pb.ErrorCode_ERROR_CODE_INSUFFICIENT_DISK_SPACE,
			"%d bytes are free in the data directory and %d are kept in reserve: no backup is made, because its files would keep more; free space on the server, or ask another node", free, s.opts.MinFreeDiskBytes)
	}
	return nil
}

// awaitAcknowledged returns once this node has applied everything that was acknowledged before
// the call.
func (s *Shard) awaitAcknowledged(ctx context.Context) error {
	waiting, cancel := context.WithTimeout(ctx, s.backupWait())
	defer cancel()
	index, err := s.awaitReadIndex(waiting)
	if err == nil {
		if err = s.awaitIndex(waiting, index); err != nil && waiting.Err() != nil && ctx.Err() == nil {
			return status.Errorf(codes.DeadlineExceeded, "this node has applied log entry %d of %d after %v: it is too far behind for a backup of everything that was acknowledged; ask another node", s.appliedIndex(), index, s.backupWait())
		}
		return err
	}
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	return api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER,
		"no majority of the cluster could be asked what was acknowledged, for %v (%v): no backup is made; ask again, or ask for what this node has (local)", s.backupWait(), err).With(&pb.NotLeader{})
}

func (s *Shard) backupWait() time.Duration {
	if s.opts.Hooks.BackupWait > 0 {
		return s.opts.Hooks.BackupWait
	}
	return backupWait
}

func (s *Shard) appliedIndex() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.view.Applied().Index
}

// checkpoint makes the files.
func (b *Backup) checkpoint() error {
	s := b.s
	if err := makeDir(s.backups.dir); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	s.mu.Lock()
	store, pin := s.store, s.acquireView()
	s.mu.Unlock()
	if pin == nil || s.failed() {
		return s.notLeader("this node is stopping")
	}
	defer pin.Release() // until then the store stays open, even if another one takes its place
	if err := store.Checkpoint(b.dir); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	b.CreatedAt = s.opts.Clock().UTC()
	files, err := checkpointFiles(b.dir)
	if err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	for _, f := range files {
		b.Files = append(b.Files, BackupFile{Name: f.name, Size: f.size})
	}
	// How far Apply has come since the checkpoint was begun, only the checkpoint knows.
	if b.Applied, err = history.CheckpointApplied(vfs.Default, b.dir); err != nil {
		return fmt.Errorf("backup: %w", err)
	}
	return nil
}

// Open opens a file.
func (b *Backup) Open(f BackupFile) (io.ReadCloser, error) {
	return os.Open(filepath.Join(b.dir, f.Name))
}

// Sent counts bytes that have left.
func (b *Backup) Sent(bytes int) {
	b.bytes += uint64(bytes)
	b.s.backups.bytes.Add(uint64(bytes))
}

// Check says why the backup must not go on: 2018 if the disk is below its reserve, 2011 if the
// node stops.
func (b *Backup) Check() error {
	select {
	case <-b.s.stopped:
		return b.s.notLeader("this node is stopping")
	default:
		return b.s.roomForBackup()
	}
}

// End removes the files. failure says why the backup was not sent to its end; nil = it was. It
// may be called again.
func (b *Backup) End(failure error) {
	b.once.Do(func() {
		s := b.s
		if err := os.RemoveAll(b.dir); err != nil {
			s.log.Error("the files of a backup could not be removed; the next start does", zap.String("dir", b.dir), zap.Error(err))
		}
		s.backups.end()
		if failure != nil {
			s.backups.failed.Add(1)
			s.log.Warn("a backup was not made", zap.String("id", b.ID), zap.Uint64("bytes", b.bytes), zap.Error(failure))
			return
		}
		s.backups.sent.Add(1)
		s.log.Info("a backup was sent", zap.String("id", b.ID), zap.Uint64("position", b.Applied.Position), zap.Uint64("bytes", b.bytes))
		if err := s.backups.note(lastBackup{ID: b.ID, CreatedAt: b.CreatedAt, Position: b.Applied.Position, Bytes: b.bytes}); err != nil {
			s.log.Warn("the time of the newest backup could not be written down", zap.Error(err))
		}
	})
}

// note writes down the newest backup that was sent.
func (b *backups) note(last lastBackup) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if last.CreatedAt.Before(b.last.CreatedAt) {
		return nil
	}
	b.last = last
	text, err := json.MarshalIndent(last, "", "  ")
	if err != nil {
		return err
	}
	return writeFileDurably(filepath.Join(b.dir, lastBackupFile), append(text, '\n'))
}
