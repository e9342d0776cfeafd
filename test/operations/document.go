package operations

import (
	"os"
	"strings"
	"testing"
)

// page is docs/operations.md.
const page = "../../docs/operations.md"

// commands returns the blocks of commands in the page's sections, by the section's title.
func commands(t *testing.T) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	blocks := map[string][]string{}
	title, inside, block := "", false, ""
	for line := range strings.Lines(string(text)) {
		fence := strings.HasPrefix(line, "```")
		switch {
		case fence && inside:
			blocks[title] = append(blocks[title], block)
			inside = false
		case fence && strings.TrimSpace(line) != "```sh":
			t.Fatalf("%s: in %q a block begins with %q, expected ```sh: this test would not run it", page, title, line)
		case fence:
			inside, block = true, ""
		case inside:
			block += line
		case strings.HasPrefix(line, "## "):
			title = strings.TrimSpace(strings.TrimPrefix(line, "## "))
		}
	}
	if inside {
		t.Fatalf("%s: the last block in %q does not end", page, title)
	}
	return blocks
}
