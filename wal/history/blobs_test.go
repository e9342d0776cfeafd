package history

import (
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// Pebble writes tables and blob files from the moment that it is open. What it has written
// since the directory was listed is not damage.
func TestFilesWrittenDuringOpenAreNotTakenForMissing(t *testing.T) {
	fs := vfs.NewMem()
	o := crashOptions(fs)
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	before, err := fs.List(o.Dir)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorkload(3)
	b := s.NewBatch()
	for range 60 {
		w.commit(t, s, b, 3)
	}
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	levels, err := s.db.SSTables()
	if err != nil {
		t.Fatal(err)
	}
	if missingBlobs(levels, fs, o.Dir, before) == nil {
		t.Fatal("nothing was written: the test shows nothing")
	}
	if err := checkBlobs(s.db, fs, o.Dir, before); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
