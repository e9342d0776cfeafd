package metric

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/tidemark-db/tidemark/api"
)

// everything shows every metric of the table, each with the first values of its labels.
type everything struct{ table *Table }

func (everything) Describe(chan<- *prometheus.Desc) {}

func (e everything) Collect(to chan<- prometheus.Metric) {
	s := e.table.Sink(to)
	for _, d := range e.table.defs {
		var values []string
		for _, l := range d.Labels {
			values = append(values, append(l.Values, "any")[0])
		}
		switch d.Kind {
		case Counter:
			s.Counter(d.Name, 1, values...)
		case Gauge:
			s.Gauge(d.Name, 1, values...)
		case Histogram:
			s.Histograms(e.table.NewHistogram(d.Name, values...))
		}
	}
}

// Prometheus's own lint has nothing to say about the names and the help texts.
func TestLint(t *testing.T) {
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(everything{NewTable()})
	problems, err := testutil.GatherAndLint(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(NewTable().defs); len(families) != n || n < 100 {
		t.Errorf("the table has %d metrics, and %d are shown", n, len(families))
	}
}

// What no lint knows: where a name stands, what a help text is, and that the names that a help
// text refers to exist.
func TestTable(t *testing.T) {
	table := NewTable()
	name := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	mentioned := regexp.MustCompile(`[a-z]+(_[a-z0-9]+)+`)
	for _, g := range Groups() {
		for _, d := range g.Defs {
			if !name.MatchString(d.Name) || strings.HasPrefix(d.Name, Prefix) {
				t.Errorf("%q is no name", d.Name)
			}
			if (d.Kind == Counter) != strings.HasSuffix(d.Name, "_total") {
				t.Errorf("%s is a %s", d.Name, d.Kind)
			}
			if !strings.HasSuffix(d.Help, ".") || strings.Contains(d.Help, "|") {
				t.Errorf("%s: expected sentences without bars as its help, found %q", d.Name, d.Help)
			}
			if (d.Kind == Histogram) != (len(d.Buckets) > 0) || !slices.IsSorted(d.Buckets) {
				t.Errorf("%s has the buckets %v", d.Name, d.Buckets)
			}
			for _, other := range mentioned.FindAllString(d.Help, -1) {
				other = strings.TrimPrefix(other, Prefix)
				if table.defs[other] == nil && !strings.Contains(other, "fsync") {
					t.Errorf("%s: the help names %s, which is not in the table", d.Name, other)
				}
			}
			for _, l := range d.Labels {
				if l.Values == nil && l.Meaning == "" {
					t.Errorf("%s: nothing says what %s is", d.Name, l.Name)
				}
			}
		}
	}
}

// Durations that matter are told from each other: a hundred microseconds to ten seconds.
func TestDurationsAreResolved(t *testing.T) {
	b := Durations()
	if b[0] > 0.0001 || b[len(b)-1] < 10 {
		t.Errorf("the bounds reach from %v to %v", b[0], b[len(b)-1])
	}
	for i := 1; i < len(b); i++ {
		if b[i]/b[i-1] > 2.5001 {
			t.Errorf("a bucket from %v to %v", b[i-1], b[i])
		}
	}
}

// A name or a value that is not in the table is a bug that does not stay hidden: it fails the
// scrape, or the start.
func TestUnknownNamesAndValues(t *testing.T) {
	table := NewTable()
	for what, call := range map[string]func(Sink){
		"name":        func(s Sink) { s.Gauge("nothing", 1) },
		"other type":  func(s Sink) { s.Counter("term", 1) },
		"value":       func(s Sink) { s.Counter("reads_total", 1, "Read", "customer-17") },
		"first value": func(s Sink) { s.Counter("reads_total", 1, "customer-17", "ok") },
		"no value":    func(s Sink) { s.Counter("reads_total", 1, "Read") },
	} {
		to := make(chan prometheus.Metric, 1)
		call(table.Sink(to))
		if err := (<-to).Write(nil); err == nil {
			t.Errorf("a %s that is not in the table was taken", what)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("a histogram with a value that is not in the table was made")
		}
	}()
	table.NewHistogram("read_duration_seconds", "customer-17")
}

// Every code that an append can be answered with has a series of its own.
func TestOutcomes(t *testing.T) {
	names := map[string]bool{}
	for _, o := range Outcomes() {
		if names[o.Name] {
			t.Errorf("%s is there twice", o.Name)
		}
		names[o.Name] = true
	}
	for _, want := range []string{"ok", "cancelled", "deadline_exceeded", "unknown", "ClientIdempotencyViolation", "WriteOutcomeUnknown", "ServerBusy", "Internal"} {
		if !names[want] {
			t.Errorf("%s is missing", want)
		}
	}
	for _, c := range api.Codes() {
		if c.Planned && names[c.Name] {
			t.Errorf("%s is never sent", c.Name)
		}
	}
}
