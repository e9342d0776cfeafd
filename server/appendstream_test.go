package server

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
)

// startShard serves a real shard whose entries wait at the gate while that is locked.
func startShard(t *testing.T, change func(*Options)) (*rig, *sync.RWMutex) {
	t.Helper()
	gate := &sync.RWMutex{}
	shard, err := replication.Open(replication.Options{
		Dir: t.TempDir(), MinFreeDiskBytes: -1, BlockCacheBytes: 1 << 20, MemTableBytes: 1 << 20,
		Hooks: replication.Hooks{BeforePropose: func() { gate.RLock(); defer gate.RUnlock() }},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shard.Abandon() })
	for deadline := time.After(patience); ; {
		ready, changed := shard.Leading()
		if ready {
			break
		}
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("the shard does not lead")
		}
	}
	return start(t, func(o *Options) {
		o.Shard = shard
		if change != nil {
			change(o)
		}
	}), gate
}

// stream is a client's AppendStream.
type stream struct {
	t *testing.T
	grpc.BidiStreamingClient[pb.AppendStreamRequest, pb.AppendStreamResponse]
}

func openStream(t *testing.T, r *rig) stream {
	t.Helper()
	s, err := r.client.AppendStream(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	return stream{t, s}
}

func streamed(id string, seq uint64, payload int) *pb.AppendRequest {
	return &pb.AppendRequest{
		RequestId: fmt.Sprintf("%s-%d", id, seq), ClientId: "a",
		Writes: []*pb.Write{{
			Aggregate: &pb.AggregateKey{Org: "acme", Type: "orders", Id: id}, AllowCreate: true, EnforceClientIdempotency: true,
			Events: []*pb.NewEvent{{ClientSeq: seq, Type: "t", Payload: make([]byte, payload)}},
		}},
	}
}

func (s stream) send(appends ...*pb.AppendRequest) {
	s.t.Helper()
	if err := s.Send(&pb.AppendStreamRequest{Appends: appends}); err != nil {
		s.t.Fatal(err)
	}
}

// answers receives n answers, as texts by request_id.
func (s stream) answers(n int) map[string]string {
	s.t.Helper()
	got := map[string]string{}
	for len(got) < n {
		m, err := s.Recv()
		if err != nil {
			s.t.Fatalf("the stream ended after %d of %d answers: %v", len(got), n, err)
		}
		for _, a := range m.GetAnswers() {
			if _, twice := got[a.GetRequestId()]; twice {
				s.t.Fatalf("two answers to %s", a.GetRequestId())
			}
			got[a.GetRequestId()] = streamAnswer(a)
		}
	}
	return got
}

func streamAnswer(a *pb.AppendAnswer) string {
	if e := a.GetError(); e != nil {
		return e.GetMessage()
	}
	r := a.GetResponse().GetResults()[0]
	if a.GetResponse().GetRequestId() != a.GetRequestId() || len(a.GetResponse().GetTimeline()) != 32 || len(r.GetChainHash()) != 32 || r.GetCommittedAt() == nil {
		return fmt.Sprintf("an odd response: %v", a)
	}
	return fmt.Sprintf("ok version %d, position %d, event %d", r.GetVersion(), r.GetPosition(), r.GetFirstEventNumber())
}

func (s stream) want(want map[string]string) {
	s.t.Helper()
	got := s.answers(len(want))
	for id, text := range want {
		if got[id] != text {
			s.t.Errorf("answer to %s:\n got %s\nwant %s", id, got[id], text)
		}
	}
}

// ends receives the end of the stream.
func (s stream) ends(want string) error {
	s.t.Helper()
	m, err := s.Recv()
	if err == nil {
		s.t.Fatalf("an answer instead of the end: %v", m)
	}
	got := err.Error()
	if err != io.EOF {
		got = status.Convert(err).Message()
	}
	if got != want {
		s.t.Errorf("the stream ended with\n     %s\nwant %s", got, want)
	}
	return err
}

func TestAppendStream(t *testing.T) {
	r, _ := startShard(t, nil)
	s := openStream(t, r)
	bad := streamed("3", 1, 1)
	bad.Writes[0].Events[0].Type = ""
	conflict := streamed("4", 1, 1)
	conflict.Writes[0].ExpectedVersion = proto.Uint64(3)
	s.send(streamed("1", 1, 1), streamed("1", 2, 1), bad, conflict, streamed("3", 2, 1), streamed("1", 3, 1))
	s.want(map[string]string{
		"1-1": "ok version 1, position 1, event 1",
		"1-2": "ok version 2, position 2, event 2",
		"3-1": "2001 EmptyEventType: writes[0].events[0].type is empty; expected 1..200 bytes",
		"4-1": "2003 OptimisticConcurrencyViolation: write 0, acme/orders/4: expected version 3, found 0",
		"3-2": `2030 ClientSequenceGap: write 0, acme/orders/3: a request of writer "a" before it on this stream was not admitted or failed, so that previous_client_seq is needed: the mark is 0`,
		"1-3": "ok version 3, position 3, event 3",
	})
	s.send(streamed("1", 1, 1)) // the id is free again, the sequence is not
	s.want(map[string]string{"1-1": `2002 ClientIdempotencyViolation: write 0, acme/orders/1: client_seq 1 of writer "a" is at or below its mark 3; client_seq 1 was recorded at version 1`})
	s.send() // an empty message says nothing
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	s.ends("EOF")
}

// An error on a stream carries what the one of a call does.
func TestErrorsOnAStreamAreStatuses(t *testing.T) {
	r, _ := startShard(t, nil)
	s := openStream(t, r)
	conflict := streamed("4", 1, 1)
	conflict.Writes[0].ExpectedVersion = proto.Uint64(3)
	s.send(conflict)
	m, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	got := status.ErrorProto(m.GetAnswers()[0].GetError())
	_, want := r.client.Append(t.Context(), conflict)
	if !proto.Equal(status.Convert(got).Proto(), status.Convert(want).Proto()) {
		t.Errorf("on a stream: %v\nin a call: %v", got, want)
	}
	if f, ok := api.DetailOf[*pb.AppendFailure](got); !ok || f.GetExpectedVersion() != 3 || status.Code(got) != codes.FailedPrecondition {
		t.Errorf("%v carries %v", got, f)
	}
}

// A request without an id of its own ends the stream, behind those before it.
func TestStreamEndsForARequestWithoutAnID(t *testing.T) {
	r, gate := startShard(t, nil)
	s := openStream(t, r)
	nameless := streamed("1", 2, 1)
	nameless.RequestId = ""
	s.send(streamed("1", 1, 1), nameless, streamed("1", 3, 1))
	s.want(map[string]string{"1-1": "ok version 1, position 1, event 1"})
	s.ends("2016 InvalidRequest: appends[1].request_id is empty; every request on a stream needs one")

	s = openStream(t, r)
	gate.Lock()
	s.send(streamed("1", 2, 1))
	s.send(streamed("1", 3, 1), streamed("1", 2, 1), streamed("1", 4, 1))
	gate.Unlock()
	s.want(map[string]string{"1-2": "ok version 2, position 2, event 2", "1-3": "ok version 3, position 3, event 3"})
	s.ends("2016 InvalidRequest: appends[1].request_id is that of a request without an answer yet; it must be unique among those")

	s = openStream(t, r)
	if err := s.SendMsg(&pb.AppendRequest{RequestId: "no AppendStreamRequest"}); err != nil {
		t.Fatal(err)
	}
	if err := s.ends("2016 InvalidRequest: AppendRequest ends in the middle of its value; the request is not a valid tidemark.v1.AppendRequest message"); status.Code(err) != codes.InvalidArgument {
		t.Error(err)
	}
}

// What is too large or no message at all is refused alone, and breaks the chains it is about.
func TestStreamRefusesWhatItDoesNotDecode(t *testing.T) {
	r, _ := startShard(t, func(o *Options) { o.MaxRequestBytes, o.MaxBytes = 64<<10, 128<<10 })
	s := openStream(t, r)
	s.send(streamed("1", 1, 1), streamed("2", 1, 1))
	s.want(map[string]string{"1-1": "ok version 1, position 1, event 1", "2-1": "ok version 1, position 2, event 1"})
	s.send(streamed("1", 2, 64<<10), streamed("1", 3, 1), streamed("2", 2, 1))
	large := proto.Size(streamed("1", 2, 64<<10))
	s.want(map[string]string{
		"1-2": fmt.Sprintf("2017 RequestTooLarge: the request has %d bytes; the limit is 65536 bytes a request", large),
		"1-3": `2030 ClientSequenceGap: write 0, acme/orders/1: a request of writer "a" before it on this stream was not admitted or failed, so that previous_client_seq is needed: the mark is 1`,
		"2-2": "ok version 2, position 3, event 2",
	})
	// Field 3 is a write, which a single byte is not.
	broken := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "broken")
	broken = protowire.AppendString(protowire.AppendTag(broken, 3, protowire.BytesType), "\x0a")
	raw := &pb.AppendStreamRequest{}
	raw.ProtoReflect().SetUnknown(protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), broken))
	if err := s.Send(raw); err != nil {
		t.Fatal(err)
	}
	s.want(map[string]string{"broken": "2016 InvalidRequest: writes[0].aggregate ends in the middle of its value; the request is not a valid tidemark.v1.AppendRequest message"})
	var many []*pb.AppendRequest
	for seq := uint64(3); seq < 9; seq++ {
		many = append(many, streamed("2", seq, 50<<10))
	}
	s.send(many...)
	s.ends(fmt.Sprintf("2017 RequestTooLarge: a message on the stream has %d bytes; the limit is 262144 bytes a message", proto.Size(&pb.AppendStreamRequest{Appends: many})))
}

