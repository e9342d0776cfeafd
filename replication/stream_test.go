package replication

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/record"
)

// talk is a client of one stream.
type talk struct {
	t       *testing.T
	st      *Stream
	answers map[string]string
	sent    int
}

func openTalk(t *testing.T, s *Shard) *talk {
	t.Helper()
	st := s.OpenStream(context.Background())
	t.Cleanup(st.Close)
	return &talk{t: t, st: st, answers: map[string]string{}}
}

// send admits appends in one message, and returns their request_ids.
func (k *talk) send(appends ...*pb.AppendRequest) []string {
	var requests []*StreamRequest
	var ids []string
	for _, a := range appends {
		k.sent++
		a.RequestId = fmt.Sprint("r", k.sent)
		ids = append(ids, a.RequestId)
		requests = append(requests, &StreamRequest{Append: a})
	}
	k.st.Admit(requests)
	return ids
}

// answer waits for the answer of a request.
func (k *talk) answer(id string) string {
	k.t.Helper()
	for deadline := time.After(20 * time.Second); ; {
		if a, ok := k.answers[id]; ok {
			return a
		}
		select {
		case <-k.st.Ready():
		case <-deadline:
			k.t.Fatalf("no answer to %s after 20 s; there are %v", id, k.answers)
		}
		for _, r := range k.st.Take(nil) {
			id := r.Append.GetRequestId()
			if old, ok := k.answers[id]; ok {
				k.t.Fatalf("a second answer to %s: %s after %s", id, answerText(r.Response, r.Err), old)
			}
			k.answers[id] = answerText(r.Response, r.Err)
		}
	}
}

func answerText(resp *pb.AppendResponse, err error) string {
	if err != nil {
		if api.CodeOf(err) == 0 {
			return status.Code(err).String()
		}
		return err.Error()
	}
	var b strings.Builder
	b.WriteString("ok")
	for _, r := range resp.GetResults() {
		fmt.Fprintf(&b, " %s@%d", r.GetAggregate().GetId(), r.GetVersion())
		if r.GetAlreadyCommitted() {
			b.WriteString(" already")
		}
	}
	return b.String()
}

// want sends one append and compares its answer.
func (k *talk) want(want string, a *pb.AppendRequest) {
	k.t.Helper()
	if got := k.answer(k.send(a)[0]); got != want {
		k.t.Errorf("%v of %s:\n got %s\nwant %s", a.GetWrites()[0].GetEvents()[0].GetClientSeq(), a.GetClientId(), got, want)
	}
}

func (k *talk) wantAll(ids []string, want ...string) {
	k.t.Helper()
	for i, id := range ids {
		if got := k.answer(id); got != want[i] {
			k.t.Errorf("answer %d:\n got %s\nwant %s", i, got, want[i])
		}
	}
}

func after(seq uint64) mod {
	return func(r *pb.AppendRequest) { r.Writes[0].PreviousClientSeq = proto.Uint64(seq) }
}

func free(r *pb.AppendRequest) { r.Writes[0].EnforceClientIdempotency = false }

// both makes a request of the writes of two.
func both(a, b *pb.AppendRequest) *pb.AppendRequest {
	a.Writes = append(a.Writes, b.Writes...)
	return a
}

func brokenText(id, client string, mark uint64) string {
	return fmt.Sprintf("2030 ClientSequenceGap: write 0, acme/orders/%s: a request of writer %q before it on this stream was not admitted or failed, so that previous_client_seq is needed: the mark is %d", id, client, mark)
}

func behindText(id, client string, behind, mark uint64) string {
	return fmt.Sprintf("2030 ClientSequenceGap: write 0, acme/orders/%s: it was sent behind client_seq %d of writer %q on its stream, and that is not recorded; the mark is %d", id, behind, client, mark)
}

func conflictText(id string, expected, found uint64) string {
	return fmt.Sprintf("2003 OptimisticConcurrencyViolation: write 0, acme/orders/%s: expected version %d, found %d", id, expected, found)
}

