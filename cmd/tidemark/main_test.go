package main

import (
	"bytes"
	"strings"
	"testing"
)

// runCommand runs one command line without standard input.
func runCommand(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

func TestMistakesOnTheCommandLineExitWithTwo(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"nonsense"}, "tidemark: unknown command \"nonsense\" for \"tidemark\"\nSee \"tidemark --help\".\n"},
		{[]string{"version", "--outptu", "json"}, "tidemark: unknown flag: --outptu\nSee \"tidemark version --help\".\n"},
		{[]string{"version", "--output", "xml"}, "tidemark: --output: expected table or json, found \"xml\"\nSee \"tidemark version --help\".\n"},
		{[]string{"version", "extra"}, "tidemark: unknown command \"extra\" for \"tidemark version\"\nSee \"tidemark version --help\".\n"},
	} {
		code, stdout, stderr := runCommand(t, c.args...)
		if code != exitUsage || stdout != "" || stderr != c.want {
			t.Errorf("%q: exit %d, stdout %q, stderr %q; want exit 2, no stdout, stderr %q", c.args, code, stdout, stderr, c.want)
		}
	}
}

func TestTidemarkAlonePrintsHelpWithTheExitCodes(t *testing.T) {
	code, stdout, stderr := runCommand(t)
	if code != exitOK || stderr != "" {
		t.Fatalf("exit %d, stderr %q; want 0 and nothing", code, stderr)
	}
	for _, line := range strings.Split(exitCodesHelp, "\n") {
		if !strings.Contains(stdout, line+"\n") {
			t.Errorf("help lacks the line %q", line)
		}
	}
}
