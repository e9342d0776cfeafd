package faults

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/process"
)

// content is what the tests of damaged files write: few aggregates, and values large enough
// for blob files. It can be read back whole, and nothing else would be.
type content struct {
	aggregates, batches int
}

// whoseFiles has a few tables and blob files from a memtable of 1 MiB.
var whoseFiles = content{aggregates: 6, batches: 40}

func (c content) key(a int) *pb.AggregateKey {
	return &pb.AggregateKey{Org: "acme", Type: "orders", Id: fmt.Sprint("damaged-", a)}
}

// payload does not compress.
func (c content) payload(a, batch int) []byte {
	rng := rand.New(rand.NewPCG(uint64(a), uint64(batch)))
	b := make([]byte, 6<<10)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// write appends one batch to every aggregate.
func (c content) write(ctx context.Context, to pb.EventStoreServiceClient, batch int) error {
	for a := range c.aggregates {
		_, err := to.Append(ctx, &pb.AppendRequest{ClientId: fmt.Sprint("w", a), Writes: []*pb.Write{{
			Aggregate: c.key(a), AllowCreate: true,
			Events: []*pb.NewEvent{{ClientSeq: uint64(batch), Type: "T", Payload: c.payload(a, batch)}},
		}}})
		if err != nil {
			return err
		}
	}
	return nil
}

// errWrong is an answer that differs from what was written.
var errWrong = errors.New("WRONG DATA")

// read reads everything and returns the first error.
func (c content) read(ctx context.Context, from pb.EventStoreServiceClient) error {
	for a := range c.aggregates {
		stream, err := from.Read(ctx, &pb.ReadRequest{Aggregate: c.key(a)})
		if err != nil {
			return err
		}
		next := 1
		for {
			r, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err
			}
			for _, b := range r.GetBatches() {
				for _, e := range b.GetEvents() {
					if b.GetVersion() != uint64(next) || e.GetClientSeq() != uint64(next) || !bytes.Equal(e.GetPayload(), c.payload(a, next)) {
						return fmt.Errorf("%w: aggregate %d, version %d, expected %d", errWrong, a, b.GetVersion(), next)
					}
					next++
				}
			}
		}
		m, err := from.GetMark(ctx, &pb.GetMarkRequest{Aggregate: c.key(a), ClientId: fmt.Sprint("w", a)})
		if err != nil {
			return err
		}
		if next != c.batches+1 || m.GetMark() != uint64(c.batches) {
			return fmt.Errorf("%w: aggregate %d has %d versions and the mark %d, expected %d", errWrong, a, next-1, m.GetMark(), c.batches)
		}
	}
	return nil
}

// fill writes all of it to a new node, and returns what its directory is after a kill and
// after an orderly stop.
func (c content) fill(t *testing.T) (o process.Options, killed, stopped string) {
	t.Helper()
	o = process.Options{DataDir: filepath.Join(t.TempDir(), "data"), Args: []string{"--memtable-bytes", "1MiB"}}
	n := process.Start(t, o)
	to := clients(t, n)[0]
	for batch := 1; batch <= c.batches; batch++ {
		if err := c.write(t.Context(), to, batch); err != nil {
			t.Fatal(err)
		}
	}
	// The first restart after a kill has much to apply; the copy is from after one.
	n.Kill(t)
	killed = copyDir(t, o.DataDir)
	n = process.Start(t, o)
	n.Signal(t, syscall.SIGTERM)
	if exit := n.Wait(t, 10*time.Second); exit.Code != 0 {
		t.Fatalf("exit code %d of an orderly stop", exit.Code)
	}
	return o, killed, o.DataDir
}

// historyFiles are the files of the one history that a node which does not run has.
func historyFiles(t *testing.T, dir string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "history", "*", "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no history in %s (%v)", dir, err)
	}
	slices.Sort(files)
	return files
}

// victim is the last history file of a kind, which is given by how its name begins or ends.
func victim(t *testing.T, dir, kind string) string {
	t.Helper()
	files := historyFiles(t, dir)
	for _, f := range slices.Backward(files) {
		if name := filepath.Base(f); strings.HasPrefix(name, kind) || strings.HasSuffix(name, kind) {
			return f
		}
	}
	t.Fatalf("no %s in %v", kind, files)
	return ""
}

// change changes a file; nil removes it.
func change(t *testing.T, path string, how func([]byte) []byte) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// A file of its own: others may be hard links of this one.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if b = how(b); b == nil {
		return
	}
	if err := os.WriteFile(path, b, 0o640); err != nil {
		t.Fatal(err)
	}
}

func flip(b []byte) []byte {
	b[len(b)/2] ^= 0x10
	return b
}

