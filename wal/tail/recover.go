package tail

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"go.uber.org/zap"
)

// recovered is what the files hold after repair.
type recovered struct {
	segs        []*segment
	first, last uint64
}

// recover checks every record in l.dir and repairs the end of the last segment. It changes
// nothing before it knows that all else is sound. On return everything it found is durable,
// also what a killed process had written and not flushed: raft takes it for stored.
func (l *Log) recover() (recovered, error) {
	st, err := readState(l.dir)
	if err != nil {
		return recovered{}, err
	}
	if !st.exact {
		l.o.Logger.Warn("the log's state was damaged in one slot, the other is used",
			zap.String("file", filepath.Join(l.dir, stateName)))
	}
	segs, err := listSegments(l.dir)
	if err != nil {
		return recovered{}, err
	}
	// What is left of an interrupted deletion, at either end, is not looked at.
	front := 0
	for front < len(segs)-1 && segs[front+1].base <= st.first {
		front++
	}
	back := len(segs)
	for st.keep > 0 && back > front+1 && segs[back-1].base > st.keep {
		back--
	}
	gone := slices.Concat(segs[:front], segs[back:])
	segs = segs[front:back]
	if segs[0].base > st.first {
		return recovered{}, missingSegment(l.dir, st.first, segs[0].base)
	}
	end := len(segs) - 1
	if err := scanSealed(segs[:end]); err != nil {
		return recovered{}, err
	}
	for i, s := range segs[:end] {
		if next := segs[i+1]; s.next() != next.base {
			return recovered{}, brokenChain(s, next)
		}
	}
	last, err := l.recoverLast(segs[end], st)
	if err != nil {
		return recovered{}, err
	}
	if err := l.removeSegments(l.dir, gone); err != nil {
		return recovered{}, err
	}
	return recovered{segs: segs, first: st.first, last: last}, nil
}

// recoverLast checks and repairs the last segment and returns the log's last index.
func (l *Log) recoverLast(seg *segment, st state) (uint64, error) {
	b, err := readSegment(seg, nil)
	if err != nil {
		return 0, err
	}
	until := st.keep
	if until == 0 {
		until = math.MaxUint64
	}
	problem := seg.scan(b, until)
	last, whole := seg.next()-1, seg.size
	switch {
	case problem != "":
		boot := l.ops.boot()
		exact := st.exact && boot != [16]byte{} && boot == st.boot
		torn, why := judge(b, int(whole), last+1, st.synced, exact)
		if !torn {
			advice := adviceRestore
			if last+1 > st.synced {
				advice += fmt.Sprintf("; or, if the entries from index %d on may be lost, cut the file to %d bytes", last+1, whole)
			}
			return 0, &DamageError{File: seg.path, Offset: whole, Index: last + 1, Reason: problem + "; " + why, Advice: advice}
		}
		problem += "; " + why
	case whole < int64(len(b)):
		problem = "a deletion was interrupted"
	}
	if last < st.synced || last+1 < st.first {
		return 0, &DamageError{File: seg.path, Offset: whole, Index: last + 1, Advice: adviceRestore,
			Reason: fmt.Sprintf("expected entries up to index %d, which had been flushed, found the log's end: the end of this file or a later segment file is missing", max(st.synced, st.first-1))}
	}
	f, err := os.OpenFile(seg.path, os.O_RDWR, 0)
	if err != nil {
		return 0, fmt.Errorf("repair the log: %w", err)
	}
	err = l.repairLast(f, seg, b, st.synced, problem)
	if err := errors.Join(err, f.Close()); err != nil {
		return 0, fmt.Errorf("repair the log: %w", err)
	}
	return last, l.ops.syncDir(l.dir)
}

