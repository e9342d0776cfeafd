package tail

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"go.uber.org/zap"
)

// DeleteRange deletes the entries from lo to hi, both included, as far as the log holds
// them. The range must reach one of the log's ends. The deletion is durable on return.
//
// tidwall's own truncations are not used: they remove files and rename others without
// making either durable in between, and rewrite a segment to drop its front.
func (l *Log) DeleteRange(lo, hi uint64) error {
	defer l.report()
	remove, err := l.deleteRange(lo, hi)
	if err != nil || remove == nil {
		return err
	}
	defer l.dmu.Unlock()
	if err := remove(); err != nil {
		return l.fail(err)
	}
	return nil
}

// deleteRange deletes, except for files that nobody looks at any more: if remove is not
// nil, dmu is held and remove removes them.
func (l *Log) deleteRange(lo, hi uint64) (remove func() error, err error) {
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if err := l.failed(); err != nil {
		return nil, err
	}
	if l.isClosed() {
		return nil, ErrClosed
	}
	lo, hi = max(lo, l.first), min(hi, l.last)
	if lo > hi {
		return nil, nil
	}
	switch {
	case lo == l.first && hi == l.last:
		if err := l.recreate(hi + 1); err != nil {
			return nil, l.fail(fmt.Errorf("empty the log: %w", err))
		}
	case lo == l.first:
		gone, err := l.deleteFront(hi + 1)
		if err != nil {
			return nil, l.fail(fmt.Errorf("delete up to index %d from the log: %w", hi, err))
		}
		if len(gone) > 0 {
			dir := l.dir
			l.dmu.Lock()
			return func() error { return l.removeSegments(dir, gone) }, nil
		}
	case hi == l.last:
		if err := l.deleteBack(lo); err != nil {
			return nil, l.fail(fmt.Errorf("delete from index %d on from the log: %w", lo, err))
		}
	default:
		return nil, fmt.Errorf("delete from the log: expected a range that reaches one end of %d to %d, found %d to %d", l.first, l.last, lo, hi)
	}
	return nil, nil
}

// deleteFront makes first the log's lowest index and returns the segments that are not
// needed any more. Once the state says so, Open takes them for left over, whichever of them
// a crash leaves.
func (l *Log) deleteFront(first uint64) (gone []*segment, err error) {
	s := l.synced
	s.first = first
	if err := l.ops.writeState(l.state, s); err != nil {
		return nil, err
	}
	l.synced = s
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for n < len(l.segs)-1 && l.segs[n+1].base <= first {
		l.bytes -= l.segs[n].size
		n++
	}
	gone = l.segs[:n]
	l.segs = append([]*segment(nil), l.segs[n:]...)
	l.first = first
	l.gen.Add(1)
	return gone, nil
}

// removeSegments removes files that hold deleted records only, durably.
func (l *Log) removeSegments(dir string, gone []*segment) error {
	if len(gone) == 0 {
		return nil
	}
	for _, s := range gone {
		l.files.forget(s)
		if err := l.ops.step("remove " + filepath.Base(s.path)); err != nil {
			return err
		}
		if err := os.Remove(s.path); err != nil {
			return fmt.Errorf("remove a deleted segment: %w", err)
		}
	}
	return l.ops.syncDir(dir)
}

// deleteBack deletes the records from index on, which raft found to conflict with its
// leader's. Once the state says so, Open finishes what a crash interrupts. It could not tell
// otherwise: of a truncation the disk may have the zeros in the rest of the last page, and
// not the size, so that what looks like a damaged record is followed by whole ones.
func (l *Log) deleteBack(index uint64) error {
	l.synced.synced, l.synced.keep = index-1, index-1
	if err := l.ops.writeState(l.state, l.synced); err != nil {
		return err
	}
	if err := l.ops.step("wrote intent"); err != nil {
		return err
	}
	// No file may go while tidwall, opened again below, lists the directory.
	l.dmu.Lock()
	defer l.dmu.Unlock()
	if err := errors.Join(l.w.Close(), l.active.Close()); err != nil {
		return err
	}
	l.w, l.active = nil, nil
	gone, cut, size := l.unpublish(index)
	if err := l.removeSegments(l.dir, gone); err != nil {
		return err
	}
	if err := l.ops.cut(cut.path, size); err != nil {
		return err
	}
	if err := l.ops.step("cut segment"); err != nil {
		return err
	}
	l.synced.keep = 0
	if err := l.ops.writeState(l.state, l.synced); err != nil {
		return err
	}
	return l.attachWriter()
}

// unpublish takes the records from index on from the readers. It returns the segments that
// hold nothing else, and the one that is now the last with the size that it is to have.
func (l *Log) unpublish(index uint64) (gone []*segment, cut *segment, size int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := len(l.segs)
	for n > 1 && l.segs[n-1].base > index {
		n--
		l.bytes -= l.segs[n].size
	}
	gone = l.segs[n:]
	l.segs = append([]*segment(nil), l.segs[:n]...)
	cut = l.segs[n-1]
	if k := int(index - cut.base); k < len(cut.offsets) {
		l.bytes -= cut.size - int64(cut.offsets[k])
		cut.size = int64(cut.offsets[k])
		cut.offsets = cut.offsets[:k]
	}
	l.last = index - 1
	l.gen.Add(1)
	return gone, cut, cut.size
}

// cut shortens a file, durably.
func (o *ops) cut(path string, size int64) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	err = o.truncate(f, size)
	if err == nil {
		err = o.flush(f)
	}
	return errors.Join(err, f.Close())
}

// recreate replaces the log by an empty one that begins with index base. The new one is
// made beside the old; the rename of its directory decides which of them a crash leaves.
func (l *Log) recreate(base uint64) error {
	return l.replace(&segment{base: base}, base, base-1, nil)
}

// replace puts a new incarnation in the log's place, with one segment: seg, which holds records,
// of which those from first to last count. wmu is held.
func (l *Log) replace(seg *segment, first, last uint64, records []byte) error {
	st := l.synced
	st.first, st.synced, st.keep = first, last, 0
	if err := l.ops.createLog(l.o.Dir, l.n+1, seg.base, records, st); err != nil {
		return err
	}
	if err := errors.Join(l.w.Close(), l.active.Close(), l.state.Close()); err != nil {
		return err
	}
	l.w, l.active, l.state = nil, nil, nil
	l.dmu.Lock() // an earlier deletion may still be removing files of the old one
	defer l.dmu.Unlock()
	old, gone := l.dir, l.segs
	l.n++
	l.dir = filepath.Join(l.o.Dir, logDirName(l.n))
	l.synced = st
	seg.path = filepath.Join(l.dir, segmentName(seg.base))

	l.mu.Lock()
	l.segs = []*segment{seg}
	l.first, l.last, l.bytes = first, last, seg.size
	l.gen.Add(1)
	l.mu.Unlock()

	l.o.Logger.Info("the log is begun anew", zap.String("dir", l.dir), zap.Uint64("index", first), zap.String("removed", old))
	for _, s := range gone {
		l.files.forget(s)
	}
	if err := l.attach(); err != nil {
		return err
	}
	if err := l.ops.step("attached"); err != nil {
		return err
	}
	if err := os.RemoveAll(old); err != nil {
		return err
	}
	if err := l.ops.step("removed old log"); err != nil {
		return err
	}
	return l.ops.syncDir(l.o.Dir)
}
