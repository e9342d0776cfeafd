package history

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// Open opens the store in o.Dir, or creates it. It does not wait for compactions. The caller
// must Close it.
//
// What it holds is the state at exactly Applied; whatever was applied after that, before a
// crash, has to be applied again from the raft log.
//
// Damage found while opening is an error that names the file and matches record.ErrCorrupt.
// Tables and blob files are not read through: damage inside one is found by the read or the
// compaction that comes across it.
func Open(o Options) (*Store, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	s := &Store{dir: o.Dir, log: o.Logger, onFatal: o.OnFatal, onBackground: o.OnBackgroundError, broken: make(chan struct{})}
	s.limits = limits{blockCache: o.blockCache(), memTable: o.memTable()}
	if s.log == nil {
		s.log = zap.NewNop()
	}
	p := o.pebbleOptions(&s.reclaiming)
	// Pebble takes the memtables out of the block cache's size: add them, or the cache is
	// empty whenever the memtables are full.
	cache := pebble.NewCache(o.MemoryBytes())
	defer cache.Unref()
	p.Cache = cache
	p.Logger = pebbleLogger{s}
	p.EventListener = s.listener()
	if p.FS == nil {
		p.WithFSDefaults()
	}
	if o.tune != nil {
		o.tune(p)
	}

	var err error
	if s.lock, err = lock(p.FS, o.Dir); err != nil {
		return nil, err
	}
	p.Lock = s.lock
	if err := s.open(p); err != nil {
		return nil, errors.Join(err, s.lock.Close())
	}
	a, err := s.recoverApplied()
	if err != nil {
		return nil, errors.Join(s.storageError("open "+o.Dir, err), s.db.Close(), s.lock.Close())
	}
	s.applied.Store(&a)
	s.snapshots.start()
	return s, nil
}

// open opens Pebble on a directory that nobody else uses.
func (s *Store) open(p *pebble.Options) error {
	names, err := p.FS.List(s.dir)
	if err != nil {
		return fmt.Errorf("history: list %s: %w", s.dir, err)
	}
	if err := checkMarkers(p.FS, s.dir, names); err != nil {
		return s.storageError("open "+s.dir, err)
	}
	if err := dropEmptyLogs(p.FS, s.dir, names); err != nil {
		return err
	}
	m, err := checkManifest(p.FS, s.dir)
	if err != nil {
		return s.openError(p, names, m, err)
	}
	p.FS = blobFS{markerFS{p.FS}, s.stop}
	if s.db, err = pebble.Open(s.dir, p); err != nil {
		return s.openError(p, names, m, err)
	}
	if m.torn >= 0 {
		s.log.Warn("history: the MANIFEST ends in the middle of a record, as a power loss leaves it; what it told of is applied again from the log",
			zap.String("file", m.path), zap.Int64("offset", m.torn))
	}
	if err := checkBlobs(s.db, p.FS, s.dir, names); err != nil {
		return errors.Join(s.storageError("open "+s.dir, err), s.db.Close())
	}
	return nil
}

// checkMarkers refuses a directory that holds a store but not the files that say which
// MANIFEST is the current one and which format the files have: Pebble would take it for a new
// one and delete what is in it, or for one that it did not finish creating.
func checkMarkers(fs vfs.FS, dir string, names []string) error {
	holds := ""
	for _, name := range names {
		for _, ext := range []string{".sst", blobExt} {
			if strings.HasSuffix(name, ext) {
				holds = name
			}
		}
	}
	for _, marker := range []string{"marker.manifest.", "marker.format-version."} {
		there := slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, marker) })
		if !there && holds != "" {
			return &damage{text: fmt.Sprintf("expected a file %s* next to %s, found none", fs.PathJoin(dir, marker), fs.PathJoin(dir, holds))}
		}
	}
	return nil
}

