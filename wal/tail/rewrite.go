package tail

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// maxRewrite bounds what Rewrite copies, in memory, while appends wait.
const maxRewrite = 64 << 20

// ErrTooLong is returned by Rewrite when the log holds more than it copies. Nothing was changed.
var ErrTooLong = errors.New("the log is too long to be rewritten")

// ErrNoRoom is returned by Rewrite when the disk has no room for the copy. Nothing was changed.
var ErrNoRoom = errors.New("no room to rewrite the log")

// Rewrite begins the log anew with the entries that it holds, so that nothing of deleted ones is
// left in its files: a segment goes only once all its records are deleted, and the last one
// never does. Appends wait meanwhile. A crash on the way leaves either log, both whole.
func (l *Log) Rewrite() error {
	defer l.report()
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if err := l.failed(); err != nil {
		return err
	}
	if l.isClosed() {
		return ErrClosed
	}
	if l.first > l.last || l.first == l.segs[0].base {
		return nil // nothing in the files but what the log holds, if anything
	}
	seg, records, err := l.kept()
	if err != nil {
		return err
	}
	err = l.replace(seg, l.first, l.last, records)
	if unmade := (*unmadeError)(nil); errors.As(err, &unmade) && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)) {
		// The log is as it was and can go on: whoever compacts may well do so because of a full disk.
		rest := filepath.Join(l.o.Dir, logDirName(l.n+1)+newSuffix)
		if rerr := os.RemoveAll(rest); rerr != nil {
			return l.fail(fmt.Errorf("rewrite the log: %w", errors.Join(err, rerr)))
		}
		return fmt.Errorf("%w: expected %d bytes free: %w", ErrNoRoom, len(records), err)
	}
	if err != nil {
		return l.fail(fmt.Errorf("rewrite the log: %w", err))
	}
	return nil
}

// kept reads the records that are not deleted, as one segment. wmu is held: nothing is appended
// or deleted meanwhile, and all of it was flushed.
func (l *Log) kept() (*segment, []byte, error) {
	seg := &segment{base: l.first}
	size := int64(0)
	for _, s := range l.segs {
		size += s.size
	}
	first := l.segs[0]
	skip := first.size
	if n := l.first - first.base; n < uint64(len(first.offsets)) {
		skip = int64(first.offsets[n])
	}
	if size -= skip; size > maxRewrite {
		return nil, nil, fmt.Errorf("%w: expected at most %d bytes, found %d", ErrTooLong, int64(maxRewrite), size)
	}
	records := make([]byte, 0, size)
	for i, s := range l.segs {
		from := int64(0)
		if i == 0 {
			from = skip
		}
		for _, at := range s.offsets {
			if int64(at) >= from {
				seg.offsets = append(seg.offsets, uint32(int64(len(records))+int64(at)-from))
			}
		}
		f, err := os.Open(s.path)
		if err != nil {
			return nil, nil, fmt.Errorf("rewrite the log: %w", err)
		}
		part := records[len(records) : int64(len(records))+s.size-from]
		_, err = f.ReadAt(part, from)
		if errors.Is(err, io.EOF) && len(part) == 0 {
			err = nil
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, nil, fmt.Errorf("rewrite the log: %s: %w", s.path, err)
		}
		records = records[:len(records)+len(part)]
	}
	seg.size = int64(len(records))
	return seg, records, nil
}
