package stable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"

	berrors "go.etcd.io/bbolt/errors"
)

// confBucket is where raft-boltdb keeps the keys of a StableStore.
const confBucket = "conf"

// maxFileSize bounds what is read at Open; the file holds a handful of small values.
const maxFileSize = 64 << 20

// checked returns a function that opens the file for bbolt, after locking it and checking
// all of it, and puts the keys that are in it in keys. bbolt locks it once more, on the same
// descriptor, which is no conflict.
func (o Options) checked(keys *[]string) func(string, int, os.FileMode) (*os.File, error) {
	return func(path string, flag int, mode os.FileMode) (*os.File, error) {
		f, err := os.OpenFile(path, flag&^os.O_CREATE, mode)
		if err != nil {
			return nil, err
		}
		if err = lockFile(f, o.LockTimeout); err == nil {
			*keys, err = o.check(f)
		}
		if err != nil {
			return nil, errors.Join(err, f.Close())
		}
		return f, nil
	}
}

// check reads the whole file and returns the keys in it.
func (o Options) check(f *os.File) ([]string, error) {
	b, err := io.ReadAll(io.NewSectionReader(f, 0, maxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(b) > maxFileSize {
		return nil, o.damaged("", fmt.Sprintf("expected a file of at most %d bytes, found more", maxFileSize))
	}
	found, err := parseFile(b)
	if err != nil {
		return nil, o.damaged("", err.Error())
	}
	list, err := parseFrame([]byte(keysKey), found[keysKey])
	if err != nil {
		return nil, o.damaged(keysKey, err.Error())
	}
	keys, err := parseKeys(list)
	if err != nil {
		return nil, o.damaged(keysKey, err.Error())
	}
	for _, k := range keys {
		if _, ok := found[k]; !ok {
			return nil, o.damaged(k, "expected a value, found none")
		}
	}
	for k, v := range found {
		if _, err := parseFrame([]byte(k), v); err != nil {
			return nil, o.damaged(k, err.Error())
		}
	}
	return keys, nil
}

// openError says what to do about an error of opening the file.
func (o Options) openError(err error) error {
	switch {
	case errors.Is(err, ErrDamaged):
		return err
	case errors.Is(err, berrors.ErrTimeout):
		return fmt.Errorf("%w: expected to lock %s within %v; stop the other process or use another data directory", ErrInUse, o.Path, o.LockTimeout)
	}
	return fmt.Errorf("open the stable store: %s: %w", o.Path, err)
}

// damaged describes damage, of the value of a key if there is one.
func (o Options) damaged(key, reason string) error {
	at := o.Path
	if key != "" {
		at = fmt.Sprintf("%s: key %q", o.Path, key)
	}
	return fmt.Errorf("%w: %s: %s; a node that forgot its vote could vote twice: keep the file for examination and restore this node's data from a backup or from another node", ErrDamaged, at, reason)
}

// recovered, deferred, makes an error of a panic: bbolt panics where a page is not what it
// was when the file was opened.
func (o Options) recovered(err *error) {
	if p := recover(); p != nil {
		*err = o.damaged("", fmt.Sprintf("expected sound pages, found: %v", p))
	}
}

// bbolt's integers are in the machine's byte order.
func u16(b []byte) uint16 { return binary.NativeEndian.Uint16(b) }
func u32(b []byte) uint32 { return binary.NativeEndian.Uint32(b) }
func u64(b []byte) uint64 { return binary.NativeEndian.Uint64(b) }
