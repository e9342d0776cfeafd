package model

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// TestScriptsAgainstTheModel holds the model against answers written down by hand from the
// contract: every row of truth table 2.3, and the corners of 2.1 to 2.5.
func TestScriptsAgainstTheModel(t *testing.T) {
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		runScript(t, path, nil)
	})
}

// TestScriptsAgainstTheServer runs the same scripts on a server.
func TestScriptsAgainstTheServer(t *testing.T) {
	n, err := startNode(t.TempDir(), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := n.close(false); err != nil {
			t.Error(err)
		}
	}()
	base := uint64(0)
	datadriven.Walk(t, "testdata/scripts", func(t *testing.T, path string) {
		base = runScript(t, path, &start{srv: n, base: base})
	})
}

// start is what the worlds of a script begin from; nil is the model alone.
type start struct {
	srv  driven
	base uint64
}

// runScript runs a file of "run" blocks, one op a line; "run fresh" begins a new world. It
// returns the last position.
func runScript(t *testing.T, path string, from *start) uint64 {
	var w *world
	worlds := 0
	datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
		if d.Cmd != "run" {
			d.Fatalf(t, "unknown command %q: only run", d.Cmd)
		}
		if d.HasArg("fresh") {
			var err error
			if from == nil {
				w, err = newWorld(nil, "acme", 0)
			} else {
				worlds++
				if w != nil {
					from.base = w.m.position
				}
				w, err = newWorld(from.srv, fmt.Sprintf("acme%d of %s", worlds, t.Name()[strings.LastIndex(t.Name(), "/")+1:]), from.base)
			}
			if err != nil {
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
	return w.m.position
}
