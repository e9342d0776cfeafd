package importer

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
)

func TestLanesKeepAnAggregatesUnitsInOrderAndOneAtATime(t *testing.T) {
	l := newLanes()
	for line, aggregate := range []string{"a", "a", "b", "a", "b"} {
		l.add(&unit{line: int64(line), aggregate: aggregate})
	}
	l.close()
	take := func(want int64) *unit {
		t.Helper()
		u, ok := l.take()
		if !ok || u.line != want {
			t.Fatalf("took %v, %v; want line %d", u, ok, want)
		}
		return u
	}
	a0 := take(0)
	b2 := take(2)
	l.done(b2)
	b4 := take(4)
	l.done(a0)
	a1 := take(1)
	l.done(a1)
	l.done(take(3))
	l.done(b4)
	if u, ok := l.take(); ok {
		t.Errorf("took %v after the last; want none", u)
	}
}

func TestLanesHoldABoundedAmount(t *testing.T) {
	for _, c := range []struct{ size, want int }{
		{1, maxWaiting},
		{maxWaitingBytes / 4, 4},
		{maxWaitingBytes * 2, 1}, // one too large for the bound still goes through, alone
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			l := newLanes()
			defer l.stopWith(ctx)()
			added, refusedAdd := 0, false
			go func() { // ends with the lanes
				for l.add(&unit{aggregate: "a", size: c.size}) {
					added++
				}
				refusedAdd = true
			}()
			synctest.Wait()
			if added != c.want {
				t.Errorf("size %d: %d added; want %d", c.size, added, c.want)
			}
			u, _ := l.take()
			l.done(u)
			synctest.Wait()
			if added != c.want+1 {
				t.Errorf("size %d: %d added after one was done; want one more than %d", c.size, added, c.want)
			}
			cancel()
			synctest.Wait()
			if _, ok := l.take(); ok || !refusedAdd {
				t.Errorf("size %d: after the end take gives %v, add refuses %v; want false, true", c.size, ok, refusedAdd)
			}
		})
	}
}

func TestIdleWorkersAreWokenForEveryReadyUnit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLanes()
		got := make(chan string, 8)
		for range 4 {
			go func() { // ends when the lanes are empty and closed
				for {
					u, ok := l.take()
					if !ok {
						got <- "end"
						return
					}
					got <- u.aggregate
					l.done(u)
				}
			}()
		}
		synctest.Wait()
		for _, aggregate := range []string{"a", "b", "b", "c"} {
			l.add(&unit{aggregate: aggregate})
		}
		synctest.Wait()
		l.close()
		synctest.Wait()
		close(got)
		all := slices.Sorted(func(yield func(string) bool) {
			for s := range got {
				if !yield(s) {
					return
				}
			}
		})
		if want := []string{"a", "b", "b", "c", "end", "end", "end", "end"}; !slices.Equal(all, want) {
			t.Errorf("workers saw %q; want %q", all, want)
		}
	})
}

func TestAnIdleWorkerIsWokenForTheNextUnitOfAnAggregate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLanes()
		l.add(&unit{line: 1, aggregate: "a"})
		l.add(&unit{line: 2, aggregate: "a"})
		first, _ := l.take()
		var second *unit
		go func() { second, _ = l.take() }() // ends with the unit that done makes ready
		synctest.Wait()
		if second != nil {
			t.Fatalf("took line %d while line 1 is being worked on", second.line)
		}
		l.done(first)
		synctest.Wait()
		if second == nil || second.line != 2 {
			t.Errorf("took %v; want line 2", second)
		}
	})
}
