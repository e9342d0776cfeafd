package history

import (
	"errors"
	"testing"
	"time"
)

// A store that is given up serves the views of it to the end, and is closed when the last of
// them is released: its directory can be opened then, and holds what a crash would have left.
func TestRetiredStoreServesItsViewsToTheEnd(t *testing.T) {
	dir := t.TempDir()
	o := Options{Dir: dir, BlockCacheBytes: 1 << 20, MemTableBytes: 1 << 20, OnFatal: func(err error) { t.Error(err) }}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	w := newWorkload(1)
	b := s.NewBatch()
	w.commit(t, s, b, 50)
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	flushed := s.Applied().Index
	old := s.View()
	check := func(v *View) {
		t.Helper()
		if err := w.check(v); err != nil {
			t.Fatal(err)
		}
	}
	w.commit(t, s, b, 50)
	newer := s.View()

	done := make(chan error, 1)
	s.Retire(func(err error) { done <- err })
	if err := s.Commit(b); !errors.Is(err, ErrClosed) {
		t.Fatalf("commit to a retired store: %v, want ErrClosed", err)
	}
	late := s.View()
	if _, _, err := late.Head(key("1")); !errors.Is(err, ErrClosed) {
		t.Fatalf("read of a view of a retired store: %v, want ErrClosed", err)
	}
	late.Release()
	check(old)
	check(newer)
	newer.Release()
	if err := s.Close(); !errors.Is(err, ErrViewsHeld) {
		t.Fatalf("close with a view held: %v, want ErrViewsHeld", err)
	}
	if _, err := Open(o); err == nil {
		t.Fatal("the directory was opened while a view of the store is held")
	}
	check(old)
	select {
	case err := <-done:
		t.Fatalf("it ended (%v) while a view is held", err)
	default:
	}
	old.Release()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("done was not called")
	}
	s, err = Open(o)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.Applied().Index; got != flushed {
		t.Errorf("opened at index %d, want %d as flushed", got, flushed)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}
