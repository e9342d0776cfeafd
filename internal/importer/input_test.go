package importer

import (
	"bufio"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-db/tidemark/internal/fakestore"
)

// TestBadInput: each case is a file, the rows that go in beside the bad ones, and everything
// that is said. Refusals are in file order because one row is outstanding at a time.
func TestBadInput(t *testing.T) {
	const header = "id,type,n\n"
	const stoppedAt = "stopped at line "
	const stoppedWhy = ": it cannot be told which aggregate the row belongs to, and a row's sequence is its rank within its aggregate; " +
		"the rows behind it were not sent"
	long := strings.Repeat("x", 201)
	objects := plain()
	objects.Format = NDJSON
	timed := plain()
	timed.Columns.Time, timed.Columns.EventID = "n", "e"
	for _, c := range []struct {
		name, file string
		opts       Options
		want       Counts
		refusals   []string
		err        string
	}{
		{name: "empty file", file: "", err: "the file is empty; expected a header line with the names of the columns"},
		{name: "no rows", file: header},
		{name: "byte order mark", file: "\uFEFF" + header + "a,t,1\n", want: Counts{Imported: 1}},
		{name: "CRLF", file: "id,type,n\r\na,t,1\r\n", want: Counts{Imported: 1}},
		{name: "no line break at the end", file: header + "a,t,1", want: Counts{Imported: 1}},
		{name: "UTF-16", file: "\xff\xfei\x00", err: "the input is UTF-16; expected UTF-8: convert it first, for example with iconv -f UTF-16 -t UTF-8"},
		{name: "gzip", file: "\x1f\x8b\x08", err: "the input is compressed with gzip; expected text: decompress it first, for example with gzip -dc FILE | tidemark import -"},
		{name: "spreadsheet", file: "PK\x03\x04", err: "the input is a ZIP archive or a spreadsheet; expected text: unpack or save it as CSV first"},
		{
			name: "missing columns", file: "case,kind\na,t\n",
			err: "--id-column: the file has no column \"id\"; its columns are [\"case\" \"kind\"]\n--event-type-column: the file has no column \"type\"; its columns are [\"case\" \"kind\"]",
		},
		{name: "column twice", file: "id,type,id\n", err: `the header line has two columns "id" (columns 0 and 2, counting from 0); rename one of them`},
		{name: "unnamed column's name taken", file: ",column_0,id\n", err: `the header line has two columns "column_0" (columns 0 and 1, counting from 0); rename one of them`},
		{name: "header in Latin-1", file: "id,type,\xe9\n", err: `the header line is not UTF-8 (column 2 is "\xe9"); convert the file first, for example with iconv -f LATIN1 -t UTF-8`},
		{name: "header that is not CSV", file: "id,ty\"pe\n", err: `the header line is not CSV: parse error on line 1, column 6: bare " in non-quoted-field`},
		{
			name: "ragged row", file: header + "a,t,1\na,t\nb,t,1\n",
			want:     Counts{Imported: 1, Refused: 1},
			refusals: []string{"line 3: the row has 2 columns, the header has 3; look for a missing or an unquoted comma"},
			err:      stoppedAt + "3" + stoppedWhy,
		},
		{
			name: "invalid UTF-8", file: header + "a,t,caf\xe9\nb,t,1\n",
			want:     Counts{Imported: 1, Refused: 1},
			refusals: []string{`line 2: column "n" is not valid UTF-8: "caf\xe9"; convert the file, for example with iconv -f LATIN1 -t UTF-8`},
		},
		{
			name: "stray quote", file: header + "a,t,5\" disk\nb,t,1\n",
			want:     Counts{Refused: 1},
			err:      stoppedAt + "2" + stoppedWhy,
			refusals: []string{`line 2: not CSV at line 2, column 6: bare " in non-quoted-field; a field that holds a quote must be in quotes, and the quote doubled`},
		},
		{
			name: "quote never closed", file: header + "b,t,1\na,t,\"5\nc,t,1\n",
			want:     Counts{Imported: 1, Refused: 1},
			err:      stoppedAt + "3" + stoppedWhy,
			refusals: []string{`line 3: not CSV at line 4, column 7: extraneous or missing " in quoted-field; a field that holds a quote must be in quotes, and the quote doubled`},
		},
		{
			name: "quote never closed in a large file", file: header + "b,t,1\na,t,\"5\n" + strings.Repeat(strings.Repeat("x", 4095)+"\n", 7<<10),
			want: Counts{Imported: 1},
			err:  "the row after line 2: the row has more than 24 MiB; most likely a quote at its beginning is never closed",
		},
		{
			name: "id that is no name", file: header + "ok,t,5\n" + long + ",t,4\nok,t,5\n",
			want:     Counts{Imported: 1, Refused: 1},
			refusals: []string{`line 3: column "id" names the aggregate, and it has 201 bytes, at most 200 are allowed; mend the value, or choose another --id-column`},
			err:      stoppedAt + "3" + stoppedWhy,
		},
		{
			name: "types and times", file: "id,type,n,e\na," + long + ",,\nb,t,yesterday,\nc,t,," + long + "\nd,t,0000-01-01,\ne,t, 2020-02-29 ,\n", opts: timed,
			want: Counts{Imported: 1, Refused: 4},
			refusals: []string{
				`line 2: column "type": an event type has at most 200 bytes, this one has 201`,
				`line 3: column "n": "yesterday" is not a time; expected one such as 2010-12-30T14:32:00.5+01:00, or 2010-12-30 14:32:00 in UTC`,
				`line 4: column "e": an event id has at most 200 bytes, this one has 201`,
				`line 5: column "n": "0000-01-01" is out of range; expected a time in the years 1 to 9999`,
			},
		},
		{
			name: "objects", opts: objects,
			file: "\uFEFF" + `{"id":"a","type":"t"}` + "\n\n  \n" + `{"id":"b"}` + "\n" + `{"id":4711,"type":true}` + "\n" +
				"{\"id\":\"\xe9\"}\n" + `{"id":"c","type":"t"}`,
			want: Counts{Imported: 2, Refused: 2},
			refusals: []string{
				`line 4: the object has no "type"; every event needs a type`,
				`line 6: not valid UTF-8; convert the file, for example with iconv -f LATIN1 -t UTF-8`,
			},
			err: stoppedAt + "6" + stoppedWhy,
		},
		{
			name: "a line without end", opts: objects,
			file:     `{"id":"a","type":"t"}` + "\n" + `{"id":"` + strings.Repeat("x", 25<<20) + "\"}\n" + `{"id":"b","type":"t"}`,
			want:     Counts{Imported: 1, Refused: 1},
			err:      stoppedAt + "2" + stoppedWhy,
			refusals: []string{"line 2: the line has more than 24 MiB; a request that large is never accepted: split or drop it"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			opts := c.opts
			if opts.Format == "" {
				opts = plain()
			}
			opts.Outstanding = 1
			var refusals []string
			opts.Refused = func(r Refusal) { refusals = append(refusals, r.Error()) }
			counts, err := Run(t.Context(), fakestore.Serve(t, fakestore.New()), strings.NewReader(c.file), opts)
			wantCounts(t, counts, c.want)
			if got := errorText(err); got != c.err {
				t.Errorf("error %q; want %q", got, c.err)
			}
			if got, want := strings.Join(refusals, "\n"), strings.Join(c.refusals, "\n"); got != want {
				t.Errorf("refusals\n%s\nwant\n%s", got, want)
			}
		})
	}
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func TestAFileThatCannotBeReadEndsTheImport(t *testing.T) {
	broken := io.MultiReader(strings.NewReader("id,type\na,t\nb,t\n"), &failing{errors.New("input/output error")})
	counts, err := Run(t.Context(), fakestore.Serve(t, fakestore.New()), broken, plain())
	wantCounts(t, counts, Counts{Imported: 2})
	if got := errorText(err); got != "cannot read the input after line 3: input/output error" {
		t.Errorf("error %q", got)
	}
}

type failing struct{ err error }

func (f *failing) Read([]byte) (int, error) { return 0, f.err }

func TestObjectsKeepTheirValuesAndTheirOrder(t *testing.T) {
	store := fakestore.New()
	opts := plain()
	opts.Format, opts.Columns.EventID, opts.Columns.Time = NDJSON, "eid", "at"
	file := ` { "z" : 1.0 , "id":"a","é\u00e9\"":{"b": [1 ,2]},"at":"2020-01-01","type":"t","eid":"e-1","\ud800":null,"s":"\u003c\/"}` + "\r\n"
	counts, refusals := outcomeOf(t, fakestore.Serve(t, store), file, opts)
	wantCounts(t, counts, Counts{Imported: 1})
	if refusals != nil {
		t.Errorf("refused %q", refusals)
	}
	e := store.Batches()[0].GetEvents()[0]
	if want := `{"z":1.0,"é\u00e9\"":{"b": [1 ,2]},"\ud800":null,"s":"\u003c\/"}`; string(e.GetPayload()) != want || e.GetEventId() != "e-1" || e.GetType() != "t" ||
		e.GetOccurredAt().AsTime() != time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC) {
		t.Errorf("found %v with payload %s; want payload %s", e, e.GetPayload(), want)
	}
}

