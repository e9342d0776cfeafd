package history

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/cockroachdb/pebble/v2/vfs/errorfs"

	"github.com/tidemark-db/tidemark/wal/record"
)

// TestGapsAreDamage: versions of a life and positions are dense, so a gap is never skipped.
func TestGapsAreDamage(t *testing.T) {
	s := open(t, Options{})
	commit(t, s, func(b *Batch) {
		for _, version := range []uint64{1, 2, 4, 5} {
			b.PutBatch(&record.BatchHeader{Key: key("1"), Incarnation: 1, Version: version, ClientID: "a"}, record.Hash{}, nil)
		}
		for _, first := range []uint64{1, 2, 4} {
			b.PutChanges(first, []Change{{Key: key("1"), Incarnation: 1, Version: first, Kind: ChangeBatch}})
		}
	})
	v := s.View()
	defer v.Release()
	for backward, want := range map[bool]string{false: "[1 2]", true: "[5 4]"} {
		it := v.Batches(key("1"), 1, 1, 0, backward)
		var got []uint64
		for it.Next() {
			got = append(got, it.Version())
		}
		if fmt.Sprint(got) != want {
			t.Errorf("read versions %v, want %s", got, want)
		}
		corrupt(t, it.Err())
		corrupt(t, it.Close())
	}
	var got []uint64
	var err error
	for e, e2 := range v.Positions(1) {
		if err = e2; err == nil {
			got = append(got, e.First)
		}
	}
	if fmt.Sprint(got) != "[1 2]" {
		t.Errorf("read positions %v, want 1 and 2", got)
	}
	corrupt(t, err)
}

// TestForeignKeysAndValues: what is out of form under a key of ours is damage to whoever reads
// it, and nobody else.
func TestForeignKeysAndValues(t *testing.T) {
	s := open(t, Options{})
	commit(t, s, func(b *Batch) { b.PutHead(key("0"), &Head{Version: 1}) })
	put := func(k []byte) {
		if err := s.db.Set(k, []byte("nonsense"), pebble.NoSync); err != nil {
			t.Fatal(err)
		}
	}
	put(appendHeadKey(nil, key("1")))
	put(appendRowKey(nil, key("1"), "w", 5, 1))
	put(append(appendWriterPrefix(nil, key("2"), "w"), "short"...))
	put(append(appendBatchKey(nil, key("1"), 1, 1), 1))
	put(appendPositionKey(nil, 9))
	commit(t, s, func(*Batch) {})
	v := s.View()
	defer v.Release()
	if h, ok, err := v.Head(key("0")); !ok || err != nil || h.Version != 1 {
		t.Errorf("the head beside the damage is %v, %t, %v", h, ok, err)
	}
	if mark, err := v.Mark(key("1"), "w"); mark != 5 || err != nil {
		t.Errorf("the mark, which is in the key, is %d, %v", mark, err)
	}
	_, _, err := v.Head(key("1"))
	corrupt(t, err)
	_, _, err = v.Row(key("1"), "w", 5, 1)
	corrupt(t, err)
	_, err = v.Mark(key("2"), "w")
	corrupt(t, err)
	it := v.Batches(key("1"), 1, 1, 0, false)
	if it.Next() {
		t.Error("a batch under a key that is too long")
	}
	corrupt(t, it.Close())
	last := func(seq iter.Seq2[Row, error]) (err error) {
		for _, err = range seq {
		}
		return err
	}
	corrupt(t, last(v.Rows(key("1"), "w", 5)))
	corrupt(t, last(v.Writers(key("1"), "")))
	corrupt(t, last(v.Writers(key("2"), "")))
	for _, err = range v.Aggregates("", key("0")) {
	}
	corrupt(t, err)
	for _, err = range v.Positions(1) {
	}
	corrupt(t, err)
}

// TestDirectoryInUse: two stores never share a directory.
func TestDirectoryInUse(t *testing.T) {
	dir := t.TempDir()
	open(t, Options{Dir: dir})
	if _, err := Open(Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), dir+" is in use (lock held by current process)") {
		t.Errorf("opened a second time: %v", err)
	}
}

