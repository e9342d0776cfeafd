package importer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/fakestore"
)

// exported is the export of a store.
func exported(t testing.TB, client pb.EventStoreServiceClient, opts ExportOptions) string {
	t.Helper()
	var out bytes.Buffer
	if _, err := Export(context.Background(), client, &out, opts); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// fill writes batches to a store without asking for their order in time.
func fill(t testing.TB, client pb.EventStoreServiceClient, reqs ...*pb.AppendRequest) {
	t.Helper()
	for _, req := range reqs {
		if _, err := client.Append(context.Background(), req); err != nil {
			t.Fatal(err)
		}
	}
}

func write(aggregate, client string, events ...*pb.NewEvent) *pb.AppendRequest {
	part := strings.Split(aggregate, "/")
	return &pb.AppendRequest{ClientId: client, Writes: []*pb.Write{{
		Aggregate: &pb.AggregateKey{Org: part[0], Type: part[1], Id: part[2]}, Events: events, AllowCreate: true,
	}}}
}

// events holds what an event can hold.
func everyKindOfEvent() []*pb.NewEvent {
	return []*pb.NewEvent{
		{ClientSeq: 1, EventId: "e-1", Type: "opened", Payload: []byte(`{"a": 1.0,"a":"<&>"}`), ContentType: "application/json"},
		{
			ClientSeq: math.MaxInt64, EventId: "id \"\\\u2028\x01", Type: "tÿpe", Schema: &pb.SchemaVersion{Major: 2, Minor: 7},
			OccurredAt: timestamppb.New(time.Date(2020, 1, 2, 3, 4, 5, 600, time.UTC)), Payload: []byte{0, 1, 0xff},
			Metadata:   map[string]string{"b": "2", "a": "1\n", "": ""},
			Encryption: &pb.Encryption{Scheme: "aes", KeyId: "k", Nonce: []byte{9}}, ContentType: "application/octet-stream",
		},
	}
}

const everyKindOfLine = `{"aggregate":"o/t/1","version":"1","event_index":0,"event_count":2,"client_id":"w","client_seq":"1","event_id":"e-1","type":"opened",` +
	`"schema":{"major":1,"minor":0},"content_type":"application/json","payload":{"a": 1.0,"a":"<&>"}}
{"aggregate":"o/t/1","version":"1","event_index":1,"event_count":2,"client_id":"w","client_seq":"9223372036854775807","event_id":"id \"\\` + "\u2028" + `\u0001","type":"tÿpe",` +
	`"schema":{"major":2,"minor":7},"occurred_at":"2020-01-02T03:04:05.0000006Z","content_type":"application/octet-stream","metadata":{"":"","a":"1\n","b":"2"},` +
	`"encryption":{"scheme":"aes","key_id":"k","nonce":"CQ=="},"payload_base64":"AAH/"}
`

func TestAnExportLineSaysEverythingOfAnEvent(t *testing.T) {
	client := fakestore.Serve(t, fakestore.New())
	fill(t, client, write("o/t/1", "w", everyKindOfEvent()...))
	if got := exported(t, client, ExportOptions{}); got != everyKindOfLine {
		t.Errorf("found\n%s\nwant\n%s", got, everyKindOfLine)
	}
}

func TestPayloadsAreReadableOnlyIfTheyComeBackUnchanged(t *testing.T) {
	deep := strings.Repeat("[", 1001) + strings.Repeat("]", 1001)
	for _, c := range []struct {
		contentType, payload string
		want                 bool
	}{
		{"application/json", `{"a":1}`, true},
		{"application/json; charset=utf-8", `null`, true},
		{"application/vnd.acme+json", `"x"`, true},
		{"text/plain", `{"a":1}`, false},
		{"", `{"a":1}`, false},
		{"application/json", ``, false},
		{"application/json", ` 1`, false},
		{"application/json", `1 `, false},
		{"application/json", "[1,\n2]", false},
		{"application/json", "[1,\r2]", false},
		{"application/json", `{"a":1`, false},
		{"application/json", `1,"client_id":"other"`, false},
		{"application/json", "\"\xff\"", false},
		{"application/json", `"\ud800"`, true},
		{"application/json", deep, false},
		{"application/json", deep[1 : len(deep)-1], true},
	} {
		if got := embeddable(c.contentType, []byte(c.payload)); got != c.want {
			t.Errorf("%q %.40q: found %v; want %v", c.contentType, c.payload, got, c.want)
		}
		b := &pb.Batch{Aggregate: &pb.AggregateKey{Org: "o", Type: "t", Id: "i"}, Version: 1, Events: []*pb.Event{
			{Payload: []byte(c.payload), ContentType: c.contentType},
		}}
		l, _, err := parseLine(AppendLine(nil, b, 0))
		if err != nil {
			t.Fatalf("%q %.40q: %v", c.contentType, c.payload, err)
		}
		if got := string(l.event().GetPayload()); got != c.payload {
			t.Errorf("%q %.40q came back as %.40q", c.contentType, c.payload, got)
		}
	}
}

// drawText draws a string that JSON has to escape as often as not.
func drawText(r *rapid.T, label string) string {
	return rapid.OneOf(rapid.SampledFrom([]string{"", "a", "é\u2028", "\"\\", "<b>&\t\n\x00"}), rapid.String()).Draw(r, label)
}

// drawEvent draws an event with anything in it, sequences and ids that collide included.
func drawEvent(r *rapid.T) *pb.NewEvent {
	e := &pb.NewEvent{
		ClientSeq: rapid.Uint64Range(1, 40).Draw(r, "seq"), EventId: drawText(r, "event_id"), Type: "t" + drawText(r, "type"),
		ContentType: rapid.SampledFrom([]string{"", "application/json", "text/plain"}).Draw(r, "content_type"),
		Payload: rapid.OneOf(
			rapid.Map(rapid.SampledFrom([]string{"", "{}", `{"a": 1.50}`, "[1,\n2]", " 1", `"\ud800"`, "null", "1,2"}), func(s string) []byte { return []byte(s) }),
			rapid.SliceOf(rapid.Byte())).Draw(r, "payload"),
	}
	if rapid.Bool().Draw(r, "schema") {
		e.Schema = &pb.SchemaVersion{Major: rapid.Uint32().Draw(r, "major"), Minor: rapid.Uint32().Draw(r, "minor")}
	}
	if rapid.Bool().Draw(r, "occurred") {
		e.OccurredAt = &timestamppb.Timestamp{
			Seconds: rapid.Int64Range(-62135596800, 253402300799).Draw(r, "seconds"), Nanos: rapid.Int32Range(0, 999999999).Draw(r, "nanos"),
		}
	}
	for range rapid.IntRange(0, 2).Draw(r, "metadata") {
		if e.Metadata == nil {
			e.Metadata = make(map[string]string)
		}
		e.Metadata[drawText(r, "key")] = drawText(r, "value")
	}
	if rapid.Bool().Draw(r, "encrypted") {
		e.Encryption = &pb.Encryption{Scheme: drawText(r, "scheme"), KeyId: drawText(r, "key_id"), Nonce: rapid.SliceOf(rapid.Byte()).Draw(r, "nonce")}
	}
	return e
}

// drawBatch draws a write, enforced or not, to one of a few aggregates by one of two writers.
func drawBatch(r *rapid.T) *pb.AppendRequest {
	key := "o/" + rapid.SampledFrom([]string{"t", "t!", "t\u00a0"}).Draw(r, "aggregate_type") + "/" + rapid.SampledFrom([]string{"1", "1 ", "10"}).Draw(r, "id")
	return write(key, rapid.SampledFrom([]string{"w", "v"}).Draw(r, "client"), rapid.SliceOfN(rapid.Custom(drawEvent), 1, 4).Draw(r, "events")...)
}

func TestAnExportComesBackTheSameByteForByte(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		first, second := fakestore.New(), fakestore.New()
		from, to := fakestore.Serve(t, first), fakestore.Serve(t, second)
		fill(t, from, rapid.SliceOfN(rapid.Custom(drawBatch), 0, 12).Draw(r, "batches")...)
		export := exported(t, from, ExportOptions{})
		lines := uint64(strings.Count(export, "\n"))
		for _, want := range []Counts{{Imported: lines}, {AlreadyThere: lines}} {
			var refusals []Refusal
			counts, err := Run(context.Background(), to, strings.NewReader(export), Options{
				Format: NDJSON, Outstanding: 3, Refused: func(r Refusal) { refusals = append(refusals, r) },
			})
			if err != nil || counts != want || refusals != nil {
				r.Fatalf("found %s, %v, %v; want %s", counts, err, refusals, want)
			}
			if again := exported(t, to, ExportOptions{Readers: 1}); again != export {
				r.Fatalf("exported\n%s\nfrom an import of\n%s", again, export)
			}
		}
		a, b := first.Batches(), second.Batches()
		for _, batch := range append(a[:len(a):len(a)], b...) {
			batch.Position, batch.CommittedAt = 0, nil // the store's own
		}
		if !sameBatches(a, b) {
			r.Fatalf("batches %v became %v", a, b)
		}
	})
}

