package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/zap"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/config"
	"github.com/tidemark-db/tidemark/internal/leader"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/server"
	"github.com/tidemark-db/tidemark/wal/record"
	"github.com/tidemark-db/tidemark/wal/tail"
)

// logSink keeps what a node writes to stderr, and lets a test wait for a line.
type logSink struct {
	mu      sync.Mutex
	text    bytes.Buffer
	changed chan struct{}
}

func newLogSink() *logSink { return &logSink{changed: make(chan struct{})} }

func (s *logSink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	close(s.changed)
	s.changed = make(chan struct{})
	return s.text.Write(p)
}

func (s *logSink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

// until waits until the text has want in it.
func (s *logSink) until(t *testing.T, want string) {
	t.Helper()
	for {
		s.mu.Lock()
		text, changed := s.text.String(), s.changed
		s.mu.Unlock()
		if strings.Contains(text, want) {
			return
		}
		select {
		case <-changed:
		case <-t.Context().Done():
			t.Fatalf("nobody ever said %q:\n%s", want, text)
		case <-time.After(20 * time.Second):
			t.Fatalf("nobody said %q within 20 s:\n%s", want, text)
		}
	}
}

// line returns the fields of the first JSON line with a message, once it is there.
func (s *logSink) line(t *testing.T, message string) map[string]any {
	t.Helper()
	for {
		s.mu.Lock()
		text, changed := s.text.String(), s.changed
		s.mu.Unlock()
		for line := range strings.Lines(text) {
			var fields map[string]any
			if json.Unmarshal([]byte(line), &fields) == nil && fields["message"] == message {
				return fields
			}
		}
		select {
		case <-changed:
		case <-t.Context().Done():
			t.Fatalf("the log never said %q:\n%s", message, text)
		case <-time.After(20 * time.Second):
			t.Fatalf("the log did not say %q within 20 s:\n%s", message, text)
		}
	}
}

// runningNode is a node that runs in this process.
type runningNode struct {
	log       *logSink
	address   string // for clients
	web       string
	interrupt context.CancelFunc // what SIGTERM does
	exit      chan int
}

// serve starts a node with its data in dir and waits until it is ready.
func serve(t *testing.T, dir string, extra ...string) *runningNode {
	t.Helper()
	n := launch(t, dir, extra...)
	n.log.line(t, "ready")
	return n
}

// launch starts a node and waits until its ports are open.
func launch(t *testing.T, dir string, extra ...string) *runningNode {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	n := &runningNode{log: newLogSink(), interrupt: cancel, exit: make(chan int, 1)}
	args := append([]string{"serve", "--data-dir", dir, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--log-format", "json",
		"--memory-limit", "256MiB", "--min-free-disk-bytes", "0"}, extra...)
	go func() { n.exit <- run(ctx, args, strings.NewReader(""), io.Discard, n.log) }() // ends when interrupted
	t.Cleanup(func() {
		cancel()
		n.wait(t)
	})
	fields := n.log.line(t, "serving")
	n.address, n.web = fields["listen"].(string), fields["http_listen"].(string)
	return n
}

// wait returns the exit code, again if it was asked before.
func (n *runningNode) wait(t *testing.T) int {
	t.Helper()
	select {
	case code := <-n.exit:
		n.exit <- code
		return code
	case <-time.After(30 * time.Second):
		t.Fatalf("the node did not end:\n%s", n.log)
		return -1
	}
}

func TestANodeServesAndStopsAndStartsAgain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "by", "serve")
	n := serve(t, dir)
	appendOnce := appendArgs(n.address, "--create", "--event-id", "e7")
	if code, _, stderr := runCommand(t, appendOnce...); code != exitOK {
		t.Fatalf("append: exit %d, %s", code, stderr)
	}
	response, err := http.Get("http://" + n.web + "/readyz")
	if err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("/readyz: %v, %v", response, err)
	} else {
		_ = response.Body.Close()
	}
	n.interrupt()
	if code := n.wait(t); code != exitOK {
		t.Fatalf("exit %d, want 0:\n%s", code, n.log)
	}
	if serving := n.log.line(t, "serving"); serving["advertise"] != n.address {
		t.Errorf("clients are told %v, want the port that was chosen: %s", serving["advertise"], n.address)
	}
	starting, ready := n.log.line(t, "starting"), n.log.line(t, "ready")
	n.log.line(t, "stopping")
	n.log.line(t, "stopped")
	for _, field := range []string{"version", "commit", "go"} {
		if starting[field] == nil {
			t.Errorf("the first line lacks %s: %v", field, starting)
		}
	}
	if starting["data_dir"] != dir || starting["node_id"] != "n1" || starting["memory_limit"] != "256MiB" {
		t.Errorf("starting: %v", starting)
	}
	if after, err := time.ParseDuration(fmt.Sprint(ready["after"])); err != nil || after <= 0 || len(fmt.Sprint(ready["timeline"])) != 32 || len(fmt.Sprint(ready["cluster_id"])) != 32 {
		t.Errorf("ready: %v", ready)
	}

	n = serve(t, dir)
	code, _, stderr := runCommand(t, appendArgs(n.address, "--event-id", "e7")...)
	if code != exitUsed || !strings.Contains(stderr, "This event had landed already: an earlier call wrote it as version 1.") {
		t.Errorf("the retry after a restart: exit %d, %s", code, stderr)
	}
	if again := n.log.line(t, "ready"); again["timeline"] != ready["timeline"] || again["position"] != 1.0 {
		t.Errorf("ready again: %v, before %v", again, ready)
	}
}

