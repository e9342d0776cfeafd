package importer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/fakestore"
)

// claims are the options for testdata/claims.csv.
func claims() Options {
	return Options{
		Format: CSV, Org: "acme", Type: "claims", ClientID: "loader",
		Columns: Columns{ID: "case:concept:name", EventType: "concept:name", Time: "time:timestamp"},
	}
}

func open(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// outcomeOf runs an import and collects its refusals as text.
func outcomeOf(t *testing.T, client pb.EventStoreServiceClient, data string, opts Options) (Counts, []string) {
	t.Helper()
	var refusals []string
	opts.Refused = func(r Refusal) { refusals = append(refusals, r.Error()) }
	counts, err := Run(t.Context(), client, strings.NewReader(data), opts)
	if err != nil {
		t.Fatalf("%v after %s", err, counts)
	}
	return counts, refusals
}

func wantCounts(t *testing.T, got, want Counts) {
	t.Helper()
	if got != want {
		t.Errorf("found %s; want %s", got, want)
	}
}

func TestARowIsOneConfirmedEnforcedWrite(t *testing.T) {
	store := fakestore.New()
	requests := make(map[string]*pb.AppendRequest)
	store.Before = func(_ int, req *pb.AppendRequest) error {
		w := req.GetWrites()[0]
		requests[fmt.Sprintf("%s %d", w.GetAggregate().GetId(), w.GetEvents()[0].GetClientSeq())] = proto.Clone(req).(*pb.AppendRequest)
		return nil
	}
	counts, refusals := outcomeOf(t, fakestore.Serve(t, store), string(open(t, "testdata/claims.csv")), claims())
	wantCounts(t, counts, Counts{Imported: 5})
	if refusals != nil {
		t.Errorf("refused %q", refusals)
	}
	request := func(id string, seq uint64, event *pb.NewEvent) *pb.AppendRequest {
		event.ClientSeq, event.ContentType = seq, "application/json"
		w := &pb.Write{
			Aggregate: &pb.AggregateKey{Org: "acme", Type: "claims", Id: id}, Events: []*pb.NewEvent{event},
			AllowCreate: true, EnforceClientIdempotency: true,
		}
		if seq > 1 {
			w.PreviousClientSeq = proto.Uint64(seq - 1)
		}
		return &pb.AppendRequest{ClientId: "loader", Writes: []*pb.Write{w}, OnDuplicate: pb.OnDuplicate_ON_DUPLICATE_CONFIRM}
	}
	at := func(text string) *timestamppb.Timestamp {
		at, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			t.Fatal(err)
		}
		return timestamppb.New(at)
	}
	// The event ids are pinned: another version of import must find the rows of this one.
	for name, want := range map[string]*pb.AppendRequest{
		"2 1": request("2", 1, &pb.NewEvent{
			EventId: "96d89c0ef78f683ca4157db55bfc8b6b", Type: "register claim", OccurredAt: at("2019-03-04T08:15:00Z"),
			Payload: []byte(`{"column_0":"0","org:resource":"Ada","Activity":"register claim","Costs":"50","case:creator":"Office \"North\", desk 4"}`),
		}),
		"1 1": request("1", 1, &pb.NewEvent{
			EventId: "55f7df2843a27aa66d9dd917bc8e6b4a", Type: "register claim", OccurredAt: at("2019-03-04T09:02:30.25Z"),
			Payload: []byte(`{"column_0":"1","org:resource":"Bob","Activity":"register claim","Costs":"50","case:creator":"Office South"}`),
		}),
		"2 2": request("2", 2, &pb.NewEvent{
			EventId: "7f7e78b2a83ff29f635b66ec13dd7a5b", Type: "check papers", OccurredAt: at("2019-03-05T07:00:00Z"),
			Payload: []byte(`{"column_0":"2","org:resource":"Ada","Activity":"check papers","Costs":"120","case:creator":"Office \"North\", desk 4"}`),
		}),
		"2 3": request("2", 3, &pb.NewEvent{
			EventId: "3501cbb8241ff9b4911267faedc644ad", Type: "decide: pay, in part", OccurredAt: at("2019-03-06T16:45:00Z"),
			Payload: []byte(`{"column_0":"3","org:resource":"Çelik","Activity":"decide","Costs":"200","case:creator":"two\nlines"}`),
		}),
		"1 2": request("1", 2, &pb.NewEvent{
			EventId: "293618c5380bad03c9d33d9831d820e4", Type: "check papers",
			Payload: []byte(`{"column_0":"4","org:resource":"Bob","Activity":"check papers","Costs":"007","case:creator":""}`),
		}),
	} {
		if !proto.Equal(requests[name], want) {
			t.Errorf("aggregate and sequence %s: found\n%s\nwant\n%s", name, protojson.Format(requests[name]), protojson.Format(want))
		}
		delete(requests, name)
	}
	if len(requests) > 0 {
		t.Errorf("further requests: %v", requests)
	}
}

