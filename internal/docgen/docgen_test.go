package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/tidemark-db/tidemark/api"
	"github.com/tidemark-db/tidemark/config"
	"github.com/tidemark-db/tidemark/internal/metric"
)

// TestDocumentsAreCurrent fails while docs/errors.md, docs/configuration.md, docs/metrics.md or
// the code table in docs/contract.md says anything else than the tables in api/codes.go, config
// and internal/metric.
func TestDocumentsAreCurrent(t *testing.T) {
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range documents() {
		old, err := os.ReadFile(filepath.Join(root, d.path))
		if err != nil {
			t.Fatal(err)
		}
		want, err := d.render(string(old))
		if err != nil {
			t.Errorf("%s: %v", d.path, err)
			continue
		}
		if string(old) != want {
			t.Errorf("%s is out of date, first at line %d: run `make generate`", d.path, firstDifference(string(old), want))
		}
	}
}

func firstDifference(a, b string) int {
	as, bs := strings.Split(a, "\n"), strings.Split(b, "\n")
	for i := range min(len(as), len(bs)) {
		if as[i] != bs[i] {
			return i + 1
		}
	}
	return min(len(as), len(bs)) + 1
}

var sample = []api.Code{
	{Code: 1, Name: "First", GRPC: codes.FailedPrecondition, Detail: "tidemark.v1.NotLeader", MayHaveHappened: api.No,
		Meaning: "First meaning.", Advice: "First advice."},
	{Code: 2, Name: "Second", GRPC: codes.Internal, GRPCCorrupt: codes.DataLoss, MayHaveHappened: api.Yes,
		Meaning: "Second meaning.", Advice: "Second advice.", Planned: true},
}

func TestReplaceCodeTable(t *testing.T) {
	got, err := replaceCodeTable("before\n"+tableBegin+"old\n"+tableEnd+"after\n", sample)
	want := "before\n" + tableBegin + `
| code | name | gRPC status | detail | may this call's write still land? |
|---|---|---|---|---|
| 1 | First | FAILED_PRECONDITION | ` + "`NotLeader`" + ` | no |
| 2 † | Second | INTERNAL, DATA_LOSS |  | **yes** |

` + tableEnd + "after\n"
	if err != nil || got != want {
		t.Errorf("got %v\n%s\nwant\n%s", err, got, want)
	}
	for _, broken := range []string{
		"no markers", tableBegin + "no end", tableEnd + tableBegin, tableBegin + tableBegin + tableEnd,
	} {
		if text, err := replaceCodeTable(broken, sample); err == nil {
			t.Errorf("%q: no error, but %q", broken, text)
		}
	}
}

func TestErrorsPage(t *testing.T) {
	want := errorsIntro + `| code | name | gRPC status | may this call's write still land? |
|---|---|---|---|
| [1](#1-first) | First | FAILED_PRECONDITION | no |
| [2](#2-second) | Second | INTERNAL, DATA_LOSS | **yes** |
` + errorsWithoutCode + `
## Each code

### 1 First

First meaning.

- What to do: First advice.
- May this call's write still land? no
- gRPC status: FAILED_PRECONDITION
- ` + "`ErrorInfo.reason`: `1`" + `
- Detail: ` + "`tidemark.v1.NotLeader`" + `

### 2 Second

*Not sent by this version: what it belongs to is not served yet.*

Second meaning.

- What to do: Second advice.
- May this call's write still land? **yes**
- gRPC status: INTERNAL, DATA_LOSS
- ` + "`ErrorInfo.reason`: `2`" + `
`
	if got := errorsPage(sample); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestMetricsPage(t *testing.T) {
	want := metricsIntro + `
## First group

Its intro.

| name | type | labels | meaning |
|---|---|---|---|
| ` + "`tidemark_one_total` | counter | `a` = `x`, `y`: why; `node` = each node" + ` | One. |
| ` + "`tidemark_two_seconds` | histogram" + ` |  | Two. |

## Buckets

| name | upper bounds |
|---|---|
| ` + "`tidemark_two_seconds`" + ` | 0.001, 2 |
`
	if got := metricsPage([]metric.Group{{Title: "First group", Intro: "Its intro.", Defs: []metric.Def{
		{Name: "one_total", Kind: metric.Counter, Help: "One.", Labels: []metric.Label{
			{Name: "a", Values: []string{"x", "y"}, Meaning: "why"}, {Name: "node", Meaning: "each node"}}},
		{Name: "two_seconds", Kind: metric.Histogram, Help: "Two.", Buckets: []float64{0.001, 2}},
	}}}); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// The status names are those of the gRPC specification, which codes.Code.String abbreviates.
func TestStatusName(t *testing.T) {
	for c, want := range map[codes.Code]string{
		codes.OutOfRange: "OUT_OF_RANGE", codes.NotFound: "NOT_FOUND", codes.InvalidArgument: "INVALID_ARGUMENT",
		codes.AlreadyExists: "ALREADY_EXISTS", codes.FailedPrecondition: "FAILED_PRECONDITION",
		codes.Unavailable: "UNAVAILABLE", codes.ResourceExhausted: "RESOURCE_EXHAUSTED", codes.Aborted: "ABORTED",
		codes.Unknown: "UNKNOWN", codes.PermissionDenied: "PERMISSION_DENIED", codes.Unauthenticated: "UNAUTHENTICATED",
		codes.Internal: "INTERNAL", codes.DataLoss: "DATA_LOSS",
	} {
		if got := statusName(c); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestGenerateWritesWhatIsOutOfDateAndNothingElse(t *testing.T) {
	root := t.TempDir()
	docs := filepath.Join(root, "docs")
	if err := os.Mkdir(docs, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := generate(root); err == nil {
		t.Error("no contract.md: expected an error, because its text is not generated")
	}
	contract := filepath.Join(docs, "contract.md")
	if err := os.WriteFile(contract, []byte("text\n"+tableBegin+tableEnd), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := generate(root); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(docs, "configuration.md"): config.Markdown(),
		contract:                                "text\n" + tableBegin + contractTable(api.Codes()) + tableEnd,
		filepath.Join(docs, "errors.md"):        errorsPage(api.Codes()),
		filepath.Join(docs, "metrics.md"):       metricsPage(metric.Groups()),
	} {
		if got, err := os.ReadFile(path); err != nil || string(got) != want {
			t.Errorf("%s: %v\n%s\nwant\n%s", path, err, got, want)
		}
	}
}
