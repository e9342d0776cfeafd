package clients

import (
	"crypto/sha256"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/linear"
)

// writer is one client_id.
type writer struct {
	client
	number int
	// next is the lowest sequence that may be used, by aggregate.
	next map[string]uint64
}

// request is one request of a writer, as it is sent and as it is remembered.
type request struct {
	*linear.Request
	message    *pb.AppendRequest
	aggregates []*aggregate
	// unknown says that some attempt's outcome was unknown.
	unknown bool
}

func (w *writer) run() {
	for w.pause(w.load.stopping, w.load.options.Pause) {
		w.resolve(w.decide())
	}
}

func (w *writer) chance(percent int) bool { return w.rng.IntN(100) < percent }

// decide makes a new request.
func (w *writer) decide() *request {
	n := 1
	if w.chance(25) {
		n = 2 + w.rng.IntN(2)
	}
	w.number++
	id := fmt.Sprintf("%s.%d", w.id, w.number)
	r := &request{Request: &linear.Request{Writer: w.id, Confirm: w.chance(40)}, aggregates: w.load.pick(w.rng, n)}
	r.message = &pb.AppendRequest{RequestId: id, ClientId: w.id}
	if r.Confirm {
		r.message.OnDuplicate = pb.OnDuplicate_ON_DUPLICATE_CONFIRM
	}
	for _, a := range r.aggregates {
		w.load.mu.Lock()
		version, mark := a.version, a.marks[w.id]
		w.load.mu.Unlock()
		first := max(w.next[a.name], mark+1)
		if w.chance(5) {
			first += 1 + uint64(w.rng.IntN(3)) // a gap is allowed
		}
		write := linear.Write{Aggregate: a.name, First: first, Last: first + uint64(w.rng.IntN(3)), ID: id, Create: w.chance(90)}
		if w.chance(50) {
			write.Expected = &version
		}
		if w.chance(20) {
			write.Previous = &mark
			if w.chance(10) {
				wrong := mark + 1000
				write.Previous = &wrong
			}
		}
		r.Writes = append(r.Writes, write)
		r.message.Writes = append(r.message.Writes, w.message(a, write))
	}
	return r
}

// message is a write as it is sent.
func (w *writer) message(a *aggregate, write linear.Write) *pb.Write {
	m := &pb.Write{
		Aggregate: a.key, AllowCreate: write.Create, EnforceClientIdempotency: true,
		ExpectedVersion: write.Expected, PreviousClientSeq: write.Previous,
	}
	for seq := write.First; seq <= write.Last; seq++ {
		payload := make([]byte, 100+w.rng.IntN(1500))
		for i := range payload {
			payload[i] = byte(w.rng.Uint32())
		}
		m.Events = append(m.Events, &pb.NewEvent{
			ClientSeq: seq, EventId: eventID(write.ID, seq-write.First), Type: "Changed", Schema: &pb.SchemaVersion{Major: 1},
			OccurredAt: timestamppb.New(time.Unix(1_700_000_000+int64(seq), 0)), Payload: payload, ContentType: "application/octet-stream",
		})
	}
	w.load.mu.Lock()
	defer w.load.mu.Unlock()
	w.load.contents[write.ID+a.name] = contentOf(m.Events)
	return m
}

// eventID is the id of an event by its place in the batch.
func eventID(request string, index uint64) string { return fmt.Sprintf("%s/%d", request, index) }

// contentOf is a hash of what is sent as events.
func contentOf(events []*pb.NewEvent) [sha256.Size]byte {
	h := sha256.New()
	for _, e := range events {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(e)
		if err != nil {
			panic(err) // strings of ASCII
		}
		h.Write(b)
	}
	return [sha256.Size]byte(h.Sum(nil))
}