// repairLast cuts off what follows the last whole record, and makes the others durable.
func (l *Log) repairLast(f *os.File, seg *segment, b []byte, synced uint64, problem string) error {
	if cut := int64(len(b)) - seg.size; cut > 0 {
		l.o.Logger.Warn("cut off the end of the log, which was never acknowledged or was being deleted",
			zap.String("file", seg.path), zap.Int64("offset", seg.size), zap.Int64("bytes", cut),
			zap.Uint64("index", seg.next()), zap.String("reason", problem))
		if err := l.ops.truncate(f, seg.size); err != nil {
			return err
		}
	}
	// What the last process had not flushed is written once more: after a flush that failed
	// the kernel may hold pages that look clean and never reached the disk, and a flush now
	// would not write them.
	if from := max(synced+1, seg.base); from < seg.next() {
		at := int64(seg.offsets[from-seg.base])
		if _, err := f.WriteAt(b[at:seg.size], at); err != nil {
			return err
		}
	}
	return l.ops.flush(f)
}

// scanSealed checks segments that are not the last: each was flushed whole before the next
// was begun, so that anything wrong in them is damage.
func scanSealed(segs []*segment) error {
	var (
		workers = min(len(segs), runtime.GOMAXPROCS(0), 4)
		errs    = make([]error, len(segs))
		next    atomic.Int64
		wg      sync.WaitGroup
	)
	// The workers end when the segments do, which is before this function returns.
	for range workers {
		wg.Go(func() {
			var b []byte
			for i := int(next.Add(1)) - 1; i < len(segs); i = int(next.Add(1)) - 1 {
				b, errs[i] = readSegment(segs[i], b)
				if errs[i] != nil {
					continue
				}
				if problem := segs[i].scan(b, math.MaxUint64); problem != "" {
					errs[i] = &DamageError{File: segs[i].path, Offset: segs[i].size, Index: segs[i].next(), Reason: problem, Advice: adviceRestore}
				}
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// readSegment reads a whole segment file, into b if it is large enough.
func readSegment(s *segment, b []byte) ([]byte, error) {
	f, err := os.Open(s.path)
	if err != nil {
		return nil, fmt.Errorf("check the log: %w", err)
	}
	info, err := f.Stat()
	if err == nil {
		if size := info.Size(); int64(cap(b)) < size {
			b = make([]byte, size)
		} else {
			b = b[:size]
		}
		_, err = io.ReadFull(f, b)
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("check the log: %s: %w", s.path, err)
	}
	return b, nil
}

// scan finds the records of s, whose file holds b. It stops at the first that is not whole:
// that one would have index s.next() and begin at s.size. It does not look beyond index last.
func (s *segment) scan(b []byte, last uint64) (problem string) {
	for s.size < int64(len(b)) && s.next() <= last {
		if s.size > maxSegmentSize {
			return fmt.Sprintf("expected records to begin within the first %d bytes of a segment, found more", maxSegmentSize)
		}
		_, _, size, problem := parseRecord(b[s.size:], s.next())
		if problem != "" {
			return problem
		}
		s.offsets = append(s.offsets, uint32(s.size))
		s.size += int64(size)
	}
	return ""
}

// brokenChain describes two neighbouring segments whose indexes do not join.
func brokenChain(s, next *segment) error {
	if s.next() < next.base {
		return &DamageError{File: s.path, Offset: s.size, Index: s.next(), Advice: adviceRestore,
			Reason: fmt.Sprintf("expected the records up to index %d, where %s begins, found the file's end: the end of this file or a whole segment file is missing", next.base-1, filepath.Base(next.path))}
	}
	return &DamageError{File: s.path, Offset: s.size, Index: s.next(), Advice: adviceRestore,
		Reason: fmt.Sprintf("expected the next segment file to begin with index %d, found %s", s.next(), filepath.Base(next.path))}
}

func missingSegment(dir string, first, found uint64) error {
	return &DamageError{File: dir, Advice: adviceRestore,
		Reason: fmt.Sprintf("expected a segment file that holds index %d, the log's first, found none before index %d", first, found)}
}