func TestAnExportComesBackThroughLostAnswers(t *testing.T) {
	from := fakestore.Serve(t, fakestore.New())
	for i := range uint64(10) {
		// By turns enforceable, and only guarded: without ids, below the mark, out of order.
		fill(t, from,
			write("o/t/1", "w", &pb.NewEvent{ClientSeq: i + 1, EventId: fmt.Sprint("e", i), Type: "t"}),
			write("o/t/1", "v", &pb.NewEvent{ClientSeq: i + 1, Type: "t"}),
			write("o/t/1", "v", &pb.NewEvent{ClientSeq: 1, EventId: "e", Type: "t"}),
			write("o/t/2", "w", &pb.NewEvent{ClientSeq: 2*i + 2, EventId: "e", Type: "t"}, &pb.NewEvent{ClientSeq: 2*i + 1, EventId: "e", Type: "t"}))
	}
	export := exported(t, from, ExportOptions{})
	store := fakestore.New()
	store.BreakReads = 3
	store.Before = func(n int, _ *pb.AppendRequest) error {
		if n%3 == 0 {
			return status.Error(codes.Unavailable, "lost before it was sent")
		}
		return nil
	}
	store.After = func(n int, _ *pb.AppendRequest) error {
		if n%2 == 0 {
			return status.Error(codes.Unavailable, "lost after it landed")
		}
		return nil
	}
	to := fakestore.Serve(t, store)
	counts, refusals := outcomeOf(t, to, export, Options{Format: NDJSON})
	if counts.Imported+counts.AlreadyThere != 50 || refusals != nil {
		t.Errorf("found %s, refused %q; want 50 settled", counts, refusals)
	}
	// The streams of this export break as well.
	if again := exported(t, to, ExportOptions{}); again != export {
		t.Errorf("exported\n%s\nfrom an import of\n%s", again, export)
	}
}