func TestASecondImportAddsNothing(t *testing.T) {
	store := fakestore.New()
	client := fakestore.Serve(t, store)
	file := string(open(t, "testdata/claims.csv"))
	counts, _ := outcomeOf(t, client, file, claims())
	wantCounts(t, counts, Counts{Imported: 5})
	before := store.Batches()
	counts, refusals := outcomeOf(t, client, file, claims())
	wantCounts(t, counts, Counts{AlreadyThere: 5})
	if refusals != nil {
		t.Errorf("refused %q", refusals)
	}
	if after := store.Batches(); !sameBatches(before, after) {
		t.Errorf("the second run changed the store: %v became %v", before, after)
	}
}

func sameBatches(a, b []*pb.Batch) bool {
	return proto.Equal(&pb.ReadResponse{Batches: a}, &pb.ReadResponse{Batches: b})
}

// manyRows is a file of rows rows in aggregates aggregates, interleaved.
func manyRows(rows, aggregates int) string {
	var file strings.Builder
	file.WriteString("id,type,n\n")
	for i := range rows {
		fmt.Fprintf(&file, "a%d,t,%d\n", i%aggregates, i)
	}
	return file.String()
}

func plain() Options {
	return Options{Format: CSV, Org: "o", Type: "t", ClientID: "c", Columns: Columns{ID: "id", EventType: "type"}}
}

func TestAnInterruptedImportIsCompletedByTheNext(t *testing.T) {
	file := manyRows(600, 40)
	ctx, cancel := context.WithCancel(t.Context())
	store := fakestore.New()
	store.After = func(n int, _ *pb.AppendRequest) error {
		if n == 300 {
			cancel()
		}
		return nil
	}
	client := fakestore.Serve(t, store)
	first, err := Run(ctx, client, strings.NewReader(file), plain())
	if !errors.Is(err, context.Canceled) || first.Total() >= 600 || first.Refused != 0 {
		t.Fatalf("interrupted: %s, %v; want fewer than 600, none refused, and the cancellation", first, err)
	}
	second, refusals := outcomeOf(t, client, file, plain())
	if second.Imported+second.AlreadyThere != 600 || second.AlreadyThere < 300 || refusals != nil {
		t.Errorf("second run: %s, refused %q; want 600 in all, at least 300 of them already there", second, refusals)
	}
	assertRows(t, store, 600, 40)
}

// assertRows checks that the store holds exactly the rows of manyRows, in order.
func assertRows(t *testing.T, store *fakestore.Store, rows, aggregates int) {
	t.Helper()
	batches := store.Batches()
	if len(batches) != rows {
		t.Fatalf("%d batches; want %d", len(batches), rows)
	}
	for _, b := range batches {
		var k int
		if _, err := fmt.Sscanf(b.GetAggregate().GetId(), "a%d", &k); err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf(`{"n":"%d"}`, k+int(b.GetVersion()-1)*aggregates)
		e := b.GetEvents()[0]
		if string(e.GetPayload()) != want || e.GetClientSeq() != b.GetVersion() || len(b.GetEvents()) != 1 {
			t.Fatalf("aggregate %d version %d holds %s with sequence %d; want %s", k, b.GetVersion(), e.GetPayload(), e.GetClientSeq(), want)
		}
	}
}

