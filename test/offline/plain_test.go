package offline

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tidemark-db/tidemark/internal/inspect"
)

// A table or a blob file that was missing, cut or grown was reported, and then the check ended
// with an error, as if it could not be done: a script that looked for damage saw none.
func TestPlainDamageIsDamage(t *testing.T) {
	change := func(edit func(b []byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			b, err := os.ReadFile(path)
			if err == nil {
				err = os.WriteFile(path, edit(b), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	kinds := map[string]func(*testing.T, string){
		"deleted": func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		},
		"emptied":       change(func([]byte) []byte { return nil }),
		"cut by a byte": change(func(b []byte) []byte { return b[:len(b)-1] }),
		"halved":        change(func(b []byte) []byte { return b[:len(b)/2] }),
		"grown":         change(func(b []byte) []byte { return append(b, 0) }),
	}
	dir := full(t, true)
	for _, sort := range []string{".sst", ".blob"} {
		for kind, damage := range kinds {
			t.Run(sort+" "+kind, func(t *testing.T) {
				copied := filepath.Join(t.TempDir(), "data")
				if err := os.CopyFS(copied, os.DirFS(dir)); err != nil {
					t.Fatal(err)
				}
				path := used(t, copied, sort)
				damage(t, path)
				var findings []inspect.Finding
				r, err := inspect.Verify(t.Context(), copied, inspect.VerifyOptions{Found: func(f inspect.Finding) { findings = append(findings, f) }})
				if err != nil || r.Damage == 0 {
					t.Fatalf("found %v, and %v: expected damage and no error", findings, err)
				}
				// Whoever reads it learns the same, or reads what is left.
				d, err := inspect.Open(copied)
				if err != nil {
					t.Fatal(err)
				}
				_, err = d.Read(inspect.Query{}, inspect.Content{})
				if err := d.Close(); err != nil {
					t.Error(err)
				}
				if err != nil && !inspect.Damaged(err) {
					t.Errorf("reading it: %v, expected an error that says it is damaged", err)
				}
				if !slices.ContainsFunc(findings, func(f inspect.Finding) bool {
					number := strings.TrimSuffix(filepath.Base(path), sort)
					return f.Damage && (strings.Contains(f.File, number) || strings.Contains(f.Text, number))
				}) {
					t.Errorf("found %v, of which none names %s", findings, filepath.Base(path))
				}
			})
		}
	}
}

// used returns a file of the history that is in use: one that is in the snapshot, too.
func used(t *testing.T, dir, sort string) string {
	t.Helper()
	snapshot, err := filepath.Glob(filepath.Join(dir, "snapshots", "*", "history", "*"+sort))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range snapshot {
		history, err := filepath.Glob(filepath.Join(dir, "history", "*", filepath.Base(path)))
		if err != nil {
			t.Fatal(err)
		}
		if len(history) > 0 {
			return history[0]
		}
	}
	t.Fatalf("expected a %s of the history in a snapshot, found none", sort)
	return ""
}