// The rule of the broken chain (contract 5), one answer at a time.
func TestBrokenChain(t *testing.T) {
	s, _ := gated(t)
	k := openTalk(t, s)
	k.want("ok 1@1", appendOf("a", "1", seqs(1)))
	k.want(conflictText("1", 7, 1), appendOf("a", "1", seqs(2), expect(7)))
	k.want(brokenText("1", "a", 1), appendOf("a", "1", seqs(2)))
	k.want(brokenText("1", "a", 1), appendOf("a", "1", seqs(3)))
	k.want("2030 ClientSequenceGap: write 0, acme/orders/1: previous_client_seq does not match writer \"a\": its mark is 1", appendOf("a", "1", seqs(3), after(2)))
	k.want("2002 ClientIdempotencyViolation: write 0, acme/orders/1: client_seq 1 of writer \"a\" is at or below its mark 1; client_seq 1 was recorded at version 1 by event \"a-1\"", appendOf("a", "1", seqs(1)))
	k.want("ok 2@1", appendOf("a", "2", seqs(9))) // other pairs are not concerned
	k.want("ok 1@2", appendOf("b", "1", seqs(1)))
	other := openTalk(t, s)
	other.want("ok 1@3", appendOf("a", "1", seqs(2))) // nor is another stream
	k.want(brokenText("1", "a", 2), appendOf("a", "1", seqs(3)))
	k.want("ok 1@4", appendOf("a", "1", seqs(3), free)) // nor is who enforces nothing, which mends nothing
	k.want(brokenText("1", "a", 3), appendOf("a", "1", seqs(4)))
	k.want(conflictText("1", 9, 4), appendOf("a", "1", seqs(4), after(3), expect(9))) // not admitted: not mended
	k.want(brokenText("1", "a", 3), appendOf("a", "1", seqs(4)))
	k.want("ok 1@5", appendOf("a", "1", seqs(4), after(3)))
	k.want("ok 1@6", appendOf("a", "1", seqs(6))) // a gap of the writer's own
	// A request of two writes breaks both its pairs, and mends those that say where they go on.
	k.want(conflictText("1", 0, 6), both(appendOf("a", "1", seqs(7), expect(0)), appendOf("a", "2", seqs(10))))
	k.want(brokenText("2", "a", 9), appendOf("a", "2", seqs(10)))
	k.want(strings.Replace(brokenText("2", "a", 9), "write 0", "write 1", 1),
		both(appendOf("a", "1", seqs(7), after(6)), appendOf("a", "2", seqs(10))))
	k.want("ok 1@7 2@2", both(appendOf("a", "1", seqs(7), after(6)), appendOf("a", "2", seqs(10), after(9))))
	k.want("ok 1@8 2@3", both(appendOf("a", "1", seqs(8)), appendOf("a", "2", seqs(11))))
	// What its caller has refused is not admitted either.
	refused := appendOf("a", "1", seqs(9))
	refused.RequestId = "refused"
	k.st.Admit([]*StreamRequest{{Append: refused, Refused: api.Invalid("writes", "is too small")}})
	if got := k.answer("refused"); got != "2016 InvalidRequest: writes is too small" {
		t.Error(got)
	}
	k.want(brokenText("1", "a", 8), appendOf("a", "1", seqs(10)))
	k.want("ok 2@4", appendOf("a", "2", seqs(12)))
	// Nor is one of another timeline.
	stale := appendOf("a", "2", seqs(13))
	stale.Timeline = strings.Repeat("0", 32)
	k.want("2031 TimelineMismatch: the request is about timeline "+stale.Timeline+", this cluster is on "+s.identity().Timeline+
		": it was restored or is another one; positions and marks must be read again", stale)
	k.want(brokenText("2", "a", 12), appendOf("a", "2", seqs(13)))
}