func TestLostAnswersAndTemporaryRefusalsAreRetriedWithTheSameBytes(t *testing.T) {
	errs := []error{
		status.Error(codes.Unavailable, "connection lost"),
		status.Error(codes.DeadlineExceeded, "too late"),
		api.Errorf(pb.ErrorCode_ERROR_CODE_WRITE_OUTCOME_UNKNOWN, "stopping"),
		api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "not the leader"),
		api.Errorf(pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY, "not ready"),
		api.Errorf(pb.ErrorCode_ERROR_CODE_REPLICATION_BACKPRESSURE, "full").After(time.Millisecond),
		api.Errorf(pb.ErrorCode_ERROR_CODE_SERVER_BUSY, "busy").After(time.Millisecond),
		api.Errorf(pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE, "in flight"),
	}
	store := fakestore.New()
	sent := make(map[string][]byte)
	store.Before = func(n int, req *pb.AppendRequest) error {
		bytesOf, err := proto.MarshalOptions{Deterministic: true}.Marshal(req)
		if err != nil {
			t.Error(err)
		}
		w := req.GetWrites()[0]
		key := fmt.Sprint(w.GetAggregate().GetId(), w.GetEvents()[0].GetClientSeq())
		if earlier, again := sent[key]; again && !bytes.Equal(earlier, bytesOf) {
			t.Errorf("%s was sent again with other bytes", key)
		}
		sent[key] = bytesOf
		if n%5 == 0 {
			return errs[n/5%len(errs)]
		}
		return nil
	}
	store.After = func(n int, _ *pb.AppendRequest) error {
		if n%7 == 0 {
			return errs[n/7%3] // only those that may be sent about a write that landed
		}
		return nil
	}
	counts, refusals := outcomeOf(t, fakestore.Serve(t, store), manyRows(400, 100), plain())
	if counts.Imported+counts.AlreadyThere != 400 || counts.AlreadyThere == 0 || refusals != nil {
		t.Errorf("found %s, refused %q; want 400 settled, the lost answers among them already there", counts, refusals)
	}
	assertRows(t, store, 400, 100)
}

func TestAnImportGivesUpWhenTheStoreStaysAway(t *testing.T) {
	store := fakestore.New()
	store.Before = func(n int, _ *pb.AppendRequest) error {
		if n > 10 {
			return status.Error(codes.Unavailable, "gone")
		}
		return nil
	}
	opts := plain()
	opts.Outstanding, opts.RetryFor = 1, time.Nanosecond
	counts, err := Run(t.Context(), fakestore.Serve(t, store), strings.NewReader(manyRows(50, 50)), opts)
	wantCounts(t, counts, Counts{Imported: 10})
	const want = "line 12: gave up after 0s of retries: rpc error: code = Unavailable desc = gone; " +
		"whether this row landed may be open, and running the import again settles it"
	if err == nil || err.Error() != want {
		t.Errorf("error %v; want %s", err, want)
	}
}

func TestWhatWouldMeetEveryRowEndsTheImportAtOnce(t *testing.T) {
	store := fakestore.New()
	store.Before = func(int, *pb.AppendRequest) error {
		return api.Errorf(pb.ErrorCode_ERROR_CODE_AUTH_REQUIRED, "no credentials")
	}
	opts := plain()
	opts.Outstanding = 1
	counts, err := Run(t.Context(), fakestore.Serve(t, store), strings.NewReader(manyRows(50, 50)), opts)
	wantCounts(t, counts, Counts{})
	if api.CodeOf(err) != pb.ErrorCode_ERROR_CODE_AUTH_REQUIRED || store.Appends() != 1 {
		t.Errorf("error %v after %d calls; want 10005 after 1", err, store.Appends())
	}
}

