package main

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

func batch(version uint64, events ...*pb.Event) *pb.Batch {
	return &pb.Batch{
		Aggregate: order(), Version: version, Incarnation: 1, Position: 80 + version,
		CommitFirstPosition: 80 + version, CommitCount: 1, ClientId: "billing", CommittedAt: at(10),
		FirstEventNumber: version, Events: events, PreviousChainHash: []byte{1}, ChainHash: []byte{2},
	}
}

func event(number uint64, kind, payload string) *pb.Event {
	return &pb.Event{ClientSeq: number, EventId: fmt.Sprintf("e%d", number), Type: kind, Payload: []byte(payload), EventNumber: number}
}

// answerRead makes a store that sends one message per slice of batches, and then end.
func answerRead(end *pb.ReadEnd, messages ...[]*pb.Batch) *fakeStore {
	return &fakeStore{read: func(_ *pb.ReadRequest, stream grpc.ServerStreamingServer[pb.ReadResponse]) error {
		for _, batches := range messages {
			if err := stream.Send(&pb.ReadResponse{Batches: batches}); err != nil {
				return err
			}
		}
		if end == nil {
			return nil
		}
		return stream.Send(&pb.ReadResponse{End: end})
	}}
}

func readRequest() *pb.ReadRequest {
	return &pb.ReadRequest{Aggregate: order(), Direction: pb.Direction_DIRECTION_FORWARD, Filter: &pb.Filter{}}
}

func TestRead(t *testing.T) {
	long := event(3, "Order\x1b[2J", strings.Repeat("x", 400))
	secret := event(4, "Secret", "????")
	secret.Encryption = &pb.Encryption{Scheme: "aes"}
	store := answerRead(&pb.ReadEnd{NextVersion: 3, CurrentVersion: 2, Position: 90, Timeline: "t"},
		[]*pb.Batch{batch(1, event(1, "OrderPlaced", `{"total":12}`), event(2, "OrderPaid", "line\nbreak"))},
		[]*pb.Batch{batch(2, long, secret)})
	server := store.start(t)

	code, stdout, stderr := runCommand(t, "read", "acme/orders/4821", "--server", server)
	want := `VERSION  EVENT  POSITION  CLIENT   SEQ  TYPE            EVENT ID  COMMITTED AT              PAYLOAD
1        1      81        billing  1    OrderPlaced     e1        2026-01-31T10:00:00.000Z  {"total":12}
1        2      81        billing  2    OrderPaid       e2        2026-01-31T10:00:00.000Z  line\nbreak
2        3      82        billing  3    Order\u001b[2J  e3        2026-01-31T10:00:00.000Z  ` + strings.Repeat("x", 31) + `…
2        4      82        billing  4    Secret          e4        2026-01-31T10:00:00.000Z  (4 bytes, encrypted)
`
	if code != exitOK || stdout != want || stderr != "2 batches, 4 events; acme/orders/4821 is at version 2, as of position 90\n" {
		t.Errorf("exit %d, stdout\n%s\nstderr %q\nwant 0,\n%s", code, stdout, stderr, want)
	}

	code, stdout, stderr = runCommand(t, "read", "acme/orders/4821", "--server", server, "--output", "json")
	lines := strings.Split(stdout, "\n")
	want = `{"aggregate":{"org":"acme","type":"orders","id":"4821"},"version":"1","incarnation":1,"shard":0,"position":"81","commit_first_position":"81","commit_count":1,` +
		`"client_id":"billing","committed_at":"2026-01-31T10:00:00Z","first_event_number":"1","events":[` +
		`{"client_seq":"1","event_id":"e1","type":"OrderPlaced","payload":"eyJ0b3RhbCI6MTJ9","content_type":"","metadata":{},"event_number":"1"},` +
		`{"client_seq":"2","event_id":"e2","type":"OrderPaid","payload":"bGluZQpicmVhaw==","content_type":"","metadata":{},"event_number":"2"}],` +
		`"previous_chain_hash":"AQ==","chain_hash":"Ag=="}`
	if code != exitOK || len(lines) != 3 || lines[0] != want || lines[2] != "" || stderr != "" {
		t.Errorf("exit %d, %d lines, the first\n%s\nstderr %q\nwant 0, two lines and a last break,\n%s", code, len(lines), lines[0], stderr, want)
	}
	store.asked(t, readRequest(), readRequest())
}