func TestAPortThatIsTakenIsNamedWithItsFlag(t *testing.T) {
	n := serve(t, t.TempDir())
	for _, key := range []string{"listen", "http-listen"} {
		taken, other := n.address, "--http-listen"
		if key == "http-listen" {
			other = "--listen"
		}
		dir := filepath.Join(t.TempDir(), "data")
		code, _, stderr := runCommand(t, "serve", "--data-dir", dir, "--"+key, taken, other, "127.0.0.1:0")
		want := fmt.Sprintf("tidemark: %s is %s (--%s): another process has that port: listen tcp %s: bind: address already in use\n"+
			"Choose another address with --%s, or port 0 for any free one.\n", key, taken, key, taken, key)
		if code != exitFailure || !strings.HasSuffix(stderr, want) {
			t.Errorf("exit %d, stderr\n%s\nwant 1, at its end\n%s", code, stderr, want)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the data directory was made: %v", err)
		}
	}
}

func TestADirectoryInUseHasItsOwnExitCode(t *testing.T) {
	dir := t.TempDir()
	serve(t, dir)
	code, _, stderr := runCommand(t, "serve", "--data-dir", dir, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0")
	if code != exitInUse || !strings.Contains(stderr, "tidemark: the node did not start: data directory is in use: another process holds "+dir) {
		t.Errorf("exit %d, want 72:\n%s", code, stderr)
	}
}

func TestDamageHasItsOwnExitCodeAndNamesTheFile(t *testing.T) {
	dir := t.TempDir()
	n := serve(t, dir)
	for seq := 7; seq < 10; seq++ {
		if code, _, stderr := runCommand(t, appendArgs(n.address, "--create", "--seq", fmt.Sprint(seq))...); code != exitOK {
			t.Fatalf("append: exit %d, %s", code, stderr)
		}
	}
	n.interrupt()
	n.wait(t)
	// Flip one bit in the first payload that the log holds: records follow it, so that this
	// is no torn tail.
	var damagedFile string
	err := filepath.WalkDir(filepath.Join(dir, "tail"), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || damagedFile != "" {
			return err
		}
		content, err := os.ReadFile(path)
		if i := bytes.Index(content, []byte("total")); err == nil && i >= 0 {
			content[i] ^= 1
			damagedFile = path
			return os.WriteFile(path, content, 0o600)
		}
		return err
	})
	if err != nil || damagedFile == "" {
		t.Fatalf("no payload found in the log: %v", err)
	}
	// As JSON, the last words are a line of the log.
	sink := newLogSink()
	code := run(t.Context(), []string{"serve", "--data-dir", dir, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--log-format", "json"},
		strings.NewReader(""), io.Discard, sink)
	last := sink.line(t, "the node ended")
	if code != exitDamaged || last["exit_code"] != 71.0 || !strings.Contains(fmt.Sprint(last["error"]), damagedFile) {
		t.Errorf("exit %d, want 71 and a message with %s:\n%s", code, damagedFile, sink)
	}
	for line := range strings.Lines(sink.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("a line of a JSON log is not JSON: %q", line)
		}
	}
}

