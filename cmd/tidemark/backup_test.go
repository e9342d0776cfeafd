package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/archive"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/server"
)

// serving is a node in this process, with n batches.
func servingNode(t *testing.T, dir string, n int) (address string, shard *replication.Shard) {
	t.Helper()
	shard, err := replication.Open(replication.Options{Dir: dir, MinFreeDiskBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	for ready, changed := shard.Leading(); !ready; ready, changed = shard.Leading() {
		<-changed
	}
	s, err := server.New(server.Options{Shard: shard})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }() // ends with Stop
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		s.Stop(ctx)
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := shard.Abandon(); err != nil {
			t.Error(err)
		}
	})
	for seq := 1; seq <= n; seq++ {
		_, err := shard.Append(t.Context(), &pb.AppendRequest{ClientId: "a", Writes: []*pb.Write{{
			Aggregate: &pb.AggregateKey{Org: "acme", Type: "orders", Id: fmt.Sprint(seq % 3)}, AllowCreate: true, EnforceClientIdempotency: true,
			Events: []*pb.NewEvent{{ClientSeq: uint64(seq), EventId: fmt.Sprint(seq), Type: "t", Payload: []byte("payload")}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	return l.Addr().String(), shard
}

func TestBackupAndRestore(t *testing.T) {
	address, shard := servingNode(t, t.TempDir(), 20)
	dir := t.TempDir()
	file, data := filepath.Join(dir, "b.tidemark"), filepath.Join(dir, "data")
	code, stdout, stderr := runCommand(t, "backup", "--server", address, "--output", "json", file)
	if code != exitOK || stderr != "" {
		t.Fatalf("exit %d, stderr %q", code, stderr)
	}
	var b backupJSON
	if err := json.Unmarshal([]byte(stdout), &b); err != nil {
		t.Fatal(err)
	}
	st := shard.Status()
	info, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.File != file || b.Bytes != info.Size() || b.LastPosition != 20 || b.AppliedIndex != st.AppliedIndex || b.ClusterID != st.ClusterID || b.Timeline != st.Timeline ||
		b.NodeID != "n1" || !b.Confirmed || len(b.Digest) != 64 || b.CommittedAt == nil || time.Since(b.CreatedAt) > time.Minute {
		t.Fatalf("expected what the file holds, found %s", stdout)
	}
	if _, err := os.Stat(file + partial); !os.IsNotExist(err) {
		t.Errorf("expected no %s to be left, found %v", partial, err)
	}

	code, _, stderr = runCommand(t, "backup", "--server", address, file)
	if code != exitUsage || !strings.Contains(stderr, "is there already and is not overwritten") {
		t.Errorf("expected the file to be kept, exit %d, %q", code, stderr)
	}
	code, stdout, stderr = runCommand(t, "backup", "--server", address, "--local", "-")
	if c, err := archive.Verify(strings.NewReader(stdout), nil); code != exitOK || err != nil || len(c.Findings) > 0 || c.Manifest.Confirmed {
		t.Errorf("expected a whole backup on standard output that was not confirmed, exit %d, %+v, error %v", code, c, err)
	}
	if !strings.Contains(stderr, "last position  20\n") || !strings.Contains(stderr, "nobody else was asked") {
		t.Errorf("expected what it holds on stderr, found %q", stderr)
	}

	code, stdout, stderr = runCommand(t, "restore", file, "--data-dir", data, "--node-id", "r1", "--output", "json")
	if code != exitOK || stderr != "" {
		t.Fatalf("exit %d, stderr %q", code, stderr)
	}
	var r struct {
		DataDir, NodeID, ClusterID, Timeline string
	}
	if err := json.Unmarshal([]byte(strings.ReplaceAll(stdout, "_", "")), &r); err != nil {
		t.Fatal(err)
	}
	if r.DataDir != data || r.NodeID != "r1" || r.ClusterID == st.ClusterID || r.Timeline == st.Timeline || len(r.Timeline) != 32 {
		t.Fatalf("expected a new cluster, found %s", stdout)
	}
	code, _, stderr = runCommand(t, "restore", file, "--data-dir", data)
	if code != exitUsage || !strings.Contains(stderr, "the directory is not empty") {
		t.Errorf("expected the directory to be kept, exit %d, %q", code, stderr)
	}
	// An older file of the same name is not taken for this one.
	code, stdout, stderr = runCommand(t, "restore", file, "--data-dir", filepath.Join(dir, "again"))
	if code != exitOK || !strings.Contains(stdout, "new timeline") || !strings.Contains(stderr, "Start it with: tidemark serve --data-dir "+filepath.Join(dir, "again")) {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
}

// However a backup fails, there is no file of its name, and nothing of it is left.
func TestBackupThatFailsLeavesNoFile(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "b.tidemark")
	code, _, stderr := runCommand(t, "backup", "--server", freeAddress(t), file)
	if code != exitFailure || !strings.Contains(stderr, "There is no backup.") {
		t.Errorf("exit %d, %q", code, stderr)
	}
	cut := &fakeStore{cluster: cutBackup{}}
	code, _, stderr = runCommand(t, "backup", "--server", cut.start(t), file)
	if code != exitFailure || !strings.Contains(stderr, "the backup did not arrive whole") {
		t.Errorf("exit %d, %q", code, stderr)
	}
	if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
		t.Errorf("expected nothing to be left, found %v, error %v", names, err)
	}
	// One that was killed has left its part; another one that is at work keeps its own.
	if err := os.WriteFile(file+partial, bytes.Repeat([]byte("old"), 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	address, _ := servingNode(t, t.TempDir(), 1)
	other, err := newBackupFile(nil, file)
	if err != nil {
		t.Fatal(err)
	}
	code, _, stderr = runCommand(t, "backup", "--server", address, file)
	if code != exitUsage || !strings.Contains(stderr, "another backup writes") {
		t.Errorf("exit %d, %q", code, stderr)
	}
	other.abandon()
	if code, _, stderr = runCommand(t, "backup", "--server", address, file); code != exitOK {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

// cutBackup sends a backup that ends too early, without an error.
type cutBackup struct {
	pb.UnimplementedClusterServiceServer
}

func (cutBackup) Backup(_ *pb.BackupRequest, stream pb.ClusterService_BackupServer) error {
	var b bytes.Buffer
	w, err := archive.NewWriter(&b, &archive.Manifest{Files: []archive.File{{Name: "history/a", Size: 10}}})
	if err == nil {
		err = w.File(strings.NewReader("0123456789"))
	}
	if err == nil {
		err = stream.Send(&pb.BackupResponse{Chunk: b.Bytes()})
	}
	return err
}

// What is not a whole backup leaves an empty directory, and says where it is damaged.
func TestDamagedBackupIsNotRestored(t *testing.T) {
	address, _ := servingNode(t, t.TempDir(), 5)
	dir := t.TempDir()
	file, data := filepath.Join(dir, "b.tidemark"), filepath.Join(dir, "data")
	if code, _, stderr := runCommand(t, "backup", "--server", address, file); code != exitOK {
		t.Fatalf("exit %d, %q", code, stderr)
	}
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		content []byte
		code    int
		text    string
	}{
		"flipped":   {flipped(whole, len(whole)/2), exitDamaged, "of the backup"},
		"manifest":  {flipped(whole, 40), exitDamaged, "manifest, bytes 28 to "},
		"end":       {flipped(whole, len(whole)-1), exitDamaged, "end, bytes "},
		"cut":       {whole[:len(whole)-1], exitDamaged, "the rest is missing"},
		"longer":    {append(bytes.Clone(whole), 0), exitDamaged, "expected the backup to end here, found 1 more bytes"},
		"no backup": {[]byte(strings.Repeat("something else\n", 10)), exitUsage, "this is not a backup of Tidemark"},
		"empty":     {nil, exitUsage, "this is not a backup of Tidemark"},
	} {
		if err := os.WriteFile(file, c.content, 0o600); err != nil {
			t.Fatal(err)
		}
		code, _, stderr := runCommand(t, "restore", file, "--data-dir", data)
		if code != c.code || !strings.Contains(stderr, c.text) {
			t.Errorf("%s: expected exit %d and %q, found %d, %q", name, c.code, c.text, code, stderr)
		}
		if names, err := os.ReadDir(data); err != nil || len(names) > 1 {
			t.Errorf("%s: expected an empty directory, found %v, error %v", name, names, err)
		}
	}
}

func flipped(b []byte, at int) []byte {
	b = bytes.Clone(b)
	b[at] ^= 1
	return b
}
