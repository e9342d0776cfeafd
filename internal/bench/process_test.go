package bench

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

const asEcho = "TIDEMARK_TEST_ECHO"

// TestMain makes the test binary the echo server's process when it is told to be.
func TestMain(m *testing.M) {
	switch os.Getenv(asEcho) {
	case "serve":
		if err := ServeEcho(os.Stdin, os.Stdout); err != nil {
			os.Exit(1)
		}
	case "fail":
		os.Exit(3)
	default:
		os.Exit(m.Run())
	}
}

func echoCommand(t *testing.T, mode string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), asEcho+"="+mode)
	return cmd
}

func TestTheEchoAnswersFromAProcessOfItsOwn(t *testing.T) {
	p, err := StartEcho(t.Context(), echoCommand(t, "serve"))
	if err != nil {
		t.Fatal(err)
	}
	plain := grpc.WithTransportCredentials(insecure.NewCredentials())
	conn, err := grpc.NewClient(p.Address, append(DialOptions(), plain)...)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Append(t.Context(), []grpc.ClientConnInterface{conn}, AppendOptions{Outstanding: 8, Count: 200, Size: 200, Guard: true, Enforce: true})
	if err != nil || r.Count != 200 || len(r.Errors) > 0 {
		t.Errorf("result %+v, %v; want 200 calls, no errors", r, err)
	}
	_ = conn.Close()
	if err := p.Stop(); err != nil {
		t.Errorf("the echo server ended with %v", err)
	}
}

func TestTheEchosAnswerHasTheSizeOfAStores(t *testing.T) {
	key := &pb.AggregateKey{Org: Org, Type: Type, Id: "0123456789ab-17-0"}
	got, err := newEcho().Append(t.Context(), &pb.AppendRequest{Writes: []*pb.Write{{Aggregate: key, Events: []*pb.NewEvent{{ClientSeq: 1000}}}}})
	if err != nil {
		t.Fatal(err)
	}
	want := proto.Clone(got).(*pb.AppendResponse)
	want.Results[0].Position = 1
	if got.GetResults()[0].GetVersion() != 1000 || got.GetTimeline() == "" || !proto.Equal(got, want) || len(got.GetResults()[0].GetChainHash()) != 32 {
		t.Errorf("answer %v", got)
	}
	if size := proto.Size(got); size < 120 || size > 150 {
		t.Errorf("the answer has %d bytes; one of the store has about 140", size)
	}
}

func TestAnEchoThatDoesNotStartIsReported(t *testing.T) {
	_, err := StartEcho(t.Context(), echoCommand(t, "fail"))
	if err == nil || !strings.HasPrefix(err.Error(), "the echo server ended before it was ready: exit status 3") {
		t.Errorf("error %v; want that it ended with 3", err)
	}
	if _, err := StartEcho(t.Context(), exec.Command(filepath.Join(t.TempDir(), "none"))); err == nil || !strings.HasPrefix(err.Error(), "start the echo server: ") {
		t.Errorf("error %v; want that it cannot be started", err)
	}
}

func TestServeEchoEndsWithItsLifeline(t *testing.T) {
	var out bytes.Buffer
	if err := ServeEcho(strings.NewReader(""), &out); err != nil || !strings.HasPrefix(out.String(), "127.0.0.1:") {
		t.Errorf("error %v, output %q; want an address and an orderly end", err, out.String())
	}
}

func TestFsyncMeasuresAndCleansUp(t *testing.T) {
	dir := t.TempDir()
	r, err := Fsync(t.Context(), FsyncOptions{Dir: dir, Size: 4096, Duration: 20 * time.Millisecond})
	if err != nil || r.Count == 0 || r.Seconds < 0.02 || r.P50MS <= 0 || len(r.Errors) != 0 {
		t.Errorf("result %+v, %v; want at least one flush in 20 ms", r, err)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if r, err := Fsync(cancelled, FsyncOptions{Dir: dir, Size: 1, Duration: time.Hour}); err != nil || r.Count != 0 {
		t.Errorf("result %+v, %v of a cancelled run; want nothing", r, err)
	}
	for want, opts := range map[string]FsyncOptions{
		"--dir is missing": {Size: 1, Duration: 1},
		"--size: expected 1 to 16777216 bytes, found 0": {Dir: dir, Duration: 1},
		"--duration: expected a time above 0":           {Dir: dir, Size: 1},
	} {
		if _, err := Fsync(t.Context(), opts); err == nil || err.Error() != want {
			t.Errorf("error %v; want %s", err, want)
		}
	}
	if _, err := Fsync(t.Context(), FsyncOptions{Dir: filepath.Join(dir, "none"), Size: 1, Duration: 1}); err == nil || !strings.HasPrefix(err.Error(), "--dir: ") {
		t.Errorf("error %v for a directory that is not there", err)
	}
}
