package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"time"
)

// FsyncOptions says what to write.
type FsyncOptions struct {
	// Dir is where the file is made; it is removed afterwards.
	Dir string
	// Size is how much is appended before each flush.
	Size     int
	Duration time.Duration
}

// Validate checks the options; errors name the flag.
func (o *FsyncOptions) Validate() error {
	switch {
	case o.Dir == "":
		return errors.New("--dir is missing")
	case o.Size < 1 || o.Size > MaxSize:
		return fmt.Errorf("--size: expected 1 to %d bytes, found %d", MaxSize, o.Size)
	case o.Duration <= 0:
		return errors.New("--duration: expected a time above 0")
	}
	return nil
}

// Fsync appends to a growing file and flushes it (fdatasync where the system has it), one
// writer, and measures an append and its flush together.
func Fsync(ctx context.Context, opts FsyncOptions) (Result, error) {
	if err := opts.Validate(); err != nil {
		return Result{}, err
	}
	file, err := os.CreateTemp(opts.Dir, "tidemark-bench-fsync-*")
	if err != nil {
		return Result{}, fmt.Errorf("--dir: %w", err)
	}
	defer func() {
		_ = file.Close()
		_ = os.Remove(file.Name())
	}()
	data := make([]byte, opts.Size)
	_, _ = rand.Read(data) // does not fail
	var latency histogram
	start := time.Now()
	now := start
	for now.Sub(start) < opts.Duration && ctx.Err() == nil {
		sent := now
		if _, err := file.Write(data); err != nil {
			return Result{}, fmt.Errorf("append to %s: %w", file.Name(), err)
		}
		if err := flush(file); err != nil {
			return Result{}, fmt.Errorf("flush %s: %w", file.Name(), err)
		}
		now = time.Now()
		latency.record(now.Sub(sent))
	}
	return newResult(&latency, map[string]uint64{}, now.Sub(start)), nil
}
