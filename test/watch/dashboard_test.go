package watch

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const dashboardFile = "../../deploy/grafana/dashboards/tidemark.json"

// dashboard is what is checked of Grafana's model of one.
type dashboard struct {
	UID           string
	Title         string
	SchemaVersion int
	Templating    struct {
		List []struct {
			Name       string
			Type       string
			Definition string
		}
	}
	Annotations struct {
		List []struct{ Name, Expr string }
	}
	Panels []panel
}

type panel struct {
	ID          int
	Type        string
	Title       string
	Description string
	Datasource  *datasource
	GridPos     struct{ X, Y, W, H int }
	FieldConfig struct {
		Defaults struct{ Unit string }
	}
	Targets []struct {
		RefID        string
		Expr         string
		LegendFormat string
		Datasource   *datasource
	}
}

type datasource struct{ Type, UID string }

// dashboardExpressions are those of all panels and annotations, with variables filled in as
// Grafana would.
func dashboardExpressions(t *testing.T) []expression {
	t.Helper()
	var d dashboard
	parse(t, dashboardFile, &d)
	fill := strings.NewReplacer("$job", "tidemark", "$instance", "n1:7442|n2:7442", "$__rate_interval", "1m")
	var all []expression
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			all = append(all, expression{fmt.Sprintf("panel %d, %s, %s", p.ID, p.Title, target.RefID), fill.Replace(target.Expr)})
		}
	}
	for _, a := range d.Annotations.List {
		all = append(all, expression{"annotation " + a.Name, fill.Replace(a.Expr)})
	}
	if len(all) < 50 {
		t.Fatalf("found %d expressions, expected 50 at least: the search is broken", len(all))
	}
	for _, e := range all {
		if strings.Contains(e.expr, "$") {
			t.Errorf("%s: %s has a variable that the dashboard does not define", e.where, e.expr)
		}
	}
	return all
}

func TestDashboardIsWellFormed(t *testing.T) {
	var d dashboard
	parse(t, dashboardFile, &d)
	if d.UID != "tidemark" || d.Title != "Tidemark" || d.SchemaVersion < 36 {
		t.Errorf("uid %q, title %q, schemaVersion %d; expected tidemark, Tidemark, and a version since Grafana 9", d.UID, d.Title, d.SchemaVersion)
	}
	var variables []string
	for _, v := range d.Templating.List {
		variables = append(variables, v.Name+" "+v.Type)
		for _, s := range selectors(v.Definition) {
			if s.name != "tidemark_build_info" {
				t.Errorf("variable %s asks for %s, expected tidemark_build_info, which every node has", v.Name, s.name)
			}
		}
	}
	if want := []string{"datasource datasource", "job query", "instance query"}; !slices.Equal(variables, want) {
		t.Errorf("variables are %q, expected %q", variables, want)
	}
	var rows []string
	ids, titles := map[int]bool{}, map[string]bool{}
	for i, p := range d.Panels {
		if p.ID < 1 || ids[p.ID] {
			t.Errorf("panel %q has id %d, expected one of its own", p.Title, p.ID)
		}
		ids[p.ID] = true
		checkPlace(t, d.Panels[:i], p)
		if p.Type == "row" {
			rows = append(rows, p.Title)
			titles = map[string]bool{} // a title may come again in another row
			continue
		}
		checkPanel(t, p)
		if titles[p.Type+p.Title] {
			t.Errorf("two panels of a row are called %q", p.Title)
		}
		titles[p.Type+p.Title] = true
	}
	want := []string{"Overview", "Writes", "Replication", "Storage", "Heads and marks in memory", "Reads and subscriptions", "Process"}
	if !slices.Equal(rows, want) {
		t.Errorf("rows are %q, expected %q", rows, want)
	}
}

// checkPlace expects a panel within the grid's 24 columns, below or beside those before it.
func checkPlace(t *testing.T, before []panel, p panel) {
	t.Helper()
	a := p.GridPos
	if a.X < 0 || a.Y < 0 || a.W < 1 || a.H < 1 || a.X+a.W > 24 {
		t.Errorf("panel %q is at %+v, expected a place within 24 columns", p.Title, a)
	}
	for _, other := range before {
		b := other.GridPos
		if a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H {
			t.Errorf("panels %q and %q overlap, at %+v and %+v", other.Title, p.Title, b, a)
		}
	}
	if len(before) == 0 && p.Type != "row" {
		t.Errorf("panel %q is in no row", p.Title)
	}
}

var panelTypes = []string{"timeseries", "stat", "table", "state-timeline"}

func checkPanel(t *testing.T, p panel) {
	t.Helper()
	if !slices.Contains(panelTypes, p.Type) {
		t.Errorf("panel %q is a %q, expected one of %q", p.Title, p.Type, panelTypes)
	}
	if p.Title == "" || p.Description == "" || len(p.Targets) == 0 {
		t.Errorf("panel %d, %q: expected a title, a description and something to show", p.ID, p.Title)
	}
	chosen := datasource{"prometheus", "${datasource}"}
	if p.Datasource == nil || *p.Datasource != chosen {
		t.Errorf("panel %q asks %v, expected the variable", p.Title, p.Datasource)
	}
	refs := map[string]bool{}
	for _, target := range p.Targets {
		if target.RefID == "" || refs[target.RefID] {
			t.Errorf("panel %q has the query %q twice", p.Title, target.RefID)
		}
		refs[target.RefID] = true
		if target.Datasource == nil || *target.Datasource != chosen {
			t.Errorf("panel %q, %s asks %v, expected the variable", p.Title, target.RefID, target.Datasource)
		}
		for _, s := range selectors(target.Expr) {
			if !slices.ContainsFunc(s.matchers, func(m matcher) bool { return m.label == "job" && m.value == "$job" }) {
				t.Errorf("panel %q, %s: %s is not asked of the chosen job alone", p.Title, target.RefID, s.name)
			}
		}
		if p.Type == "timeseries" && !regexp.MustCompile(`\S`).MatchString(target.LegendFormat) {
			t.Errorf("panel %q, %s has no legend", p.Title, target.RefID)
		}
	}
	if p.Type == "timeseries" && p.FieldConfig.Defaults.Unit == "" {
		t.Errorf("panel %q has no unit", p.Title)
	}
}
