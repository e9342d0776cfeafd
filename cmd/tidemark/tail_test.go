package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

const tailTimeline = "0123456789abcdef0123456789abcdef"

// follow makes a store whose n-th subscription sends the n-th list of messages and ends with the
// n-th error; one without an error goes on until its client ends it.
func followed(streams [][]*pb.SubscribeResponse, ends ...error) *fakeStore {
	n := 0
	return &fakeStore{subscribe: func(_ *pb.SubscribeRequest, stream grpc.ServerStreamingServer[pb.SubscribeResponse]) error {
		mine := min(n, len(streams)-1)
		n++
		for _, m := range streams[mine] {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		if ends[mine] != nil {
			return ends[mine]
		}
		<-stream.Context().Done()
		return stream.Context().Err()
	}}
}

func (f *fakeStore) subscriptions(t *testing.T, want ...*pb.SubscribeRequest) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.requests) != len(want) {
		t.Fatalf("%d subscriptions, want %d", len(f.requests), len(want))
	}
	for i, w := range want {
		if w.Filter == nil {
			w.Filter = &pb.Filter{}
		}
		if !proto.Equal(f.requests[i], w) {
			t.Errorf("subscription %d: got\n%s\nwant\n%s", i, prototext.Format(f.requests[i]), prototext.Format(w))
		}
	}
}

func everything(start uint64, timeline string) *pb.SubscribeRequest {
	return &pb.SubscribeRequest{
		Scope: &pb.SubscribeRequest_All{All: &pb.AllScope{}}, Start: &pb.SubscribeRequest_FromPosition{FromPosition: start}, Timeline: timeline,
	}
}

// A tail goes on where it was, at whatever node, prints each event once, and stores how far it
// is; the next one goes on there.
func TestTailGoesOn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "progress.json")
	created := &pb.Notice{Aggregate: order(), Operation: pb.Operation_OPERATION_CREATED, FromVersion: 1, ToVersion: 1, Position: 81}
	trimmed := &pb.Notice{Aggregate: order(), Operation: pb.Operation_OPERATION_TRIMMED, FromVersion: 1, ToVersion: 1, Position: 83}
	gone := &pb.Notice{Aggregate: order(), Operation: pb.Operation_OPERATION_DELETED, FromVersion: 1, ToVersion: 3, Position: 85}
	streams := [][]*pb.SubscribeResponse{
		{{Timeline: tailTimeline, Batches: []*pb.Batch{batch(1, event(1, "OrderPlaced", "{}"))}, Notices: []*pb.Notice{created}}, {CaughtUp: &pb.CaughtUp{NextPosition: 82}}},
		{{Timeline: tailTimeline, Checkpoint: &pb.Checkpoint{NextPosition: 82}}},
		{{Timeline: tailTimeline, Batches: []*pb.Batch{batch(2, event(2, "OrderPaid", "{}")), batch(4, event(4, "OrderSent", "{}"))}, Notices: []*pb.Notice{trimmed, gone}},
			{Checkpoint: &pb.Checkpoint{NextPosition: 90}}, {CaughtUp: &pb.CaughtUp{NextPosition: 90}}},
	}
	moved := api.Errorf(pb.ErrorCode_ERROR_CODE_SUBSCRIPTION_MOVED, "elsewhere").With(&pb.SubscriptionMoved{NextPosition: 82})
	store := followed(streams, moved, api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "elsewhere"), api.Errorf(pb.ErrorCode_ERROR_CODE_UNAVAILABLE_VERSION, "enough"))
	server := store.start(t)
	code, stdout, stderr := runCommand(t, "tail", "--from-position", "81", "--timeline", tailTimeline, "--checkpoint-file", file, "--server", server)
	want := `POSITION  AGGREGATE         VERSION  EVENT  CLIENT   SEQ  TYPE         EVENT ID  COMMITTED AT              PAYLOAD
81        acme/orders/4821  1        1      billing  1    OrderPlaced  e1        2026-01-31T10:00:00.000Z  {}
82        acme/orders/4821  2        2      billing  2    OrderPaid    e2        2026-01-31T10:00:00.000Z  {}
83        acme/orders/4821  1                             (trimmed)
84        acme/orders/4821  4        4      billing  4    OrderSent    e4        2026-01-31T10:00:00.000Z  {}
85        acme/orders/4821  1-3                           (deleted)
`
	if stdout != want || code != exitFailure || !strings.Contains(stderr, "1000 UnavailableVersion: enough") {
		t.Errorf("exit %d\n%s\nwant\n%s\n%s", code, stdout, want, stderr)
	}
	store.subscriptions(t, everything(81, tailTimeline), everything(82, tailTimeline), everything(82, tailTimeline))
	text, err := os.ReadFile(file)
	if err != nil || string(text) != `{"timeline":"`+tailTimeline+`","shard":0,"next_position":"90"}`+"\n" {
		t.Errorf("checkpoint %s, %v", text, err)
	}

	store = followed([][]*pb.SubscribeResponse{{{Timeline: tailTimeline, CaughtUp: &pb.CaughtUp{NextPosition: 95}}}}, nil)
	server = store.start(t)
	if code, stdout, stderr = runCommand(t, "tail", "--checkpoint-file", file, "--no-follow", "--server", server); code != 0 || stderr != "" {
		t.Errorf("exit %d, %s%s", code, stdout, stderr)
	}
	store.subscriptions(t, everything(90, tailTimeline))
	if c, err := loadCheckpoint(file); err != nil || *c != (checkpoint{tailTimeline, 0, 95}) {
		t.Errorf("checkpoint %+v, %v", c, err)
	}
	if left, _ := os.ReadDir(filepath.Dir(file)); len(left) != 1 {
		t.Errorf("left behind: %v", left)
	}
}

