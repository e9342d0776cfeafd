package offline

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/inspect"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/wal/record"
)

// small makes every kind of file appear with little data.
func small(dir string) replication.Options {
	return replication.Options{
		Dir: dir, SegmentBytes: 16 << 10, MemTableBytes: 64 << 10, BlockCacheBytes: 1 << 20, SnapshotLogBytes: 64 << 10, TrailingLogBytes: 16 << 10,
		MinFreeDiskBytes: -1,
	}
}

// open starts a node in this process and waits until it takes writes.
func open(t *testing.T, o replication.Options) *replication.Shard {
	t.Helper()
	s, err := replication.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.After(20 * time.Second)
	for {
		ready, changed := s.Leading()
		if ready {
			return s
		}
		select {
		case <-changed:
		case err := <-s.Fatal():
			t.Fatal(err)
		case <-deadline:
			t.Fatal("expected a node that takes writes within 20 s")
		}
	}
}

// writer writes to a few aggregates, in every way that leaves other files behind.
type writer struct {
	rng *rand.Rand
	n   uint64
}

func newWriter() *writer { return &writer{rng: rand.New(rand.NewPCG(1, 2))} }

func aggregate(i uint64) *pb.AggregateKey {
	return &pb.AggregateKey{Org: "acme", Type: "orders", Id: fmt.Sprint(i)}
}

func (w *writer) events(seqs ...uint64) (out []*pb.NewEvent) {
	for _, seq := range seqs {
		// Small ones stay in the tables, large ones go to blob files; they do not compress.
		payload := make([]byte, w.rng.IntN(2)*w.rng.IntN(1500))
		for i := range payload {
			payload[i] = byte(w.rng.Uint32())
		}
		out = append(out, &pb.NewEvent{ClientSeq: seq, EventId: fmt.Sprint("e", seq), Type: "T", Payload: payload, Metadata: map[string]string{"b": "2", "a": "1"}})
	}
	return out
}

