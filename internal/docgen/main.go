package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/tidemark-db/tidemark/api"
	"github.com/tidemark-db/tidemark/config"
	"github.com/tidemark-db/tidemark/internal/metric"
)

func main() {
	root, err := findRoot()
	if err == nil {
		err = generate(root)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "docgen:", err)
		os.Exit(1)
	}
}

// document is a file of which all or a part is generated.
type document struct {
	// path is relative to the repository's root, with slashes.
	path string
	// whole: the file is generated entirely and need not exist before.
	whole bool
	// render makes the new text from the old one.
	render func(old string) (string, error)
}

func documents() []document {
	return []document{
		{path: "docs/configuration.md", whole: true, render: func(string) (string, error) { return config.Markdown(), nil }},
		{path: "docs/errors.md", whole: true, render: func(string) (string, error) { return errorsPage(api.Codes()), nil }},
		{path: "docs/metrics.md", whole: true, render: func(string) (string, error) { return metricsPage(metric.Groups()), nil }},
		{path: "docs/contract.md", render: func(old string) (string, error) { return replaceCodeTable(old, api.Codes()) }},
	}
}

// generate writes every file that is out of date below the repository's root.
func generate(root string) error {
	for _, d := range documents() {
		path := filepath.Join(root, filepath.FromSlash(d.path))
		old, err := os.ReadFile(path)
		if err != nil && (!os.IsNotExist(err) || !d.whole) {
			return err
		}
		text, err := d.render(string(old))
		if err != nil {
			return fmt.Errorf("%s: %w", d.path, err)
		}
		if text == string(old) {
			continue
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
		fmt.Println("wrote", d.path)
	}
	return nil
}

// findRoot returns the nearest directory at or above the working directory that holds a
// go.mod.
func findRoot() (string, error) {
	start, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for dir := start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no go.mod at or above %s: run it inside the repository", start)
		}
	}
}
