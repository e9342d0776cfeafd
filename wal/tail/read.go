package tail

import (
	"errors"
	"fmt"
	"sort"
	"sync"

	"github.com/hashicorp/raft"
)

const (
	// windowSize is what a sequential reader reads ahead.
	windowSize = 256 << 10
	// windowRecord is the longest record that is read through the window.
	windowRecord = 32 << 10
)

// place is where a record is, as of one gen.
type place struct {
	seg  *segment
	at   int64
	size int   // of the record
	held int64 // durable bytes in the segment
	gen  uint64
}

// GetLog reads the entry of the given index into out, whose byte slices are then the
// caller's. It returns raft.ErrLogNotFound if the log does not hold the index. Every record
// is checked as it is read; one that is not what was written poisons the log, and the error
// wraps a *DamageError.
func (l *Log) GetLog(index uint64, out *raft.Log) error {
	defer l.report()
	for {
		p, err := l.find(index)
		if err != nil {
			return err
		}
		err = l.read(p, index, out)
		// What was read while records were deleted may be half of one record and half of
		// another, or not durable yet.
		if l.gen.Load() != p.gen {
			continue
		}
		if errors.Is(err, ErrClosed) {
			return err
		}
		if err != nil {
			return l.fail(err)
		}
		return nil
	}
}

// find looks up where a record is.
func (l *Log) find(index uint64) (place, error) {
	if err := l.failed(); err != nil {
		return place{}, err
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return place{}, ErrClosed
	}
	if index < l.first || index > l.last {
		return place{}, raft.ErrLogNotFound
	}
	i := sort.Search(len(l.segs), func(i int) bool { return l.segs[i].base > index }) - 1
	s := l.segs[i]
	k := int(index - s.base)
	p := place{seg: s, at: int64(s.offsets[k]), held: s.size, gen: l.gen.Load()}
	end := s.size
	if k+1 < len(s.offsets) {
		end = int64(s.offsets[k+1])
	}
	p.size = int(end - p.at)
	return p, nil
}

func (l *Log) read(p place, index uint64, out *raft.Log) error {
	if p.size <= windowRecord {
		done, err := l.forward.read(l.files, p, index, out)
		if done || err != nil {
			return err
		}
	}
	b := make([]byte, p.size)
	if err := l.files.readAt(p.seg, b, p.at); err != nil {
		return err
	}
	return decodeAt(b, p, index, out)
}

// decodeAt decodes the record in b, which was read from p. The slices of out are parts of b.
func decodeAt(b []byte, p place, index uint64, out *raft.Log) error {
	h, payload, size, problem := parseRecord(b, index)
	if problem == "" && size != p.size {
		problem = fmt.Sprintf("expected a record of %d bytes, found %d", p.size, size)
	}
	if problem != "" {
		return &DamageError{File: p.seg.path, Offset: p.at, Index: index, Reason: problem, Advice: adviceRestore}
	}
	decodePayload(h, payload, out)
	return nil
}

// window makes sequential reads of small records cheap: one read of the file serves many.
// It holds durable bytes only, which change only with gen.
type window struct {
	mu   sync.Mutex
	seg  *segment
	gen  uint64
	at   int64
	buf  []byte
	next uint64 // index that a sequential reader would ask for now
}

// read serves a record from the window, which it moves there if the reader is sequential.
// done is false if the record must be read directly: the reader is not, or another one is
// using the window.
func (w *window) read(files *handles, p place, index uint64, out *raft.Log) (done bool, err error) {
	if !w.mu.TryLock() {
		return false, nil
	}
	defer w.mu.Unlock()
	sequential := index == w.next
	w.next = index + 1
	off := p.at - w.at
	if w.seg != p.seg || w.gen != p.gen || off < 0 || off+int64(p.size) > int64(len(w.buf)) {
		if !sequential {
			return false, nil
		}
		if w.buf == nil {
			w.buf = make([]byte, 0, windowSize)
		}
		w.buf = w.buf[:min(windowSize, p.held-p.at)]
		w.seg, w.gen, w.at, off = p.seg, p.gen, p.at, 0
		if err := files.readAt(p.seg, w.buf, p.at); err != nil {
			w.seg = nil
			return false, err
		}
	}
	if err := decodeAt(w.buf[off:off+int64(p.size)], p, index, out); err != nil {
		return false, err
	}
	// The window is used again; what the caller keeps is not part of it.
	n := len(out.Data)
	if n+len(out.Extensions) > 0 {
		own := make([]byte, n+len(out.Extensions))
		copy(own, out.Data)
		copy(own[n:], out.Extensions)
		if n > 0 {
			out.Data = own[:n:n]
		}
		if out.Extensions != nil {
			out.Extensions = own[n:]
		}
	}
	return true, nil
}
