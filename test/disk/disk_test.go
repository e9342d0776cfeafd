package disk

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

func write(d *Disk, name string, size int) error {
	return os.WriteFile(filepath.Join(d.Dir, name), make([]byte, size), 0o600)
}

func TestADiskFillsUpAndIsEmptiedAgain(t *testing.T) {
	d := New(t, t.TempDir(), "d", 64<<20)
	d.Fill(t, 8<<20)
	if err := write(d, "a", 2<<20); err != nil {
		t.Errorf("with 8 MiB left: %v", err)
	}
	d.Fill(t, 0)
	if err := write(d, "b", 2<<20); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("on a full disk: %v, expected ENOSPC", err)
	}
	d.Empty(t)
	if err := write(d, "b", 2<<20); err != nil {
		t.Errorf("with room again: %v", err)
	}
}

func TestAFrozenDiskAnswersAfterTheThaw(t *testing.T) {
	d := New(t, t.TempDir(), "d", 64<<20)
	d.Freeze(t)
	done := make(chan error, 1)
	go func() { done <- write(d, "a", 1) }() // ends after the thaw
	select {
	case err := <-done:
		t.Errorf("a write on a frozen disk returned (%v)", err)
	case <-time.After(100 * time.Millisecond):
	}
	d.Thaw(t)
	if err := <-done; err != nil {
		t.Error(err)
	}
}
