package tail

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"
	"github.com/tidwall/wal"
	"go.uber.org/zap"
)

const (
	defaultSegmentSize = 4 << 20
	maxSegmentSize     = 1 << 30 // offsets in a segment are uint32
)

// Options are the settings of a Log.
type Options struct {
	// Dir holds the log's files; it is created if it does not exist, its parent must. One
	// process at a time may have it open: the owner of the data directory sees to that.
	Dir string
	// SegmentSize is the size in bytes at which a new segment file is begun; 0 means 4 MiB.
	SegmentSize int
	// OnFatal is called once, with the first error after which the log refuses every call,
	// before the call that met it returns. The process should end. It may be nil.
	OnFatal func(error)
	// OnSync is called after each StoreLogs with the duration of its flush and the bytes it
	// made durable, and must not call the Log. It may be nil.
	OnSync func(d time.Duration, bytes int)
	// Logger receives what was repaired; nil logs nothing.
	Logger *zap.Logger
}

// Log implements raft.LogStore. It is safe for concurrent use. Readers never wait for a
// flush, and never see a record before it is durable.
//
// It has no gaps, and yet is no raft.MonotonicLogStore on purpose: of such a store raft deletes
// everything after it installed a snapshot, also the entries behind the snapshot that this
// node has acknowledged. A leader that missed the first answer sends its snapshot twice.
type Log struct {
	o   Options
	ops *ops

	// bad is the first fatal error; set once, never cleared.
	bad      atomic.Pointer[error]
	reported atomic.Bool

	// wmu serialises everything that changes files: StoreLogs, DeleteRange, Close. A batch
	// is flushed before the next is written; the repair at Open relies on that.
	wmu sync.Mutex
	// Held with wmu.
	n       uint64   // incarnation, names the directory
	dir     string   // of the segment files
	w       *wal.Log // appends to the last segment; not asked for anything else
	active  *os.File // the last segment, a second descriptor to flush it
	state   *os.File
	synced  state // what the state file says, or is to say
	batch   *wal.Batch
	frame   []byte
	pending []span

	// dmu serialises the removal of files, which goes on after wmu is released, and what
	// must not see one. Taken
	// while wmu is held, never the other way round.
	dmu sync.Mutex

	// mu guards what readers look at. It is never held during I/O.
	mu     sync.RWMutex
	segs   []*segment // lowest first, never empty
	first  uint64     // lowest index, last+1 when the log is empty
	last   uint64
	bytes  int64
	closed bool
	// gen changes whenever a record that existed may have gone: a read that began before
	// is then done again.
	gen atomic.Uint64

	files   *handles
	forward window
}

var _ raft.LogStore = (*Log)(nil)

// segment is one segment file.
type segment struct {
	base uint64 // index of its first record
	path string
	// Guarded by Log.mu. offsets holds where each record begins, size where the last ends.
	offsets []uint32
	size    int64
}

// next is the index after the segment's last record.
func (s *segment) next() uint64 { return s.base + uint64(len(s.offsets)) }

// Open opens the log in o.Dir, or creates it, after checking every record in it and cutting
// off what a crash left of an append that was never acknowledged. Any other damage is a
// *DamageError.
func Open(o Options) (*Log, error) { return open(o, realOps()) }

func open(o Options, ops *ops) (*Log, error) {
	if o.SegmentSize == 0 {
		o.SegmentSize = defaultSegmentSize
	}
	if o.SegmentSize < 0 || o.SegmentSize > maxSegmentSize {
		return nil, fmt.Errorf("open the log: expected a segment size of 1 to %d bytes, found %d", maxSegmentSize, o.SegmentSize)
	}
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	l := &Log{o: o, ops: ops, batch: new(wal.Batch), files: newHandles()}
	if err := l.openFiles(); err != nil {
		l.closeFiles()
		return nil, err
	}
	return l, nil
}

func (l *Log) openFiles() error {
	if err := os.MkdirAll(l.o.Dir, 0o750); err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	if err := l.ops.syncDir(filepath.Dir(l.o.Dir)); err != nil {
		return err
	}
	n, err := l.ops.findLog(l.o.Dir)
	if err != nil {
		return err
	}
	if n == 0 {
		n = 1
		if err := l.ops.createLog(l.o.Dir, n, 1, nil, state{first: 1, boot: l.ops.boot()}); err != nil {
			return err
		}
	}
	l.n, l.dir = n, filepath.Join(l.o.Dir, logDirName(n))
	rec, err := l.recover()
	if err != nil {
		return err
	}
	l.segs, l.first, l.last = rec.segs, rec.first, rec.last
	for _, s := range l.segs {
		l.bytes += s.size
	}
	l.synced = state{first: l.first, synced: l.last, boot: l.ops.boot()}
	return l.attach()
}

