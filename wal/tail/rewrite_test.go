package tail

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestRewriteLeavesNoByteOfDeletedEntries: at every index, whichever segment that lies in, what
// was deleted is in no file, what was kept is there, before and after Open, and can be appended
// to.
func TestRewriteLeavesNoByteOfDeletedEntries(t *testing.T) {
	t.Parallel()
	all := entries(1, 40, 1)
	for first := uint64(1); first <= 41; first++ {
		dir := t.TempDir()
		l := mustOpen(t, dir)
		mustStore(t, l, all)
		if first > 1 {
			if err := l.DeleteRange(1, first-1); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Rewrite(); err != nil {
			t.Fatalf("from %d: %v", first, err)
		}
		wantLog(t, l, all[first-1:])
		more := entries(41, 60, 1)
		mustStore(t, l, more)
		want := append(all[first-1:len(all):len(all)], more...)
		wantLog(t, l, want)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		wantLog(t, mustOpen(t, dir), want)
		for _, e := range all[:first-1] {
			if len(e.Data) < 8 {
				continue
			}
			for _, file := range segmentFiles(t, dir) {
				content, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				if bytes.Contains(content, e.Data) {
					t.Fatalf("from %d: entry %d is still in %s", first, e.Index, filepath.Base(file))
				}
			}
		}
	}
}

// TestRewriteOnAFullDiskLeavesTheLogInUse: whoever compacts may do so because the disk is full. The
// copy that finds no room is gone, the log goes on as it was, and is rewritten once there is room.
func TestRewriteOnAFullDiskLeavesTheLogInUse(t *testing.T) {
	t.Parallel()
	full := map[string]func(*ops){
		"created directory": func(o *ops) { failStep(o, "created directory", syscall.ENOSPC) },
		"records":           func(o *ops) { o.flush = func(*os.File) error { return syscall.ENOSPC } },
		"quota":             func(o *ops) { o.flush = func(*os.File) error { return syscall.EDQUOT } },
		"filled directory":  func(o *ops) { failStep(o, "filled directory", syscall.ENOSPC) },
	}
	for name, fill := range full {
		dir, o := t.TempDir(), realOps()
		fatal := error(nil)
		l := mustOpenWith(t, Options{Dir: dir, SegmentSize: small, OnFatal: func(err error) { fatal = err }}, o)
		all := entries(1, 40, 1)
		mustStore(t, l, all)
		if err := l.DeleteRange(1, 16); err != nil {
			t.Fatal(err)
		}
		fill(o)
		if err := l.Rewrite(); !errors.Is(err, ErrNoRoom) {
			t.Fatalf("%s: expected ErrNoRoom, got %v", name, err)
		}
		*o = *realOps()
		if left, err := filepath.Glob(filepath.Join(dir, "*"+newSuffix)); err != nil || len(left) > 0 || fatal != nil {
			t.Fatalf("%s: left %v, %v; fatal: %v", name, left, err, fatal)
		}
		wantLog(t, l, all[16:])
		more := entries(41, 60, 1)
		mustStore(t, l, more)
		if err := l.Rewrite(); err != nil {
			t.Fatalf("%s: again: %v", name, err)
		}
		want := append(all[16:len(all):len(all)], more...)
		wantLog(t, l, want)
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		wantLog(t, mustOpen(t, dir), want)
	}
}

// TestRewriteCutShortKeepsEveryEntry: wherever the process ends, or another error than a full disk
// is met, the log refuses to go on, and holds all of its entries when it is opened again.
func TestRewriteCutShortKeepsEveryEntry(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"created directory", "filled directory", "renamed directory", "attached", "removed old log"} {
		for _, cause := range []error{errDisk, syscall.ENOSPC} {
			if errors.Is(cause, syscall.ENOSPC) && step != "renamed directory" {
				continue // from there on a full disk is as bad as any
			}
			dir, o := t.TempDir(), realOps()
			l := mustOpenWith(t, Options{Dir: dir, SegmentSize: small}, o)
			all := entries(1, 40, 1)
			mustStore(t, l, all)
			if err := l.DeleteRange(1, 16); err != nil {
				t.Fatal(err)
			}
			failStep(o, step, cause)
			if err := l.Rewrite(); !errors.Is(err, ErrPoisoned) || !errors.Is(err, cause) {
				t.Fatalf("%s: expected a poisoned log because of %v, got %v", step, cause, err)
			}
			if err := l.StoreLogs(entries(41, 41, 1)); !errors.Is(err, ErrPoisoned) {
				t.Fatalf("%s: an append after it: %v", step, err)
			}
			_ = l.Close()
			again := mustOpen(t, dir)
			wantLog(t, again, all[16:])
			mustStore(t, again, entries(41, 41, 1))
		}
	}
}

// failStep makes one step fail.
func failStep(o *ops, name string, err error) {
	o.step = func(s string) error {
		if s == name {
			return err
		}
		return nil
	}
}