// Whatever happens to a file of the history, the node neither panics nor answers with other
// data than was written: it has all of it, or it ends with 71 and names the file.
func TestDamagedHistoryFiles(t *testing.T) {
	const (
		whole = 1 << iota // everything is read
		start             // the start is refused
		read              // a read meets it, or the background before that
	)
	mutations := []struct {
		name   string
		change func([]byte) []byte
	}{
		{"deleted", func([]byte) []byte { return nil }},
		{"cut by a byte", func(b []byte) []byte { return b[:len(b)-1] }},
		{"halved", func(b []byte) []byte { return b[:len(b)/2] }},
		{"emptied", func(b []byte) []byte { return b[:0] }},
		{"grown by junk", func(b []byte) []byte { return append(b, "junk, and more of it"...) }},
		{"flipped", flip},
	}
	kinds := []struct {
		kind string
		// may is what each mutation may lead to. A MANIFEST that ends early looks like one
		// whose last record a power loss took, and the log is applied again from there; of the
		// options, little is needed.
		may [6]int
	}{
		{".blob", [6]int{start, read, read, read, read, read}},
		{".sst", [6]int{start, start, start, start, start, start | read}},
		{"MANIFEST-", [6]int{start, start | whole, start | whole, start, whole, start | whole}},
		{"OPTIONS-", [6]int{whole, start | whole, start | whole, whole, start | whole, start | whole}},
		{"marker.manifest.", [6]int{start, 0, 0, 0, whole, 0}}, // an empty file: its name says it
		{"marker.format-version.", [6]int{start, 0, 0, 0, whole, 0}},
	}
	o, killed, stopped := whoseFiles.fill(t)
	for ended, dir := range map[string]string{"killed": killed, "stopped": stopped} {
		for _, k := range kinds {
			for i, m := range mutations {
				if k.may[i] == 0 {
					continue
				}
				t.Run(ended+"/"+k.kind+" "+m.name, func(t *testing.T) {
					o := o
					o.DataDir = copyDir(t, dir)
					path := victim(t, o.DataDir, k.kind)
					change(t, path, m.change)
					n := process.Launch(t, o)
					outcome, err := start, n.Ready(t.Context(), 20*time.Second)
					if err == nil {
						outcome = read
						if err = whoseFiles.read(t.Context(), clients(t, n)[0]); err == nil {
							outcome = whole
						}
					}
					if errors.Is(err, errWrong) || k.may[i]&outcome == 0 {
						t.Fatalf("unexpected outcome: %v", err)
					}
					if outcome == whole {
						if k.kind == "MANIFEST-" && m.name == "grown by junk" && !logged(n, path, "ends in the middle of a record") {
							t.Error("there is no warning of what is behind the MANIFEST's records")
						}
						n.Kill(t)
						return
					}
					// By their names, markers are others every time.
					if strings.HasPrefix(k.kind, "marker.") {
						path = filepath.Join(filepath.Dir(path), k.kind)
					} else if k.kind == "MANIFEST-" {
						path = filepath.Base(path)
					}
					expectExit(t, n, 10*time.Second, exitDamaged, path, "move history/ away", "the log still reaches back to its first entry")
					if strings.Contains(n.Log(), "panic") {
						t.Error("the log has a panic")
					}
				})
			}
		}
	}
}

// The call that meets damaged data is answered with 11001, and then the node ends: another
// one has the data, and this one would fail the same call for ever. What its last words say to
// do works.
func TestDamageMetByACallEndsTheNodeAndIsMended(t *testing.T) {
	o, _, _ := whoseFiles.fill(t)
	path := victim(t, o.DataDir, ".blob")
	change(t, path, flip)
	n := process.Start(t, o)
	err := whoseFiles.read(t.Context(), clients(t, n)[0])
	if api.CodeOf(err) != pb.ErrorCode_ERROR_CODE_INTERNAL || status.Code(err) != codes.DataLoss || !strings.Contains(err.Error(), path) {
		t.Errorf("the read was answered with %v, expected 11001, DATA_LOSS and %s", err, path)
	}
	expectExit(t, n, 10*time.Second, exitDamaged, path, "move history/ away", "the log still reaches back to its first entry")
	if err := os.Rename(filepath.Join(o.DataDir, "history"), filepath.Join(t.TempDir(), "away")); err != nil {
		t.Fatal(err)
	}
	n = process.Start(t, o)
	if err := whoseFiles.read(t.Context(), clients(t, n)[0]); err != nil {
		t.Errorf("with the history moved away: %v", err)
	}
}

// A compaction that meets damaged data ends the node as well.
func TestDamageMetByACompactionEndsTheNode(t *testing.T) {
	o, _, _ := whoseFiles.fill(t)
	// No append reads a batch: the tables that hold them are for the compaction to find.
	batchKey := []byte("b/acme\x00orders\x00")
	damaged := 0
	for _, path := range historyFiles(t, o.DataDir) {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if at := bytes.Index(b, batchKey); at >= 0 && strings.HasSuffix(path, ".sst") {
			change(t, path, func(b []byte) []byte { b[at] ^= 1; return b })
			damaged++
		}
	}
	if damaged == 0 {
		t.Fatal("no table holds batches")
	}
	n := process.Start(t, o)
	to := clients(t, n)[0]
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for batch := whoseFiles.batches + 1; ; batch++ {
		if err := whoseFiles.write(ctx, to, batch); err != nil {
			break
		}
	}
	expectExit(t, n, 20*time.Second, exitDamaged, filepath.Join(o.DataDir, "history"), ".sst", "flush or compaction", "move history/ away")
}
