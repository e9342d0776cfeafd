package powerloss

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestMain runs the tests, or one of the programs that they record.
func TestMain(m *testing.M) {
	flag.Parse()
	name, root := Program()
	if name == "" {
		os.Exit(m.Run())
	}
	programs := map[string]func(root string) error{
		"everything": writeEverything,
		"journal":    writeJournal,
		"raftlog":    runRaftLog,
		"node":       runNode,
		"restore":    runRestore,
	}
	run, ok := programs[name]
	if !ok {
		fmt.Fprintf(os.Stderr, "no program %q to record\n", name)
		os.Exit(2)
	}
	if err := run(root); err != nil {
		fmt.Fprintf(os.Stderr, "program %s: %v\n", name, err)
		os.Exit(1)
	}
}

// recorded records a program on a fresh directory and replays it. It checks the model
// against the real directory, so that no later finding is the model's fault.
func recorded(t *testing.T, program string, args ...string) (calls []Call, root string) {
	t.Helper()
	root = filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(root, 0o755); err != nil {
		t.Fatal(err)
	}
	calls, err := Record(t.Context(), program, root, t.TempDir(), args...)
	if err != nil {
		t.Fatal(err)
	}
	rebuilt := filepath.Join(t.TempDir(), "end")
	if err := replay(t, calls, root).End(rebuilt); err != nil {
		t.Fatal(err)
	}
	if got, want := tree(t, rebuilt), tree(t, root); !slices.Equal(got, want) {
		t.Fatalf("the model's last state is\n%q\nthe real directory\n%q", names(got), names(want))
	}
	return calls, root
}

func replay(t *testing.T, calls []Call, root string) *Disk {
	t.Helper()
	d, err := Replay(calls, root)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// tree is a directory as path and content of each file and path/ of each directory.
func tree(t *testing.T, root string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(p string, e fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		if e.IsDir() {
			out = append(out, rel+"/")
			return nil
		}
		b, err := os.ReadFile(p)
		out = append(out, rel+"="+string(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func names(tree []string) []string {
	out := make([]string, len(tree))
	for i, s := range tree {
		out[i] = s[:min(len(s), 60)]
	}
	return out
}
