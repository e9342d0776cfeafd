package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.uber.org/zap"
)

// stallWatch looks for a disk that no longer answers. A flush that hangs returns no error,
// and a node that waits for one keeps its lease and its clients for ever; ending it lets
// the others elect, and tells the operator.
type stallWatch struct {
	// timeout is how long one probe may take.
	timeout time.Duration
	// probe does what the log does: write and flush.
	probe func() error
	log   *zap.Logger
}

// probeTicks is how many ticks make a timeout. Time is counted in ticks, because they are lost
// while this process does not run: a pause (SIGSTOP, a virtual machine that is moved) is not
// the disk's, and what waited through it gets the rest of the timeout to be answered.
const probeTicks = 8

// watch probes until ctx is done, four times per timeout. It returns an error if a probe
// does not return in time; that probe's goroutine is left behind, since nothing can stop it.
func (w *stallWatch) watch(ctx context.Context) error {
	ticker := time.NewTicker(w.timeout / probeTicks)
	defer ticker.Stop()
	failed := false
	for {
		for range probeTicks / 4 {
			select {
			case <-ctx.Done():
				return nil
			case <-ticker.C:
			}
		}
		done := make(chan error, 1)
		go func() { done <- w.probe() }() // ends with the disk operation
		for ticks, answered := 0, false; !answered; {
			select {
			case err := <-done:
				answered = true
				// That writes fail is for the log to find out and to act on.
				if (err != nil) != failed {
					failed = err != nil
					w.log.Warn("the disk's probe changed", zap.Bool("failed", failed), zap.Error(err))
				}
			case <-ticker.C:
				if ticks++; ticks > probeTicks {
					return fmt.Errorf("the disk does not answer: expected a small write and flush within %v (disk-stall-timeout), found it still waiting", w.timeout)
				}
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// probeFile is the file that probes are written to.
const probeFile = "disk-probe"

// diskProbe returns a probe that writes to one small file in dir and flushes it.
func diskProbe(dir string) func() error {
	path := filepath.Join(dir, probeFile)
	return func() error {
		f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			return err
		}
		_, err = f.WriteAt([]byte("probe\n"), 0)
		if err == nil {
			err = f.Sync()
		}
		if closeErr := f.Close(); err == nil {
			err = closeErr
		}
		return err
	}
}
