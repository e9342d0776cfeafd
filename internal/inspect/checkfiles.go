package inspect

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
)

// fileID is what a file is, under whatever name.
type fileID struct{ device, inode uint64 }

func identify(info fs.FileInfo) (fileID, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return fileID{}, false
	}
	return fileID{uint64(st.Dev), st.Ino}, true
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

func isHex(s string, n int) bool {
	if len(s) != 2*n {
		return false
	}
	return strings.Trim(s, "0123456789abcdef") == ""
}

// files checks the files of a Pebble directory: those that tables and MANIFEST refer to. It
// returns how many are damaged, and the store, if it opens.
func (v *verifier) files(dir string) (s *store, bad int, err error) {
	names, err := listNames(dir)
	if err != nil {
		return nil, 0, err
	}
	before := v.report.Damage
	manifest := v.markers(dir, names)
	var blobs blobFiles
	if manifest != "" {
		if blobs, err = v.manifest(filepath.Join(dir, manifest)); err != nil {
			return nil, 0, err
		}
	}
	if err := v.options(dir, names); err != nil {
		return nil, 0, err
	}
	opens := manifest != "" && v.report.Damage == before
	if opens {
		var d *DamageError
		switch s, err = openPebble(dir); {
		case errors.As(err, &d):
			v.found(d.Finding)
			err = nil
		case Damaged(err): // it panicked
			v.damage(dir, "expected a history that opens, found: %v", err)
			err = nil
		case err != nil:
			return nil, 0, err
		}
	}
	bad = v.report.Damage - before
	if s != nil {
		var more int
		more, err = v.referred(s, blobs)
		bad += more
	} else {
		// Whatever is complete; what is not may be what a crash cut short.
		for _, name := range names {
			if path := filepath.Join(dir, name); strings.HasSuffix(name, ".sst") || strings.HasSuffix(name, ".blob") {
				if _, err := v.blocks(path); err != nil {
					return nil, 0, err
				}
			}
		}
	}
	if err != nil && s != nil {
		err = errors.Join(err, s.close())
	}
	return s, bad, err
}

func listNames(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// referred checks the tables of a store and the blob files that they refer to, and returns how
// much is wrong with them.
func (v *verifier) referred(s *store, blobs blobFiles) (bad int, err error) {
	check := func(path string) error {
		n, err := v.blocks(path)
		bad += n
		return err
	}
	levels, err := s.db.SSTables()
	if err != nil {
		return bad, err
	}
	wanted := map[uint64]bool{}
	for _, tables := range levels {
		for i := range tables {
			t := &tables[i]
			if err := check(filepath.Join(s.dir, fmt.Sprintf("%06d.sst", uint64(t.BackingSSTNum)))); err != nil {
				return bad, err
			}
			for _, id := range t.GetBlobReferenceFiles() {
				wanted[uint64(id)] = true
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(wanted)) {
		number, ok := blobs[id]
		path := filepath.Join(s.dir, fmt.Sprintf("%06d.blob", number))
		switch {
		case !ok:
			bad++
			v.damage(s.dir, "expected the MANIFEST to name the file of the values %06d, which tables refer to, found nothing", id)
		case !exists(path):
			bad++
			v.damage(path, "expected the blob file of the values %06d, which tables refer to, found no such file", id)
		default:
			if err := check(path); err != nil {
				return bad, err
			}
		}
	}
	return bad, nil
}

// options checks the file with the options that the store was last opened with.
func (v *verifier) options(dir string, names []string) error {
	newest := ""
	for _, name := range names {
		if strings.HasPrefix(name, "OPTIONS-") && (len(name) > len(newest) || len(name) == len(newest) && name > newest) {
			newest = name
		}
	}
	if newest == "" {
		v.damage(dir, "expected a file OPTIONS-*, found none")
		return nil
	}
	path := filepath.Join(dir, newest)
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	err = readableOptions(dir, string(b))
	if err != nil {
		first, _, _ := strings.Cut(err.Error(), "\n")
		v.damage(path, "expected the options of a history, found: %s", first)
	}
	return nil
}

func readableOptions(dir, text string) (err error) {
	defer recovered(&err)
	o := pebbleOptions()
	o.EnsureDefaults()
	if err := o.CheckCompatibility(dir, text); err != nil {
		return err
	}
	return o.Parse(text, nil)
}