// openError says what is wrong with a directory that does not open. Unless the operating
// system refused something, that is damage.
func (s *Store) openError(p *pebble.Options, names []string, m manifest, err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != syscall.ENOENT {
		return fmt.Errorf("history: open %s: %w", s.dir, err)
	}
	text := firstLine(err)
	if number := between(text, ": file ", " (type sstable) unknown to the objstorage provider"); number != "" {
		text = fmt.Sprintf("expected the table %s, which %s refers to, found no such file", p.FS.PathJoin(s.dir, number+".sst"), m.path)
	} else if name, bad := damagedOptions(p, s.dir, names); bad != nil {
		// Of its own files, Pebble does not name the one with the options.
		text = fmt.Sprintf("%s: %s", name, firstLine(bad))
	}
	return s.storageError("open "+s.dir, &damage{text: text + m.hint(), cause: err})
}

// damagedOptions reads the file with the options of the store as it was last opened.
func damagedOptions(p *pebble.Options, dir string, names []string) (path string, err error) {
	newest := ""
	for _, name := range names {
		// The numbers are as long as each other, up to a million.
		if strings.HasPrefix(name, "OPTIONS-") && (len(name) > len(newest) || len(name) == len(newest) && name > newest) {
			newest = name
		}
	}
	if newest == "" {
		return "", nil
	}
	path = p.FS.PathJoin(dir, newest)
	f, err := p.FS.Open(path)
	if err != nil {
		return path, err
	}
	text, err := io.ReadAll(f)
	if err := errors.Join(err, f.Close()); err != nil {
		return path, err
	}
	p = p.Clone()
	p.EnsureDefaults()
	return path, p.CheckCompatibility(dir, string(text))
}

// recoverApplied reads m/applied. Only an empty store may be without.
func (s *Store) recoverApplied() (Applied, error) {
	v, closer, err := s.db.Get([]byte(keyApplied))
	if err == nil {
		a, err := decodeApplied(v)
		return a, errors.Join(err, closer.Close())
	}
	if !errors.Is(err, pebble.ErrNotFound) {
		return Applied{}, err
	}
	it, err := s.db.NewIter(nil)
	if err != nil {
		return Applied{}, err
	}
	holds := it.First()
	if err := it.Close(); err != nil {
		return Applied{}, err
	}
	if holds {
		return Applied{}, &damage{text: "it holds keys but no m/applied, so nothing says which entries it has"}
	}
	return Applied{}, nil
}

// lock creates dir and keeps other processes out of it.
func lock(fs vfs.FS, dir string) (*pebble.Lock, error) {
	if err := createDir(fs, dir); err != nil {
		return nil, fmt.Errorf("history: create %s: %w", dir, err)
	}
	l, err := pebble.LockDirectory(dir, fs)
	// Pebble has no sentinel for a lock that this process holds itself.
	if errors.Is(err, syscall.EAGAIN) || err != nil && strings.Contains(err.Error(), "lock held by current process") {
		return nil, fmt.Errorf("history: %s is in use (%w); stop the process that has it open, or give this one a data directory of its own", dir, err)
	}
	if err != nil {
		return nil, fmt.Errorf("history: lock %s: %w", dir, err)
	}
	return l, nil
}

// createDir makes dir and its missing parents, and syncs the directory that each is entered
// in, so that none of them disappears after a power loss.
func createDir(fs vfs.FS, dir string) error {
	if _, err := fs.Stat(dir); err == nil {
		return nil
	}
	parent := fs.PathDir(dir)
	if parent != dir {
		if err := createDir(fs, parent); err != nil {
			return err
		}
	}
	if err := fs.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	d, err := fs.OpenDir(parent)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// emptyLog is the most that a log of Pebble's without a record takes: nothing, or an end mark.
const emptyLog = 64

// dropEmptyLogs removes the write-ahead logs that Pebble leaves, although they are off and
// empty. If it finds one, it flushes at once, the flush starts a compaction, and Open waits
// for that, which takes seconds on a store that was busy when it was closed or killed.
func dropEmptyLogs(fs vfs.FS, dir string, names []string) error {
	for _, name := range names {
		if !strings.HasSuffix(name, ".log") {
			continue
		}
		path := fs.PathJoin(dir, name)
		info, err := fs.Stat(path)
		if err == nil && info.Size() <= emptyLog {
			err = fs.Remove(path)
		}
		if err != nil {
			return fmt.Errorf("history: remove the empty log %s: %w", path, err)
		}
	}
	return nil
}
