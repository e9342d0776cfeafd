package replication

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// listing is the names in a directory.
func listing(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// A directory full of somebody else's files used to become a node's.
func TestADirectoryOfSomebodyElseIsRefused(t *testing.T) {
	const rest = "; give this node a directory of its own (--data-dir), or move these away"
	for name, c := range map[string]struct {
		files []string
		want  string
	}{
		"one":       {[]string{"PG_VERSION"}, "PG_VERSION"},
		"many":      {[]string{"a", "b", "c", "d", "e", "f", "g"}, "a, b, c, d, e and 2 others"},
		"some ours": {[]string{"LOCK", "lost+found", "notes.txt"}, "notes.txt"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, f := range c.files {
				if err := os.WriteFile(filepath.Join(dir, f), []byte("theirs"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			s, err := Open(Options{Dir: dir, MinFreeDiskBytes: -1})
			if err == nil {
				_ = s.Stop(context.Background())
				t.Fatal("opened")
			}
			want := "the data directory belongs to something else: expected identity.json, or nothing but what a node makes, in " + dir + ", found " + c.want + rest
			if !errors.Is(err, ErrForeign) || err.Error() != want {
				t.Errorf("error %q, want %q", err, want)
			}
			if got := listing(t, dir); !slices.Equal(got, c.files) {
				t.Errorf("the directory holds %v now, want %v", got, c.files)
			}
		})
	}
}

// The root of a file system, and what a start that was cut short has left, are a node's to
// take; files that somebody adds later are none of its business.
func TestADirectoryThatIsAsGoodAsEmptyIsTaken(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "lost+found"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"LOCK", "identity.json.tmp", "disk-probe"} {
		if err := os.WriteFile(filepath.Join(dir, f), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		s := openShard(t, Options{Dir: dir})
		if err := s.Stop(context.Background()); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "notes.txt"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// Every name that a node makes in its directory is one that it knows again.
func TestANodeKnowsItsOwnFiles(t *testing.T) {
	o, _ := filled(t, 40, true)
	for _, name := range listing(t, o.Dir) {
		if name != identityFile && !isNodeFile(name) {
			t.Errorf("%s is not among a node's files", name)
		}
	}
}