func TestTailRequests(t *testing.T) {
	now := &pb.SubscribeRequest_FromNow{FromNow: true}
	for _, c := range []struct {
		args []string
		want *pb.SubscribeRequest
	}{
		{nil, &pb.SubscribeRequest{Scope: &pb.SubscribeRequest_All{All: &pb.AllScope{}}, Start: now}},
		{[]string{"--org", "acme", "--from-now", "--consistency", "any"}, &pb.SubscribeRequest{Scope: &pb.SubscribeRequest_Org{Org: "acme"}, Start: now, Consistency: pb.Consistency_CONSISTENCY_ANY}},
		{[]string{"--org", "acme", "--type", "orders", "--event-type", "A", "--event-type", "B"},
			&pb.SubscribeRequest{Scope: &pb.SubscribeRequest_Type{Type: &pb.TypeScope{Org: "acme", Type: "orders"}}, Start: now, Filter: &pb.Filter{EventTypes: []string{"A", "B"}}}},
		{[]string{"--aggregate", "acme/orders/4821", "--from-position", "1"}, &pb.SubscribeRequest{
			Scope: &pb.SubscribeRequest_Aggregates{Aggregates: &pb.AggregatesScope{Aggregates: []*pb.AggregateKey{order()}}},
			Start: &pb.SubscribeRequest_FromPosition{FromPosition: 1}}},
	} {
		store := followed([][]*pb.SubscribeResponse{{{Timeline: tailTimeline, CaughtUp: &pb.CaughtUp{NextPosition: 1}}}}, nil)
		server := store.start(t)
		if code, _, stderr := runCommand(t, append([]string{"tail", "--no-follow", "--server", server}, c.args...)...); code != 0 {
			t.Errorf("%v: exit %d, %s", c.args, code, stderr)
		}
		store.subscriptions(t, c.want)
	}
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte(`{"next_position":"7"}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--type", "orders"}, exitUsage, "--type needs --org"},
		{[]string{"--org", "a", "--aggregate", "a/b/c"}, exitUsage, "--aggregate and --org: expected one of them"},
		{[]string{"--from-now", "--from-position", "1"}, exitUsage, "--from-now and --from-position: expected one of them"},
		{[]string{"--from-position", "2"}, exitUsage, "--from-position needs --timeline"},
		{[]string{"--max-latency", "1s"}, exitUsage, "--max-latency needs --notices"},
		{[]string{"--checkpoint-file", garbage}, exitFailure, `expected a checkpoint of "tidemark tail"`},
	} {
		if code, _, stderr := runCommand(t, append([]string{"tail"}, c.args...)...); code != c.code || !strings.Contains(stderr, c.want) {
			t.Errorf("%v: exit %d, %s", c.args, code, stderr)
		}
	}
}

func TestTailRefusesAnotherTimeline(t *testing.T) {
	file := filepath.Join(t.TempDir(), "progress.json")
	c := &checkpointer{file: file}
	if err := c.reached(tailTimeline, 7, time.Now()); err != nil {
		t.Fatal(err)
	}
	store := followed([][]*pb.SubscribeResponse{nil}, api.Errorf(pb.ErrorCode_ERROR_CODE_TIMELINE_MISMATCH, "another"))
	server := store.start(t)
	code, _, stderr := runCommand(t, "tail", "--checkpoint-file", file, "--server", server)
	if code != exitFailure || !strings.Contains(stderr, "2031 TimelineMismatch: another") || !strings.Contains(stderr, "remove the file to begin anew") {
		t.Errorf("exit %d, %s", code, stderr)
	}
	store.subscriptions(t, everything(7, tailTimeline))
}

// Ctrl-C ends a tail with what it has printed stored, and exit code 0; so does a reader that has
// gone.
func TestTailEnds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "progress.json")
	store := followed([][]*pb.SubscribeResponse{{{Timeline: tailTimeline, Batches: []*pb.Batch{batch(1, event(1, "A", "{}"))}}, {Batches: []*pb.Batch{batch(2, event(2, "B", "{}"))}}}}, nil)
	server := store.start(t)
	ctx, interrupt := context.WithCancel(t.Context())
	var stdout, stderr bytes.Buffer
	out := writerFunc(func(b []byte) (int, error) {
		if bytes.Contains(b, []byte(`"B"`)) {
			defer interrupt()
		}
		return stdout.Write(b)
	})
	if code := run(ctx, []string{"tail", "--output", "json", "--checkpoint-file", file, "--server", server}, strings.NewReader(""), out, &stderr); code != 0 || stderr.String() != "" {
		t.Errorf("interrupted: exit %d, %s", code, stderr.String())
	}
	for i, line := range strings.Split(strings.TrimSpace(stdout.String()), "\n") {
		var b struct{ Position string }
		if err := json.Unmarshal([]byte(line), &b); err != nil || b.Position != []string{"81", "82"}[i] {
			t.Errorf("line %d: %s, %v", i, line, err)
		}
	}
	if c, err := loadCheckpoint(file); err != nil || *c != (checkpoint{tailTimeline, 0, 83}) {
		t.Errorf("checkpoint %+v, %v", c, err)
	}
	broken := writerFunc(func([]byte) (int, error) { return 0, &os.PathError{Op: "write", Path: "|1", Err: syscall.EPIPE} })
	stderr.Reset()
	if code := run(t.Context(), []string{"tail", "--server", server}, strings.NewReader(""), broken, &stderr); code != 0 || stderr.String() != "" {
		t.Errorf("broken pipe: exit %d, %s", code, stderr.String())
	}
	full := writerFunc(func([]byte) (int, error) { return 0, errors.New("the disk is full") })
	if code := run(t.Context(), []string{"tail", "--server", server}, strings.NewReader(""), full, &stderr); code != exitFailure || !strings.Contains(stderr.String(), "the disk is full") {
		t.Errorf("full disk: exit %d, %s", code, stderr.String())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }
