package importer

import (
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/fakestore"
)

// stored is what the store holds, each batch as id, sequence and payload.
func stored(store *fakestore.Store) string {
	var all []string
	for _, b := range store.Batches() {
		all = append(all, b.GetAggregate().GetId()+string(b.GetEvents()[0].GetPayload()))
	}
	return strings.Join(all, " ")
}

// TestARowBehindARefusedOneIsNotSentWhenTheRanksMeetAgain: B was taken out of an imported
// file and D added. D's rank is the mark's next again, but C's place is taken: sending D
// would put it behind C, and writing C a second time is one more row away.
func TestARowBehindARefusedOneIsNotSentWhenTheRanksMeetAgain(t *testing.T) {
	store := fakestore.New()
	client := fakestore.Serve(t, store)
	counts, _ := outcomeOf(t, client, "id,type,n\nx,t,A\nx,t,B\nx,t,C\n", plain())
	wantCounts(t, counts, Counts{Imported: 3})
	for _, file := range []string{
		"id,type,n\nx,t,A\nx,t,C\nx,t,D\nx,t,E\n",        // one row less
		"id,type,n\nx,t,A\nx,t,N\nx,t,B\nx,t,C\nx,t,D\n", // one more
		"id,type,n\nx,t,A\nx,,B\nx,t,C\nx,t,D\n",         // one that is bad now
	} {
		counts, _ = outcomeOf(t, client, file, plain())
		wantCounts(t, counts, Counts{AlreadyThere: 1, Refused: uint64(strings.Count(file, "\n") - 2)})
		if got := stored(store); got != `x{"n":"A"} x{"n":"B"} x{"n":"C"}` {
			t.Errorf("after\n%s the store holds %s", file, got)
		}
	}
	counts, _ = outcomeOf(t, client, "id,type,n\nx,t,A\nx,t,B\nx,t,C\nx,t,D\n", plain())
	wantCounts(t, counts, Counts{Imported: 1, AlreadyThere: 3})
}

// TestARowWithoutAnAggregateEndsTheImport: whose rank it takes cannot be told, and C must
// not be written as the second row before it is known.
func TestARowWithoutAnAggregateEndsTheImport(t *testing.T) {
	objects := plain()
	objects.Format = NDJSON
	const object = `{"id":"x","type":"t","n":"B"}`
	const objectFile = `{"id":"x","type":"t","n":"A"}` + "\n" + object + "\n" + `{"id":"x","type":"t","n":"C"}` + "\n" + `{"id":"y","type":"t","n":"D"}` + "\n"
	const rowFile = "id,type,n\nx,t,A\nx,t,B\nx,t,C\ny,t,D\n"
	for _, c := range []struct{ name, file, good, bad, reason string }{
		{"a quote in a field", rowFile, "x,t,B", `x,t,B"`, `not CSV at line 3, column 6: bare " in non-quoted-field; a field that holds a quote must be in quotes, and the quote doubled`},
		{"too few columns", rowFile, "x,t,B", "x,t", "the row has 2 columns, the header has 3; look for a missing or an unquoted comma"},
		{"too many columns", rowFile, "x,t,B", "x,t,B,", "the row has 4 columns, the header has 3; look for a missing or an unquoted comma"},
		{"no id", rowFile, "x,t,B", ",t,B", `column "id" names the aggregate, and it is empty; mend the value, or choose another --id-column`},
		{"an id that is not allowed", rowFile, "x,t,B", "x/x,t,B", `column "id" names the aggregate, and "x/x" holds '/', which is not allowed; mend the value, or choose another --id-column`},
		{"half an object", objectFile, object, `{"id":"x","type":"t"`, `not JSON; expected one object on one line: "{\"id\":\"x\",\"type\":\"t\""`},
		{"a list", objectFile, object, `["x"]`, `expected one object on the line, found "[\"x\"]"`},
		{"an object without an id", objectFile, object, `{"type":"t"}`, `the object has no "id", which names the aggregate`},
		{"an object with two ids", objectFile, object, `{"id":"x","id":"y","type":"t"}`, `the object has "id" twice`},
		{"an id that is a list", objectFile, object, `{"id":["x"],"type":"t"}`, `"id" is an object or a list; expected a string or a number`},
	} {
		t.Run(c.name, func(t *testing.T) {
			opts, line := plain(), int64(3)
			if c.file == objectFile {
				opts, line = objects, 2
			}
			store := fakestore.New()
			client := fakestore.Serve(t, store)
			var refusals []Refusal
			opts.Refused = func(r Refusal) { refusals = append(refusals, r) }
			counts, err := Run(t.Context(), client, strings.NewReader(strings.Replace(c.file, c.good, c.bad, 1)), opts)
			wantCounts(t, counts, Counts{Imported: 1, Refused: 1})
			var end *Stopped
			want := Refusal{Line: line, Rows: 1, Reason: c.reason}
			if !errors.As(err, &end) || end.Refusal != want || len(refusals) != 1 || refusals[0] != want {
				t.Errorf("error %v, refusals %+v; want that it stopped for %+v", err, refusals, want)
			}
			if got := stored(store); got != `x{"n":"A"}` {
				t.Errorf("the store holds %s", got)
			}
			opts.Refused = nil
			counts, err = Run(t.Context(), client, strings.NewReader(c.file), opts)
			wantCounts(t, counts, Counts{Imported: 3, AlreadyThere: 1})
			if got := stored(store); err != nil || got != `x{"n":"A"} x{"n":"B"} x{"n":"C"} y{"n":"D"}` {
				t.Errorf("error %v; mended, the store holds %s", err, got)
			}
		})
	}
}

