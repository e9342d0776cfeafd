package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tidemark-db/tidemark/config"
)

func TestConfigPrintShowsValuesAndSources(t *testing.T) {
	path := filepath.Join(t.TempDir(), "node.yaml")
	if err := os.WriteFile(path, []byte("log-format: json\nnode-id: from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TIDEMARK_NODE_ID", "from-environment")
	code, stdout, stderr := runCommand(t, "config", "print", "--config", path, "--listen", "localhost:7000")
	if code != exitOK || stderr != "" {
		t.Fatalf("exit %d, stderr %q", code, stderr)
	}
	rows := map[string]string{}
	for line := range strings.Lines(stdout) {
		words := strings.Fields(line)
		rows[words[0]] = strings.Join(words[1:], " ")
	}
	for key, want := range map[string]string{
		"KEY":        "VALUE SOURCE",
		"data-dir":   "tidemark-data default",
		"node-id":    "from-environment TIDEMARK_NODE_ID",
		"log-format": "json " + path + ": log-format",
		"listen":     "localhost:7000 --listen",
		"advertise":  "localhost:7000 from listen",
		"peers":      "default",

		"election-timeout":   "0 (automatic) default",
		"disk-stall-timeout": "30s default",
	} {
		if rows[key] != want {
			t.Errorf("%s: %q, want %q", key, rows[key], want)
		}
	}
	if want := len(config.Settings()) + 1; len(rows) != want {
		t.Errorf("%d rows, want %d", len(rows), want)
	}
}

func TestConfigPrintAsJSON(t *testing.T) {
	code, stdout, stderr := runCommand(t, "config", "print", "--output", "json", "--listen", "0.0.0.0:7440", "--advertise", "db:7440")
	var got struct {
		Settings []config.Entry
		Warnings []string
	}
	if err := json.Unmarshal([]byte(stdout), &got); err != nil || code != exitOK || stderr != "" {
		t.Fatalf("exit %d, stderr %q, %v", code, stderr, err)
	}
	if len(got.Settings) != len(config.Settings()) || len(got.Warnings) != 1 {
		t.Errorf("%d settings, warnings %q; want %d and one", len(got.Settings), got.Warnings, len(config.Settings()))
	}
	want := config.Entry{Key: "listen", Value: "0.0.0.0:7440", Default: "127.0.0.1:7440", Unit: "host:port",
		Source: config.Source{Origin: config.OriginFlag, Name: "--listen"}}
	if got.Settings[2] != want {
		t.Errorf("got %+v, want %+v", got.Settings[2], want)
	}
}

func TestAWrongConfigurationExitsWithTwoAndNamesEveryKey(t *testing.T) {
	t.Setenv("TIDEMARK_GOGC", "x")
	code, stdout, stderr := runCommand(t, "config", "print", "--log-level", "loud")
	want := `tidemark: the configuration has 2 problems:
  log-level (--log-level): expected debug or info or warn or error; found "loud"
  gogc (TIDEMARK_GOGC): expected a percentage from 10 to 10000, without a sign; found "x"
See "tidemark config print --help".
`
	if code != exitUsage || stdout != "" || stderr != want {
		t.Errorf("exit %d, stdout %q, stderr %q; want 2, nothing, %q", code, stdout, stderr, want)
	}
}
