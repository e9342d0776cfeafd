package replication

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// unpack writes a data directory of an earlier version to a directory of its own.
func unpack(t *testing.T, archive string) string {
	t.Helper()
	f, err := os.Open(archive)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(dir, filepath.Clean("/"+h.Name))
		if h.Typeflag == tar.TypeDir {
			err = os.MkdirAll(path, 0o755)
		} else {
			var content []byte
			if content, err = io.ReadAll(r); err == nil {
				err = os.WriteFile(path, content, 0o600)
			}
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// A directory whose log holds entries of format 1, some of them in the history already and,
// after a kill, some not: versions 1 to 3 of acme/orders/1 by "a" were flushed, 4 and 5 and then
// 6 by "b" were not.
func TestDirectoryWithEntriesOfFormat1Opens(t *testing.T) {
	dir := unpack(t, "testdata/entries-format1.tar.gz")
	s := openShard(t, Options{Dir: dir, NodeID: "n1"})
	defer func() {
		if err := s.Abandon(); err != nil {
			t.Error(err)
		}
	}()
	wantFailure(t, s, appendOf("a", "1", seqs(5)), &pb.AppendFailure{
		Code: 2002, Aggregate: key("1"), CurrentVersion: 6, AttemptedSeq: 5, Mark: 5,
		Holder: &pb.Holder{Version: 5, Incarnation: 1, Position: 6, ClientSeq: 5, EventId: "e5", FirstClientSeq: 5, LastClientSeq: 5, EventCount: 1},
	})
	wantFailure(t, s, appendOf("b", "1", seqs(1), expect(5)), &pb.AppendFailure{
		Code: 2003, Aggregate: key("1"), ExpectedVersion: proto.Uint64(5), CurrentVersion: 6, AttemptedSeq: 1, Mark: 1,
		Holder: &pb.Holder{Version: 6, Incarnation: 1, Position: 7, ClientSeq: 1, EventId: "f1", FirstClientSeq: 1, LastClientSeq: 1, EventCount: 1},
	})
	if r := mustAppend(t, s, appendOf("a", "1", seqs(6), expect(6))).Results[0]; r.Version != 7 || r.Position != 8 || r.FirstEventNumber != 7 {
		t.Fatalf("the next write: %v, want version 7, position 8", r)
	}
}