func TestTimes(t *testing.T) {
	for text, want := range map[string]string{
		"2010-12-30 14:32:00+01:00":        "2010-12-30T13:32:00Z",
		"2011-10-11 13:45:40.276000+02:00": "2011-10-11T11:45:40.276Z",
		"2011-10-11T13:45:40,5Z":           "2011-10-11T13:45:40.5Z",
		"2011-10-11t13:45:40z":             "2011-10-11T13:45:40Z",
		"2011-10-11 13:45:40 +0200":        "2011-10-11T11:45:40Z",
		"2011-10-11 13:45:40.1+02":         "2011-10-11T11:45:40.1Z",
		"2011-10-11 13:45:40 UTC":          "2011-10-11T13:45:40Z",
		" 2011-10-11 13:45:40.123456789 ":  "2011-10-11T13:45:40.123456789Z",
		"2011-10-11 13:45":                 "2011-10-11T13:45:00Z",
		"2011-10-11":                       "2011-10-11T00:00:00Z",
		"11.10.2011":                       "",
		"2011-02-29":                       "",
		"2011-10-11 25:00:00":              "",
		"2011-10-11 13:45:40 CET":          "",
		"1318333540":                       "",
		"":                                 "",
	} {
		got, err := ParseTime(text)
		if found := got.UTC().Format(time.RFC3339Nano); (err != nil) != (want == "") || err == nil && found != want {
			t.Errorf("%q: found %s, %v; want %q", text, found, err, want)
		}
	}
}

