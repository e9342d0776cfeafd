package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/archive"
	"github.com/tidemark-db/tidemark/replication"
)

const (
	// backupChunk is the size of a message of a backup. gRPC holds one or two of them.
	backupChunk = 256 << 10
	// A receiver must take backupLeast in each backupStall, or its connection is cut: the
	// files of a backup keep disk space for as long as it lasts.
	backupStall = time.Minute
	backupLeast = 1 << 20
)

// Backup implements pb.ClusterServiceServer. Every member answers.
func (s *clusterService) Backup(req *pb.BackupRequest, stream pb.ClusterService_BackupServer) error {
	b, err := s.shard.Backup(stream.Context(), replication.BackupOptions{Local: req.GetLocal()})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	w := &backupStream{ctx: ctx, stream: stream, backup: b}
	watched := make(chan struct{})
	go func() { // ends with the call
		defer close(watched)
		s.watchBackup(ctx, cancel, w)
	}()
	err = s.sendBackup(w, b)
	// What the call was cut for says more than that it was.
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = cause
	}
	cancel(nil)
	<-watched
	b.End(err)
	return err
}

// sendBackup writes the archive.
func (s *clusterService) sendBackup(w *backupStream, b *replication.Backup) error {
	out := bufio.NewWriterSize(w, backupChunk)
	a, err := archive.NewWriter(out, s.manifest(b))
	if err != nil {
		return err
	}
	for _, f := range b.Files {
		if err := writeFile(a, b, f); err != nil {
			return err
		}
	}
	if _, err := a.Close(); err != nil {
		return err
	}
	return out.Flush()
}

func writeFile(a *archive.Writer, b *replication.Backup, f replication.BackupFile) (err error) {
	r, err := b.Open(f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	return a.File(bufio.NewReaderSize(r, backupChunk))
}

// manifest says what a backup is.
func (s *clusterService) manifest(b *replication.Backup) *archive.Manifest {
	m := &archive.Manifest{
		ID: b.ID, CreatedAt: b.CreatedAt, ClusterID: b.ClusterID, Timeline: b.Timeline, Shard: b.Shard, NodeID: b.NodeID, Version: b.Version,
		AppliedIndex: b.Applied.Index, AppliedTerm: b.Applied.Term, LastPosition: b.Applied.Position, Confirmed: b.Confirmed,
	}
	if b.Applied.CommittedAt != 0 {
		at := time.Unix(0, b.Applied.CommittedAt).UTC()
		m.CommittedAt = &at
	}
	for _, f := range b.Files {
		m.Files = append(m.Files, archive.File{Name: archive.Directory + f.Name, Size: f.Size})
	}
	return m
}

// backupStream sends what is written to it as messages.
type backupStream struct {
	ctx    context.Context
	stream pb.ClusterService_BackupServer
	backup *replication.Backup
	taken  atomic.Int64
}

var _ io.Writer = (*backupStream)(nil)

func (w *backupStream) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		if w.ctx.Err() != nil {
			return n, context.Cause(w.ctx)
		}
		size := min(len(p), backupChunk)
		if err := w.stream.Send(&pb.BackupResponse{Chunk: p[:size]}); err != nil {
			return n, err
		}
		w.taken.Add(int64(size))
		w.backup.Sent(size)
		n, p = n+size, p[size:]
	}
	return n, nil
}

// watchBackup ends a backup that must not go on: because nobody takes it, the disk is filling
// up, or the node is stopping.
func (s *clusterService) watchBackup(ctx context.Context, cancel context.CancelCauseFunc, w *backupStream) {
	stall := s.backupStall
	ticker := time.NewTicker(min(stall/4, time.Second))
	defer ticker.Stop()
	since, taken := time.Now(), int64(0)
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.stopping:
			cancel(api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "this node is stopping: the backup is not complete; take it again, or from another node").With(&pb.NotLeader{}))
			return
		case <-ticker.C:
		}
		if err := w.backup.Check(); err != nil {
			cancel(err)
			return
		}
		if now := w.taken.Load(); now-taken >= backupLeast {
			since, taken = time.Now(), now
		}
		if time.Since(since) < stall {
			continue
		}
		err := status.Errorf(codes.DeadlineExceeded, "the receiver took less than %d bytes in %v: its connection is closed", backupLeast, stall)
		cancel(err)
		s.log.Warn("a backup was cut off", zap.String("id", w.backup.ID), zap.Error(err))
		cutConnection(ctx)
		return
	}
}

// cutConnection closes the connection of a call, which is the only way to end one whose
// receiver does not take what is sent.
func cutConnection(ctx context.Context) {
	if p, ok := peer.FromContext(ctx); ok {
		if a, ok := p.Addr.(connAddr); ok {
			_ = a.conn.Close() // whatever it says, the connection is gone
		}
	}
}
