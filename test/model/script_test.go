package model

import (
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// TestScriptsAgainstTheModel holds the model against answers written down by hand from the
// contract: every row of truth table 2.3, and the corners of 2.1 to 2.5.
func TestScriptsAgainstTheModel(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		runScript(t, path, func(*testing.T) server { return nil })
	})
}

// runScript runs a file of "run" blocks, one op a line. "run fresh" starts from nothing.
func runScript(t *testing.T, path string, start func(*testing.T) server) {
	var w *world
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd != "run" {
			d.Fatalf(t, "unknown command %q: only run", d.Cmd)
		}
		if d.HasArg("fresh") {
			var err error
			if w, err = newWorld(start(t)); err != nil {
				d.Fatalf(t, "%v", err)
			}
		}
		var out []string
		for _, line := range strings.Split(d.Input, "\n") {
			o, err := parseOp(line)
			if err != nil {
				d.Fatalf(t, "%v", err)
			}
			if o.String() != line {
				d.Fatalf(t, "the op reads back as %q", o)
			}
			told, err := w.run(o)
			if err != nil {
				d.Fatalf(t, "%s: %v", o, err)
			}
			out = append(out, told)
		}
		return strings.Join(out, "\n")
	})
}
