//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package stable

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	berrors "go.etcd.io/bbolt/errors"
)

// lockFile takes the lock that bbolt will take, and waits for it like bbolt, which tries
// every 50 ms: there is no call that waits for a lock with a limit.
func lockFile(f *os.File, timeout time.Duration) error {
	const interval = 50 * time.Millisecond
	deadline := time.Now().Add(timeout)
	for {
		err := flock(f)
		if err == nil || !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		if time.Until(deadline) < 0 {
			return berrors.ErrTimeout
		}
		<-time.After(min(interval, timeout))
	}
}

func flock(f *os.File) error {
	c, err := f.SyscallConn()
	if err != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), err)
	}
	var failed error
	if err := c.Control(func(fd uintptr) {
		failed = syscall.Flock(int(fd), syscall.LOCK_EX|syscall.LOCK_NB)
	}); err != nil {
		failed = err
	}
	if failed != nil {
		return fmt.Errorf("lock %s: %w", f.Name(), failed)
	}
	return nil
}
