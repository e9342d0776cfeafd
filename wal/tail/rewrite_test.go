package tail

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestRewriteLeavesNoByteOfDeletedEntries: at every index, whichever segment that lies in, what
// was deleted is in no file, what was kept is there, before and after Open, and can be appended
// to.
func TestRewriteLeavesNoByteOfDeletedEntries(t *testing.T) {
	t.Parallel()
	all := entries(1, 40, 1)
	for first := uint64(1); first <= 41; first++ {
		dir := t.TempDir()
		l := mustOpen(t, dir)
		mustStore(t, l, all)
		if first > 1 {
			if err := l.DeleteRange(1, first-1); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Rewrite(); err != nil {
			t.Fatalf("from %d: %v", first, err)
		}
		wantLog(t, l, all[first-1:])
		more := entries(41, 60, 1)
		mustStore(t, l, more)
		want := append(all[first-1:len(all):len(all)], more...)
		wantLog(t, l, want)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		wantLog(t, mustOpen(t, dir), want)
		for _, e := range all[:first-1] {
			if len(e.Data) < 8 {
				continue
			}
			for _, file := range segmentFiles(t, dir) {
				content, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if bytes.Contains(content, e.Data) {
					t.Fatalf("from %d: entry %d is still in %s", first, e.Index, filepath.Base(file))
				}
			}
		}
	}
}
