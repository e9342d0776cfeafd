package server

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/metric"
)

// counted returns the series with a prefix whose value is not 0.
func counted(t *testing.T, s *Server, prefixes ...string) string {
	t.Helper()
	all, _ := scrape(t, s)
	var out []string
	for _, line := range all {
		for _, p := range prefixes {
			if strings.HasPrefix(line, "tidemark_"+p) && !strings.HasSuffix(line, " 0") {
				out = append(out, strings.TrimPrefix(line, "tidemark_"))
			}
		}
	}
	return strings.Join(out, "\n")
}

// Every outcome of an append counts as itself and as nothing else, and its time goes to the
// result that it stands for.
func TestAppendsAreCounted(t *testing.T) {
	answers := map[string]error{
		metric.OutcomeOK:        nil,
		metric.OutcomeCancelled: status.Error(codes.Canceled, "gone"),
		metric.OutcomeDeadline:  context.DeadlineExceeded,
		metric.OutcomeUnknown:   status.Error(codes.DataLoss, "from elsewhere"),
	}
	results := map[string]string{
		metric.OutcomeOK: "ok", metric.OutcomeCancelled: "ambiguous", metric.OutcomeDeadline: "ambiguous", metric.OutcomeUnknown: "ambiguous",
		"WriteOutcomeUnknown": "ambiguous", "Internal": "ambiguous",
	}
	for _, o := range metric.Outcomes() {
		t.Run(o.Name, func(t *testing.T) {
			answer, known := answers[o.Name]
			if !known {
				answer = api.Errorf(o.Code, "as the test wants it")
			}
			r := start(t, nil)
			r.shard.onAppend(func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) {
				return &pb.AppendResponse{}, answer
			})
			for range 2 {
				if _, err := r.client.Append(testContext(t), smallAppend()); (err == nil) != (answer == nil) {
					t.Fatalf("answered %v", err)
				}
			}
			result := results[o.Name]
			if result == "" {
				result = "refused"
			}
			want := fmt.Sprintf("append_duration_seconds_count{result=%q} 2\nappends_total{code=\"%d\",outcome=%q} 2", result, o.Code, o.Name)
			if got := counted(t, r.server, "append_duration_seconds_count", "appends_total", "reads_total"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// A code that is never about an append, or that nobody knows, is unknown.
func TestForeignCodesOfAppendsAreUnknown(t *testing.T) {
	m := newMeter(metric.NewTable())
	for _, code := range []pb.ErrorCode{pb.ErrorCode_ERROR_CODE_AGGREGATE_DETAILS_NOT_FOUND, 77777} {
		if got := m.outcomes[m.outcome(codes.NotFound, code)].Name; got != metric.OutcomeUnknown {
			t.Errorf("%v counts as %s", code, got)
		}
		if got := appendResult(codes.NotFound, 77777); got != metric.ResultAmbiguous {
			t.Errorf("%v is %s", code, got)
		}
	}
}

// Every method that reads counts its calls by what became of them.
func TestReadsAreCounted(t *testing.T) {
	outcomes := []struct {
		err    error
		result string
	}{
		{nil, "ok"},
		{api.Errorf(pb.ErrorCode_ERROR_CODE_NOT_LEADER, "as the test wants it"), "refused"},
		{api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "as the test wants it"), "failed"},
		{errors.New("a fault"), "failed"},
		{context.Canceled, "cancelled"},
		{context.DeadlineExceeded, "cancelled"},
	}
	for _, method := range metric.ReadMethods() {
		if !rpcOf("tidemark.v1.EventStoreService", method).read {
			t.Errorf("%s is no read", method)
		}
		for _, o := range outcomes {
			r := start(t, nil)
			r.shard.put(t, testKey("1"), "a", 1, event(1, "x"))
			r.shard.refuseReads(o.err)
			if err := r.everyRead(testContext(t))[method](); (err == nil) != (o.err == nil) {
				t.Fatalf("%s, %v: answered %v", method, o.err, err)
			}
			want := fmt.Sprintf("read_duration_seconds_count{method=%q} 1\nreads_total{method=%q,result=%q} 1", method, method, o.result)
			if got := counted(t, r.server, "read_duration_seconds_count", "reads_total", "appends_total"); got != want {
				t.Errorf("%s, %v: got\n%s\nwant\n%s", method, o.err, got, want)
			}
		}
	}
}
