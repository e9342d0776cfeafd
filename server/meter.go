package server

import (
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/metric"
)

// meter keeps what the server counts and times for /metrics alone. Its maps never change, so
// any call may use it.
type meter struct {
	outcomes []metric.Outcome
	counts   []atomic.Uint64 // one for each outcome
	byCode   map[pb.ErrorCode]int
	byName   map[string]int

	appends map[string]prometheus.Histogram // by result
	reads   map[string]*readMeter           // by method

	panics atomic.Uint64
	// start is how long the node took to start, in nanoseconds; 0 = it has not yet.
	start atomic.Int64
}

// readMeter is about one method that reads.
type readMeter struct {
	took                           prometheus.Histogram
	ok, refused, failed, cancelled atomic.Uint64
}

func newMeter(t *metric.Table) *meter {
	m := &meter{
		outcomes: metric.Outcomes(), byCode: map[pb.ErrorCode]int{}, byName: map[string]int{},
		appends: map[string]prometheus.Histogram{}, reads: map[string]*readMeter{},
	}
	m.counts = make([]atomic.Uint64, len(m.outcomes))
	for i, o := range m.outcomes {
		m.byName[o.Name] = i
		if o.Code != 0 {
			m.byCode[o.Code] = i
		}
	}
	for _, result := range []string{metric.ResultOK, metric.ResultRefused, metric.ResultAmbiguous} {
		m.appends[result] = t.NewHistogram("append_duration_seconds", result)
	}
	for _, method := range metric.ReadMethods() {
		m.reads[method] = &readMeter{took: t.NewHistogram("read_duration_seconds", method)}
	}
	return m
}

// appendMethod is the call that appends_total counts.
const appendMethod = "Append"

// ended is told of every call that ends.
func (m *meter) ended(r *rpc, status codes.Code, code pb.ErrorCode, took time.Duration) {
	switch {
	case r.appends:
		m.answered(status, code, took)
	case r.timed != nil:
		r.timed.took.Observe(took.Seconds())
		r.timed.result(status, code).Add(1)
	}
}

// answered is told of every answer to an append, in a call of its own or on a stream.
func (m *meter) answered(status codes.Code, code pb.ErrorCode, took time.Duration) {
	m.counts[m.outcome(status, code)].Add(1)
	m.appends[appendResult(status, code)].Observe(took.Seconds())
}

// outcome is the place of an answer among the outcomes.
func (m *meter) outcome(status codes.Code, code pb.ErrorCode) int {
	if i, ok := m.byCode[code]; ok {
		return i
	}
	name := metric.OutcomeUnknown
	switch {
	case code != 0: // a code that says nothing about writes
	case status == codes.OK:
		name = metric.OutcomeOK
	case status == codes.Canceled:
		name = metric.OutcomeCancelled
	case status == codes.DeadlineExceeded:
		name = metric.OutcomeDeadline
	}
	return m.byName[name]
}

// appendResult says whether the write of a call was made, was not, or may have been.
func appendResult(status codes.Code, code pb.ErrorCode) string {
	if status == codes.OK {
		return metric.ResultOK
	}
	if row, ok := api.Lookup(code); ok && row.MayHaveHappened == api.No {
		return metric.ResultRefused
	}
	return metric.ResultAmbiguous
}

// result is the counter of what a read ended with.
func (r *readMeter) result(status codes.Code, code pb.ErrorCode) *atomic.Uint64 {
	switch {
	case status == codes.OK:
		return &r.ok
	case code == 0 && (status == codes.Canceled || status == codes.DeadlineExceeded):
		return &r.cancelled
	case code == 0 || code == pb.ErrorCode_ERROR_CODE_INTERNAL:
		return &r.failed
	}
	return &r.refused
}

// attach gives a method what times it, when its service is registered.
func (m *meter) attach(r *rpc) {
	name := r.method[strings.LastIndexByte(r.method, '/')+1:]
	r.appends = r.own && name == appendMethod
	if r.own {
		r.timed = m.reads[name]
	}
}
