package watch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// ruleTests are the unit tests of the rules; the second file's look at hours.
var ruleTests = []string{"alerts_test.yml", "alerts_hours_test.yml"}

// tool finds a program of Prometheus.
func tool(t *testing.T, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("expected %s on the PATH, to check what it will read: install it (apt-get install prometheus): %v", name, err)
	}
	return path
}

// promtool runs it and expects it to find nothing wrong.
func promtool(t *testing.T, args ...string) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), tool(t, "promtool"), args...).CombinedOutput()
	if err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestPrometheusTakesTheConfiguration(t *testing.T) {
	promtool(t, "check", "config", filepath.Join(prometheusDir, "prometheus.yml"))
	promtool(t, "check", "rules", "--lint=all", "--lint-fatal", filepath.Join(prometheusDir, "alerts.yml"))
}

func TestUnitTestsOfTheRules(t *testing.T) {
	for _, name := range ruleTests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			promtool(t, "test", "rules", filepath.Join(prometheusDir, name))
		})
	}
}

// TestPrometheusTakesTheDashboard lets promtool parse the dashboard's expressions, as rules that
// record them.
func TestPrometheusTakesTheDashboard(t *testing.T) {
	type recorded struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	type group struct {
		Name  string     `yaml:"name"`
		Rules []recorded `yaml:"rules"`
	}
	var groups []group
	for i, e := range dashboardExpressions(t) {
		// The group's name is what promtool says of an error.
		groups = append(groups, group{fmt.Sprintf("%d %s", i, e.where), []recorded{{"dashboard:expression", e.expr}}})
	}
	text, err := yaml.Marshal(map[string]any{"groups": groups})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "dashboard.yml")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "check", "rules", "--lint=none", path)
}
