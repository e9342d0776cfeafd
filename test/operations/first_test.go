package operations

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/tidemark-db/tidemark/test/process"
)

func TestMain(m *testing.M) { process.Main(m) }

// TestFirstCluster does what somebody does who has just cloned the repository and follows the
// page.
func TestFirstCluster(t *testing.T) {
	blocks := commands(t)["A first cluster"]
	// The first is pasted as a whole; the second kills the leader, when there is one.
	if len(blocks) != 2 {
		t.Fatalf("found %d blocks of commands, expected two", len(blocks))
	}
	lines := strings.Split(strings.TrimSpace(blocks[0]), "\n")
	if len(lines) > 9 {
		t.Fatalf("found %d commands, expected at most ten with the one that kills", len(lines)+1)
	}

	bin := t.TempDir()
	w := newWorld(t, bin)
	// Installing is the one thing that is not done here. It must be Debian's Prometheus, though.
	for name, script := range map[string]string{
		"sudo":    "#!/bin/sh\nexec \"$@\"\n",
		"apt-get": "#!/bin/sh\nset -e\n[ \"$*\" = \"install --yes prometheus\" ]\nprometheus --version\n",
	} {
		if err := os.WriteFile(filepath.Join(bin, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	checkout := filepath.Join(w.dir, "checkout")
	cloneInto(t, checkout)
	// In this repository's place, where Go finds again what it has compiled here before.
	repository, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	w.run(t, "mount --bind checkout "+repository)

	sh := w.newShell(t, repository)
	for _, line := range lines {
		sh.give(t, line)
	}
	w.until(t, "three nodes in Prometheus, one of which leads", prometheusQuery("tidemark_serving_leader"), func(out string) bool {
		return strings.Count(out, `"127.0.0.`) == 3 && strings.Count(out, `"1"]`) == 1
	})
	w.until(t, "events", "true", func(string) bool { return len(printed(t, sh)) >= 3 })
	before := len(printed(t, sh))
	sh.give(t, strings.TrimSpace(blocks[1]))
	w.until(t, "Prometheus to miss one node, and to see another lead", prometheusQuery("tidemark_serving_leader"), func(out string) bool {
		return strings.Count(out, `"127.0.0.`) == 2 && strings.Count(out, `"1"]`) == 1
	})
	w.until(t, "events after the kill", "true", func(string) bool { return len(printed(t, sh)) >= before+5 })

	// In order, each once: a lost one would be a gap, one that was written twice would not be one
	// version after the other.
	versions := printed(t, sh)
	for i, v := range versions {
		if v != versions[0]+i {
			t.Fatalf("tail has printed the versions %v, expected no gap and none twice", versions)
		}
	}
	times := regexp.MustCompile(`"at":"([0-9:]+)"`).FindAllStringSubmatch(sh.shows(t), -1)
	for i := 1; i < len(times); i++ {
		if times[i][1] <= times[i-1][1] && !strings.HasPrefix(times[i][1], "00:") {
			t.Fatalf("tail has printed an event of %s after one of %s", times[i][1], times[i-1][1])
		}
	}
	if len(times) != len(versions) {
		t.Fatalf("tail has printed %d versions and %d times", len(versions), len(times))
	}
}

// printed are the versions that tail has printed.
func printed(t *testing.T, sh *shell) []int {
	t.Helper()
	var versions []int
	for _, m := range regexp.MustCompile(`(?m)^\d+ +acme/clocks/wall +(\d+) .*"at":"[0-9:]+"`).FindAllStringSubmatch(sh.shows(t), -1) {
		v, err := strconv.Atoi(m[1])
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, v)
	}
	return versions
}

// prometheusQuery is a command that asks the page's Prometheus.
func prometheusQuery(expr string) string {
	return "curl -sf 'http://127.0.0.1:9091/api/v1/query?query=" + expr + "'"
}

// cloneInto copies what git knows of this repository, or would take: a clean checkout.
func cloneInto(t *testing.T, to string) {
	t.Helper()
	const script = `mkdir "$1" && cd ../.. && git ls-files -z --cached --others --exclude-standard | xargs -0 cp --parents -t "$1"`
	if out, err := exec.Command("bash", "-euo", "pipefail", "-c", script, "clone", to).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}
