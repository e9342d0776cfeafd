package history

import (
	"context"
	"fmt"
	"time"

	"github.com/cockroachdb/pebble/v2"
)

const (
	// viewPatience is how long Compact waits for views from before it.
	viewPatience = 30 * time.Second
	// stallPatience is how long Compact goes on without getting any further.
	stallPatience = 15 * time.Second
	// lookEvery is how often it looks how far Pebble is, and kickEvery how often it makes Pebble
	// look for work: Pebble does so by itself only after a flush or a compaction.
	lookEvery = 20 * time.Millisecond
	kickEvery = 500 * time.Millisecond
)

// Compact removes from the store's files what was dropped before the call: batches and rows
// leave tables by compaction, and blob files are rewritten without the values that no table
// refers to any more. In the background Pebble does the same, in its own time.
//
// left says why something that was dropped may still be in a file: views from before the call
// were held for too long, or Pebble did not finish, as when more is dropped all the time. An
// error is Pebble's, or the context's.
func (s *Store) Compact(ctx context.Context) (left []string, err error) {
	if err := s.fatal.Load(); err != nil {
		return nil, *err
	}
	// The newest view: one from before the last commit would count as held by the store. It is
	// kept to the end, so that a store that is retired meanwhile is not closed.
	v := s.View()
	defer v.Release()
	if v.unusable != nil {
		return nil, v.unusable
	}
	index := v.Applied().Index
	if held := s.awaitViews(ctx, index); held > 0 {
		left = append(left, fmt.Sprintf("%d views of earlier states are still held, by readers, a snapshot or a backup", held))
	}
	s.reclaiming.Add(1)
	defer s.reclaiming.Add(-1)
	// All keys lie between these two.
	err = s.unlessBroken(func() error { return s.db.Compact(ctx, []byte("a"), []byte("z"), false) })
	if err != nil {
		return left, s.storageError("compact", err)
	}
	rest, err := s.awaitReclaimed(ctx)
	if err != nil {
		return left, err
	}
	if rest != (garbage{}) {
		left = append(left, rest.String())
	}
	return left, nil
}

// awaitViews waits until no view of a state before index is held any more, or patience ends,
// and returns how many are.
func (s *Store) awaitViews(ctx context.Context, index uint64) int {
	ctx, cancel := context.WithTimeout(ctx, viewPatience)
	defer cancel()
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		held := s.snapshots.before(index)
		if held == 0 {
			return 0
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return held
		}
	}
}

// garbage is what files hold beyond what can be read.
type garbage struct {
	tombstones uint64 // not yet compacted away, and so perhaps what they cover
	values     uint64 // bytes in blob files that no table refers to
	files      int64  // replaced and not removed yet
}

func (g garbage) String() string {
	return fmt.Sprintf("%d tombstones, %d bytes of values that nothing refers to and %d replaced files are left; compact again once less is dropped and read",
		g.tombstones, g.values, g.files)
}

func garbageIn(m *pebble.Metrics) garbage {
	return garbage{
		tombstones: m.Keys.TombstoneCount,
		values:     m.BlobFiles.ValueSize - m.BlobFiles.ReferencedValueSize,
		files:      m.Table.ObsoleteCount + m.Table.ZombieCount + int64(m.BlobFiles.ObsoleteCount+m.BlobFiles.ZombieCount),
	}
}

// awaitReclaimed waits until Pebble has nothing left to reclaim, or gets no further, and returns
// what is left.
func (s *Store) awaitReclaimed(ctx context.Context) (garbage, error) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	least := garbageIn(s.db.Metrics())
	kicked, progressed := time.Time{}, time.Now()
	for {
		now := garbageIn(s.db.Metrics())
		switch {
		case now == garbage{}:
			return now, nil
		case now.tombstones < least.tombstones, now.values < least.values, now.files < least.files:
			least, progressed = now, time.Now()
		case time.Since(progressed) > stallPatience:
			return now, nil
		}
		if time.Since(kicked) > kickEvery {
			kicked = time.Now()
			if _, err := s.db.AsyncFlush(); err != nil {
				return now, s.storageError("flush", err)
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return now, ctx.Err()
		case <-s.broken:
			return now, *s.fatal.Load()
		}
	}
}
