package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/archive"
	"github.com/tidemark-db/tidemark/replication"
)

// startBackups serves a real shard's backups, of more bytes than connections hold.
func startBackups(t *testing.T, change func(*Options)) (*rig, *replication.Shard, pb.ClusterServiceClient) {
	t.Helper()
	dir := t.TempDir()
	shard, err := replication.Open(replication.Options{Dir: dir, MinFreeDiskBytes: -1, Version: "v9"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := shard.Abandon(); err != nil {
			t.Error(err)
		}
		left, err := filepath.Glob(filepath.Join(dir, "backups", "[0-9]*"))
		if err != nil || len(left) > 0 {
			t.Errorf("expected no files of backups to be left, found %v, error %v", left, err)
		}
	})
	for ready, changed := shard.Leading(); !ready; ready, changed = shard.Leading() {
		<-changed
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	payload := make([]byte, 1<<20)
	for i := range payload {
		payload[i] = byte(rnd.Uint32())
	}
	for seq := uint64(1); seq <= 8; seq++ {
		_, err := shard.Append(testContext(t), &pb.AppendRequest{ClientId: "a", Writes: []*pb.Write{{
			Aggregate: &pb.AggregateKey{Org: "acme", Type: "orders", Id: fmt.Sprint(seq)}, AllowCreate: true,
			Events: []*pb.NewEvent{{ClientSeq: seq, EventId: fmt.Sprint(seq), Type: "t", Payload: payload}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	r := start(t, change)
	r.shard.backups = shard
	return r, shard, pb.NewClusterServiceClient(r.conn)
}

// received reads a backup as a client does.
type received struct {
	stream pb.ClusterService_BackupClient
	chunk  []byte
}

func (r *received) Read(p []byte) (int, error) {
	for len(r.chunk) == 0 {
		m, err := r.stream.Recv()
		if err != nil {
			return 0, err
		}
		if r.chunk = m.GetChunk(); len(r.chunk) > backupChunk {
			return 0, fmt.Errorf("expected chunks of at most %d bytes, found %d", backupChunk, len(r.chunk))
		}
	}
	n := copy(p, r.chunk)
	r.chunk = r.chunk[n:]
	return n, nil
}

func ended(t *testing.T, s *replication.Shard) replication.BackupStats {
	t.Helper()
	ctx := testContext(t)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		st := s.Stats().Backups
		if st.Running == 0 {
			return st
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("a backup has not ended")
		}
	}
}

func TestBackupIsAWholeArchive(t *testing.T) {
	_, shard, c := startBackups(t, nil)
	for _, local := range []bool{false, true} {
		stream, err := c.Backup(testContext(t), &pb.BackupRequest{Local: local})
		if err != nil {
			t.Fatal(err)
		}
		got, err := archive.Verify(&received{stream: stream}, nil)
		if err != nil || len(got.Findings) != 0 || got.Digest == "" {
			t.Fatalf("expected a whole archive, found %+v, error %v", got, err)
		}
		m, st := got.Manifest, shard.Status()
		if m.ClusterID != st.ClusterID || m.Timeline != st.Timeline || m.NodeID != "n1" || m.Version != "v9" || m.LastPosition != 8 ||
			m.AppliedIndex != st.AppliedIndex || m.AppliedTerm != st.Term || m.CommittedAt == nil || m.Confirmed == local || len(m.Files) == 0 || m.Bytes() < 8<<20 {
			t.Fatalf("expected a manifest of %+v, found %+v", st, m)
		}
		if stats := ended(t, shard); stats.Bytes == 0 || !stats.LastSent.Equal(m.CreatedAt) {
			t.Fatalf("expected the backup in the figures, found %+v", stats)
		}
	}
	if stats := ended(t, shard); stats.Sent != 2 || stats.Failed != 0 {
		t.Fatalf("expected two backups, found %+v", stats)
	}
}

func TestBackupThatIsCancelledLeavesNothing(t *testing.T) {
	_, shard, c := startBackups(t, nil)
	ctx, cancel := context.WithCancel(testContext(t))
	stream, err := c.Backup(ctx, &pb.BackupRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.CopyN(io.Discard, &received{stream: stream}, 1<<20); err != nil {
		t.Fatal(err)
	}
	if st := shard.Stats().Backups; st.Running != 1 {
		t.Fatalf("expected one that runs, found %+v", st)
	}
	cancel()
	if st := ended(t, shard); st.Failed != 1 || st.Sent != 0 || !st.LastSent.IsZero() {
		t.Fatalf("expected one that failed, found %+v", st)
	}
}

// A receiver that takes nothing is cut off, however long its deadline is.
func TestStalledReceiverOfABackupIsCutOff(t *testing.T) {
	_, shard, c := startBackups(t, func(o *Options) { o.backupStall = 200 * time.Millisecond })
	stream, err := c.Backup(testContext(t), &pb.BackupRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if st := ended(t, shard); st.Failed != 1 {
		t.Fatalf("expected one that failed, found %+v", st)
	}
	if n, err := io.Copy(io.Discard, &received{stream: stream}); status.Code(err) != codes.Unavailable {
		t.Fatalf("expected the connection to be lost, found the end after %d bytes, error %v", n, err)
	}
}

func TestBackupsBeyondTheLimitAreRefused(t *testing.T) {
	_, shard, c := startBackups(t, nil)
	ctx, cancel := context.WithCancel(testContext(t))
	defer cancel()
	for range shard.Stats().Backups.Limit {
		stream, err := c.Backup(ctx, &pb.BackupRequest{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	stream, err := c.Backup(ctx, &pb.BackupRequest{})
	if err == nil {
		_, err = stream.Recv()
	}
	if code := api.CodeOf(err); code != pb.ErrorCode_ERROR_CODE_SERVER_BUSY {
		t.Fatalf("expected 11000, found %v", err)
	}
	cancel()
	ended(t, shard)
}

// A node that stops does not wait for a backup to be sent.
func TestBackupEndsWithTheServer(t *testing.T) {
	r, shard, c := startBackups(t, nil)
	stream, err := c.Backup(testContext(t), &pb.BackupRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	drained := make(chan error, 1)
	go func() { drained <- r.server.Drain(testContext(t)) }()
	<-r.server.stopping
	_, err = io.Copy(io.Discard, &received{stream: stream})
	if code := api.CodeOf(err); code != pb.ErrorCode_ERROR_CODE_NOT_LEADER {
		t.Fatalf("expected 2011, found %v", err)
	}
	if err := <-drained; err != nil {
		t.Fatal(err)
	}
	if st := ended(t, shard); st.Failed != 1 {
		t.Fatalf("expected one that failed, found %+v", st)
	}
}

// A file that is cut short while it is sent is not passed off as a whole one.
func TestBackupOfFilesThatChangeFails(t *testing.T) {
	r, shard, _ := startBackups(t, nil)
	b, err := shard.Backup(testContext(t), replication.BackupOptions{})
	if err != nil {
		t.Fatal(err)
	}
	b.Files[0].Size++
	s := &clusterService{shard: r.shard}
	err = s.sendBackup(&backupStream{ctx: t.Context(), stream: discarding{}, backup: b}, b)
	b.End(err)
	if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && !os.IsNotExist(err) {
		t.Fatalf("expected the missing byte to be found, found %v", err)
	}
}

type discarding struct{ pb.ClusterService_BackupServer }

func (discarding) Send(*pb.BackupResponse) error { return nil }