func TestAnExportOfAnotherHistoryIsRefused(t *testing.T) {
	from, to := fakestore.Serve(t, fakestore.New()), fakestore.Serve(t, fakestore.New())
	fill(t, from,
		write("o/t/1", "w", &pb.NewEvent{ClientSeq: 1, EventId: "e", Type: "t"}),
		write("o/t/1", "w", &pb.NewEvent{ClientSeq: 2, EventId: "e", Type: "t"}, &pb.NewEvent{ClientSeq: 3, EventId: "e", Type: "t"}),
		write("o/t/2", "w", &pb.NewEvent{ClientSeq: 1, Type: "t"}),
		write("o/t/3", "w", &pb.NewEvent{ClientSeq: 1, EventId: "e", Type: "t"}))
	fill(t, to,
		write("o/t/1", "x", &pb.NewEvent{ClientSeq: 1, EventId: "e", Type: "t"}),
		write("o/t/2", "w", &pb.NewEvent{ClientSeq: 1, Type: "other"}))
	counts, refusals := outcomeOf(t, to, exported(t, from, ExportOptions{}), Options{Format: NDJSON, Outstanding: 1})
	wantCounts(t, counts, Counts{Imported: 1, Refused: 4})
	const conflict = "2003 OptimisticConcurrencyViolation: expected version 0, found 1; the store has another history of this aggregate than the export"
	want := []string{
		"line 1: " + conflict,
		"line 2: held back: line 1, an earlier batch of the same aggregate, was refused",
		"line 4: " + conflict,
	}
	slices.Sort(refusals)
	if got := strings.Join(refusals, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("refusals\n%s\nwant\n%s", got, strings.Join(want, "\n"))
	}
}

// TestDamagedExports: a line or more of an export of one aggregate with three batches of one,
// two and one events is lost or changed.
func TestDamagedExports(t *testing.T) {
	from := fakestore.Serve(t, fakestore.New())
	event := func(seq uint64) *pb.NewEvent { return &pb.NewEvent{ClientSeq: seq, EventId: "e", Type: "t"} }
	fill(t, from, write("o/t/1", "w", event(1)), write("o/t/1", "w", event(2), event(3)), write("o/t/1", "w", event(4)), write("o/t/2", "w", event(1)))
	lines := strings.SplitAfter(exported(t, from, ExportOptions{}), "\n")
	const held = "held back: line %d, an earlier batch of the same aggregate, was refused"
	for _, c := range []struct {
		name     string
		damage   func(l []string)
		want     Counts
		refusals []string
	}{
		{"whole", func([]string) {}, Counts{Imported: 5}, nil},
		{"a trimmed beginning", func(l []string) { l[0] = "" }, Counts{Imported: 4}, nil},
		{"cut off in a batch", func(l []string) { l[2], l[3], l[4] = "", "", "" }, Counts{Imported: 1, Refused: 1}, []string{
			"line 2: the file ends within the batch, after 1 of its 2 events; export the aggregate again",
		}},
		{"a batch lost its end", func(l []string) { l[2] = "" }, Counts{Imported: 2, Refused: 2}, []string{
			"line 2: the batch is not complete: line 3 is not its event_index 1 of 2; export the aggregate again",
			"line 3: " + fmt.Sprintf(held, 2),
		}},
		{"a batch lost its beginning", func(l []string) { l[1] = "" }, Counts{Imported: 2, Refused: 2}, []string{
			"line 2: the batch begins with event_index 1; its first lines are missing; export the aggregate again",
			"line 3: " + fmt.Sprintf(held, 2),
		}},
		{"a line stands twice", func(l []string) { l[2] = l[1] }, Counts{Imported: 2, Refused: 3}, []string{
			"line 2: the batch is not complete: line 3 is not its event_index 1 of 2; export the aggregate again",
			"line 3: the batch is not complete: line 4 is not its event_index 1 of 2; export the aggregate again",
			"line 4: " + fmt.Sprintf(held, 2),
		}},
		{"a batch is missing", func(l []string) { l[1], l[2] = "", "" }, Counts{Imported: 2, Refused: 1}, []string{
			"line 2: version 3 follows version 1; what was between them is missing; export the aggregate again",
		}},
		{"the first line is damaged", func(l []string) { l[0] = "{\n" }, Counts{Imported: 1, Refused: 4}, []string{
			"line 1: not a line of an export: unexpected EOF; to import other objects, name their columns with --id-column and --event-type-column",
			"line 2: the aggregate begins with version 2 after a line that cannot be read; export the aggregate again",
			"line 4: " + fmt.Sprintf(held, 2),
		}},
		{"a line within a batch is damaged", func(l []string) { l[2] = "{}\n" }, Counts{Imported: 2, Refused: 3}, []string{
			`line 2: line 3 of the batch is damaged: aggregate "": expected org/type/id: it is empty`,
			"line 4: " + fmt.Sprintf(held, 2),
		}},
		{"the last batch is damaged", func(l []string) { l[3] = "{}\n" }, Counts{Imported: 4, Refused: 1}, []string{
			`line 4: aggregate "": expected org/type/id: it is empty`,
		}},
		{"other objects", func(l []string) { copy(l, []string{`{"id":"a","type":"t"}` + "\n", "", "", "", ""}) }, Counts{Refused: 1}, []string{
			`line 1: not a line of an export: json: unknown field "id"; to import other objects, name their columns with --id-column and --event-type-column`,
		}},
		{"two objects on a line", func(l []string) { l[4] = strings.TrimSpace(l[4]) + "{}\n" }, Counts{Imported: 4, Refused: 1}, []string{
			"line 5: not a line of an export: something follows the object; to import other objects, name their columns with --id-column and --event-type-column",
		}},
		{"two payloads", func(l []string) { l[4] = strings.Replace(l[4], `"payload_base64"`, `"payload":1,"payload_base64"`, 1) }, Counts{Imported: 4, Refused: 1}, []string{
			"line 5: expected payload or payload_base64, found both",
		}},
		{"no version", func(l []string) { l[4] = strings.Replace(l[4], `"version":"1",`, "", 1) }, Counts{Imported: 4, Refused: 1}, []string{
			"line 5: version is missing; it tells batches apart",
		}},
		{"an impossible index", func(l []string) { l[4] = strings.Replace(l[4], `"event_count":1`, `"event_count":0`, 1) }, Counts{Imported: 4, Refused: 1}, []string{
			"line 5: event_index 0 is not below event_count 0",
		}},
		{"no sequence", func(l []string) { l[4] = strings.Replace(l[4], `"client_seq":"1",`, "", 1) }, Counts{Imported: 4, Refused: 1}, []string{
			"line 5: event_index 0 has no client_seq; export the aggregate again",
		}},
		{"no writer", func(l []string) { l[4] = strings.Replace(l[4], `"client_id":"w"`, `"client_id":""`, 1) }, Counts{Imported: 4, Refused: 1}, []string{
			"line 5: client_id: it is empty; export the aggregate again",
		}},
		{"not UTF-8", func(l []string) { l[4] = strings.Replace(l[4], `"w"`, "\"\xff\"", 1) }, Counts{Imported: 4, Refused: 1}, []string{
			"line 5: not valid UTF-8; an export is, so the file was damaged or converted",
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			damaged := append([]string(nil), lines...)
			c.damage(damaged)
			store := fakestore.New()
			counts, refusals := outcomeOf(t, fakestore.Serve(t, store), strings.Join(damaged, ""), Options{Format: NDJSON, Outstanding: 1})
			wantCounts(t, counts, c.want)
			// What the reader finds and what the worker does are told in no common order.
			slices.Sort(refusals)
			if got, want := strings.Join(refusals, "\n"), strings.Join(c.refusals, "\n"); got != want {
				t.Errorf("refusals\n%s\nwant\n%s", got, want)
			}
			if n := len(store.Batches()); c.want.Refused == 0 && n == 0 {
				t.Error("nothing was written")
			}
		})
	}
}

func TestExportNarrows(t *testing.T) {
	client := fakestore.Serve(t, fakestore.New())
	for _, key := range []string{"a/t/1", "a/t/12", "a/t/2", "a/u/1", "b/t/1", "a!/t/1"} {
		fill(t, client, write(key, "w", &pb.NewEvent{ClientSeq: 1, Type: "t"}))
	}
	for _, c := range []struct {
		opts ExportOptions
		want string
	}{
		{ExportOptions{}, "a/t/1 a/t/12 a/t/2 a/u/1 a!/t/1 b/t/1"},
		{ExportOptions{Org: "a"}, "a/t/1 a/t/12 a/t/2 a/u/1"},
		{ExportOptions{Org: "a", Type: "t"}, "a/t/1 a/t/12 a/t/2"},
		{ExportOptions{Org: "a", Type: "t", IDPrefix: "1"}, "a/t/1 a/t/12"},
		{ExportOptions{Org: "c"}, ""},
	} {
		var keys []string
		for line := range strings.Lines(exported(t, client, c.opts)) {
			_, key, err := parseLine([]byte(line))
			if err != nil {
				t.Fatal(err)
			}
			keys = append(keys, key.GetOrg()+"/"+key.GetType()+"/"+key.GetId())
		}
		if got := strings.Join(keys, " "); got != c.want {
			t.Errorf("%+v: found %s; want %s", c.opts, got, c.want)
		}
	}
	for want, opts := range map[string]ExportOptions{
		"--type needs --org: a type is a part of an org": {Type: "t"},
		"--id-prefix needs --type":                       {Org: "o", IDPrefix: "1"},
	} {
		if _, err := Export(t.Context(), client, &bytes.Buffer{}, opts); errorText(err) != want {
			t.Errorf("%+v: error %v; want %s", opts, err, want)
		}
	}
}

func TestExportStopsWhenItCannotWrite(t *testing.T) {
	client := fakestore.Serve(t, fakestore.New())
	for i := range 40 {
		for seq := range uint64(20) {
			fill(t, client, write(fmt.Sprintf("o/t/%d", i), "w", &pb.NewEvent{ClientSeq: seq + 1, Type: "t", Payload: make([]byte, 5000)}))
		}
	}
	_, err := Export(t.Context(), client, &full{}, ExportOptions{})
	if errorText(err) != "cannot write the export: no space left on device" {
		t.Errorf("error %v", err)
	}
}

// full is a disk with room for one write.
type full struct{ written bool }

func (f *full) Write(p []byte) (int, error) {
	if f.written {
		return 0, errors.New("no space left on device")
	}
	f.written = true
	return len(p), nil
}

func TestExportEndsWithTheContext(t *testing.T) {
	client := fakestore.Serve(t, fakestore.New())
	for i := range 40 {
		fill(t, client, write(fmt.Sprintf("o/t/%d", i), "w", &pb.NewEvent{ClientSeq: 1, Type: "t"}))
	}
	ctx, cancel := context.WithCancel(t.Context())
	counts, err := Export(ctx, client, &bytes.Buffer{}, ExportOptions{Readers: 1, Progress: func(c ExportCounts) {
		if c.Aggregates == 3 {
			cancel()
		}
	}})
	if !errors.Is(err, context.Canceled) || counts.Aggregates < 3 || counts.Aggregates == 40 {
		t.Errorf("found %+v, %v; want 3 aggregates or a few more, and the cancellation", counts, err)
	}
}
