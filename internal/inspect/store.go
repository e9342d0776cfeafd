package inspect

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/vfs"
)

// store is a history, or a checkpoint of one, opened for reading. Its own log is off and what
// was not flushed is not in it: it is the state as of its m/applied.
type store struct {
	dir string
	db  *pebble.DB
	// applied is zero for a history that holds nothing.
	applied Applied
}

// readOnlyFS refuses whatever would change a file. Pebble is opened read-only and should not
// try; this makes certain of it.
type readOnlyFS struct{ vfs.FS }

func refused(op, name string) error { return fmt.Errorf("%s %s: %w", op, name, fs.ErrPermission) }

// Create is refused.
func (readOnlyFS) Create(name string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, refused("create", name)
}

// Link is refused.
func (readOnlyFS) Link(_, name string) error { return refused("link", name) }

// OpenReadWrite is refused.
func (readOnlyFS) OpenReadWrite(name string, _ vfs.DiskWriteCategory, _ ...vfs.OpenOption) (vfs.File, error) {
	return nil, refused("open for writing", name)
}

// Remove is refused.
func (readOnlyFS) Remove(name string) error { return refused("remove", name) }

// RemoveAll is refused.
func (readOnlyFS) RemoveAll(name string) error { return refused("remove", name) }

// Rename is refused.
func (readOnlyFS) Rename(name, _ string) error { return refused("rename", name) }

// ReuseForWrite is refused.
func (readOnlyFS) ReuseForWrite(name, _ string, _ vfs.DiskWriteCategory) (vfs.File, error) {
	return nil, refused("write", name)
}

// MkdirAll is refused.
func (readOnlyFS) MkdirAll(name string, _ os.FileMode) error { return refused("create", name) }

// Lock does nothing: Pebble would create its lock file. The data directory's own is held.
func (readOnlyFS) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

// Unwrap says that there is nothing below, or Pebble would find it.
func (readOnlyFS) Unwrap() vfs.FS { return nil }

// pebbleOptions are what a history can be read with.
func pebbleOptions() *pebble.Options {
	c := *pebble.DefaultComparer
	c.Name = "tidemark.history.1"
	c.Split = cutKey
	c.ComparePointSuffixes = bytes.Compare
	c.CompareRangeSuffixes = bytes.Compare
	c.ImmediateSuccessor = nextPrefix
	o := &pebble.Options{
		FS: readOnlyFS{vfs.Default}, Comparer: &c, ReadOnly: true, DisableWAL: true,
		FormatMajorVersion: pebble.FormatValueSeparation,
		CacheSize:          8 << 20,
		MaxOpenFiles:       200,
		Logger:             silent{},
	}
	for i := range o.Levels {
		o.Levels[i].FilterPolicy = bloom.FilterPolicy(10)
	}
	return o
}

// silent is a logger for what Pebble has to say of a directory that it only reads.
type silent struct{}

// Infof says nothing.
func (silent) Infof(string, ...any) {}

// Errorf says nothing: whoever reads gets the error.
func (silent) Errorf(string, ...any) {}

// Fatalf must not return.
func (silent) Fatalf(format string, args ...any) { panic(fmt.Errorf(format, args...)) }

// errPanic is wrapped where the reading of damaged bytes panicked.
var errPanic = errors.New("reading it failed")

// recovered, deferred, makes an error of a panic: Pebble panics on some kinds of damage.
func recovered(err *error) {
	if p := recover(); p != nil {
		*err = errors.Join(*err, fmt.Errorf("%w: %v", errPanic, p))
	}
}

// openStore opens the history in dir.
func openStore(dir string) (*store, error) {
	s, err := openPebble(dir)
	if err != nil {
		return nil, err
	}
	if err := s.readApplied(); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// openPebble is openStore before anything in the history was read.
func openPebble(dir string) (s *store, err error) {
	defer func() {
		if err != nil {
			s = nil
		}
	}()
	defer recovered(&err)
	db, err := pebble.Open(dir, pebbleOptions())
	if err != nil {
		// Pebble does not say which errors are about what it found. What the system refuses,
		// other than a file that is missing, is no damage.
		var errno syscall.Errno
		if errors.As(err, &errno) && errno != syscall.ENOENT {
			return nil, fmt.Errorf("%s: %w", dir, err)
		}
		first, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), dir+": "), "\n")
		return nil, &DamageError{Finding{Damage: true, File: dir, Offset: -1, Text: "expected a history that opens, found: " + first}}
	}
	return &store{dir: dir, db: db}, nil
}

func (s *store) readApplied() error {
	v, err := s.get([]byte(keyApplied))
	if err == nil && v != nil {
		s.applied, err = parseApplied(v)
	}
	if err != nil {
		return s.keyError([]byte(keyApplied), err)
	}
	return nil
}

func (s *store) close() (err error) {
	defer recovered(&err)
	return s.db.Close()
}

// get returns a value, nil if there is none.
func (s *store) get(key []byte) (value []byte, err error) {
	defer recovered(&err)
	v, closer, err := s.db.Get(key)
	if errors.Is(err, pebble.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return bytes.Clone(v), closer.Close()
}

// each calls fn for every key that begins with prefix, in order. Key and value are only valid
// during the call. An error of the reading says at which key it came.
func (s *store) each(prefix []byte, fn func(key, value []byte) error) error {
	return s.between(prefix, after(prefix), fn)
}

// between is each, for the keys from one to below another; nil = no bound.
func (s *store) between(from, to []byte, fn func(key, value []byte) error) (err error) {
	at := bytes.Clone(from)
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%s: behind key %q: %w: %v", s.dir, at, errPanic, p)
		}
	}()
	it, err := s.db.NewIter(&pebble.IterOptions{LowerBound: from, UpperBound: to})
	if err != nil {
		return fmt.Errorf("%s: %w", s.dir, err)
	}
	for it.First(); it.Valid(); it.Next() {
		at = append(at[:0], it.Key()...)
		v, err := it.ValueAndErr()
		if err != nil {
			return errors.Join(fmt.Errorf("%s: key %q: %w", s.dir, at, err), it.Close())
		}
		if err := fn(at, v); err != nil {
			return errors.Join(err, it.Close())
		}
	}
	if err := it.Close(); err != nil {
		return fmt.Errorf("%s: behind key %q: %w", s.dir, at, err)
	}
	return nil
}

// after is the smallest key above all that begin with prefix; nil if there is none.
func after(prefix []byte) []byte {
	for n := len(prefix); n > 0; n-- {
		if prefix[n-1] != 0xff {
			b := bytes.Clone(prefix[:n])
			b[n-1]++
			return b
		}
	}
	return nil
}

// keyError says at which key of the history something is wrong.
func (s *store) keyError(key []byte, err error) error {
	return fmt.Errorf("%s: key %q: %w", s.dir, key, err)
}