// What was admitted behind a write that fails later fails, too, and then the chain is broken.
func TestFailureInFlightBreaksTheChain(t *testing.T) {
	s, g := gated(t)
	k := openTalk(t, s)
	k.want("ok 1@1", appendOf("a", "1", seqs(1)))
	g.shut()
	first := k.send(appendOf("a", "1", seqs(2)))
	await(t, "the first is with raft", func() bool { return s.Stats().OutstandingEntries == 1 })
	rest := k.send(appendOf("a", "1", seqs(3)), appendOf("b", "1", seqs(1)), appendOf("a", "1", seqs(4), after(3)), appendOf("a", "1", seqs(5), free), appendOf("a", "2", seqs(1)))
	g.lift(raft.ErrNotLeader)
	k.wantAll(first, "2011 NotLeader: this node gave the write back before it was logged (node is not the leader): nothing was done, no leader is known here now, ask another node, or again")
	k.wantAll(rest, behindText("1", "a", 2, 1), "ok 1@2",
		"2030 ClientSequenceGap: write 0, acme/orders/1: previous_client_seq does not match writer \"a\": its mark is 1, 5 with what is in flight",
		behindText("1", "a", 4, 1), "ok 2@1")
	k.want(brokenText("1", "a", 1), appendOf("a", "1", seqs(3)))
	k.want("ok 1@3", appendOf("a", "1", seqs(2), after(1)))
	k.want("ok 1@4", appendOf("a", "1", seqs(3)))
}

// An outcome that nobody knows breaks the chain, in whatever term the next write comes.
func TestUnknownOutcomeBreaksTheChain(t *testing.T) {
	s, g := gated(t)
	k := openTalk(t, s)
	k.want("ok 1@1", appendOf("a", "1", seqs(1)))
	g.shut()
	first := k.send(appendOf("a", "1", seqs(2)))
	await(t, "the first is with raft", func() bool { return s.Stats().OutstandingEntries == 1 })
	rest := k.send(appendOf("a", "1", seqs(3)))
	g.lift(raft.ErrLeadershipLost)
	k.wantAll(first, "2014 WriteOutcomeUnknown: replication failed (leadership lost while committing log): the write may or may not land; ask again with the same client_seq")
	broken := "2030 ClientSequenceGap: write 0, acme/orders/1: a request of writer \"a\" before it on this stream was not admitted or failed, so that previous_client_seq is needed: the mark is 1"
	// 3 is in flight, too, unless Apply has refused it by now.
	if got := k.answer(k.send(appendOf("a", "1", seqs(4)))[0]); got != broken+", 3 with what is in flight" && got != broken+", 2 with what is in flight" {
		t.Errorf("4 behind an unknown outcome: %s", got)
	}
	s.endTenure("the term ends in a test")
	// The batcher may have handed the second over before it knew, and Apply refused it.
	switch got := k.answer(rest[0]); {
	case strings.HasPrefix(got, "2011 NotLeader: the term ends in a test: nothing was done, "):
	case strings.HasPrefix(got, "2011 NotLeader: this node is not the leader any more: nothing was done, "):
	case got == "2014 WriteOutcomeUnknown: the term ends in a test: the write may or may not land; ask again with the same client_seq":
	case got == behindText("1", "a", 2, 1):
	default:
		t.Errorf("what was queued: %s", got)
	}
	k.want("2011 NotLeader: this node is not the leader: nothing was done, no leader is known here now, ask another node, or again", appendOf("a", "1", seqs(4), after(1)))
	s.beginTenure(s.group.get())
	waitReady(t, s)
	k.want(broken, appendOf("a", "1", seqs(4)))
	k.want("ok 1@2", appendOf("a", "1", seqs(2), after(1)))
	k.want("ok 1@3", appendOf("a", "1", seqs(3)))
}

