package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// TestLinksResolve checks every link inside the repository that a Markdown file has: the
// file exists, and so does the heading.
func TestLinksResolve(t *testing.T) {
	root, err := findRoot()
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == "bin" || path != root && strings.HasPrefix(entry.Name(), ".")) {
			return filepath.SkipDir
		}
		if entry.IsDir() || filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		for _, target := range links(string(text)) {
			found++
			if why := broken(path, target); why != "" {
				t.Errorf("%s: link to %q: %s", name, target, why)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 40 {
		t.Errorf("found %d links, expected at least the 40 of docs/errors.md: the search is broken", found)
	}
}

// links returns the targets of the inline links of a Markdown text that lead to files of
// the repository or to headings.
func links(text string) []string {
	text = regexp.MustCompile("(?s)```.*?```|`[^`]*`").ReplaceAllString(text, "")
	var targets []string
	for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(text, -1) {
		if !strings.Contains(m[1], "://") && !strings.HasPrefix(m[1], "mailto:") {
			targets = append(targets, m[1])
		}
	}
	return targets
}

// broken says why a link from the file at path leads nowhere, or "".
func broken(path, target string) string {
	file, heading, _ := strings.Cut(target, "#")
	if file != "" {
		path = filepath.Join(filepath.Dir(path), filepath.FromSlash(file))
	}
	if _, err := os.Stat(path); err != nil {
		return "expected the file to exist"
	}
	if heading == "" {
		return ""
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if !slices.Contains(anchors(string(text)), heading) {
		return "expected a heading with this anchor"
	}
	return ""
}

// anchors returns what a Markdown renderer makes of the headings: lower case, without
// punctuation, with hyphens for blanks.
func anchors(text string) []string {
	var all []string
	code := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		if code || !strings.HasPrefix(line, "#") {
			continue
		}
		all = append(all, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(strings.TrimLeft(line, "#"))))
	}
	return all
}

func TestBrokenLinks(t *testing.T) {
	dir := t.TempDir()
	page := filepath.Join(dir, "page.md")
	text := "# A page\n\n## 2.5 `on = CONFIRM`: resend it\n\n```\n# not a heading\n```\n" +
		"[a](#25-on--confirm-resend-it) [b](page.md) [c](https://example.com/x) [d](gone.md) [e](#gone) [f](page.md#not-a-heading) `g[h](i)`\n"
	if err := os.WriteFile(page, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, target := range links(text) {
		got[target] = broken(page, target)
	}
	want := map[string]string{
		"#25-on--confirm-resend-it": "",
		"page.md":                   "",
		"gone.md":                   "expected the file to exist",
		"#gone":                     "expected a heading with this anchor",
		"page.md#not-a-heading":     "expected a heading with this anchor",
	}
	for target, why := range want {
		if found, ok := got[target]; !ok || found != why {
			t.Errorf("%s: %q, %v; want %q", target, found, ok, why)
		}
	}
	if len(got) != len(want) {
		t.Errorf("links: %v", got)
	}
}