// TestFullDisk: a flush that fails is reported once, loses nothing, and goes through once
// there is room.
func TestFullDisk(t *testing.T) {
	full := &errorfs.Toggle{Injector: errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileWrite && strings.HasSuffix(op.Path, ".sst") {
			return &os.PathError{Op: "write", Path: op.Path, Err: syscall.ENOSPC}
		}
		return nil
	})}
	reports := make(chan error, 1000)
	s := open(t, Options{
		Dir: "h", FS: errorfs.Wrap(vfs.NewMem(), full), OnBackgroundError: func(err error) { reports <- err },
	})
	commit(t, s, func(b *Batch) { b.PutHead(key("1"), &Head{Version: 7}) })
	full.On()
	flushed := make(chan error)
	go func() { flushed <- s.Flush() }()
	if err := <-reports; !errors.Is(err, syscall.ENOSPC) || errors.Is(err, record.ErrCorrupt) {
		t.Errorf("reported: %v", err)
	}
	v := s.View()
	if h, ok, err := v.Head(key("1")); !ok || err != nil || h.Version != 7 {
		t.Errorf("on the full disk the head is %v, %t, %v", h, ok, err)
	}
	v.Release()
	full.Off()
	if err := <-flushed; err != nil {
		t.Error(err)
	}
	// Each attempt writes to a file of its own, whose name is part of the error.
	t.Logf("%d more attempts failed", len(reports))
}

// TestNobodyWaitsForADiskThatStaysFull: an owner that takes a flush that fails for fatal is
// told so by all that waits for one, which Pebble goes on trying.
func TestNobodyWaitsForADiskThatStaysFull(t *testing.T) {
	for name, wait := range map[string]func(*Store) error{
		"Close": (*Store).Close, "Flush": (*Store).Flush, "Checkpoint": func(s *Store) error { return s.Checkpoint("c") },
	} {
		t.Run(name, func(t *testing.T) {
			full := &errorfs.Toggle{Injector: errorfs.InjectorFunc(func(op errorfs.Op) error {
				if op.Kind == errorfs.OpFileWrite && strings.HasSuffix(op.Path, ".sst") {
					return &os.PathError{Op: "write", Path: op.Path, Err: syscall.ENOSPC}
				}
				return nil
			})}
			fatal := make(chan error, 1)
			s, err := Open(Options{Dir: "h", FS: errorfs.Wrap(vfs.NewMem(), full), OnFatal: func(err error) { fatal <- err }})
			if err != nil {
				t.Fatal(err)
			}
			commit(t, s, func(b *Batch) { b.PutHead(key("1"), &Head{Version: 7}) })
			full.On()
			defer full.Off() // Pebble would try until the end of the tests
			returned := make(chan error, 1)
			go func() { returned <- wait(s) }() // ends with the store's answer, or with the test
			select {
			case err := <-returned:
				if !errors.Is(err, syscall.ENOSPC) {
					t.Errorf("returned %v", err)
				}
			case <-time.After(20 * time.Second):
				t.Fatal("waits for a flush that never ends")
			}
			if err := <-fatal; !errors.Is(err, syscall.ENOSPC) || !strings.HasPrefix(err.Error(), "history: flush or compaction in h: ") {
				t.Errorf("OnFatal got %v", err)
			}
			if err := s.Close(); !errors.Is(err, syscall.ENOSPC) {
				t.Errorf("Close after that: %v", err)
			}
		})
	}
}

// TestFatal: when Pebble cannot write its MANIFEST, the owner is told, and nothing touches
// Pebble after that.
func TestFatal(t *testing.T) {
	broken := &errorfs.Toggle{Injector: errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpFileSync && strings.Contains(op.Path, "MANIFEST") {
			return &os.PathError{Op: "sync", Path: op.Path, Err: syscall.EIO}
		}
		return nil
	})}
	fatal := make(chan error, 1)
	s, err := Open(Options{Dir: "h", FS: errorfs.Wrap(vfs.NewMem(), broken), OnFatal: func(err error) { fatal <- err }})
	if err != nil {
		t.Fatal(err)
	}
	commit(t, s, func(b *Batch) { b.PutHead(key("1"), &Head{Version: 7}) })
	broken.On()
	go func() { _ = s.Flush() }() // never returns: the flush stopped with the error
	want := "MANIFEST sync failed"
	if err := <-fatal; !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "the process must end") {
		t.Errorf("OnFatal got %v", err)
	}
	b := s.NewBatch()
	b.SetApplied(Applied{Index: 2})
	v := s.View()
	defer v.Release()
	_, _, errHead := v.Head(key("1"))
	for name, err := range map[string]error{"Commit": s.Commit(b), "Flush": s.Flush(), "Close": s.Close(), "Head": errHead} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s after that: %v", name, err)
		}
	}
}