// write sends the next request. Some are refused.
func (w *writer) write(t *testing.T, s *replication.Shard) {
	t.Helper()
	w.n++
	n := 10 * w.n
	client := fmt.Sprint("w", w.n%3)
	req := &pb.AppendRequest{ClientId: client, Writes: []*pb.Write{{Aggregate: aggregate(w.n % 7), AllowCreate: true, EnforceClientIdempotency: true, Events: w.events(n)}}}
	switch w.n % 5 {
	case 1:
		req.Writes = append(req.Writes, &pb.Write{Aggregate: aggregate(w.n%7 + 10), AllowCreate: true, Events: w.events(n, n+1)})
	case 2:
		// Without enforcement a sequence may come twice in a batch, and again later.
		req.Writes[0].EnforceClientIdempotency = false
		req.Writes[0].Events = w.events(5, n, n, n+1)
	case 3:
		// Refused if the writer wrote there, and was not forgotten since.
		_, err := s.Append(t.Context(), &pb.AppendRequest{ClientId: client, Writes: []*pb.Write{{Aggregate: aggregate(1), AllowCreate: true, EnforceClientIdempotency: true, Events: w.events(1)}}})
		if err != nil && api.CodeOf(err) != pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION {
			t.Fatal(err)
		}
	}
	if _, err := s.Append(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if w.n%5 == 4 {
		// The resend is refused: its sequence is exactly the mark.
		if _, err := s.Append(t.Context(), req); api.CodeOf(err) != pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION {
			t.Fatalf("a resend: %v", err)
		}
	}
	if w.n%8 == 0 {
		w.register(t, s)
	}
	if w.n > 50 && w.n%10 == 0 {
		w.change(t, s)
	}
}

// register registers a schema, for events that nobody writes, twice, and then another one under
// the same version, which is refused.
func (w *writer) register(t *testing.T, s *replication.Shard) {
	t.Helper()
	req := &pb.RegisterSchemaRequest{
		Org: "acme", Type: []string{"orders", "order"}[w.n/8%2], EventType: "Other", Schema: &pb.SchemaVersion{Minor: uint32(w.n)},
		Format: pb.SchemaFormat_SCHEMA_FORMAT_JSON_SCHEMA, Definition: fmt.Appendf(nil, `{"maximum":%d}`, w.n),
	}
	for i, code := range []pb.ErrorCode{0, 0, pb.ErrorCode_ERROR_CODE_REGISTER_SCHEMA_ALREADY_EXISTS} {
		if i == 2 {
			req.Definition = []byte("true")
		}
		if _, err := s.RegisterSchema(t.Context(), req); api.CodeOf(err) != code {
			t.Fatalf("registration %d: %v, want %d", i, err, code)
		}
	}
}

// change trims and deletes; some aggregates are recreated by the next write, some on other
// terms than before. Some is refused.
func (w *writer) change(t *testing.T, s *replication.Shard) {
	t.Helper()
	i := w.n / 10
	a, err := s.Read(t.Context(), replication.ReadOptions{Consistency: pb.Consistency_CONSISTENCY_ANY})
	if err != nil {
		t.Fatal(err)
	}
	org := aggregate(i % 7)
	head, ok, err := a.Head(record.MakeKey(org.GetOrg(), org.GetType(), org.GetId()))
	a.Release()
	if err != nil || !ok {
		t.Fatal(err, ok)
	}
	for _, keep := range []uint64{head.Floor, (head.Floor + head.Version + 1) / 2, head.Version + 1} {
		_, err := s.Trim(t.Context(), &pb.TrimRequest{Aggregate: org, KeepFromVersion: keep})
		if (err != nil) != (keep > head.Version || head.Deleted) {
			t.Fatalf("trim of %+v to keep from %d: %v", head, keep, err)
		}
	}
	if i%4 > 0 {
		_, err := s.Delete(t.Context(), &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{
			{Aggregate: aggregate(i % 5), AllowRecreate: true, RestartVersions: i%2 == 0, ForgetWriters: i%3 == 0},
			{Aggregate: aggregate((i%5 + 1) % 7), AllowRecreate: true},
		}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Delete(t.Context(), &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{{Aggregate: aggregate(99)}}}); err == nil {
			t.Fatal("expected the delete of what never existed to be refused")
		}
	}
}

// writes sends so many requests.
func (w *writer) writes(t *testing.T, s *replication.Shard, n int) {
	t.Helper()
	for range n {
		w.write(t, s)
	}
}

// untilSnapshot writes until a snapshot is there that was not before.
func (w *writer) untilSnapshot(t *testing.T, s *replication.Shard, dir string) {
	t.Helper()
	before := snapshots(t, dir)
	for deadline := time.Now().Add(30 * time.Second); ; {
		w.write(t, s)
		if now := snapshots(t, dir); now != before && now != "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("expected a snapshot within 30 s")
		}
	}
}

// snapshots names the complete snapshots in a directory.
func snapshots(t *testing.T, dir string) string {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "snapshots"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".tmp") {
			names = append(names, e.Name())
		}
	}
	return strings.Join(names, " ")
}

// full is the directory of a node that was stopped, or whose process ended without a word, with
// every kind of file in it.
func full(t *testing.T, stop bool) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "data")
	s := open(t, small(dir))
	w := newWriter()
	w.untilSnapshot(t, s, dir)
	w.writes(t, s, 60)
	end(t, s, stop)
	return dir
}

func end(t *testing.T, s *replication.Shard, stop bool) {
	t.Helper()
	var err error
	if stop {
		err = s.Stop(context.Background())
	} else {
		err = s.Abandon()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// verify returns what is found in a directory.
func verify(t *testing.T, dir string) ([]inspect.Finding, inspect.Report) {
	t.Helper()
	var findings []inspect.Finding
	began := time.Now()
	r, err := inspect.Verify(t.Context(), dir, inspect.VerifyOptions{Found: func(f inspect.Finding) { findings = append(findings, f) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("verified in %v: %+v", time.Since(began).Round(time.Millisecond), r)
	return findings, r
}

// picture is everything that could change in a directory: names, content, times, modes.
func picture(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		text := fmt.Sprint(info.Mode(), info.ModTime())
		if info.Mode().IsRegular() {
			b, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %x", sha256.Sum256(b))
		}
		out[path] = text
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}
