package watch

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/tidemark-db/tidemark/internal/metric"
)

const (
	prometheusDir = "../../deploy/prometheus"
	operationsDoc = "../../docs/operations.md"
	runbook       = "https://github.com/tidemark-db/tidemark/blob/main/docs/operations.md#"
)

// rule is an alert, or a recorded expression.
type rule struct {
	Alert       string
	Record      string
	Expr        string
	For         string
	Labels      map[string]string
	Annotations map[string]string
}

type ruleGroup struct {
	Name  string
	Rules []rule
}

// ruleGroups are those of alerts.yml.
func ruleGroups(t *testing.T) []ruleGroup {
	t.Helper()
	var file struct{ Groups []ruleGroup }
	decode(t, filepath.Join(prometheusDir, "alerts.yml"), &file)
	return file.Groups
}

func rules(t *testing.T) []rule {
	t.Helper()
	var all []rule
	for _, g := range ruleGroups(t) {
		all = append(all, g.Rules...)
	}
	return all
}

func groupNames(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, g := range ruleGroups(t) {
		all = append(all, g.Name)
	}
	return all
}

// decode reads a YAML file that has no other fields than the value.
func decode(t *testing.T, path string, into any) {
	t.Helper()
	d := yaml.NewDecoder(bytes.NewReader(read(t, path)))
	d.KnownFields(true)
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// alertNames are the alerts' in the order of the file.
func alertNames(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, r := range rules(t) {
		if r.Alert != "" {
			names = append(names, r.Alert)
		}
	}
	if len(names) < 20 {
		t.Fatalf("found %d alerts, expected 20 at least: the search is broken", len(names))
	}
	return names
}

// TestEachAlertIsExplained checks that an alert says how bad it is and what to do, and that its
// link leads to a paragraph of its own; and that no paragraph is of an alert that is gone.
func TestEachAlertIsExplained(t *testing.T) {
	headings := map[string]int{} // and the length of what is under them
	_, section, found := strings.Cut(string(read(t, operationsDoc)), "\n## What each alert means\n")
	if !found {
		t.Fatal(`docs/operations.md has no section "What each alert means"`)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	for _, part := range strings.Split(section, "\n### ")[1:] {
		heading, text, _ := strings.Cut(part, "\n")
		if _, twice := headings[heading]; twice {
			t.Errorf("docs/operations.md has %s twice", heading)
		}
		headings[heading] = len(strings.TrimSpace(text))
	}
	seen := map[string]bool{}
	for _, r := range rules(t) {
		if r.Alert == "" {
			continue
		}
		if seen[r.Alert] {
			t.Errorf("%s: there are two alerts of this name", r.Alert)
		}
		seen[r.Alert] = true
		if length, ok := headings[r.Alert]; !ok || length < 100 {
			t.Errorf("%s: expected a heading and a paragraph in docs/operations.md, found %d characters", r.Alert, length)
		}
		if want, got := runbook+strings.ToLower(r.Alert), r.Annotations["runbook_url"]; got != want {
			t.Errorf("%s: runbook_url is %q, expected %q", r.Alert, got, want)
		}
		if s := r.Labels["severity"]; len(r.Labels) != 1 || s != "critical" && s != "warning" {
			t.Errorf("%s: labels are %v, expected a severity, critical or warning", r.Alert, r.Labels)
		}
		if s := r.Annotations["summary"]; !strings.HasSuffix(s, ".") || len(s) > 120 {
			t.Errorf("%s: summary is %q, expected a sentence of up to 120 characters", r.Alert, s)
		}
		if d := r.Annotations["description"]; !strings.HasPrefix(d, "Expected ") || strings.Count(d, ". ") < 1 {
			t.Errorf("%s: description is %q, expected what was expected, what was found, and what to do", r.Alert, d)
		}
		delete(headings, r.Alert)
	}
	for heading := range headings {
		t.Errorf("docs/operations.md explains %s, which is no alert", heading)
	}
}

// TestEachAlertIsTested checks that the unit tests have a moment at which the alert fires, and
// that all moments are compared with everything that fires.
func TestEachAlertIsTested(t *testing.T) {
	type samples struct {
		Expr     string
		EvalTime string `yaml:"eval_time"`
		Samples  []struct {
			Labels string
			Value  float64
		} `yaml:"exp_samples"`
	}
	fires := map[string]bool{}
	for _, name := range ruleTests {
		var file struct {
			RuleFiles          []string `yaml:"rule_files"`
			GroupEvalOrder     []string `yaml:"group_eval_order"`
			EvaluationInterval string   `yaml:"evaluation_interval"`
			Tests              []struct {
				Name        string
				Interval    string
				InputSeries yaml.Node `yaml:"input_series"`
				Alerts      yaml.Node `yaml:"alert_rule_test"`
				Exprs       []samples `yaml:"promql_expr_test"`
			}
		}
		decode(t, filepath.Join(prometheusDir, name), &file)
		if want := []string{"alerts.yml"}; !slices.Equal(file.RuleFiles, want) {
			t.Errorf("%s tests %q, expected %q", name, file.RuleFiles, want)
		}
		// promtool takes the groups that are left out for the first.
		if want := groupNames(t); !slices.Equal(file.GroupEvalOrder, want) {
			t.Errorf("%s evaluates %q, expected the groups as they are in alerts.yml, %q", name, file.GroupEvalOrder, want)
		}
		for _, test := range file.Tests {
			if len(test.Exprs) == 0 {
				t.Errorf("%s: %q expects nothing", name, test.Name)
			}
			for _, e := range test.Exprs {
				if e.Expr != `ALERTS{alertstate="firing"}` {
					t.Errorf("%s: %q asks for %q, expected all alerts that fire", name, test.Name, e.Expr)
				}
				for _, s := range e.Samples {
					fires[regexp.MustCompile(`alertname="(\w+)"`).FindStringSubmatch(s.Labels)[1]] = true
				}
			}
		}
	}
	for _, name := range alertNames(t) {
		if !fires[name] {
			t.Errorf("%s fires in no unit test", name)
		}
	}
}

// TestEachMetricExists checks that what alerts, recorded rules and the dashboard ask for is in
// the table behind docs/metrics.md: the name, the labels, and their values.
func TestEachMetricExists(t *testing.T) {
	known := map[string]*metric.Def{}
	for _, g := range metric.Groups() {
		for i := range g.Defs {
			known[g.Defs[i].FullName()] = &g.Defs[i]
		}
	}
	recorded := map[string]bool{}
	for _, r := range rules(t) {
		recorded[r.Record] = true
	}
	for _, e := range expressions(t) {
		for _, s := range selectors(e.expr) {
			if strings.Contains(s.name, ":") {
				if !recorded[s.name] {
					t.Errorf("%s: nothing records %s", e.where, s.name)
				}
				continue
			}
			if !strings.HasPrefix(s.name, metric.Prefix) {
				continue // what Go and the system say the real Prometheus checks
			}
			if why := wrong(known, s); why != "" {
				t.Errorf("%s: %s", e.where, why)
			}
		}
	}
}

// wrong says why a selector finds nothing, or "".
func wrong(known map[string]*metric.Def, s selector) string {
	d, part := known[s.name], false
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(s.name, suffix); ok && d == nil {
			d, part = known[base], true
		}
	}
	if d == nil || part != (d.Kind == metric.Histogram) {
		return fmt.Sprintf("there is no series %s", s.name)
	}
	for _, m := range s.matchers {
		if slices.Contains([]string{"job", "instance", "namespace"}, m.label) {
			continue
		}
		if m.label == "le" && part {
			if !slices.ContainsFunc(d.Buckets, func(b float64) bool { return fmt.Sprint(b) == m.value }) {
				return fmt.Sprintf("%s has no bucket up to %s", s.name, m.value)
			}
			continue
		}
		at := slices.IndexFunc(d.Labels, func(l metric.Label) bool { return l.Name == m.label })
		if at < 0 {
			return fmt.Sprintf("%s has no label %s", s.name, m.label)
		}
		for value := range strings.SplitSeq(m.value, "|") {
			if values := d.Labels[at].Values; values != nil && !slices.Contains(values, value) {
				return fmt.Sprintf("%s has no %s=%q", s.name, m.label, value)
			}
		}
	}
	return ""
}

// expression is one of the rules' or the dashboard's.
type expression struct{ where, expr string }

// expressions are all of the rules and of the dashboard, whose variables are filled in.
func expressions(t *testing.T) []expression {
	t.Helper()
	var all []expression
	for _, r := range rules(t) {
		all = append(all, expression{"alerts.yml: " + r.Alert + r.Record, r.Expr})
	}
	return append(all, dashboardExpressions(t)...)
}

// selector is a metric that an expression asks for.
type selector struct {
	name     string
	matchers []matcher
}

type matcher struct{ label, value string }

// selectors finds all in an expression: whatever looks like a name of ours, of Go or of the
// process, and what stands in braces behind it.
func selectors(expr string) []selector {
	var all []selector
	names := regexp.MustCompile(`(?:\b[a-z]+:)?\b(?:tidemark|process|go)_[a-z0-9_:]+`)
	braces := regexp.MustCompile(`^\{([^}]*)\}`)
	pairs := regexp.MustCompile(`(\w+)\s*(?:=|=~|!=|!~)\s*"([^"]*)"`)
	for _, at := range names.FindAllStringIndex(expr, -1) {
		s := selector{name: expr[at[0]:at[1]]}
		if in := braces.FindStringSubmatch(expr[at[1]:]); in != nil {
			for _, p := range pairs.FindAllStringSubmatch(in[1], -1) {
				s.matchers = append(s.matchers, matcher{p[1], p[2]})
			}
		}
		all = append(all, s)
	}
	return all
}

func TestSelectors(t *testing.T) {
	got := selectors(`sum by (job) (rate(tidemark_a_total{code="1", outcome=~"x|y"}[5m])) / job:tidemark_b:rate5m > go_c and up{job="z"}`)
	want := []selector{
		{"tidemark_a_total", []matcher{{"code", "1"}, {"outcome", "x|y"}}}, {name: "job:tidemark_b:rate5m"}, {name: "go_c"},
	}
	if g, w := fmt.Sprint(got), fmt.Sprint(want); g != w {
		t.Errorf("found %s, expected %s", g, w)
	}
	known := map[string]*metric.Def{
		"tidemark_a_total": {Name: "a_total", Kind: metric.Counter, Labels: []metric.Label{{Name: "code", Values: []string{"1", "2"}}, {Name: "node"}}},
		"tidemark_h":       {Name: "h", Kind: metric.Histogram, Buckets: []float64{0.1, 1}},
	}
	for expr, want := range map[string]string{
		`tidemark_a_total{code="2", node="n7", job="j"}`: "",
		`tidemark_a_total{code=~"1|3"}`:                  `tidemark_a_total has no code="3"`,
		`tidemark_a_total{kode="1"}`:                     "tidemark_a_total has no label kode",
		`tidemark_a_total_bucket`:                        "there is no series tidemark_a_total_bucket",
		`tidemark_b_total`:                               "there is no series tidemark_b_total",
		`tidemark_h`:                                     "there is no series tidemark_h",
		`tidemark_h_count{instance="i"}`:                 "",
		`tidemark_h_bucket{le="0.1"}`:                    "",
		`tidemark_h_bucket{le="0.3"}`:                    "tidemark_h_bucket has no bucket up to 0.3",
	} {
		if got := wrong(known, selectors(expr)[0]); got != want {
			t.Errorf("%s: %q, expected %q", expr, got, want)
		}
	}
}

// parse reads a JSON file.
func parse(t *testing.T, path string, into any) {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(read(t, path)))
	if err := d.Decode(into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