// Requests above the node's bound of bytes are answered 11000, and the others go on.
func TestStreamBeyondTheBytesOfAllRequests(t *testing.T) {
	r, gate := startShard(t, func(o *Options) { o.MaxRequestBytes, o.MaxBytes = 64<<10, 128<<10 })
	s := openStream(t, r)
	gate.Lock()
	s.send(streamed("1", 1, 60<<10), streamed("1", 2, 60<<10), streamed("1", 3, 60<<10), streamed("1", 4, 1))
	busy := "11000 ServerBusy: requests of 131072 bytes are at work on this node, which is its limit; ask again later"
	got := s.answers(2)
	if got["1-3"] != busy || !strings.HasPrefix(got["1-4"], "2030 ClientSequenceGap") {
		t.Errorf("got %v", got)
	}
	gate.Unlock()
	s.want(map[string]string{"1-1": "ok version 1, position 1, event 1", "1-2": "ok version 2, position 2, event 2"})
	if n := r.server.chain.bytes.Load(); n != 0 {
		t.Errorf("%d bytes are held with nothing at work", n)
	}
}

// With enough outstanding the node stops receiving, and goes on when there are answers.
func TestStreamIsNotReceivedFromWhileTooMuchIsOutstanding(t *testing.T) {
	r, gate := startShard(t, nil)
	s := openStream(t, r)
	gate.Lock()
	const n, size = 100, 256 << 10
	sent := make(chan error, 1)
	go func() {
		for seq := uint64(1); seq <= n; seq++ {
			if err := s.Send(&pb.AppendStreamRequest{Appends: []*pb.AppendRequest{streamed("1", seq, size)}}); err != nil {
				sent <- err
				return
			}
		}
		sent <- s.CloseSend()
	}()
	c := r.server.chain
	poll(t, "the stream waits", func() bool { return c.streamWaits.Load() == 1 })
	if held := c.streamBytes.Load(); held < outstandingBytes || held > outstandingBytes+size+1024 {
		t.Errorf("%d bytes are outstanding; want %d and one message more at most", held, outstandingBytes)
	}
	select {
	case err := <-sent:
		t.Fatalf("all was taken: %v", err)
	default:
	}
	gate.Unlock()
	for id, a := range s.answers(n) {
		if !strings.HasPrefix(a, "ok") {
			t.Errorf("%s: %s", id, a)
		}
	}
	s.ends("EOF")
	if err := <-sent; err != nil {
		t.Error(err)
	}
	poll(t, "nothing is held", func() bool { return c.bytes.Load() == 0 && c.streamBytes.Load() == 0 && c.streams.Load() == 0 })
}

