package replication

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// feedRig is a feed on a history that a test writes, one change after the other.
type feedRig struct {
	t       *testing.T
	store   *history.Store
	feed    *Feed
	stopped chan struct{}
	batch   *history.Batch
	version map[record.Key]uint64
	all     []LogChange // what was committed; position i+1 is at i
}

func newFeedRig(t *testing.T, ringBytes int64, ringChanges int) *feedRig {
	t.Helper()
	store, err := history.Open(history.Options{Dir: "history", FS: vfs.NewMem(), BlockCacheBytes: 1 << 20, MemTableBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	r := &feedRig{t: t, store: store, stopped: make(chan struct{}), batch: store.NewBatch(), version: map[record.Key]uint64{}}
	r.feed = NewFeed(FeedOptions{
		RingBytes: ringBytes, RingChanges: ringChanges, View: store.View, Leader: func() string { return "" }, Stopped: r.stopped,
	})
	ran := make(chan struct{})
	go func() { // ends with the test
		defer close(ran)
		r.feed.Run()
	}()
	t.Cleanup(func() {
		close(r.stopped)
		<-ran
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// commit commits a batch of each of these aggregates, and publishes them as one step.
func (r *feedRig) commit(keys ...record.Key) {
	r.batch.Reset()
	position := r.store.Applied().Position
	var step []LogChange
	var changes []history.Change
	for i, k := range keys {
		position++
		r.version[k]++
		c := history.Change{Key: k, Incarnation: 1, Version: r.version[k], Kind: history.ChangeBatch}
		r.batch.PutBatch(&record.BatchHeader{Key: k, Incarnation: 1, Version: c.Version, Position: position, ClientID: "w"}, record.Hash{}, nil)
		r.batch.PutHead(k, &history.Head{Version: c.Version, Incarnation: 1, Floor: 1})
		changes = append(changes, c)
		step = append(step, LogChange{Change: c, Position: position, Created: c.Version == 1, Stored: slices.Clone(r.batch.Stored(i))})
	}
	r.batch.PutChanges(step[0].Position, changes)
	r.batch.SetApplied(history.Applied{Index: r.store.Applied().Index + 1, Position: position, Timeline: simTimeline})
	if err := r.store.Commit(r.batch); err != nil {
		r.t.Error(err)
	}
	r.all = append(r.all, step...)
	r.feed.Publish(step)
}

// follow reads what the scope holds of the positions from next to last, as a subscription does:
// from the ring, or from the history what that does not hold. It counts each way.
func follow(f *Follower, within func(*history.Change) bool, next, last uint64, size func() int) (got []string, ring, stored int, err error) {
	note := func(position uint64, c *history.Change, batch []byte) error {
		h, _, _, _, err := record.ParseBatch(batch)
		if err != nil || h.Position != position || h.Key != c.Key || h.Version != c.Version {
			return fmt.Errorf("position %d is %s %d: found %s %d at %d, %v", position, c.Key, c.Version, h.Key, h.Version, h.Position, err)
		}
		got = append(got, fmt.Sprintf("%d %s %d", position, c.Key, c.Version))
		return nil
	}
	for {
		from, to := f.Poll(next)
		if from < next {
			return got, ring, stored, fmt.Errorf("at %d, Poll goes back to %d", next, from)
		}
		for next = from; next <= to; {
			items, after, ok := f.Recent(nil, next, to, size(), within)
			for i := range items {
				ring++
				if err := note(items[i].Position, &items[i].Change, items[i].Stored); err != nil {
					return got, ring, stored, err
				}
			}
			if ok {
				next = after
				continue
			}
			v := f.View()
			err := func() error {
				defer v.Release()
				n := 0
				for e, err := range v.Positions(next) {
					if err != nil {
						return err
					}
					for i := range e.Changes {
						p := e.First + uint64(i)
						if p > to || n > 20 {
							return nil
						}
						n, next = n+1, p+1
						if c := &e.Changes[i]; within(c) {
							stored++
							b, _, err := v.Batch(c.Key, c.Incarnation, c.Version)
							if err != nil {
								return err
							}
							if err := note(p, c, b); err != nil {
								return err
							}
						}
					}
				}
				return nil
			}()
			if err != nil {
				return got, ring, stored, err
			}
		}
		if next > last {
			return got, ring, stored, nil
		}
		select {
		case <-f.Wake():
		case <-time.After(20 * time.Second):
			return got, ring, stored, fmt.Errorf("woken no more at %d of %d", next, last)
		}
	}
}

// Followers of every kind of scope, slow and fast, from anywhere, each see the changes of their
// scope once and in order, while the ring is so small that they fall out of it all the time.
func TestFollowersSeeEverythingOnce(t *testing.T) {
	const total = 800
	orgs, types, ids := []string{"a", "ab", "b"}, []string{"t", "u"}, []string{"1", "2", "3"}
	var keys []record.Key
	for _, o := range orgs {
		for _, ty := range types {
			for _, id := range ids {
				keys = append(keys, record.MakeKey(o, ty, id))
			}
		}
	}
	allRing, allStored := 0, 0
	for _, c := range []struct {
		bytes   int64
		changes int
	}{{1, 1}, {4 << 10, 1000}, {1 << 30, 7}, {1 << 30, 300}} {
		t.Run(fmt.Sprintf("%d,%d", c.bytes, c.changes), func(t *testing.T) {
			r := newFeedRig(t, c.bytes, c.changes)
			rng := rand.New(rand.NewPCG(1, uint64(c.changes)))
			for range 100 {
				r.commit(keys[rng.IntN(len(keys))])
			}
			type result struct {
				got          []string
				ring, stored int
				err          error
			}
			var wg sync.WaitGroup
			results := make([]result, 24)
			scopes := make([]FollowScope, len(results))
			starts := make([]uint64, len(results))
			within := func(s FollowScope) func(*history.Change) bool {
				return func(c *history.Change) bool {
					return s.All || slices.Contains(s.Keys, c.Key) ||
						slices.ContainsFunc(s.Prefixes, func(p string) bool { return strings.HasPrefix(string(c.Key), p) })
				}
			}
			for i := range results {
				switch i % 4 {
				case 0:
					scopes[i].All = true
				case 1:
					scopes[i].Prefixes = []string{orgs[rng.IntN(3)] + "\x00"}
				case 2:
					scopes[i].Prefixes = []string{orgs[rng.IntN(3)] + "\x00" + types[rng.IntN(2)] + "\x00"}
				case 3:
					scopes[i].Keys = []record.Key{keys[rng.IntN(len(keys))], keys[rng.IntN(len(keys))]}
				}
				starts[i] = 1 + rng.Uint64N(150)
			}
			for i := range results {
				begin := make(chan struct{})
				wg.Go(func() {
					own := rand.New(rand.NewPCG(2, uint64(i)))
					<-begin
					f := r.feed.Follow(scopes[i], nil)
					defer f.Close()
					x := &results[i]
					x.got, x.ring, x.stored, x.err = follow(f, within(scopes[i]), starts[i], total, func() int { return 1 + own.IntN(2000) })
				})
				close(begin)
				r.commit(keys[rng.IntN(len(keys))])
			}
			for len(r.all) < total {
				step := make([]record.Key, 0, 5)
				for range min(1+rng.IntN(5), total-len(r.all)) {
					step = append(step, keys[rng.IntN(len(keys))])
				}
				r.commit(step...)
			}
			wg.Wait()
			ring, stored := 0, 0
			for i, x := range results {
				if x.err != nil {
					t.Fatalf("follower %d, %+v: %v", i, scopes[i], x.err)
				}
				var want []string
				for _, c := range r.all {
					if c.Position >= starts[i] && within(scopes[i])(&c.Change) {
						want = append(want, fmt.Sprintf("%d %s %d", c.Position, c.Key, c.Version))
					}
				}
				if !slices.Equal(x.got, want) {
					t.Fatalf("follower %d, %+v, from %d: got %d changes, want %d;\ngot  %.500q\nwant %.500q", i, scopes[i], starts[i], len(x.got), len(want), x.got, want)
				}
				ring, stored = ring+x.ring, stored+x.stored
			}
			if st := r.feed.Stats(); st.Followers != 0 || st.Changes > c.changes || st.Bytes > c.bytes {
				t.Errorf("afterwards: %+v", st)
			}
			allRing, allStored = allRing+ring, allStored+stored
		})
	}
	if allRing == 0 || allStored == 0 {
		t.Errorf("%d changes came from the ring and %d from the history", allRing, allStored)
	}
}

// Who follows one aggregate is not woken by the others, but is told in time how far the log is.
func TestFollowersAreWokenForTheirOwn(t *testing.T) {
	r := newFeedRig(t, 1<<20, 1000)
	mine, other := record.MakeKey("a", "t", "mine"), record.MakeKey("a", "t", "other")
	f := r.feed.Follow(FollowScope{Keys: []record.Key{mine}}, nil)
	defer f.Close()
	if from, to := f.Poll(1); from != 1 || to != 0 {
		t.Fatalf("Poll of an empty log is %d, %d", from, to)
	}
	for range 500 {
		r.commit(other)
	}
	began := time.Now()
	<-f.Wake()
	if !f.Due() || f.Due() {
		t.Error("woken for another's change, and not because it was time to tell how far the log is")
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("woken after %v", took)
	}
	next, to := f.Poll(1)
	if next == 1 || to != 0 {
		t.Errorf("after changes of another's, Poll is %d, %d", next, to)
	}
	r.commit(mine)
	<-f.Wake()
	for {
		from, to := f.Poll(next)
		if from == 501 && to == 501 {
			break
		}
		if from > 501 {
			t.Fatalf("Poll passes over 501: %d, %d", from, to)
		}
		next = from
		<-f.Wake()
	}
}

// What a trim or a delete took away is not handed out although the ring still holds it.
func TestRingHidesWhatIsGone(t *testing.T) {
	r := newRing(1<<20, 6, 0)
	a, b := record.MakeKey("a", "t", "1"), record.MakeKey("a", "t", "2")
	batch := func(p uint64, k record.Key, incarnation uint32, v uint64) LogChange {
		return LogChange{Change: history.Change{Key: k, Incarnation: incarnation, Version: v, Kind: history.ChangeBatch}, Position: p, Stored: []byte("x")}
	}
	change := func(p uint64, k record.Key, incarnation uint32, v uint64, kind history.ChangeKind) LogChange {
		return LogChange{Change: history.Change{Key: k, Incarnation: incarnation, Version: v, Kind: kind}, Position: p}
	}
	left := func() (out []uint64) {
		for _, s := range r.from(r.steps[0].first(), 100) {
			cs := slices.Clone(s.changes)
			r.readable(cs)
			for _, c := range cs {
				if c.Stored != nil {
					out = append(out, c.Position)
				}
			}
		}
		return out
	}
	for _, c := range []struct {
		add  []LogChange
		left []uint64
	}{
		{[]LogChange{batch(1, a, 1, 1), batch(2, a, 1, 2)}, []uint64{1, 2}},
		{[]LogChange{batch(3, b, 1, 1), change(4, a, 1, 2, history.ChangeTrim)}, []uint64{2, 3}},
		{[]LogChange{change(5, b, 1, 1, history.ChangeDelete), batch(6, b, 2, 2)}, []uint64{2, 6}},
		{[]LogChange{change(7, a, 1, 2, history.ChangeDelete)}, []uint64{6}},
		{[]LogChange{batch(8, a, 2, 1)}, []uint64{6, 8}},
		{[]LogChange{batch(9, b, 2, 3), batch(10, b, 2, 4)}, []uint64{6, 8, 9, 10}},
		{[]LogChange{batch(11, b, 2, 5), batch(12, b, 2, 6), batch(13, b, 2, 7)}, []uint64{8, 9, 10, 11, 12, 13}},
	} {
		r.add(c.add)
		if got := left(); !slices.Equal(got, c.left) {
			t.Errorf("after %d: %v are left, want %v", r.last, got, c.left)
		}
	}
	if len(r.gone) != 0 {
		t.Errorf("of trims that fell out, %d are remembered", len(r.gone))
	}
}
