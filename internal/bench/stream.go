package bench

import (
	"context"
	"errors"
	"io"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// MaxWritesPerMessage bounds AppendOptions.WritesPerMessage.
const MaxWritesPerMessage = 1000

// streamer is one writer on one AppendStream of a connection: it keeps its share of the run's
// outstanding appends under way on one aggregate, each a sequence of its own, and puts into a
// message what may be sent when the one before has left. After an error it waits for all
// answers and goes on with a new aggregate.
type streamer struct {
	g    *generator
	w    *writer // who it is, and what it sends next
	most int     // appends in a message

	stream grpc.ClientStream

	mu    sync.Mutex
	slots []slot
	free  []int // of slots
	// failed: an answer was an error since the last new aggregate.
	failed  error
	changed chan struct{} // one token: free or failed changed
}

// slot is one append that may be outstanding; its number is the request_id.
type slot struct {
	req  *pb.AppendRequest
	sent time.Time
}

func newStreamer(g *generator, i, outstanding int, conn grpc.ClientConnInterface, payload []byte) *streamer {
	s := &streamer{g: g, w: newWriter(g, i, conn, payload), most: g.opts.WritesPerMessage, changed: make(chan struct{}, 1)}
	for n := range outstanding {
		event := proto.Clone(s.w.event).(*pb.NewEvent)
		event.Payload = payload
		write := proto.Clone(s.w.write).(*pb.Write)
		write.Events = []*pb.NewEvent{event}
		s.slots = append(s.slots, slot{req: &pb.AppendRequest{RequestId: strconv.Itoa(n), ClientId: s.w.name, Writes: []*pb.Write{write}}})
		s.free = append(s.free, n)
	}
	return s
}

// work sends until the run ends, on a new stream when one breaks.
func (s *streamer) work(ctx context.Context) {
	for failures := 1; ; failures++ {
		over, err := s.run(ctx)
		if over || ctx.Err() != nil {
			return
		}
		if err != nil {
			s.w.pause(ctx, failures, err)
		}
		if !s.g.running(time.Now()) {
			return
		}
	}
}

// run works on one stream; over says that the run has ended.
func (s *streamer) run(ctx context.Context) (over bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	desc := &pb.EventStoreService_ServiceDesc.Streams[streamIndex()]
	if s.stream, err = s.w.conn.NewStream(ctx, desc, pb.EventStoreService_AppendStream_FullMethodName); err != nil {
		now := time.Now()
		s.g.record(now, now, err)
		return false, err
	}
	broken := make(chan error, 1)
	go func() { broken <- s.receive() }() // ends with the stream
	over, err = s.send(ctx, broken)
	if over {
		if err = s.stream.CloseSend(); err == nil {
			err = <-broken
		}
	}
	if err != nil {
		s.lose(err)
	}
	return over, err
}

// streamIndex is AppendStream's place in the description of the service.
func streamIndex() int {
	for i, d := range pb.EventStoreService_ServiceDesc.Streams {
		if d.StreamName == "AppendStream" {
			return i
		}
	}
	panic("the service has no AppendStream")
}

// send sends while there is more to send and the stream is whole.
func (s *streamer) send(ctx context.Context, broken <-chan error) (over bool, err error) {
	m := &pb.AppendStreamRequest{}
	failures := 0
	for {
		over, failed := s.next(m)
		switch {
		case over:
			return true, nil
		case failed != nil:
			failures++
			s.w.pause(ctx, failures, failed)
			continue
		case len(m.Appends) > 0:
			failures = 0
			if err := s.stream.SendMsg(m); err != nil {
				return false, <-broken // which knows more than io.EOF
			}
			continue
		}
		select {
		case <-s.changed:
		case err := <-broken:
			if err == nil {
				err = io.ErrUnexpectedEOF
			}
			return false, err
		}
	}
}

// next fills in the next message, perhaps with nothing. It returns an error once that has let go
// of the aggregate.
func (s *streamer) next(m *pb.AppendStreamRequest) (over bool, failed error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	m.Appends = m.Appends[:0]
	if s.failed != nil {
		if len(s.free) < len(s.slots) {
			return false, nil
		}
		failed, s.failed = s.failed, nil
		s.w.moveOn()
		return false, failed
	}
	now := time.Now()
	for len(s.free) > 0 && len(m.Appends) < s.most {
		if !s.g.more(now) {
			return len(m.Appends) == 0, nil
		}
		n := s.free[len(s.free)-1]
		s.free = s.free[:len(s.free)-1]
		sl := &s.slots[n]
		sl.sent = now
		write := sl.req.Writes[0]
		write.Aggregate.Id, write.Events[0].ClientSeq = s.w.write.Aggregate.Id, s.w.event.ClientSeq
		if write.ExpectedVersion != nil {
			*write.ExpectedVersion = s.w.event.ClientSeq - 1
		}
		m.Appends = append(m.Appends, sl.req)
		if s.g.opts.FreshAggregates {
			s.w.moveOn()
		} else {
			s.w.event.ClientSeq++
		}
	}
	return false, nil
}

// receive takes answers until the stream ends; nil = as it should.
func (s *streamer) receive() error {
	for a := (answers{}); ; {
		if err := s.stream.RecvMsg(&a); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		now := time.Now()
		s.mu.Lock()
		for i := range a.all {
			n, err := a.all[i].slot, a.all[i].err
			if n < 0 || n >= len(s.slots) {
				s.mu.Unlock()
				return errors.New("an answer to a request that was not sent")
			}
			s.g.record(s.slots[n].sent, now, err)
			s.free = append(s.free, n)
			if err != nil && s.failed == nil {
				s.failed = err
			}
		}
		s.mu.Unlock()
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
}

// lose counts what is outstanding as failed with the stream, and lets go of the aggregate.
func (s *streamer) lose(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	waiting := make([]bool, len(s.slots))
	for i := range waiting {
		waiting[i] = true
	}
	for _, n := range s.free {
		waiting[n] = false
	}
	for n, waits := range waiting {
		if waits {
			s.g.record(s.slots[n].sent, now, err)
			s.free = append(s.free, n)
		}
	}
	s.failed = nil
	s.w.moveOn()
}