// TestBlobFileThatCannotBeWritten: Pebble would dereference nil after an error of a blob
// file's last write or flush. The owner is told instead.
func TestBlobFileThatCannotBeWritten(t *testing.T) {
	for name, tc := range map[string]struct {
		kinds []errorfs.OpKind
		err   error
	}{
		"no room":            {[]errorfs.OpKind{errorfs.OpFileWrite}, syscall.ENOSPC},
		"a flush that fails": {[]errorfs.OpKind{errorfs.OpFileSync, errorfs.OpFileSyncData, errorfs.OpFileSyncTo}, syscall.EIO},
	} {
		t.Run(name, func(t *testing.T) {
			broken := &errorfs.Toggle{Injector: errorfs.InjectorFunc(func(op errorfs.Op) error {
				if slices.Contains(tc.kinds, op.Kind) && strings.HasSuffix(op.Path, blobExt) {
					return &os.PathError{Op: "test", Path: op.Path, Err: tc.err}
				}
				return nil
			})}
			fatal := make(chan error, 1)
			s, err := Open(Options{Dir: "h", FS: errorfs.Wrap(vfs.NewMem(), broken), OnFatal: func(err error) { fatal <- err }})
			if err != nil {
				t.Fatal(err)
			}
			commit(t, s, func(b *Batch) {
				h := &record.BatchHeader{Key: key("1"), Incarnation: 1, Version: 1, Position: 1, CommitFirst: 1, CommitCount: 1, ClientID: "a", FirstEventNumber: 1, EventCount: 1}
				b.PutBatch(h, record.Hash{}, bytes.Repeat([]byte("x"), 4*separateFrom))
			})
			broken.On()
			go func() { _ = s.Flush() }() // never returns: the flush stopped with the error
			if err := <-fatal; !errors.Is(err, tc.err) || !strings.Contains(err.Error(), blobExt) || !strings.Contains(err.Error(), "the process must end") {
				t.Errorf("OnFatal got %v", err)
			}
			if err := s.Close(); !errors.Is(err, tc.err) {
				t.Errorf("Close after that: %v", err)
			}
		})
	}
}

// TestOpenDoesNotWaitForCompactions: a store with much to compact opens before the compaction
// that starts then is done. Pebble used to wait for it, because it found an empty log of its
// own, flushed that, and started the compaction too early.
func TestOpenDoesNotWaitForCompactions(t *testing.T) {
	fs := vfs.NewMem()
	s, err := Open(Options{Dir: "h", FS: fs, tune: func(p *pebble.Options) { p.DisableAutomaticCompactions = true }})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorkload(2)
	b := s.NewBatch()
	for range 8 {
		w.commit(t, s, b, 5)
		if err := s.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}

	began, opened := make(chan struct{}, 1), make(chan struct{})
	finish := sync.OnceFunc(func() { close(opened) })
	slow := errorfs.Wrap(fs, errorfs.InjectorFunc(func(op errorfs.Op) error {
		if op.Kind == errorfs.OpCreate && strings.HasSuffix(op.Path, ".sst") {
			select {
			case began <- struct{}{}:
			default:
			}
			<-opened
		}
		return nil
	}))
	result := make(chan error, 1)
	go func() {
		s, err := Open(Options{Dir: "h", FS: slow})
		if err == nil {
			<-began // it did have something to compact
			finish()
			err = s.Close()
		}
		result <- err
	}()
	select {
	case err := <-result:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("Open waits for a compaction, or none began")
		finish()
		<-result
	}
}