// attach opens the files that are written: tidwall's log on the last segment, which must
// hold whole records only, the second descriptor, and the state, which is brought up to date.
func (l *Log) attach() (err error) {
	path := filepath.Join(l.dir, stateName)
	if l.state, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	if err := l.ops.writeState(l.state, l.synced); err != nil {
		return err
	}
	return l.attachWriter()
}

func (l *Log) attachWriter() (err error) {
	// No sync: tidwall would hold its lock meanwhile, and would not say which of write and
	// flush failed. Its own reads are not used, so that one cached segment is the least it
	// takes. AllowEmpty lets it open an empty segment at any index.
	l.w, err = wal.Open(l.dir, &wal.Options{
		NoSync: true, SegmentSize: l.o.SegmentSize, SegmentCacheSize: 1, NoCopy: true, AllowEmpty: true,
		DirPerms: 0o750, FilePerms: 0o640,
	})
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	last, err := l.w.LastIndex()
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	if last != l.last {
		return fmt.Errorf("open the log: expected tidwall/wal to find last index %d in %s, it found %d", l.last, l.dir, last)
	}
	l.active, err = os.OpenFile(l.segs[len(l.segs)-1].path, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("open the log: %w", err)
	}
	return nil
}

// Close makes the state durable and closes the files. It waits for calls in progress.
func (l *Log) Close() error {
	defer l.report()
	l.wmu.Lock()
	defer l.wmu.Unlock()
	l.dmu.Lock()
	defer l.dmu.Unlock()
	if l.isClosed() {
		return nil
	}
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	err := l.failed()
	if err == nil {
		if err = l.ops.writeState(l.state, l.synced); err != nil {
			err = l.fail(err)
		}
	}
	return errors.Join(err, l.closeFiles())
}

// closeFiles closes what is open. Errors count only where there was none before: after a
// failed flush there is nothing left to lose.
func (l *Log) closeFiles() error {
	var errs []error
	if l.w != nil {
		errs = append(errs, l.w.Close())
	}
	for _, f := range []*os.File{l.active, l.state} {
		if f != nil {
			errs = append(errs, f.Close())
		}
	}
	l.files.closeAll()
	if l.failed() != nil {
		return nil
	}
	return errors.Join(errs...)
}

// FirstIndex returns the lowest index in the log, 0 if it is empty.
func (l *Log) FirstIndex() (uint64, error) {
	first, _, err := l.bounds()
	return first, err
}

// LastIndex returns the highest index in the log, 0 if it is empty.
func (l *Log) LastIndex() (uint64, error) {
	_, last, err := l.bounds()
	return last, err
}

// bounds returns the lowest and highest index, 0 and 0 if there is none. tidwall says
// last+1 and last for an empty log.
func (l *Log) bounds() (first, last uint64, err error) {
	if err := l.failed(); err != nil {
		return 0, 0, err
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	switch {
	case l.closed:
		return 0, 0, ErrClosed
	case l.first > l.last:
		return 0, 0, nil
	}
	return l.first, l.last, nil
}

// SizeBytes is the size of the log's segment files, in bytes.
func (l *Log) SizeBytes() int64 {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.bytes
}

func (l *Log) isClosed() bool {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.closed
}

// failed returns the error that poisoned the log, if any.
func (l *Log) failed() error {
	if p := l.bad.Load(); p != nil {
		return *p
	}
	return nil
}

// fail poisons the log, unless it is, and returns the error that did. The caller reports it
// once it holds no lock.
func (l *Log) fail(err error) error {
	err = fmt.Errorf("%w: %w", ErrPoisoned, err)
	l.bad.CompareAndSwap(nil, &err)
	return l.failed()
}

// report tells the owner of a fatal error, once. It is deferred before any lock is taken,
// so that it runs when all are released.
func (l *Log) report() {
	err := l.failed()
	// Not a sync.Once: OnFatal may close the log.
	if err == nil || l.reported.Swap(true) {
		return
	}
	l.o.Logger.Error("the log failed", zap.String("dir", l.o.Dir), zap.Error(err))
	if l.o.OnFatal != nil {
		l.o.OnFatal(err)
	}
}