// A reader that takes nothing must not hold the node up.
func TestAStuckReaderDoesNotDelayTheEndBeyondTheTimeout(t *testing.T) {
	n := serve(t, t.TempDir(), "--shutdown-timeout", "1s")
	payload := filepath.Join(t.TempDir(), "payload")
	if err := os.WriteFile(payload, make([]byte, 3<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	for seq := 1; seq <= 3; seq++ {
		code, _, stderr := runCommand(t, "append", "acme/orders/4821", "--server", n.address, "--client-id", "w", "--seq", fmt.Sprint(seq),
			"--event-type", "T", "--file", payload, "--create")
		if code != exitOK {
			t.Fatalf("append: exit %d, %s", code, stderr)
		}
	}
	conn, err := leader.Dial(t.Context(), n.address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	stream, err := pb.NewEventStoreServiceClient(conn).Read(t.Context(), &pb.ReadRequest{Aggregate: order()})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil { // the read has begun; the rest does not fit into its window
		t.Fatal(err)
	}
	began := time.Now()
	n.interrupt()
	if code, took := n.wait(t), time.Since(began); code != exitOK || took > 10*time.Second {
		t.Errorf("exit %d after %v, want 0 after a second or so:\n%s", code, took, n.log)
	}
	n.log.line(t, "calls are still at work; what waits is answered as unknown now")
	n.log.line(t, "stopped")
}

// The wait for what is in flight used to begin after the drain and to end after the node was
// cut off: a write that did not end was never answered, and nothing was flushed.
func TestAStuckWriteIsAnsweredAsUnknownWithinTheTimeout(t *testing.T) {
	shard, err := replication.Open(replication.Options{
		Dir: t.TempDir(), MinFreeDiskBytes: -1,
		Hooks: replication.Hooks{Propose: func(func() func() error) func() error {
			return func() error { select {} }
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for ready, changed := shard.Leading(); !ready; ready, changed = shard.Leading() {
		<-changed
	}
	c := config.Default()
	c.ShutdownTimeout = 2 * time.Second
	n := &node{config: c, log: zap.NewNop(), shard: shard, stopWatching: func() {}}
	if n.server, err = server.New(server.Options{Shard: shard}); err != nil {
		t.Fatal(err)
	}
	if n.grpc, err = n.listen("listen", "127.0.0.1:0"); err != nil {
		t.Fatal(err)
	}
	n.goroutines.Go(func() { _ = n.server.Serve(n.grpc) })
	conn, err := leader.Dial(t.Context(), n.grpc.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	answer := make(chan error, 1)
	go func() {
		_, err := pb.NewEventStoreServiceClient(conn).Append(t.Context(), &pb.AppendRequest{ClientId: "w", Writes: []*pb.Write{{
			Aggregate: order(), AllowCreate: true, Events: []*pb.NewEvent{{ClientSeq: 1, Type: "T"}},
		}}})
		answer <- err
	}()
	for shard.Status().InFlightRequests == 0 {
		select {
		case err := <-answer:
			t.Fatalf("the append has ended: %v", err)
		case <-time.After(time.Millisecond):
		}
	}
	if err := n.stop(errors.New("the test is over")); err != nil {
		t.Errorf("stop: %v", err)
	}
	if err := <-answer; api.CodeOf(err) != pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN {
		t.Errorf("the stuck append: %v, want WriteOutcomeUnknown", err)
	}
}

func TestAStorageFailureEndsTheNodeWithItsOwnExitCode(t *testing.T) {
	c := config.Default()
	c.DataDir, c.Listen, c.HTTPListen, c.MinFreeDiskBytes = t.TempDir(), "127.0.0.1:0", "127.0.0.1:0", 0
	sink := newLogSink()
	c.LogFormat = "json"
	n := &node{config: c, log: newLogger(c, sink)}
	if err := n.open(); err != nil {
		t.Fatal(err)
	}
	n.stopWatching = func() {}
	n.goroutines.Go(func() { _ = n.server.Serve(n.grpc) })
	err := n.crash(fmt.Errorf("write %s: %w", c.DataDir, syscall.EIO))
	var failure *exitError
	if !errors.As(err, &failure) || failure.code != exitStorage || !errors.Is(err, syscall.EIO) || failure.advice == "" ||
		failure.Error() != fmt.Sprintf("the storage of %s failed: write %s: input/output error", c.DataDir, c.DataDir) {
		t.Errorf("got %#v, %v", failure, err)
	}
	if line := sink.line(t, "the node must end"); !strings.HasSuffix(fmt.Sprint(line["error"]), "input/output error") {
		t.Errorf("log line: %v", line)
	}
	// It let go of everything: another node can take over the directory.
	n = &node{config: c, log: zap.NewNop()}
	if err := n.open(); err != nil {
		t.Fatal(err)
	}
	n.stopWatching = func() {}
	if err := n.stop(errors.New("the test is over")); err != nil {
		t.Error(err)
	}
}

func TestFailuresHaveTheirExitCodes(t *testing.T) {
	n := &node{config: config.Default(), log: zap.NewNop()}
	wrap := func(err error) error { return fmt.Errorf("outer: %w", err) }
	for _, c := range []struct {
		name string
		err  error
		code int
	}{
		{"start, in use", n.startError(wrap(replication.ErrInUse)), exitInUse},
		{"start, somebody else's directory", n.startError(wrap(replication.ErrForeign)), exitUsage},
		{"start, files missing", n.startError(wrap(replication.ErrDamaged)), exitDamaged},
		{"start, history damaged", n.startError(wrap(record.ErrCorrupt)), exitDamaged},
		{"start, log damaged", n.startError(wrap(&tail.DamageError{File: "x"})), exitDamaged},
		{"start, disk error", n.startError(wrap(&os.PathError{Op: "open", Path: "x", Err: syscall.EROFS})), exitStorage},
		{"start, a directory that cannot be made", n.startError(wrap(&os.PathError{Op: "mkdir", Path: "/proc/x", Err: syscall.ENOENT})), exitUsage},
		{"start, a full disk", n.startError(wrap(&os.PathError{Op: "mkdir", Path: "x", Err: syscall.ENOSPC})), exitStorage},
		{"start, no directory", n.startError(wrap(&os.PathError{Op: "mkdir", Path: "x", Err: syscall.ENOTDIR})), exitUsage},
		{"start, not allowed", n.startError(wrap(&os.PathError{Op: "open", Path: "x", Err: syscall.EACCES})), exitUsage},
		{"start, anything else", n.startError(errors.New("of another node")), exitFailure},
		{"run, disk error", n.ended(wrap(syscall.EIO)), exitStorage},
		{"run, history damaged", n.ended(wrap(record.ErrCorrupt)), exitDamaged},
		{"run, damage met by a call", n.ended(wrap(api.Corruptf("000012.sst"))), exitDamaged},
		{"run, log damaged", n.ended(wrap(tail.ErrDamaged)), exitDamaged},
	} {
		var failure *exitError
		if !errors.As(c.err, &failure) || failure.code != c.code {
			t.Errorf("%s: %#v, want exit code %d", c.name, failure, c.code)
		}
	}
}

func TestAHungDiskIsNoticed(t *testing.T) {
	release := make(chan struct{})
	defer close(release)
	w := &stallWatch{timeout: 20 * time.Millisecond, log: zap.NewNop(), probe: func() error {
		<-release
		return nil
	}}
	err := w.watch(t.Context())
	if want := "the disk does not answer: expected a small write and flush within 20ms (disk-stall-timeout), found it still waiting"; err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestADiskThatAnswersIsLeftAlone(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	probes := 0
	w := &stallWatch{timeout: time.Second, log: zap.NewNop(), probe: func() error {
		if probes++; probes == 2 {
			cancel()
		}
		return errors.New("no space left: not for this watch to judge")
	}}
	if err := w.watch(ctx); err != nil || probes != 2 {
		t.Errorf("%v after %d probes", err, probes)
	}
	dir := t.TempDir()
	for range 2 {
		if err := diskProbe(dir)(); err != nil {
			t.Error(err)
		}
	}
	if content, err := os.ReadFile(filepath.Join(dir, probeFile)); err != nil || string(content) != "probe\n" {
		t.Errorf("probe file: %q, %v", content, err)
	}
	if err := diskProbe(filepath.Join(dir, "missing"))(); err == nil {
		t.Error("a probe in a directory that is missing succeeded")
	}
}

func TestServeWarnsOfOpenAddresses(t *testing.T) {
	n := serve(t, t.TempDir(), "--listen", "0.0.0.0:0")
	found := false
	for line := range strings.Lines(n.log.String()) {
		found = found || strings.Contains(line, `"level":"warn"`) && strings.Contains(line, "listen is 0.0.0.0:0 (--listen): anyone who can reach this address can read and write everything")
	}
	if !found {
		t.Errorf("no warning:\n%s", n.log)
	}
}

func TestAWrongSettingStopsServeBeforeItStarts(t *testing.T) {
	code, _, stderr := runCommand(t, "serve", "--max-request-bytes", "1GiB")
	want := "tidemark: the configuration has a problem:\n  max-request-bytes (--max-request-bytes): expected a size from 64KiB to 16MiB, in bytes or with a unit such as KiB, MiB or MB; found \"1GiB\"\nSee \"tidemark serve --help\".\n"
	if code != exitUsage || stderr != want {
		t.Errorf("exit %d, %q, want 2, %q", code, stderr, want)
	}
}

func TestADataDirThatIsAFileIsAMistake(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := runCommand(t, "serve", "--data-dir", path, "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--raft-listen", "127.0.0.1:0", "--log-level", "error")
	const advice = "Name another one with --data-dir, or mend the owner and the mode of this one.\nSee \"tidemark serve --help\".\n"
	if code != exitUsage || stdout != "" || !strings.Contains(stderr, "data-dir is "+path+" (--data-dir): expected a directory that this user can write to: ") || !strings.HasSuffix(stderr, advice) {
		t.Errorf("exit %d, %q, %q", code, stdout, stderr)
	}
}
