package history

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/sstable"
	"github.com/cockroachdb/pebble/v2/sstable/blob"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// Pebble v2.1.7 checks at Open that every table is there and as long as it should be, but does
// not look at blob files, and panics when it comes across one that is missing or whose footer
// is damaged: fileCacheHandle.findOrCreateBlob reports a corruption of "nil", and
// DB.reportCorruption panics on that. Both are kept from it: blobFS checks the footer of a
// blob file whenever one is opened, and checkBlobs, in Open, that none is missing.

const blobExt = ".blob"

// blobFS is a file system that opens no damaged blob file. Its errors are not marked as
// corruption for Pebble, which therefore only passes them on. It also stops Pebble where a
// blob file cannot be written: see blobFile.
type blobFS struct {
	vfs.FS
	// stop does not return.
	stop func(error)
}

// Unwrap gives Pebble the file system below.
func (fs blobFS) Unwrap() vfs.FS { return fs.FS }

// Open opens a file for reading.
func (fs blobFS) Open(name string, opts ...vfs.OpenOption) (vfs.File, error) {
	f, err := fs.FS.Open(name, opts...)
	if !strings.HasSuffix(name, blobExt) {
		return f, err
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil, &damage{text: fmt.Sprintf("blob file %s is missing", name)}
	}
	if err != nil {
		return nil, err
	}
	if err := checkFooter(f); err != nil {
		text := fmt.Sprintf("blob file %s: %s", name, firstLine(err))
		if !pebble.IsCorruptionError(err) {
			return nil, errors.Join(fmt.Errorf("%s: %w", text, err), f.Close())
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
		return nil, &damage{text: text}
	}
	return f, nil
}

// Create creates a file for writing.
func (fs blobFS) Create(name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.Create(name, category)
	return fs.written(name, f, err)
}

// ReuseForWrite makes an old file a new one.
func (fs blobFS) ReuseForWrite(old, name string, category vfs.DiskWriteCategory) (vfs.File, error) {
	f, err := fs.FS.ReuseForWrite(old, name, category)
	return fs.written(name, f, err)
}

func (fs blobFS) written(name string, f vfs.File, err error) (vfs.File, error) {
	if err != nil || !strings.HasSuffix(name, blobExt) {
		return f, err
	}
	return blobFile{f, name, fs.stop}, nil
}

// blobFile is a blob file that is being written. Pebble v2.1.7 does not survive an error of
// the last write, the flush or the close of one: blob.FileWriter.Close then aborts a writer
// that has let go of its file already, and dereferences nil in the background. So an error
// goes to the store's owner from here, and the goroutine that met it stops.
type blobFile struct {
	vfs.File
	name string
	stop func(error)
}

func (f blobFile) check(what string, err error) error {
	if err != nil {
		f.stop(fmt.Errorf("%s %s: %w", what, f.name, err))
	}
	return err
}

// Write appends to the file.
func (f blobFile) Write(b []byte) (int, error) {
	n, err := f.File.Write(b)
	return n, f.check("write", err)
}

// Sync flushes the file.
func (f blobFile) Sync() error { return f.check("flush", f.File.Sync()) }

// SyncData flushes the file's data.
func (f blobFile) SyncData() error { return f.check("flush", f.File.SyncData()) }

// SyncTo begins to flush the file's beginning.
func (f blobFile) SyncTo(length int64) (fullSync bool, err error) {
	fullSync, err = f.File.SyncTo(length)
	return fullSync, f.check("flush", err)
}

// Close closes the file.
func (f blobFile) Close() error { return f.check("close", f.File.Close()) }

// checkFooter reads the footer of a blob file, which must have its checksum.
func checkFooter(f vfs.File) error {
	r, err := sstable.NewSimpleReadable(f)
	if err != nil {
		return err
	}
	// The reader is not closed: that would close the file.
	_, err = blob.NewFileReader(context.Background(), r, blob.FileReaderOptions{})
	return err
}

// checkBlobs finds blob files that tables refer to and that are not there; present is what
// was in the directory before it was opened. Pebble compacts already, so that the tables and
// the directory are never of one moment: what is missing once is looked for again, twice.
func checkBlobs(db *pebble.DB, fs vfs.FS, dir string, present []string) error {
	var err error
	for range 3 {
		var before, after []string
		if before, err = fs.List(dir); err != nil {
			return err
		}
		var levels [][]pebble.SSTableInfo
		if levels, err = db.SSTables(); err != nil {
			return err
		}
		if after, err = fs.List(dir); err != nil {
			return err
		}
		if err = missingBlobs(levels, fs, dir, slices.Concat(present, before, after)); err == nil {
			return nil
		}
	}
	return err
}

// missingBlobs returns an error if more blob files that tables refer to are missing than can
// have another name.
//
// Tables name a blob file by an id, which is its number until the file is rewritten to drop
// garbage. So a number without a file is only missing for certain if there are fewer files
// under other numbers to account for it.
func missingBlobs(levels [][]pebble.SSTableInfo, fs vfs.FS, dir string, present []string) error {
	spare := map[string]bool{}
	for _, name := range present {
		if strings.HasSuffix(name, blobExt) {
			spare[name] = true
		}
	}
	referred := map[string]bool{}
	for _, tables := range levels {
		for i := range tables {
			for _, id := range tables[i].GetBlobReferenceFiles() {
				referred[fmt.Sprintf("%06d%s", uint64(id), blobExt)] = true
			}
		}
	}
	var missing []string
	for name := range referred {
		if !spare[name] {
			missing = append(missing, name)
		}
		delete(spare, name)
	}
	if len(missing) > len(spare) {
		first := missing[0]
		for _, name := range missing {
			first = min(first, name)
		}
		return &damage{text: fmt.Sprintf("expected the blob file %s, found no such file; %d others are missing too", fs.PathJoin(dir, first), len(missing)-1)}
	}
	return nil
}
