package metric

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
)

// Kind is a metric's type.
type Kind string

// The types in use.
const (
	Counter   Kind = "counter"
	Gauge     Kind = "gauge"
	Histogram Kind = "histogram"
)

// Prefix begins the name of every metric.
const Prefix = "tidemark_"

// Label is a label of a metric and the values that it takes.
type Label struct {
	Name string
	// Values are all of them; nil = one for each node of the cluster, or the build's own.
	Values []string
	// Meaning says what the values are if that is not plain from them.
	Meaning string
}

// Def is one metric: a row of the table.
type Def struct {
	// Name is without Prefix.
	Name   string
	Kind   Kind
	Help   string
	Labels []Label
	// Buckets are a histogram's.
	Buckets []float64
}

// FullName is the name on /metrics.
func (d *Def) FullName() string { return Prefix + d.Name }

func (d *Def) labelNames() []string {
	var names []string
	for _, l := range d.Labels {
		names = append(names, l.Name)
	}
	return names
}

// Group is a part of the table: what one thing says of itself.
type Group struct {
	Title, Intro string
	Defs         []Def
}

// Groups returns the table.
func Groups() []Group {
	return []Group{
		appends(), calls(), reads(), caches(), schemas(), raftGroup(), peers(), majority(), digests(),
		tail(), history(), snapshots(), disk(), node(),
	}
}

// Durations are the bounds, in seconds, of what takes from a flush to a disk to a deadline.
//
// They are classic buckets: the text format has no others, and the Prometheus of many
// distributions takes native ones only behind a flag. Steps of 1, 2 and 5 resolve 100 us to
// 10 s with 16 of them: a quantile is off by a factor of 2.5 at the very worst, and what people
// promise each other (1 ms, 10 ms, 100 ms, 1 s) is a bound, at which a share is exact.
func Durations() []float64 {
	return []float64{
		0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10,
	}
}

// lookups are the bounds of look-ups: 7 us in the median while blocks are cached, a
// millisecond and more from the disk.
func lookups() []float64 {
	return []float64{
		0.000005, 0.00001, 0.00002, 0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5,
	}
}

// long are the bounds of what happens in the background.
func long() []float64 {
	return []float64{0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}
}

// counts are the bounds of the requests of an entry, which has 4,096 at most, and of the events
// of a batch, of which the contract allows 1,000.
func counts() []float64 {
	return []float64{1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096}
}

// sizes are the bounds of the bytes of an entry, which grows to 512 KiB, or to one request.
func sizes() []float64 {
	return []float64{
		256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20, 16 << 20,
	}
}

// Table finds metrics by name.
type Table struct {
	defs  map[string]*Def
	descs map[string]*prometheus.Desc
}

// NewTable makes a table of all groups.
func NewTable() *Table {
	t := &Table{defs: map[string]*Def{}, descs: map[string]*prometheus.Desc{}}
	for _, g := range Groups() {
		for i := range g.Defs {
			d := &g.Defs[i]
			if t.defs[d.Name] != nil {
				panic("metric: " + d.Name + " is in the table twice")
			}
			t.defs[d.Name] = d
			t.descs[d.Name] = prometheus.NewDesc(d.FullName(), d.Help, d.labelNames(), nil)
		}
	}
	return t
}

// def returns a row, and checks the values of its labels. An error is a bug.
func (t *Table) def(name string, kind Kind, values []string) (*Def, error) {
	d := t.defs[name]
	if d == nil || d.Kind != kind || len(values) != len(d.Labels) {
		return nil, fmt.Errorf("metric: there is no %s %s with %d labels in the table", kind, name, len(values))
	}
	for i, l := range d.Labels {
		if l.Values != nil && !slices.Contains(l.Values, values[i]) {
			return nil, fmt.Errorf("metric: %s=%q is not a value in the table of %s", l.Name, values[i], name)
		}
	}
	return d, nil
}

// NewHistogram makes a histogram, with the values of its labels in the order of the table.
// It panics if there is no such histogram in the table: that is a bug, met when the node starts.
func (t *Table) NewHistogram(name string, values ...string) prometheus.Histogram {
	d, err := t.def(name, Histogram, values)
	if err != nil {
		panic(err)
	}
	labels := prometheus.Labels{}
	for i, l := range d.Labels {
		labels[l.Name] = values[i]
	}
	return prometheus.NewHistogram(prometheus.HistogramOpts{
		Name: d.FullName(), Help: d.Help, ConstLabels: labels, Buckets: d.Buckets,
	})
}

// Sink takes the figures of one scrape.
type Sink struct {
	table *Table
	to    chan<- prometheus.Metric
}

// Sink returns one that writes to a collector's channel.
func (t *Table) Sink(to chan<- prometheus.Metric) Sink { return Sink{t, to} }

// Gauge shows a gauge, with the values of its labels in the order of the table.
func (s Sink) Gauge(name string, v float64, values ...string) {
	s.emit(Gauge, prometheus.GaugeValue, name, v, values)
}

// Counter shows a counter, with the values of its labels in the order of the table.
func (s Sink) Counter(name string, v float64, values ...string) {
	s.emit(Counter, prometheus.CounterValue, name, v, values)
}

// emit fails the scrape, and no more than that, if the metric is not as the table has it.
func (s Sink) emit(kind Kind, value prometheus.ValueType, name string, v float64, values []string) {
	if _, err := s.table.def(name, kind, values); err != nil {
		s.to <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		return
	}
	s.to <- prometheus.MustNewConstMetric(s.table.descs[name], value, v, values...)
}

// Flag shows a gauge that is 1 or 0.
func (s Sink) Flag(name string, yes bool, values ...string) {
	v := 0.0
	if yes {
		v = 1
	}
	s.Gauge(name, v, values...)
}

// State shows a gauge with one label that is 1 for the state that is and 0 for the others.
func (s Sink) State(name, is string, all []string) {
	for _, v := range all {
		s.Flag(name, v == is, v)
	}
}

// Histograms shows histograms.
func (s Sink) Histograms(all ...prometheus.Histogram) {
	for _, h := range all {
		s.to <- h
	}
}

// text is a help text written over several lines.
func text(s string) string { return strings.Join(strings.Fields(s), " ") }
