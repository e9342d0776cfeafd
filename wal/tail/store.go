package tail

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	"github.com/tidwall/wal"
)

// chunkSize bounds what one write hands to tidwall, which copies it twice; a longer batch
// is several writes and still one flush.
const chunkSize = 4 << 20

// span is the records that a batch adds to one segment.
type span struct {
	seg     *segment
	offsets []uint32
	size    int64 // of the segment after them
}

// StoreLog stores one entry, see StoreLogs.
func (l *Log) StoreLog(entry *raft.Log) error { return l.StoreLogs([]*raft.Log{entry}) }

// StoreLogs appends entries of consecutive indexes and returns when they are durable. Their
// first index must follow the log's last. A higher one, or any on an empty log, is what
// raft stores after it restored a snapshot: the log is begun anew there. A lower one is an
// error that changes nothing.
//
// After an error that wraps ErrPoisoned the entries may or may not be in the log when it is
// opened again; after any other they are not.
func (l *Log) StoreLogs(entries []*raft.Log) error {
	defer l.report()
	l.wmu.Lock()
	defer l.wmu.Unlock()
	if err := l.failed(); err != nil {
		return err
	}
	if l.isClosed() {
		return ErrClosed
	}
	if len(entries) == 0 {
		return nil
	}
	start := entries[0].Index
	for i, e := range entries {
		if e.Index != start+uint64(i) || e.Index == 0 {
			return fmt.Errorf("store in the log: expected consecutive indexes from %d, found %d at place %d", start, e.Index, i)
		}
		if n := frameLen(e) - headerSize; n > maxPayload {
			return fmt.Errorf("store in the log: expected an entry of at most %d bytes, found %d at index %d", maxPayload, n, e.Index)
		}
	}
	// Only holders of wmu change first and last: reading them here needs no other lock.
	if start != l.last+1 {
		if start <= l.last && l.first <= l.last {
			return fmt.Errorf("store in the log: expected index %d, found %d, which is stored already: delete from there first", l.last+1, start)
		}
		if err := l.recreate(start); err != nil {
			return l.fail(fmt.Errorf("begin the log anew at index %d: %w", start, err))
		}
	}
	if err := l.append(entries); err != nil {
		return l.fail(fmt.Errorf("store indexes %d to %d in the log: %w", start, start+uint64(len(entries))-1, err))
	}
	return nil
}

// append writes, flushes and publishes a batch.
func (l *Log) append(entries []*raft.Log) error {
	l.plan(entries)
	if err := l.write(entries); err != nil {
		return err
	}
	cycled := len(l.pending) > 1
	if err := l.checkWritten(cycled); err != nil {
		return err
	}
	bytes := 0
	for _, p := range l.pending {
		bytes += int(p.size - p.seg.size)
	}
	began := time.Now()
	// The last segment holds all that is not flushed: tidwall flushes a segment before it
	// begins the next.
	if len(l.pending[len(l.pending)-1].offsets) > 0 {
		if err := l.ops.flush(l.active); err != nil {
			return err
		}
	}
	if cycled {
		if err := l.ops.syncDir(l.dir); err != nil {
			return err
		}
	}
	took := time.Since(began)
	l.synced.synced = entries[len(entries)-1].Index
	if err := writeSynced(l.state, l.synced); err != nil {
		return err
	}
	l.publish(bytes)
	if cycled {
		// Frees tidwall's copy of the segment before.
		if err := l.w.ClearCache(); err != nil {
			return err
		}
	}
	if l.o.OnSync != nil {
		l.o.OnSync(took, bytes)
	}
	return nil
}

// plan works out which segment and offset tidwall will give each entry, into l.pending.
// checkWritten compares that with the files.
func (l *Log) plan(entries []*raft.Log) {
	seg := l.segs[len(l.segs)-1]
	l.pending = append(l.pending[:0], span{seg: seg, size: seg.size})
	begin := func(base uint64) {
		seg := &segment{base: base, path: filepath.Join(l.dir, segmentName(base))}
		l.pending = append(l.pending, span{seg: seg})
	}
	// Only a log opened with a smaller segment size than before has such a segment.
	if seg.size > int64(l.o.SegmentSize) {
		begin(entries[0].Index)
	}
	for _, e := range entries {
		p := &l.pending[len(l.pending)-1]
		p.offsets = append(p.offsets, uint32(p.size))
		n := frameLen(e)
		p.size += int64(prefixLen(n) + n)
		if p.size >= int64(l.o.SegmentSize) {
			begin(e.Index + 1)
		}
	}
}

// write hands the entries to tidwall. No two new segments are ever begun without a flush of
// the directory in between: a power loss could keep the name of the later one alone, which
// looks like a segment that was removed.
func (l *Log) write(entries []*raft.Log) error {
	batch, held := entries[0].Index, 0
	at, left := 0, len(l.pending[0].offsets) // the entry's segment, and entries to come in it
	for i, e := range entries {
		for left == 0 {
			at++
			left = len(l.pending[at].offsets)
		}
		left--
		begins := left == 0 && at < len(l.pending)-2 // a segment that is not the batch's last
		l.frame = appendFrame(l.frame[:0], e, batch)
		l.batch.Write(e.Index, l.frame)
		held += len(l.frame)
		if held < chunkSize && i < len(entries)-1 && !begins {
			continue
		}
		if err := l.ops.write(l.w, l.batch); err != nil {
			return fmt.Errorf("write to %s: %w", l.dir, err)
		}
		if begins {
			if err := l.ops.syncDir(l.dir); err != nil {
				return err
			}
		}
		if held > 2*chunkSize {
			// One huge entry must not keep its memory for ever.
			l.batch, l.frame = new(wal.Batch), nil
		}
		held = 0
	}
	return nil
}

// checkWritten opens the last segment if it is a new one, and compares the size of what was
// written with the plan.
func (l *Log) checkWritten(cycled bool) error {
	last := l.pending[len(l.pending)-1]
	if cycled {
		f, err := os.OpenFile(last.seg.path, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		if err := l.active.Close(); err != nil {
			return err
		}
		l.active = f
	}
	for i, p := range l.pending {
		var info os.FileInfo
		var err error
		if i == len(l.pending)-1 {
			info, err = l.active.Stat()
		} else {
			info, err = os.Stat(p.seg.path)
		}
		if err != nil {
			return err
		}
		if info.Size() != p.size {
			return fmt.Errorf("expected %s to have %d bytes after the write, found %d", p.seg.path, p.size, info.Size())
		}
	}
	return nil
}

// publish lets readers see the batch.
func (l *Log) publish(bytes int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, p := range l.pending {
		if i > 0 {
			l.segs = append(l.segs, p.seg)
		}
		p.seg.offsets = append(p.seg.offsets, p.offsets...)
		p.seg.size = p.size
	}
	l.last = l.synced.synced
	l.bytes += int64(bytes)
	clear(l.pending)
}