func poll(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); !ok(); {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("not after %s: %s", patience, what)
		}
	}
}

// A node that stops answers what it has admitted, and then ends the stream.
func TestStreamOfANodeThatStops(t *testing.T) {
	r, gate := startShard(t, nil)
	s := openStream(t, r)
	gate.Lock()
	s.send(streamed("1", 1, 1))
	poll(t, "it is in flight", func() bool { return r.server.opts.Shard.Status().InFlightRequests == 1 })
	drained := make(chan error, 1)
	go func() { drained <- r.server.Drain(testContext(t)) }()
	<-r.server.stopping
	gate.Unlock()
	s.want(map[string]string{"1-1": "ok version 1, position 1, event 1"})
	s.ends("2011 NotLeader: this node is stopping: nothing was done of what has no answer, ask another node, or again")
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

// A client that goes away leaves nothing behind but what was admitted.
func TestStreamOfAClientThatGoesAway(t *testing.T) {
	r, gate := startShard(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	s, err := r.client.AppendStream(ctx)
	if err != nil {
		t.Fatal(err)
	}
	gate.Lock()
	if err := s.Send(&pb.AppendStreamRequest{Appends: []*pb.AppendRequest{streamed("1", 1, 1), streamed("1", 2, 1)}}); err != nil {
		t.Fatal(err)
	}
	shard, c := r.server.opts.Shard, r.server.chain
	poll(t, "both are in flight", func() bool { return shard.Status().InFlightRequests == 2 })
	cancel()
	poll(t, "the stream is gone", func() bool { return c.streams.Load() == 0 && c.bytes.Load() == 0 && c.calls.Load() == 0 })
	gate.Unlock()
	poll(t, "both have landed", func() bool { return shard.Status().LastPosition == 2 })
	if st := shard.Stats(); st.StreamPairs != 0 || st.Streams != 0 {
		t.Errorf("%d streams with %d pairs are left", st.Streams, st.StreamPairs)
	}
}

func TestAppendStreamsAreCounted(t *testing.T) {
	r, gate := startShard(t, nil)
	shows := func(want ...string) {
		t.Helper()
		got, _ := scrape(t, r.server)
		page := "\n" + strings.Join(got, "\n") + "\n"
		for _, line := range want {
			if !strings.Contains(page, "\ntidemark_"+line+"\n") {
				t.Errorf("the page lacks %s", line)
			}
		}
	}
	s := openStream(t, r)
	s.send(streamed("1", 1, 1), streamed("1", 1, 1))
	s.want(map[string]string{"1-1": "ok version 1, position 1, event 1"})
	s.ends("2016 InvalidRequest: appends[1].request_id is that of a request without an answer yet; it must be unique among those")
	poll(t, "the stream has ended", func() bool { return r.server.chain.streams.Load() == 0 })
	shows("append_streams 0", "append_stream_pairs 0", "append_stream_pair_bytes 0", "append_stream_bytes 0", "append_stream_waits_total 0",
		"append_chains_broken_total 0", `appends_total{code="0",outcome="ok"} 1`)

	s = openStream(t, r)
	conflict := streamed("2", 1, 1)
	conflict.Writes[0].ExpectedVersion = proto.Uint64(3)
	s.send(conflict)
	s.answers(1)
	gate.Lock()
	s.send(streamed("1", 2, 100))
	poll(t, "it is in flight", func() bool { return r.server.opts.Shard.Status().InFlightRequests == 1 })
	name := len("acme") + len("orders") + len("1") + 3 + len("a")
	shows("append_streams 1", "append_stream_pairs 2", fmt.Sprintf("append_stream_pair_bytes %d", 2*(name+192)),
		fmt.Sprintf("append_stream_bytes %d", proto.Size(streamed("1", 2, 100))+outstandingCost),
		"append_stream_limit_bytes 4.194304e+06", "append_stream_pair_limit_bytes 6.7108864e+07", "append_chains_broken_total 1",
		`append_stream_pairs_forgotten_total{chain="broken"} 0`, `append_stream_pairs_forgotten_total{chain="whole"} 0`)
	gate.Unlock()
	s.answers(1)
	// TestStreamIsNotReceivedFromWhileTooMuchIsOutstanding moves the counter of waits.
	r.server.chain.streamWaits.Add(1)
	shows("append_stream_waits_total 1", `appends_total{code="0",outcome="ok"} 2`)
}
