package server

import (
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// Notices that wait have not been sent: neither a checkpoint nor the end of the stream may tell
// the subscriber to go on behind them.
func TestSubscribeGoesOnAtTheNoticesThatWait(t *testing.T) {
	r := start(t, nil)
	req := ofAggregates(pbKey("mine"))
	req.NoticesOnly, req.MaxLatency, req.Start = true, durationpb.New(30*time.Second), &pb.SubscribeRequest_FromNow{FromNow: true}
	s := r.subscribe(t, req)
	wantLines(t, s.caughtUp(), "caught up 1")
	// In one step, so that the checkpoint comes when the notice waits already.
	r.shard.batch.Reset()
	r.shard.stage(testKey("other"), "a", 1, event(1, "T"))
	r.shard.stage(testKey("mine"), "a", 1, event(1, "T"))
	r.shard.commit(t)
	wantMessage(t, s.next(), &pb.SubscribeResponse{Checkpoint: &pb.Checkpoint{NextPosition: 2}})
	r.shard.loseLeadership()
	lines, err := s.end()
	wantLines(t, lines)
	wantError(t, err, api.Errorf(pb.ErrorCode_ERROR_CODE_SUBSCRIPTION_MOVED, "this node does not lead any more; subscribe again from position 2").
		With(&pb.SubscriptionMoved{NextPosition: 2, LeaderAddress: "elsewhere:1"}))
	req.Start, req.MaxLatency, req.Consistency = &pb.SubscribeRequest_FromPosition{FromPosition: 2}, nil, pb.Consistency_CONSISTENCY_ANY
	wantLines(t, r.subscribe(t, req).caughtUp(), "2 CREATED mine 1-1", "caught up 3")
}

// An aggregate that was trimmed, deleted and made again, with batches and as notices only, from
// memory and from the history.
func TestSubscribeToSeveralLives(t *testing.T) {
	r := start(t, nil)
	k := testKey("1")
	for i := range uint64(3) {
		r.shard.put(t, k, "a", 1, event(i+1, "Old"))
	}
	r.shard.change(t, k, history.ChangeTrim, 3, func(h *history.Head) { h.Floor = 3 })
	r.shard.put(t, k, "a", 2, event(4, "Old"))
	r.shard.change(t, k, history.ChangeDelete, 4, func(h *history.Head) { h.Deleted, h.Restart = true, true })
	h := r.shard.heads[k]
	h.Version, h.Incarnation, h.Floor, h.Deleted, h.Restart, h.EventCount, h.Chain = 0, 2, 1, false, false, 0, record.Hash{}
	r.shard.heads[k] = h
	r.shard.put(t, k, "a", 3, event(5, "New"))
	r.shard.put(t, k, "a", 3, event(6, "New"))
	for _, ring := range []bool{true, false} {
		if !ring {
			r.shard.feed.Reset(8)
		}
		wantLines(t, r.subscribe(t, all()).caughtUp(),
			"4 TRIMMED 1 1-2", "6 DELETED 1 1-4", "7 CREATED 1 1-1", "7 1/1 New", "8 1/2 New", "caught up 9")
		req := all()
		req.NoticesOnly, req.MaxLatency = true, durationpb.New(30*time.Second)
		got := r.subscribe(t, req).caughtUp()
		wantLines(t, slices.Clone(got), "4 TRIMMED 1 1-2", "6 DELETED 1 1-4", "8 CREATED 1 1-2", "caught up 9")
	}
}