func TestProgressCountsTheBytesOfAnsweredRows(t *testing.T) {
	objects := plain()
	objects.Format = NDJSON
	for _, c := range []struct {
		opts Options
		file string
	}{
		{plain(), manyRows(10, 3)},
		{objects, strings.Repeat(`{"id":"x","type":"t"}`+"\n", 5)},
	} {
		last := int64(0)
		asked := func(_ int, _ *pb.AppendRequest) error {
			if last >= int64(len(c.file)) {
				t.Error("the whole file is counted before its last row is answered")
			}
			return nil
		}
		store := fakestore.New()
		store.Before = asked
		c.opts.Outstanding = 1
		c.opts.Progress = func(_ Counts, bytes int64) { last = bytes }
		if _, err := Run(t.Context(), fakestore.Serve(t, store), strings.NewReader(c.file), c.opts); err != nil || last != int64(len(c.file)) {
			t.Errorf("error %v, %d bytes in the end; want %d", err, last, len(c.file))
		}
	}
}

func TestThatTheStoreIsAwayIsSaidOnce(t *testing.T) {
	store := fakestore.New()
	store.Before = func(n int, _ *pb.AppendRequest) error {
		if n%2 == 0 {
			return status.Error(codes.Unavailable, "gone")
		}
		return nil
	}
	opts := plain()
	var said []string
	opts.Waiting = func(err error) { said = append(said, err.Error()) }
	counts, _ := outcomeOf(t, fakestore.Serve(t, store), manyRows(20, 20), opts)
	wantCounts(t, counts, Counts{Imported: 20})
	if strings.Join(said, "|") != "rpc error: code = Unavailable desc = gone" {
		t.Errorf("said %q; want it once", said)
	}
}

func TestAFileThatCannotBeBegunIsAnInputError(t *testing.T) {
	for _, file := range []string{"", "id,id\n", "id,what\n", "\x1f\x8b\x08"} {
		counts, err := Run(t.Context(), fakestore.Serve(t, fakestore.New()), strings.NewReader(file), plain())
		if !errors.As(err, new(*InputError)) || counts != (Counts{}) {
			t.Errorf("%q: %s, %v; want an InputError", file, counts, err)
		}
	}
}
