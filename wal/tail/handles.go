package tail

import (
	"errors"
	"fmt"
	"os"
	"sync"
)

// maxHandles bounds the segment files that are open for reading.
const maxHandles = 16

// handles keeps the most recently read segment files open.
type handles struct {
	mu     sync.Mutex
	open   []handle // most recently used last
	closed bool
}

type handle struct {
	seg *segment
	f   *os.File
}

func newHandles() *handles { return &handles{} }

// readAt fills b from seg at offset at. It holds no lock while reading: an os.File that is
// closed under a reader lets it finish, and refuses only reads that begin after that. Such a
// one opens the file again.
func (h *handles) readAt(seg *segment, b []byte, at int64) error {
	for {
		f, err := h.get(seg)
		if err != nil {
			return err
		}
		n, err := f.ReadAt(b, at)
		switch {
		case n == len(b):
			return nil
		case !errors.Is(err, os.ErrClosed):
			return fmt.Errorf("read %d bytes at offset %d of %s: %w", len(b), at, seg.path, err)
		}
	}
}

// get returns the open file of seg.
func (h *handles) get(seg *segment) (*os.File, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return nil, ErrClosed
	}
	for i := len(h.open) - 1; i >= 0; i-- {
		if found := h.open[i]; found.seg == seg {
			copy(h.open[i:], h.open[i+1:])
			h.open[len(h.open)-1] = found
			return found.f, nil
		}
	}
	f, err := os.Open(seg.path)
	if err != nil {
		return nil, fmt.Errorf("open a segment: %w", err)
	}
	if len(h.open) == maxHandles {
		h.close(0)
	}
	h.open = append(h.open, handle{seg, f})
	return f, nil
}

// close closes the i-th file. An error of closing a file that was only read tells nothing.
func (h *handles) close(i int) {
	_ = h.open[i].f.Close()
	h.open = append(h.open[:i], h.open[i+1:]...)
}

// forget closes the file of seg, which is about to be removed.
func (h *handles) forget(seg *segment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range h.open {
		if h.open[i].seg == seg {
			h.close(i)
			return
		}
	}
}

// closeAll closes everything; reads fail from now on.
func (h *handles) closeAll() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for len(h.open) > 0 {
		h.close(len(h.open) - 1)
	}
}
