package stable

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// create makes the file if it does not exist: complete and durable beside its place, then
// renamed. bbolt itself writes a new file in place, and what a crash leaves of that does not
// open.
func (o Options) create() error {
	if info, err := os.Stat(o.Path); !errors.Is(err, os.ErrNotExist) {
		if err != nil {
			return fmt.Errorf("open the stable store: %w", err)
		}
		if info.Size() == 0 {
			return o.damaged("", "expected a store, found an empty file") // bbolt would begin anew in it
		}
		// The rename that put it there may not be durable yet.
		return syncDir(filepath.Dir(o.Path))
	}
	fresh := o.Path + ".new"
	if err := os.Remove(fresh); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("create the stable store: %w", err)
	}
	db, err := raftboltdb.New(raftboltdb.Options{Path: fresh, BoltOptions: &bbolt.Options{Timeout: o.LockTimeout}})
	if err != nil {
		return o.openError(err)
	}
	k := []byte(keysKey)
	err = db.Set(k, appendFrame(nil, k, nil))
	if err := errors.Join(err, db.Close()); err != nil {
		return fmt.Errorf("create the stable store: %w", err)
	}
	// Another process may do the same at this moment and have renamed it: the lock on the
	// final file then decides between the two.
	if err := os.Rename(fresh, o.Path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("create the stable store: %w", err)
	}
	return syncDir(filepath.Dir(o.Path))
}

func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("flush a directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("flush a directory: %w", err)
	}
	return nil
}
