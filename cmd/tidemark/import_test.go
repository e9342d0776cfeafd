package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// importClaims is the command line that imports testdata/claims.csv, or a file like it.
func importClaims(address, file string, more ...string) []string {
	return append([]string{
		"import", file, "--server", address, "--format", "csv", "--org", "acme", "--type", "claims", "--client-id", "loader",
		"--id-column", "case:concept:name", "--event-type-column", "concept:name", "--time-column", "time:timestamp",
	}, more...)
}

// expect runs a command line and checks all that comes of it.
func expect(t *testing.T, code int, stdout, stderr string, args ...string) {
	t.Helper()
	gotCode, gotOut, gotErr := runCommand(t, args...)
	if gotCode != code || gotOut != stdout || gotErr != stderr {
		t.Errorf("%q\nexit %d; want %d\nstdout\n%s\nwant\n%s\nstderr\n%s\nwant\n%s", args, gotCode, code, gotOut, stdout, gotErr, stderr)
	}
}

const exportedClaims = `{"aggregate":"acme/claims/1","version":"1","event_index":0,"event_count":1,"client_id":"loader","client_seq":"1","event_id":"55f7df2843a27aa66d9dd917bc8e6b4a","type":"register claim","schema":{"major":1,"minor":0},"occurred_at":"2019-03-04T09:02:30.25Z","content_type":"application/json","payload":{"column_0":"1","org:resource":"Bob","Activity":"register claim","Costs":"50","case:creator":"Office South"}}
{"aggregate":"acme/claims/1","version":"2","event_index":0,"event_count":1,"client_id":"loader","client_seq":"2","event_id":"293618c5380bad03c9d33d9831d820e4","type":"check papers","schema":{"major":1,"minor":0},"content_type":"application/json","payload":{"column_0":"4","org:resource":"Bob","Activity":"check papers","Costs":"007","case:creator":""}}
{"aggregate":"acme/claims/2","version":"1","event_index":0,"event_count":1,"client_id":"loader","client_seq":"1","event_id":"96d89c0ef78f683ca4157db55bfc8b6b","type":"register claim","schema":{"major":1,"minor":0},"occurred_at":"2019-03-04T08:15:00Z","content_type":"application/json","payload":{"column_0":"0","org:resource":"Ada","Activity":"register claim","Costs":"50","case:creator":"Office \"North\", desk 4"}}
{"aggregate":"acme/claims/2","version":"2","event_index":0,"event_count":1,"client_id":"loader","client_seq":"2","event_id":"7f7e78b2a83ff29f635b66ec13dd7a5b","type":"check papers","schema":{"major":1,"minor":0},"occurred_at":"2019-03-05T07:00:00Z","content_type":"application/json","payload":{"column_0":"2","org:resource":"Ada","Activity":"check papers","Costs":"120","case:creator":"Office \"North\", desk 4"}}
{"aggregate":"acme/claims/2","version":"3","event_index":0,"event_count":1,"client_id":"loader","client_seq":"3","event_id":"3501cbb8241ff9b4911267faedc644ad","type":"decide: pay, in part","schema":{"major":1,"minor":0},"occurred_at":"2019-03-06T16:45:00Z","content_type":"application/json","payload":{"column_0":"3","org:resource":"Çelik","Activity":"decide","Costs":"200","case:creator":"two\nlines"}}
`

func TestImportAndExportOnANode(t *testing.T) {
	const file = "testdata/claims.csv"
	node, other := serve(t, t.TempDir()).address, serve(t, t.TempDir()).address
	expect(t, exitOK, "imported 5, already there 0, refused 0\n", "", importClaims(node, file)...)
	expect(t, exitOK, "imported 0, already there 5, refused 0\n", "", importClaims(node, file)...)
	expect(t, exitOK, `{"imported":"0","already_there":"5","refused":"0"}`+"\n", "", importClaims(node, file, "--output", "json")...)
	expect(t, exitOK, exportedClaims, "", "export", "--server", node)
	expect(t, exitOK, exportedClaims[:strings.Index(exportedClaims, `{"aggregate":"acme/claims/2"`)], "",
		"export", "--server", node, "--org", "acme", "--type", "claims", "--id-prefix", "1")
	expect(t, exitOK, "", "", "export", "--server", node, "--org", "other")

	// From one node to another, through a pipe.
	var out, errs bytes.Buffer
	code := run(t.Context(), []string{"import", "-", "--format", "ndjson", "--server", other}, strings.NewReader(exportedClaims), &out, &errs)
	if code != exitOK || out.String() != "imported 5, already there 0, refused 0\n" || errs.String() != "" {
		t.Errorf("exit %d, %q, %q", code, out.String(), errs.String())
	}
	expect(t, exitOK, exportedClaims, "", "export", "--server", other)
	// Whoever has imported the rows, and from whatever file, they are the same writes.
	expect(t, exitOK, "imported 0, already there 5, refused 0\n", "", importClaims(other, file)...)
}