func TestLinesAreCutInBoundedMemory(t *testing.T) {
	l := lineReader{r: bufio.NewReaderSize(strings.NewReader("\n a\r\n"+strings.Repeat("b", 100)+"\n\n"), 16)}
	for _, want := range []struct {
		text string
		line int64
	}{{" a", 2}, {strings.Repeat("b", 100), 3}} {
		text, err := l.next()
		if string(text) != want.text || l.line != want.line || err != nil {
			t.Errorf("found %q at line %d, %v; want %q at %d", text, l.line, err, want.text, want.line)
		}
	}
	if _, err := l.next(); !errors.Is(err, io.EOF) {
		t.Errorf("error %v at the end; want EOF", err)
	}
}

func TestOptionsAreCheckedBeforeTheFileIs(t *testing.T) {
	for want, change := range map[string]func(*Options){
		"": func(*Options) {},
		"--format: expected csv or ndjson, found \"xml\"":        func(o *Options) { o.Format = "xml" },
		"--id-column is missing":                                 func(o *Options) { o.Columns.ID = "" },
		"--event-type-column is missing":                         func(o *Options) { o.Columns.EventType = "" },
		"--org is missing":                                       func(o *Options) { o.Org = "" },
		"--type: \"a/b\" holds '/', which is not allowed":        func(o *Options) { o.Type = "a/b" },
		"--client-id: it has 201 bytes, at most 200 are allowed": func(o *Options) { o.ClientID = strings.Repeat("x", 201) },
		"--event-type-column and --event-id-column both name column \"type\"; expected two columns": func(o *Options) { o.Columns.EventID = "type" },
		"--org: the lines of an export bring their own; for other NDJSON give --id-column and --event-type-column too": func(o *Options) {
			o.Format, o.Columns = NDJSON, Columns{}
		},
	} {
		opts := plain()
		change(&opts)
		if got := errorText(opts.Validate()); got != want {
			t.Errorf("found %q; want %q", got, want)
		}
	}
}
