package metrics

import (
	"bufio"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-db/tidemark/internal/metric"
)

// sample is a line of /metrics.
type sample struct {
	name   string
	labels map[string]string
	value  float64
}

// page is what /metrics showed.
type page []sample

// parse reads the samples of Tidemark's own metrics.
func parse(tb testing.TB, text string) page {
	tb.Helper()
	var p page
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		line, ours := strings.CutPrefix(lines.Text(), metric.Prefix)
		if !ours {
			continue
		}
		key, value, ok := strings.Cut(line, " ")
		if i := strings.LastIndexByte(line, ' '); i > 0 {
			key, value = line[:i], line[i+1:]
		}
		v, err := strconv.ParseFloat(value, 64)
		if !ok || err != nil {
			tb.Fatalf("expected a sample, found %q", line)
		}
		name, labels := split(tb, key)
		p = append(p, sample{name, labels, v})
	}
	if len(p) == 0 {
		tb.Fatalf("no metrics in %q", text)
	}
	return p
}

// split takes a series apart: name{a="b",c="d"}.
func split(tb testing.TB, series string) (name string, labels map[string]string) {
	tb.Helper()
	labels = map[string]string{}
	name, rest, found := strings.Cut(strings.TrimSuffix(series, "}"), "{")
	if !found {
		return name, labels
	}
	for _, pair := range strings.Split(rest, ",") {
		label, quoted, _ := strings.Cut(pair, "=")
		value, err := strconv.Unquote(quoted)
		if err != nil {
			tb.Fatalf("expected labels, found %q in %q", pair, series)
		}
		labels[label] = value
	}
	return name, labels
}

// covers says whether a pattern, which may leave labels out, is about a series.
func covers(pattern, labels map[string]string) bool {
	for label, value := range pattern {
		if labels[label] != value {
			return false
		}
	}
	return true
}

// sum adds up the samples that a pattern is about: those of the name itself, or, of a histogram,
// its counts. found says whether there are any.
func (p page) sum(tb testing.TB, pattern string) (sum float64, found bool) {
	tb.Helper()
	name, labels := split(tb, pattern)
	for _, s := range p {
		if (s.name == name || s.name == name+"_count") && covers(labels, s.labels) {
			sum += s.value
			found = true
		}
	}
	return sum, found
}

// must is what a series has to be after a step.
type must struct {
	says string
	ok   func(before, after float64) bool
}

func by(n float64) must {
	return must{fmt.Sprintf("grow by %v", n), func(b, a float64) bool { return a == b+n }}
}

func is(v float64) must {
	return must{fmt.Sprintf("be %v", v), func(_, a float64) bool { return a == v }}
}

func atLeast(v float64) must {
	return must{fmt.Sprintf("be at least %v", v), func(_, a float64) bool { return a >= v }}
}

func grow() must   { return must{"grow", func(b, a float64) bool { return a > b }} }
func change() must { return must{"change", func(b, a float64) bool { return a != b }} }
func setNow() must {
	return must{"be a time of now", func(_, a float64) bool {
		age := time.Since(time.Unix(int64(a), 0))
		return age > -2*time.Second && age < 2*time.Minute
	}}
}

// row is what a step does to the series of a pattern.
type row struct {
	series string
	step   string
	must   must
	// in is a test elsewhere instead, as directory.Test.
	in string
}

// patience bounds what a step may take until it shows.
const patience = 30 * time.Second

// shows waits until every row of a step is true of what scrape returns.
func shows(t *testing.T, step string, before page, scrape func() page) page {
	t.Helper()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	deadline := time.Now().Add(patience)
	rows := 0
	for ; ; <-ticker.C {
		after := scrape()
		var wrong []string
		rows = 0
		for _, r := range rowsOf() {
			if r.step != step {
				continue
			}
			rows++
			b, _ := before.sum(t, r.series)
			a, found := after.sum(t, r.series)
			if !found || !r.must.ok(b, a) {
				wrong = append(wrong, fmt.Sprintf("%s: expected it to %s, found %v before and %v after (there: %t)", r.series, r.must.says, b, a, found))
			}
		}
		if rows == 0 {
			t.Fatalf("no row is about %q", step)
		}
		if len(wrong) == 0 {
			return after
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s:\n%s", step, strings.Join(wrong, "\n"))
		}
	}
}