// CONFIRM attaches to what is recorded and to what is in flight, and only a write that says where
// it goes on mends the chain.
func TestConfirmOnAStream(t *testing.T) {
	s, g := gated(t)
	k := openTalk(t, s)
	k.want("ok 1@1", appendOf("a", "1", seqs(1), confirmRequest))
	k.want("ok 1@1 already", appendOf("a", "1", seqs(1), confirmRequest)) // breaks nothing
	k.want("ok 1@2", appendOf("a", "1", seqs(2)))
	k.want(conflictText("1", 0, 2), appendOf("a", "1", seqs(3), expect(0), confirmRequest))
	k.want("ok 1@2 already", appendOf("a", "1", seqs(2), confirmRequest))
	k.want(brokenText("1", "a", 2), appendOf("a", "1", seqs(3), confirmRequest))
	k.want("ok 1@2 already", appendOf("a", "1", seqs(2), after(1), confirmRequest))
	k.want("ok 1@3", appendOf("a", "1", seqs(3), confirmRequest))
	g.shut()
	ids := k.send(appendOf("a", "1", seqs(4)))
	await(t, "4 is with raft", func() bool { return s.Stats().OutstandingEntries == 1 })
	ids = append(ids, k.send(appendOf("a", "1", seqs(5)), appendOf("a", "1", seqs(4), confirmRequest), appendOf("a", "1", seqs(6)))...)
	g.lift(raft.ErrNotLeader)
	lost := "2011 NotLeader: this node gave the write back before it was logged (node is not the leader): nothing was done, no leader is known here now, ask another node, or again"
	k.wantAll(ids[:2], lost, behindText("1", "a", 4, 3))
	// 6 was sent behind the CONFIRM of 4, and behind 5; neither landed before it.
	k.wantAll(ids[3:], behindText("1", "a", 5, 3))
	// The CONFIRM is judged afresh, perhaps while 5 and 6 are in flight.
	switch got := k.answer(ids[2]); {
	case got == brokenText("1", "a", 3):
	case strings.HasPrefix(got, "2013 InflightDuplicateWrite: write 0, acme/orders/1: client_seq 4 of writer \"a\" is in flight (up to 6)"):
	default:
		t.Errorf("the CONFIRM of 4: %s", got)
	}
	k.want("ok 1@4", appendOf("a", "1", seqs(4), after(3), confirmRequest))
	k.want("ok 1@5", appendOf("a", "1", seqs(5), confirmRequest))
}

// A write behind a delete in flight waits, and so does what was sent behind it.
func TestStreamWaitsForADelete(t *testing.T) {
	s, g := gated(t)
	k := openTalk(t, s)
	k.want("ok 1@1", appendOf("a", "1", seqs(1)))
	g.shut()
	deleted := make(chan error, 1)
	go func() {
		_, err := s.Delete(context.Background(), &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{{Aggregate: key("1"), AllowRecreate: true, ForgetWriters: true}}})
		deleted <- err
	}()
	await(t, "the delete is in flight", func() bool { return s.Status().InFlightRequests == 1 })
	admitted := make(chan []string, 1)
	go func() { admitted <- k.send(appendOf("a", "1", seqs(2)), appendOf("a", "2", seqs(1))) }()
	await(t, "the stream has sent", func() bool { s.mu.Lock(); defer s.mu.Unlock(); return s.streams.pairs > 0 })
	select {
	case <-admitted:
		t.Fatal("a write is admitted while its aggregate's delete is in flight")
	default:
	}
	if n := s.Status().InFlightRequests; n != 1 {
		t.Fatalf("%d requests are in flight, want the delete alone", n)
	}
	g.lift()
	ids := <-admitted
	if err := <-deleted; err != nil {
		t.Fatal(err)
	}
	// The delete forgot that 1 was ever recorded, and 2 was sent behind it.
	k.wantAll(ids, behindText("1", "a", 1, 0), "ok 2@1")
	k.want("ok 1@2", appendOf("a", "1", seqs(1), after(0)))
}

// A stream remembers a bounded number of pairs; what it forgets makes it stricter, never laxer.
func TestForgottenPairsAreTakenForBroken(t *testing.T) {
	s, _ := gated(t)
	s.streams.perStream = 4
	k := openTalk(t, s)
	for i := range 10 { // whole chains are forgotten first, and without consequence
		k.want(fmt.Sprintf("ok w%d@1", i), appendOf("a", fmt.Sprint("w", i), seqs(1)))
	}
	k.want("ok w0@2", appendOf("a", "w0", seqs(2)))
	for i := range 4 {
		id := fmt.Sprint("b", i)
		k.want(conflictText(id, 7, 0), appendOf("a", id, seqs(1), expect(7)))
	}
	k.want("ok w0@3", appendOf("a", "w0", seqs(3), free)) // the fifth: a broken one is forgotten
	if st := s.Stats(); st.StreamPairs != 4 || st.StreamPairsForgottenBroken == 0 {
		t.Errorf("%d pairs, %d broken ones forgotten; want 4, and one or more", st.StreamPairs, st.StreamPairsForgottenBroken)
	}
	for i := range 4 {
		id := fmt.Sprint("b", i)
		k.want(brokenText(id, "a", 0), appendOf("a", id, seqs(1)))
		k.want(fmt.Sprintf("ok %s@1", id), appendOf("a", id, seqs(1), after(0)))
	}
	k.want(brokenText("w5", "a", 1), appendOf("a", "w5", seqs(2)))
	k.st.Close()
	if st := s.Stats(); st.StreamPairs != 0 || st.StreamPairBytes != 0 {
		t.Errorf("a closed stream leaves %d pairs of %d bytes", st.StreamPairs, st.StreamPairBytes)
	}
}

