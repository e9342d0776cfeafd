package faults

import (
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/process"
)

// tornAppend returns a copy of a running node's directory, and the bytes that its next
// append put at the end of the tail.
func tornAppend(t *testing.T, f *fixture, n *process.Node) (dir string, next []byte) {
	t.Helper()
	// The node does nothing now: a copy is what a crash would leave.
	dir = copyDir(t, f.options.DataDir)
	before, err := os.ReadFile(lastSegment(t, f.options.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	_, err = clients(t, n)[0].Append(t.Context(), &pb.AppendRequest{ClientId: "last", Writes: []*pb.Write{{
		Aggregate: &pb.AggregateKey{Org: "acme", Type: "orders", Id: "torn"}, AllowCreate: true,
		Events: []*pb.NewEvent{{ClientSeq: 1, Type: "Torn", Payload: bytes.Repeat([]byte("torn"), 5000)}},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(lastSegment(t, f.options.DataDir))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.HasPrefix(after, before) || len(after)-len(before) < 20000 {
		t.Fatalf("an append of 20,000 bytes took the last segment from %d to %d bytes", len(before), len(after))
	}
	return dir, after[len(before):]
}

func TestATornTailIsRepaired(t *testing.T) {
	f := newFixture(t)
	n := process.Start(t, f.options)
	f.load(t, n, 500)
	dir, next := tornAppend(t, f, n)
	n.Kill(t)
	for _, size := range []int{1, 7, 300, 4096, len(next) / 2, len(next) - 1} {
		t.Run(strconv.Itoa(size)+" bytes of the last append", func(t *testing.T) {
			f.options.DataDir = copyDir(t, dir)
			torn := lastSegment(t, f.options.DataDir)
			appendTo(t, torn, next[:size])
			n := f.verify(t)
			if !logged(n, filepath.Base(torn), "never acknowledged") {
				t.Error("the repair is not in the log with the file's name")
			}
		})
	}
}

func TestAZeroFilledTailIsRepaired(t *testing.T) {
	f := newFixture(t)
	n := process.Start(t, f.options)
	f.load(t, n, 500)
	n.Kill(t)
	dir := f.options.DataDir
	for _, size := range []int{1, 512, 4096, 100_000} {
		t.Run(strconv.Itoa(size)+" zeros", func(t *testing.T) {
			f.options.DataDir = copyDir(t, dir)
			torn := lastSegment(t, f.options.DataDir)
			appendTo(t, torn, make([]byte, size))
			n := f.verify(t)
			if !logged(n, filepath.Base(torn), "never acknowledged") {
				t.Error("the repair is not in the log with the file's name")
			}
		})
	}
}

// A bit that flips in what had been flushed is damage: the node must not start, must say
// where it is, and must leave every file as it was.
func TestAFlippedBitIsRefusedWithFileAndOffset(t *testing.T) {
	f := newFixture(t)
	n := process.Start(t, f.options)
	f.load(t, n, 1500)
	n.Kill(t)
	dir := f.options.DataDir
	info, err := os.Stat(segments(t, dir)[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []int64{100, info.Size() / 2, info.Size() - 10} {
		t.Run("at "+strconv.FormatInt(at, 10), func(t *testing.T) {
			o := f.options
			o.DataDir = copyDir(t, dir)
			path := segments(t, o.DataDir)[0]
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			b[at] ^= 4
			if err := os.WriteFile(path, b, 0o640); err != nil {
				t.Fatal(err)
			}
			before := contents(t, filepath.Join(o.DataDir, "tail"))
			n := process.Launch(t, o)
			expectExit(t, n, 20*time.Second, exitDamaged, path, "offset")
			for p, b := range contents(t, filepath.Join(o.DataDir, "tail")) {
				if before[p] != b {
					t.Errorf("%s was changed by a start that was refused", p)
				}
			}
		})
	}
}

// A tail that lost flushed records must not be taken for a torn one.
func TestALostEndOfTheTailIsRefused(t *testing.T) {
	f := newFixture(t)
	n := process.Start(t, f.options)
	f.load(t, n, 500)
	n.Kill(t)
	path := lastSegment(t, f.options.DataDir)
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, info.Size()-1000); err != nil {
		t.Fatal(err)
	}
	expectExit(t, process.Launch(t, f.options), 20*time.Second, exitDamaged, path)
}

func TestASecondProcessIsRefused(t *testing.T) {
	f := newFixture(t)
	n := process.Start(t, f.options)
	f.load(t, n, 100)
	expectExit(t, process.Launch(t, f.options), 10*time.Second, exitInUse, f.options.DataDir, "--data-dir")
	// The first one must not have noticed.
	f.load(t, n, 100)
	n.Kill(t)
	f.verify(t)
}