func TestReadOfNothingPrintsNoTable(t *testing.T) {
	code, stdout, stderr := runCommand(t, "read", "acme/orders/4821", "--server", answerRead(&pb.ReadEnd{CurrentVersion: 2, Position: 90}).start(t))
	if code != exitOK || stdout != "" || stderr != "0 batches, 0 events; acme/orders/4821 is at version 2, as of position 90\n" {
		t.Errorf("exit %d, stdout %q, stderr %q", code, stdout, stderr)
	}
}

func TestReadSendsWhatTheFlagsSay(t *testing.T) {
	store := answerRead(&pb.ReadEnd{})
	code, _, stderr := runCommand(t, "read", "acme/orders/4821", "--server", store.start(t), "--from", "9", "--to", "2", "--limit", "5", "--backward",
		"--event-type", "A,B", "--event-type", "C", "--event-id", "e1", "--client", "w1", "--client", "w2", "--exclude-client", "w3",
		"--seq-from", "3", "--seq-to", "4", "--committed-from", "2026-01-31T01:00:00Z", "--committed-to", "2026-01-31T02:00:00Z",
		"--occurred-from", "2026-01-31T03:00:00Z", "--occurred-to", "2026-01-31T04:00:00Z",
		"--consistency", "any", "--min-position", "70", "--timeline", "aa")
	if code != exitOK {
		t.Fatalf("exit %d, %s", code, stderr)
	}
	store.asked(t, &pb.ReadRequest{
		Aggregate: order(), FromVersion: 9, ToVersion: 2, Limit: 5, Direction: pb.Direction_DIRECTION_BACKWARD,
		Filter: &pb.Filter{
			EventTypes: []string{"A,B", "C"}, EventIds: []string{"e1"}, ClientIds: []string{"w1", "w2"}, ExcludeClientIds: []string{"w3"},
			ClientSeqFrom: 3, ClientSeqTo: 4, CommittedFrom: at(1), CommittedTo: at(2), OccurredFrom: at(3), OccurredTo: at(4),
		},
		Consistency: pb.Consistency_CONSISTENCY_ANY, MinPosition: 70, Timeline: "aa",
	})
}