// Requests whose pairs are not known break every chain.
func TestOpaqueRequestBreaksAllChains(t *testing.T) {
	s, _ := gated(t)
	k := openTalk(t, s)
	k.want("ok 1@1", appendOf("a", "1", seqs(1)))
	k.st.Admit([]*StreamRequest{{Append: &pb.AppendRequest{RequestId: "big"}, Refused: api.Errorf(2017, "too large"), Opaque: true}})
	if got := k.answer("big"); got != "2017 RequestTooLarge: too large" {
		t.Error(got)
	}
	k.want(brokenText("1", "a", 1), appendOf("a", "1", seqs(2)))
	k.want(brokenText("2", "a", 0), appendOf("a", "2", seqs(1)))
	k.want("ok 1@2", appendOf("a", "1", seqs(2), after(1)))
	k.want("ok 1@3", appendOf("a", "1", seqs(3)))
}

// A stream that ends answers nobody, and leaves what it has in flight to land.
func TestStreamClosedWithWritesInFlight(t *testing.T) {
	s, g := gated(t)
	k := openTalk(t, s)
	g.shut()
	k.send(appendOf("a", "1", seqs(1)), appendOf("a", "1", seqs(2)), appendOf("a", "1", seqs(2), confirmRequest))
	k.st.Close()
	g.lift()
	await(t, "both land", func() bool { return s.Status().LastPosition == 2 && s.Status().InFlightRequests == 0 })
	if st := s.Stats(); st.Streams != 0 || st.StreamPairs != 0 || st.StreamPairBytes != 0 {
		t.Errorf("%d streams with %d pairs of %d bytes are left", st.Streams, st.StreamPairs, st.StreamPairBytes)
	}
}

// Whatever fails, and whenever: what a writer that pipelines has recorded is always a first part
// of what it meant to send, in order. It goes on sending until it hears of a failure.
func TestPipelinesNeverSkip(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	var mu sync.Mutex
	rnd := rand.New(rand.NewPCG(seed, 1))
	draw := func(n int) int {
		mu.Lock()
		defer mu.Unlock()
		return rnd.IntN(n)
	}
	causes := []error{raft.ErrNotLeader, raft.ErrEnqueueTimeout, raft.ErrNotLeader, raft.ErrLeadershipLost}
	o := Options{Dir: t.TempDir(), MaxInFlightBytes: 32 << 10, Hooks: Hooks{Propose: func(next func() func() error) func() error {
		switch draw(6) {
		case 0: // never logged, or nobody knows
			err, delay := causes[draw(len(causes))], time.Duration(5+draw(10))*time.Millisecond
			return func() error { // others may land while nobody knows of the failure
				<-time.After(delay)
				return err
			}
		case 1: // logged, and nobody knows
			wait := next()
			return func() error { _ = wait(); return raft.ErrLeadershipLost }
		}
		return next()
	}}}
	s := openShard(t, o)
	defer func() { _ = s.Abandon() }()
	end := make(chan struct{})
	var steering, writing sync.WaitGroup
	steering.Go(func() { // a lost leadership ends the term, or nothing would ever be handed over again
		tick := time.NewTicker(3 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-tick.C:
			}
			s.mu.Lock()
			lost := s.tenure != nil && s.tenure.lost
			s.mu.Unlock()
			if lost || draw(60) == 0 {
				s.endTenure("the term ends in a test")
				s.beginTenure(s.group.get())
			}
		}
	})
	const writers, aggregates, goal = 3, 2, 200
	for w := range writers {
		writing.Go(func() {
			p := &pipeliner{talk: openTalk(t, s), client: fmt.Sprint("p", w), draw: draw}
			p.run(aggregates, goal)
		})
	}
	writing.Wait()
	close(end)
	steering.Wait()
	for a := range aggregates {
		for w := range writers {
			client := fmt.Sprint("p", w)
			if got := recordedSeqs(t, s, fmt.Sprint(a), client); !prefix(got) || len(got) < goal {
				t.Errorf("%s recorded on aggregate %d: %v; want 1, 2, 3 and so on, to %d at least", client, a, got, goal)
			}
		}
	}
}