func TestARefusedRowHoldsBackItsAggregateUntilItIsMended(t *testing.T) {
	store := fakestore.New()
	client := fakestore.Serve(t, store)
	bad := "id,type,n\nx,t,1\ny,t,2\nx,,3\nx,t,4\ny,t,5\n"
	counts, refusals := outcomeOf(t, client, bad, plain())
	wantCounts(t, counts, Counts{Imported: 3, Refused: 2})
	want := []string{
		`line 4: column "type" is empty; every event needs a type`,
		`line 5: held back: line 4, an earlier row of the same aggregate, was refused`,
	}
	if strings.Join(refusals, "\n") != strings.Join(want, "\n") {
		t.Errorf("refusals\n%s\nwant\n%s", strings.Join(refusals, "\n"), strings.Join(want, "\n"))
	}
	counts, refusals = outcomeOf(t, client, strings.Replace(bad, "x,,3", "x,t,3", 1), plain())
	wantCounts(t, counts, Counts{Imported: 2, AlreadyThere: 3})
	if refusals != nil {
		t.Errorf("refused %q", refusals)
	}
	var payloads []string
	for _, b := range store.Batches() {
		payloads = append(payloads, b.GetAggregate().GetId()+string(b.GetEvents()[0].GetPayload()))
	}
	if got := strings.Join(payloads, " "); got != `x{"n":"1"} x{"n":"3"} x{"n":"4"} y{"n":"2"} y{"n":"5"}` {
		t.Errorf("the store holds %s", got)
	}
}

// TestEveryKindOfBadRowKeepsItsRank: the row between two good ones of its aggregate is bad,
// and then mended.
func TestEveryKindOfBadRowKeepsItsRank(t *testing.T) {
	timed := plain()
	timed.Columns.Time = "n"
	objects := plain()
	objects.Format = NDJSON
	const object = `{"id":"x","type":"t","n":"%s"}` + "\n"
	for _, c := range []struct{ name, head, good, bad string }{
		{"invalid UTF-8", "id,type,n\n", "x,t,2020-01-01\n", "x,t,\xff\n"},
		{"no time", "id,type,n\n", "x,t,2020-01-01\n", "x,t,late\n"},
		{"an object without a type", "", object, `{"id":"x"}` + "\n"},
		{"no type", "id,type,n\n", "x,t,2020-01-01\n", "x,,2020-01-01\n"},
		{"an object with a key twice", "", object, `{"id":"x","type":"t","n":1,"n":2}` + "\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			opts := timed
			if c.head == "" {
				opts = objects
			}
			store := fakestore.New()
			client := fakestore.Serve(t, store)
			counts, refusals := outcomeOf(t, client, c.head+c.good+c.bad+c.good, opts)
			wantCounts(t, counts, Counts{Imported: 1, Refused: 2})
			if len(refusals) != 2 || !strings.Contains(refusals[1], "held back") {
				t.Errorf("refused %q; want the row, and that the next is held back", refusals)
			}
			counts, _ = outcomeOf(t, client, c.head+c.good+c.good+c.good, opts)
			wantCounts(t, counts, Counts{Imported: 2, AlreadyThere: 1})
		})
	}
}

func TestAChangedRowIsRefusedAndHoldsBackTheRest(t *testing.T) {
	client := fakestore.Serve(t, fakestore.New())
	opts := plain()
	opts.Columns.EventID = "eid"
	file := "id,type,eid,n\nx,t,e1,1\nx,t,e2,2\nx,t,e3,3\n"
	counts, _ := outcomeOf(t, client, file, opts)
	wantCounts(t, counts, Counts{Imported: 3})
	counts, refusals := outcomeOf(t, client, strings.Replace(file, "e2,2", "e2,9", 1), opts)
	wantCounts(t, counts, Counts{AlreadyThere: 1, Refused: 2})
	const want = "line 3: 2002 ClientIdempotencyViolation: sequence 2 is at or below the mark 3; " +
		"its content is another: was the file changed above its end, or another one imported with this client id?\n" +
		"line 4: held back: line 3, an earlier row of the same aggregate, was refused"
	if got := strings.Join(refusals, "\n"); got != want {
		t.Errorf("refusals\n%s\nwant\n%s", got, want)
	}
}
