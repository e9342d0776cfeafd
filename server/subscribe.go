package server

import (
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

const (
	// checkpointWithin is how long a subscription reads on, with nothing to send, before it says
	// how far it is.
	checkpointWithin = 500 * time.Millisecond
	// keptItems is how many changes a subscription keeps room for while it waits.
	keptItems = 32
)

// Subscribe implements pb.EventStoreServiceServer (contract 5).
func (s *eventStore) Subscribe(req *pb.SubscribeRequest, stream grpc.ServerStreamingServer[pb.SubscribeResponse]) error {
	if e := checkSubscribe(req); e != nil {
		return e
	}
	within, wake := scopeOf(req)
	follower, now, err := s.shard.Follow(stream.Context(), readOptions(req, pb.Consistency_CONSISTENCY_LEADER), wake)
	if err != nil {
		return err
	}
	defer follower.Close()
	sub := &subscription{
		stream: stream, reads: readsOf(stream.Context()), follower: follower, stopping: s.stopping,
		log: logReader{scope: within, filter: newFilter(req.GetFilter()), creations: true}, target: now - 1,
	}
	sub.keep = sub.log.wants
	if req.GetNoticesOnly() {
		sub.notices = &notices{latency: req.GetMaxLatency().AsDuration()}
	}
	if err := sub.begin(req, now); err != nil {
		return err
	}
	return sub.run()
}

// subscription is one subscriber's stream. While it waits, it is a goroutine and little else:
// thousands wait at a time.
//
// Everything below next has been sent, or was not to be sent, or is in notices. A message is
// built only when its client has taken what came before, and from the ring or, if that holds
// next no more, from the history: so a slow subscriber costs what one message takes, and nobody
// waits for it.
type subscription struct {
	stream   grpc.ServerStreamingServer[pb.SubscribeResponse]
	reads    *callReads
	follower *replication.Follower
	stopping <-chan struct{} // of the server
	log      logReader
	keep     func(*history.Change) bool
	notices  *notices // nil unless notices_only

	next uint64
	// told is the next_position that the client knows or can tell from what it has got.
	told uint64
	// target is the last position that was committed when the call began; the marker comes when
	// it has been passed.
	target   uint64
	caughtUp bool
	timeline string // for the first message, then empty
	sent     time.Time
}

// begin finds out where the subscription starts.
func (s *subscription) begin(req *pb.SubscribeRequest, now uint64) error {
	v := s.follower.View()
	if v == nil {
		return s.moved("this node has stopped")
	}
	defer v.Release()
	s.timeline = v.Applied().Timeline
	switch start := req.GetStart().(type) {
	case *pb.SubscribeRequest_FromPosition:
		s.next = max(start.FromPosition, 1)
	case *pb.SubscribeRequest_FromNow:
		s.next = now
	case *pb.SubscribeRequest_FromVersion:
		var err error
		if s.next, err = s.log.startAt(v, keyOf(req.GetAggregates().GetAggregates()[0]), start.FromVersion); err != nil {
			return err
		}
	}
	s.told, s.sent = s.next, time.Now()
	return nil
}

// startAt returns the position of a version of an aggregate, or, if it is not there yet, the
// next one there will be; then what comes of that life before the version is passed over.
func (r *logReader) startAt(v *history.View, k record.Key, version uint64) (uint64, error) {
	head, found, err := v.Head(k)
	if err != nil {
		return 0, err
	}
	first, incarnation := max(head.Floor, 1), head.Incarnation
	switch {
	case !found:
		incarnation = 1
	case head.Deleted && head.Restart:
		first, incarnation = 1, head.Incarnation+1
	case head.Deleted:
		first, incarnation = head.Version+1, head.Incarnation+1
	}
	if version == 0 {
		version = first
	}
	if version < first {
		return 0, api.Errorf(pb.ErrorCode_ERROR_CODE_UNAVAILABLE_VERSION,
			"version %d of %s was trimmed or deleted; the first that can be read is %d", version, k, first).
			With(&pb.VersionUnavailable{Requested: version, FirstVersion: first, CurrentVersion: head.Version})
	}
	if incarnation == head.Incarnation && version <= head.Version {
		stored, _, err := v.Batch(k, incarnation, version)
		if err != nil {
			return 0, err
		}
		var b record.BatchView
		err = record.ViewBatch(stored, &b)
		return b.Position, err
	}
	r.incarnation, r.version = incarnation, version
	return v.Applied().Position + 1, nil
}

func (s *subscription) run() error {
	for {
		from, to := s.follower.Poll(s.next)
		for s.next = from; s.next <= to; {
			if err := s.over(); err != nil {
				return err
			}
			if err := s.advance(to); err != nil {
				return err
			}
		}
		timer, err := s.settle()
		if err != nil {
			return err
		}
		if err := s.wait(s.follower.Wake(), timer); err != nil {
			return err
		}
	}
}

// advance deals with the next message's worth of the log up to position to.
func (s *subscription) advance(to uint64) error {
	if err := s.room(); err != nil {
		return err
	}
	items, after, ok := s.follower.Recent(s.log.items[:0], s.next, to, messageBytes, s.keep)
	s.log.items = items
	if ok {
		size := 0
		for i := range items {
			size += len(items[i].Stored) + noticeBytes
		}
		switch {
		case s.notices != nil:
			return s.note(after)
		case len(items) == 0:
			s.next = after
			return s.overdue()
		case s.reads.tryReserve(size):
			return s.deliver(after, size)
		}
		clear(items) // what waits for memory keeps none of the ring's
	}
	return s.advanceStored(to)
}

// advanceStored is advance for what the ring does not hold.
func (s *subscription) advanceStored(to uint64) error {
	for need := messageBytes; ; {
		if err := s.reads.reserve(s.stream.Context(), need); err != nil {
			return err
		}
		v := s.follower.View()
		if v == nil {
			return s.moved("this node has stopped")
		}
		arena := s.reads.buffer(need)
		after, more, err := s.log.load(v, s.next, to, false, (*arena.backing)[:need])
		v.Release()
		if err == nil && more == 0 {
			if s.notices != nil {
				err = s.note(after)
			} else {
				err = s.deliver(after, need)
			}
		}
		clear(s.log.items)
		arena.free()
		if err != nil {
			return err
		}
		if more == 0 {
			return s.overdue()
		}
		need = more
	}
}

// deliver sends what passes of the items, for which size is reserved, and goes on at after.
func (s *subscription) deliver(after uint64, size int) (err error) {
	m := s.reads.buffer(size)
	defer m.free()
	told := uint64(0)
	for i := range s.log.items {
		c := &s.log.items[i]
		passed := c.Kind != history.ChangeBatch
		if !passed && c.Stored != nil {
			if m.b, passed, err = s.log.appendBatch(m.b, c); err != nil {
				return err
			}
		}
		if passed {
			m.b = appendNotice(m.b, c)
			told = c.Position + 1
		}
	}
	clear(s.log.items)
	s.next = after
	if told == 0 {
		s.reads.abandon()
		return nil
	}
	if s.timeline != "" {
		m.b = appendTimeline(m.b, s.timeline)
		s.timeline = ""
	}
	s.told, s.sent = told, time.Now()
	return s.stream.SendMsg(s.reads.ship(m))
}

// resume is where a subscription goes on that starts again.
func (s *subscription) resume() uint64 {
	if s.notices != nil && len(s.notices.waiting) > 0 {
		return s.notices.first
	}
	return s.next
}

// overdue says how far the subscription is if it has said nothing for a while: it may read for
// long without sending.
func (s *subscription) overdue() error {
	if s.resume() > s.told && time.Since(s.sent) >= checkpointWithin {
		return s.checkpoint()
	}
	return nil
}

// settle says what is to be said once everything there is has been looked at, and returns when
// there is more to say.
func (s *subscription) settle() (timer <-chan time.Time, err error) {
	if cap(s.log.items) > keptItems {
		s.log.items, s.log.changes = nil, nil
	}
	if n := s.notices; n != nil && len(n.waiting) > 0 {
		if left := n.latency - time.Since(n.since); left > 0 && (s.caughtUp || s.next <= s.target) {
			timer = time.After(left)
		} else if err := s.flush(); err != nil {
			return nil, err
		}
	}
	due := s.follower.Due()
	switch {
	case !s.caughtUp && s.next > s.target:
		s.caughtUp = true
		return timer, s.say(&pb.SubscribeResponse{CaughtUp: &pb.CaughtUp{NextPosition: s.next}})
	case due && s.resume() > s.told:
		return timer, s.checkpoint()
	}
	return timer, nil
}

func (s *subscription) checkpoint() error {
	return s.say(&pb.SubscribeResponse{Checkpoint: &pb.Checkpoint{NextPosition: s.resume()}})
}

// say sends a small message that tells how far the subscription is.
func (s *subscription) say(m *pb.SubscribeResponse) error {
	m.Timeline, s.timeline = s.timeline, ""
	s.told, s.sent = s.resume(), time.Now()
	return s.stream.Send(m)
}

// note takes the items for notices, sends those if it is time, and goes on at after.
func (s *subscription) note(after uint64) error {
	for i := range s.log.items {
		c := &s.log.items[i]
		passed := c.Kind != history.ChangeBatch
		if !passed && c.Stored != nil {
			var err error
			if passed, err = s.log.passes(c); err != nil {
				return err
			}
		}
		if passed {
			s.notices.add(c)
		}
	}
	clear(s.log.items)
	s.next = after
	if n := s.notices; len(n.waiting) >= mostNotices || len(n.waiting) > 0 && time.Since(n.since) >= max(n.latency, checkpointWithin) {
		return s.flush()
	}
	return s.overdue()
}

// flush sends the notices that wait.
func (s *subscription) flush() error {
	if err := s.room(); err != nil {
		return err
	}
	m := &pb.SubscribeResponse{Notices: s.notices.take(), Timeline: s.timeline}
	if err := s.reads.reserve(s.stream.Context(), proto.Size(m)); err != nil {
		return err
	}
	s.timeline = ""
	out, err := s.reads.encode(m)
	if err != nil {
		return err
	}
	s.told, s.sent = m.GetNotices()[len(m.GetNotices())-1].GetPosition()+1, time.Now()
	return s.stream.SendMsg(out)
}

// room waits until the client has taken what was sent.
func (s *subscription) room() error {
	s.reads.abandon() // which would count as not taken
	for !s.reads.hasRoom() {
		if err := s.wait(s.reads.freed, nil); err != nil {
			return err
		}
	}
	return nil
}

// wait waits for one of the two, or for the end of the subscription, which is its error.
func (s *subscription) wait(ready <-chan struct{}, timer <-chan time.Time) error {
	select {
	case <-ready:
	case <-timer:
	case <-s.stream.Context().Done():
	case <-s.follower.Moved():
	case <-s.follower.Stopped():
	case <-s.stopping:
	}
	return s.over()
}

// over is the error that ends the subscription, nil if it goes on.
func (s *subscription) over() error {
	select {
	case <-s.stream.Context().Done():
		return s.stream.Context().Err()
	case <-s.follower.Moved():
		return s.moved("this node does not lead any more")
	case <-s.follower.Stopped():
		return s.moved("this node is stopping")
	case <-s.stopping:
		return s.moved("this node is stopping")
	default:
		return nil
	}
}

// moved says that the subscription can go on elsewhere, or later.
func (s *subscription) moved(why string) error {
	return api.Errorf(pb.ErrorCode_ERROR_CODE_SUBSCRIPTION_MOVED, "%s; subscribe again from position %d", why, s.resume()).
		With(&pb.SubscriptionMoved{NextPosition: s.resume(), LeaderAddress: s.follower.Leader()})
}
