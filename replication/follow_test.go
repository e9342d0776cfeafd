package replication

import (
	"fmt"
	"testing"

	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// What is dispatched in the middle of a Poll is not passed over. Nothing else runs here: the
// order of Poll's two looks alone decides.
func TestPollPassesOverNothingThatComesMeanwhile(t *testing.T) {
	fs := NewFeed(FeedOptions{RingBytes: 1 << 20, RingChanges: 100})
	k := record.MakeKey("a", "t", "1")
	f := fs.Follow(FollowScope{Keys: []record.Key{k}}, nil)
	defer f.Close()
	if from, to := f.Poll(1); from != 1 || to != 0 {
		t.Fatalf("Poll of an empty log is %d, %d", from, to)
	}
	f.between = func() {
		f.between = nil
		fs.Publish([]LogChange{{Change: history.Change{Key: k, Incarnation: 1, Version: 1, Kind: history.ChangeBatch}, Position: 1}})
		fs.dispatch()
	}
	from, to := f.Poll(1)
	if from != 1 {
		t.Errorf("Poll passes over position 1, which came meanwhile: %d, %d", from, to)
	}
	if to != 1 { // then the next one must tell
		if from, to = f.Poll(from); from != 1 || to != 1 {
			t.Errorf("the next Poll is %d, %d", from, to)
		}
	}
}

// Recent returns what lies between its two ends, both included, or as much as the size allows,
// and says exactly how far it has looked.
func TestRecentKeepsItsBounds(t *testing.T) {
	fs := NewFeed(FeedOptions{RingBytes: 1 << 20, RingChanges: 6})
	f := fs.Follow(FollowScope{All: true}, nil)
	defer f.Close()
	odd, even := record.MakeKey("a", "t", "odd"), record.MakeKey("a", "t", "even")
	for p := uint64(1); p <= 10; p += 2 { // steps of two; 5 to 10 stay
		var step []LogChange
		for i, k := range []record.Key{odd, even} {
			c := history.Change{Key: k, Incarnation: 1, Version: (p + 1) / 2, Kind: history.ChangeBatch}
			step = append(step, LogChange{Change: c, Position: p + uint64(i), Stored: []byte("x")})
		}
		fs.Publish(step)
	}
	for _, c := range []struct {
		position, to uint64
		size         int
		odd          bool
		want         string
	}{
		{4, 10, 1 << 20, false, "[] 4 false"},
		{5, 10, 1 << 20, false, "[5 6 7 8 9 10] 11 true"},
		{6, 9, 1 << 20, false, "[6 7 8 9] 10 true"},
		{7, 7, 1 << 20, false, "[7] 8 true"},
		{8, 8, 1 << 20, false, "[8] 9 true"},
		{5, 10, 1, false, "[5] 6 true"},
		{5, 10, changeBytes/2 + 2, false, "[5 6] 7 true"},
		{5, 10, 1 << 20, true, "[5 7 9] 11 true"},
		{6, 6, 1 << 20, true, "[] 7 true"},
		{11, 11, 1 << 20, false, "[] 11 false"},
	} {
		items, next, ok := f.Recent(nil, c.position, c.to, c.size, func(h *history.Change) bool { return !c.odd || h.Key == odd })
		got := []uint64{}
		for i := range items {
			got = append(got, items[i].Position)
		}
		if s := fmt.Sprint(got, next, ok); s != c.want {
			t.Errorf("from %d to %d within %d bytes, only odd ones %t: %s, want %s", c.position, c.to, c.size, c.odd, s, c.want)
		}
	}
}
