package inspect

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// lockShared keeps nodes, which lock the file for themselves alone, out of a directory. Several
// readers may hold it. nil: there is no such file, so no node ever had the directory open.
func lockShared(path string) (*os.File, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w: another process holds %s; stop the node, or look at a backup of it", ErrInUse, path)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return f, nil
}