func TestReadErrors(t *testing.T) {
	refuse := func(err error) *fakeStore {
		return &fakeStore{read: func(_ *pb.ReadRequest, stream grpc.ServerStreamingServer[pb.ReadResponse]) error {
			if e := stream.Send(&pb.ReadResponse{Batches: []*pb.Batch{batch(1, event(1, "A", "x"))}}); e != nil {
				return e
			}
			return err
		}}
	}
	const table = `VERSION  EVENT  POSITION  CLIENT   SEQ  TYPE  EVENT ID  COMMITTED AT              PAYLOAD
1        1      81        billing  1    A     e1        2026-01-31T10:00:00.000Z  x
`
	for _, c := range []struct {
		name   string
		store  *fakeStore
		code   int
		stderr string
	}{
		{"1001", refuse(api.Errorf(pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND, "no aggregate acme/orders/4821")), exitNotFound,
			"tidemark: 1001 AggregateNotFound: no aggregate acme/orders/4821\nCheck the key; \"tidemark aggregate\" tells a deleted aggregate from one that never existed.\n"},
		{"1000", refuse(api.Errorf(pb.ErrorCode_ERROR_CODE_UNAVAILABLE_VERSION, "trimmed").With(&pb.VersionUnavailable{Requested: 1, FirstVersion: 5, CurrentVersion: 9})), exitFailure,
			"tidemark: 1000 UnavailableVersion: trimmed\n  requested version  1\n  first version      5\n  current version    9\nRead from the detail's first_version.\n"},
		{"11001 is no unknown outcome, for nothing was to be written", refuse(api.Corruptf("block 7 of 000012.sst")), exitFailure,
			"tidemark: 11001 Internal: block 7 of 000012.sst\nReport it with the server's log. A write's outcome is unknown: keep the client_seq.\n"},
		{"a lost connection", refuse(status.Error(codes.Unavailable, "reset")), exitFailure,
			"tidemark: the connection was lost before the answer came: reset\n"},
		{"a wait that the server ended", refuse(status.Error(codes.DeadlineExceeded, "waited 30s for min_position 9; this node has applied 3")), exitFailure,
			"tidemark: waited 30s for min_position 9; this node has applied 3\n"},
		{"gRPC's words for that", refuse(context.DeadlineExceeded), exitFailure, "tidemark: no answer came within --timeout\n"},
		{"an answer that ends early", answerRead(nil, []*pb.Batch{batch(1, event(1, "A", "x"))}), exitFailure,
			"tidemark: the answer ended early: expected a last message with the aggregate's version, found none; read again\n"},
	} {
		// What came before the error is printed.
		code, stdout, stderr := runCommand(t, "read", "acme/orders/4821", "--server", c.store.start(t))
		if code != c.code || stdout != table || stderr != c.stderr {
			t.Errorf("%s: exit %d, stdout\n%s\nstderr\n%s\nwant exit %d, stderr\n%s", c.name, code, stdout, stderr, c.code, c.stderr)
		}
	}
	code, _, stderr := runCommand(t, "read", "acme/orders/4821", "--committed-from", "today")
	if want := "tidemark: --committed-from: expected a time such as 2026-01-31T12:00:00Z (RFC 3339), found \"today\"\nSee \"tidemark read --help\".\n"; code != exitUsage || stderr != want {
		t.Errorf("exit %d, %q, want 2, %q", code, stderr, want)
	}
}

// The largest request of a server with the largest limit comes back in one message.
func TestReadReceivesTheLargestBatch(t *testing.T) {
	store := answerRead(&pb.ReadEnd{CurrentVersion: 1}, []*pb.Batch{batch(1, event(1, "A", strings.Repeat("x", 17<<20)))})
	code, stdout, stderr := runCommand(t, "read", "acme/orders/4821", "--server", store.start(t), "--output", "json")
	if code != exitOK || stderr != "" || len(stdout) < 17<<20 {
		t.Errorf("exit %d, %d bytes, %.200s", code, len(stdout), stderr)
	}
}

func TestATableOfManyRowsIsPrintedAsItGrows(t *testing.T) {
	var out bytes.Buffer
	table := newTable(&out, "A", "B")
	for i := range 10 * tableWindow {
		if err := table.row(i, "x"); err != nil {
			t.Fatal(err)
		}
		if len(table.rows) >= tableWindow {
			t.Fatalf("%d rows are kept, want fewer than %d", len(table.rows), tableWindow)
		}
	}
	if err := table.flush(); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(out.String(), "\n")
	if len(lines) != 10*tableWindow+2 || lines[0] != "A    B" || lines[1] != "0    x" || lines[2560] != "2559  x" {
		t.Errorf("%d lines: %q %q ... %q", len(lines), lines[0], lines[1], lines[2560])
	}
}

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"plain ü 漢": "plain ü 漢", "a\tb\r\n": `a\tb\r\n`, "\x00\x1b[0m\u0085": `\u0000\u001b[0m\u0085`, "\xff\xfeok": `\xff\xfeok`, "\u202eevil": `\u202eevil`, "\U000e0001": `\U000e0001`,
	} {
		if got := printable(in); got != want {
			t.Errorf("printable(%q) = %q, want %q", in, got, want)
		}
	}
}