// pipeliner sends sequence after sequence to some aggregates, and goes back where one failed.
type pipeliner struct {
	*talk
	client string
	draw   func(int) int
}

func (p *pipeliner) run(aggregates int, goal uint64) {
	lanes := make([]lane, aggregates)
	for i := range lanes {
		lanes[i] = lane{id: fmt.Sprint(i), next: 1}
	}
	outstanding := map[string]bool{}
	for {
		for _, id := range p.send(p.message(lanes, goal)...) {
			outstanding[id] = true
		}
		finished, failed := true, false
		for i := range lanes {
			finished = finished && lanes[i].next > goal
		}
		for id := range outstanding {
			if !finished && !failed && len(outstanding) < 24 && p.draw(4) > 0 {
				break // leave it outstanding
			}
			failed = !strings.HasPrefix(p.answer(id), "ok") || failed
			delete(outstanding, id)
		}
		switch {
		case failed: // it asks where it stands once it has all answers
			for i := range lanes {
				lanes[i].next = p.resume(lanes[i].id, goal)
			}
		case finished:
			return
		}
	}
}

// lane is what a pipeliner sends to one aggregate.
type lane struct {
	id   string
	next uint64
}

// message draws what to send next.
func (p *pipeliner) message(lanes []lane, goal uint64) []*pb.AppendRequest {
	var message []*pb.AppendRequest
	for range 1 + p.draw(8) {
		l := &lanes[p.draw(len(lanes))]
		if l.next > goal {
			continue
		}
		r := appendOf(p.client, l.id, seqs(l.next))
		l.next++
		switch p.draw(30) {
		case 0:
			r.Writes[0].ExpectedVersion = proto.Uint64(1 << 40)
		case 1:
			r.OnDuplicate = pb.OnDuplicate_ON_DUPLICATE_CONFIRM
		case 2:
			if other := &lanes[p.draw(len(lanes))]; other != l && other.next <= goal {
				r = both(r, appendOf(p.client, other.id, seqs(other.next)))
				other.next++
			}
		}
		message = append(message, r)
	}
	return message
}

// resume sends the sequence behind the mark with the mark as its previous one until that is
// taken, and returns the next.
func (p *pipeliner) resume(id string, goal uint64) uint64 {
	for {
		view := p.st.shard.currentView()
		m, err := view.Mark(record.MakeKey("acme", "orders", id), p.client)
		view.Release()
		if err != nil {
			p.t.Error(err)
			return goal + 1
		}
		if m >= goal {
			return m + 1
		}
		if strings.HasPrefix(p.answer(p.send(appendOf(p.client, id, seqs(m+1), after(m)))[0]), "ok") {
			return m + 2
		}
	}
}

func prefix(got []uint64) bool {
	for i, seq := range got {
		if seq != uint64(i+1) {
			return false
		}
	}
	return true
}

// recordedSeqs are the sequences that a writer has recorded, in the order of the log.
func recordedSeqs(t *testing.T, s *Shard, id, client string) []uint64 {
	t.Helper()
	view := s.currentView()
	defer view.Release()
	m, err := view.Mark(record.MakeKey("acme", "orders", id), client)
	if err != nil {
		t.Fatal(err)
	}
	type at struct{ position, seq uint64 }
	var all []at
	for seq := uint64(1); seq <= m; seq++ {
		for row, err := range view.Rows(record.MakeKey("acme", "orders", id), client, seq) {
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, at{row.Position, seq})
		}
	}
	slices.SortFunc(all, func(a, b at) int { return int(a.position) - int(b.position) })
	var out []uint64
	for _, a := range all {
		out = append(out, a.seq)
	}
	return out
}
