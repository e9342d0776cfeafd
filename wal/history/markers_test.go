package history

import (
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"
)

// A power loss used to be able to keep the marker of a MANIFEST whose own name was lost: no
// name is pending when that of a marker changes.
func TestNamesAreFlushedBeforeAMarkers(t *testing.T) {
	var mu sync.Mutex
	var pending string
	markers := 0
	disk := errorfs.Wrap(vfs.NewCrashableMem(), errorfs.InjectorFunc(func(op errorfs.Op) error {
		mu.Lock()
		defer mu.Unlock()
		switch op.Kind {
		case errorfs.OpFileSync:
			if op.Path == "h" {
				pending = ""
			}
		case errorfs.OpCreate, errorfs.OpRemove, errorfs.OpRename, errorfs.OpReuseForWrite, errorfs.OpLink:
			if strings.HasPrefix(path.Base(op.Path), "marker.") {
				markers++
				if pending != "" {
					t.Errorf("%s changes while %s is not flushed", op.Path, pending)
				}
			}
			pending = op.Path
		}
		return nil
	}))
	for range 3 {
		s, err := Open(Options{Dir: "h", FS: disk, tune: small})
		if err != nil {
			t.Fatal(err)
		}
		commit(t, s, func(b *Batch) { b.PutHead(key("1"), &Head{Version: s.Applied().Index}) })
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if markers < 4 {
		t.Errorf("%d changes of markers, expected some for each time it was opened", markers)
	}
}
