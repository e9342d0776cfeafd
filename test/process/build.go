package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// binaryEnv names the binary to run. Set it to test another than the one that Main builds.
const binaryEnv = "BINARY_UNDER_TEST"

// Main is the TestMain of a package that runs nodes: it builds cmd/tidemark once, with the
// build tags, runs the tests, and ends the process.
func Main(m *testing.M, tags ...string) {
	code, err := run(m, tags)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M, tags []string) (code int, err error) {
	if os.Getenv(binaryEnv) == "" {
		dir, err := os.MkdirTemp("", "tidemark-binary-")
		if err != nil {
			return 1, err
		}
		defer func() { _ = os.RemoveAll(dir) }() // it may only stay behind
		path := filepath.Join(dir, "tidemark")
		if err := Build(path, tags...); err != nil {
			return 1, err
		}
		if err := os.Setenv(binaryEnv, path); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
}

// Build builds cmd/tidemark with the build tags, and the race detector if the test has it.
func Build(path string, tags ...string) error {
	args := []string{"build", "-o", path, "-tags", strings.Join(tags, ",")}
	if Race {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "github.com/tidemark-db/tidemark/cmd/tidemark")...)
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build tidemark: %w\n%s", err, text)
	}
	return nil
}

// Binary is the path of the binary that Main built.
func Binary(tb testing.TB) string {
	tb.Helper()
	path := os.Getenv(binaryEnv)
	if path == "" {
		tb.Fatal("this package's TestMain does not call process.Main, so there is no binary to run")
	}
	return path
}
