package history

import (
	"errors"
	"strings"

	"github.com/cockroachdb/pebble/v2/vfs"
)

// markerFS makes durable, before the name of a marker file changes, every name that Pebble made
// before it. A marker says which MANIFEST is the current one, by its name. Pebble creates the
// MANIFEST, creates the marker, removes the one before, and only then flushes the directory:
// a power loss could keep the marker and not the MANIFEST, or the removal and not the new
// marker, on a disk that does not keep the order of names.
type markerFS struct{ vfs.FS }

// Unwrap gives Pebble the file system below.
func (fs markerFS) Unwrap() vfs.FS { return fs.FS }

// Create creates a file for writing.
func (fs markerFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	if err := fs.settle(name); err != nil {
		return nil, err
	}
	return fs.FS.Create(name, category)
}

// Remove removes a file.
func (fs markerFS) Remove(name string) error {
	if err := fs.settle(name); err != nil {
		return err
	}
	return fs.FS.Remove(name)
}

func (fs markerFS) settle(name string) error {
	if !strings.HasPrefix(fs.PathBase(name), "marker.") {
		return nil
	}
	d, err := fs.OpenDir(fs.PathDir(name))
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
