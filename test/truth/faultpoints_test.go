package truth

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/tidemark-db/tidemark/test/process"
)

// A binary that is given to anyone has no fault points: neither the code nor the port.
func TestNormalBinaryHasNoFaultPoints(t *testing.T) {
	t.Parallel()
	normal := filepath.Join(t.TempDir(), "tidemark")
	if err := process.Build(normal); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{normal: false, os.Getenv("BINARY_UNDER_TEST"): true} {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range []string{"fault points are open", "main.(*faultTransport)", "/hold/{point}"} {
			if got := bytes.Contains(b, []byte(s)); got != want {
				t.Errorf("%s contains %q: %t, expected %t", path, s, got, want)
			}
		}
	}
	n := process.Start(t, process.Options{Binary: normal, DataDir: filepath.Join(t.TempDir(), "data")})
	if bytes.Contains([]byte(n.Log()), []byte("fault points")) {
		t.Errorf("a normal binary speaks of fault points:\n%s", n.Log())
	}
}
