package tail

import (
	"fmt"
	"os"
	"syscall"
)

// flushFile makes a file's data and size durable. Unlike fsync, fdatasync leaves out times,
// which no reader of the log looks at.
func flushFile(f *os.File) error {
	c, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("flush %s: %w", f.Name(), err)
	}
	var failed error
	if err := c.Control(func(fd uintptr) {
		for {
			// EINTR comes before the flush has begun; any other error is final.
			if failed = syscall.Fdatasync(int(fd)); failed != syscall.EINTR {
				return
			}
		}
	}); err != nil {
		failed = err
	}
	if failed != nil {
		return fmt.Errorf("flush %s: %w", f.Name(), failed)
	}
	return nil
}