func TestRefusedRowsAreNamedAndMakeImportFail(t *testing.T) {
	node := serve(t, t.TempDir()).address
	data, err := os.ReadFile("testdata/claims.csv")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "claims.csv")
	rows := strings.Repeat("9,,Ada,,,,3,\n", 30)
	if err := os.WriteFile(file, append(data, rows...), 0o600); err != nil {
		t.Fatal(err)
	}
	const reason = `column "concept:name" is empty; every event needs a type`
	const advice = "A row that was never written can be mended where it stands; then run the same command again: rows that are there already are recognised. " +
		"A row that is refused because the store holds another event in its place cannot: a file that was imported may only grow at its end.\n"
	expect(t, exitFailure, "imported 5, already there 0, refused 30\n",
		file+": line 8: "+reason+"\n"+file+": line 9: "+reason+"\n"+
			file+": and 28 more refusals; --print-refused N shows more\n"+
			"tidemark: "+file+": 30 refused\n"+advice,
		importClaims(node, file, "--print-refused", "2", "--outstanding", "1")...)
}

func TestAnInterruptedImportSaysHowToGoOn(t *testing.T) {
	node := serve(t, t.TempDir()).address
	ctx, cancel := context.WithCancel(t.Context())
	stdin, feed := io.Pipe()
	go func() { // ends with the writes, which the command reads before it is interrupted
		for _, row := range []string{"id,type\n", "a,t\n", "b,t\n"} {
			if _, err := io.WriteString(feed, row); err != nil {
				t.Error(err)
			}
		}
		cancel()
	}()
	var out, errs bytes.Buffer
	code := run(ctx, []string{"import", "-", "--server", node, "--format", "csv", "--org", "o", "--type", "t", "--client-id", "c",
		"--id-column", "id", "--event-type-column", "type"}, stdin, &out, &errs)
	const want = "tidemark: interrupted\nWhat was imported is safe. Run the same command again to complete the import: rows that are there already are recognised.\n"
	if code != exitFailure || errs.String() != want || !strings.HasSuffix(out.String(), ", already there 0, refused 0\n") {
		t.Errorf("exit %d, stdout %q, stderr %q; want 1, the counts, and\n%s", code, out.String(), errs.String(), want)
	}
	_ = feed.Close()
}

func TestImportMistakesExitWithTwo(t *testing.T) {
	see := func(command string) string { return "See \"tidemark " + command + " --help\".\n" }
	expect(t, exitUsage, "", "tidemark: --format is missing; expected csv or ndjson\n"+see("import"), "import", "x.csv")
	expect(t, exitUsage, "", "tidemark: --format, --event-type-column, --type and --client-id are missing\n"+see("import"), "import", "x.csv", "--id-column", "a", "--org", "o")
	expect(t, exitUsage, "", "tidemark: --org, --type and --client-id are missing\n"+see("import"), "import", "x.csv", "--format", "csv", "--id-column", "a", "--event-type-column", "b")
	expect(t, exitUsage, "", "tidemark: --format: expected csv or ndjson, found \"xml\"\n"+see("import"), "import", "x.csv", "--format", "xml")
	expect(t, exitUsage, "", "tidemark: --outstanding: expected 1 to 10000, found 0\n"+see("import"), "import", "x", "--format", "ndjson", "--outstanding", "0")
	expect(t, exitUsage, "", "tidemark: cannot open the file: open testdata/none: no such file or directory\n"+see("import"), "import", "testdata/none", "--format", "ndjson")
	expect(t, exitUsage, "", "tidemark: testdata is a directory; expected a file\n"+see("import"), "import", "testdata", "--format", "ndjson")
	expect(t, exitUsage, "", "tidemark: --type needs --org: a type is a part of an org\n"+see("export"), "export", "--type", "t")
}

func TestAFileOfAnotherKindIsSaidToBe(t *testing.T) {
	node := serve(t, t.TempDir()).address
	expect(t, exitUsage, "",
		"tidemark: testdata/claims.csv: --id-column: the file has no column \"case\"; its columns are [\"column_0\" \"concept:name\" \"org:resource\" \"time:timestamp\" \"Activity\" \"Costs\" \"case:concept:name\" \"case:creator\"]\n"+
			"--event-type-column: the file has no column \"what\"; its columns are [\"column_0\" \"concept:name\" \"org:resource\" \"time:timestamp\" \"Activity\" \"Costs\" \"case:concept:name\" \"case:creator\"]\n"+
			"Nothing was imported.\nSee \"tidemark import --help\".\n",
		"import", "testdata/claims.csv", "--server", node, "--format", "csv", "--org", "o", "--type", "t", "--client-id", "c", "--id-column", "case", "--event-type-column", "what")
}

func TestAnImportStopsAtARowWithoutAnAggregate(t *testing.T) {
	node := serve(t, t.TempDir()).address
	file := filepath.Join(t.TempDir(), "rows.csv")
	if err := os.WriteFile(file, []byte("id,type,n\na,t,1\na,t\nb,t,2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	expect(t, exitFailure, "imported 1, already there 0, refused 1\n",
		file+": line 3: the row has 2 columns, the header has 3; look for a missing or an unquoted comma\n"+
			"tidemark: "+file+": stopped at line 3: it cannot be told which aggregate the row belongs to, and a row's sequence is its rank within its aggregate; the rows behind it were not sent\n"+
			"Mend line 3 (or remove it, if it is no row) and run the same command again: rows that are there already are recognised.\n",
		"import", file, "--server", node, "--format", "csv", "--org", "o", "--type", "t", "--client-id", "c", "--id-column", "id", "--event-type-column", "type")
}
