package writers

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// server is the least that keeps the promises which a Set checks, in memory. Tests then
// break one promise each.
type server struct {
	pb.EventStoreServiceClient
	mu       sync.Mutex
	batches  map[string][]*pb.Batch
	order    []string // aggregates, in the order of their first batch
	position uint64
	// answers is how many appends each client gets an answer to; the rest get none.
	answers int
	given   map[string]int
	// landed says whether an append without an answer is recorded.
	landed bool
}

func newServer() *server { return &server{batches: map[string][]*pb.Batch{}, given: map[string]int{}} }

func name(k *pb.AggregateKey) string { return k.GetOrg() + "/" + k.GetType() + "/" + k.GetId() }

// find is the batch of a client that holds a sequence.
func (s *server) find(k *pb.AggregateKey, client string, seq uint64) *pb.Batch {
	for _, b := range s.batches[name(k)] {
		if b.GetClientId() == client && b.GetEvents()[0].GetClientSeq() <= seq && seq <= b.GetEvents()[len(b.GetEvents())-1].GetClientSeq() {
			return b
		}
	}
	return nil
}

func (s *server) Append(_ context.Context, req *pb.AppendRequest, _ ...grpc.CallOption) (*pb.AppendResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	first := req.GetWrites()[0]
	if b := s.find(first.GetAggregate(), req.GetClientId(), first.GetEvents()[0].GetClientSeq()); b != nil {
		if req.GetOnDuplicate() == pb.OnDuplicate_ON_DUPLICATE_CONFIRM {
			resp := &pb.AppendResponse{}
			for _, w := range req.GetWrites() {
				r := result(s.find(w.GetAggregate(), req.GetClientId(), w.GetEvents()[0].GetClientSeq()))
				r.AlreadyCommitted = true
				resp.Results = append(resp.Results, r)
			}
			return resp, nil
		}
		code := pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION
		if first.ExpectedVersion != nil {
			code = pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION
		}
		events := b.GetEvents()
		last := events[len(events)-1].GetClientSeq()
		return nil, api.Errorf(code, "there already").With(&pb.AppendFailure{AttemptedSeq: events[0].GetClientSeq(), Mark: last, Holder: &pb.Holder{
			Version: b.GetVersion(), Position: b.GetPosition(), ClientSeq: events[0].GetClientSeq(), FirstClientSeq: events[0].GetClientSeq(),
			LastClientSeq: last, EventCount: uint32(len(events)), EventId: events[0].GetEventId(),
		}})
	}
	s.given[req.GetClientId()]++
	silent := s.given[req.GetClientId()] > s.answers
	if silent && !s.landed {
		return nil, status.Error(codes.Unavailable, "gone")
	}
	resp := &pb.AppendResponse{}
	from := s.position + 1
	for _, w := range req.GetWrites() {
		resp.Results = append(resp.Results, result(s.record(req, w, from)))
	}
	if silent {
		return nil, status.Error(codes.Unavailable, "gone")
	}
	return resp, nil
}

func (s *server) record(req *pb.AppendRequest, w *pb.Write, from uint64) *pb.Batch {
	s.position++
	at := name(w.GetAggregate())
	b := &pb.Batch{Aggregate: w.GetAggregate(), Version: 1, Incarnation: 1, Position: s.position, CommitFirstPosition: from,
		CommitCount: uint32(len(req.GetWrites())), ClientId: req.GetClientId(), CommittedAt: timestamppb.Now(), FirstEventNumber: 1, PreviousChainHash: make([]byte, 32)}
	if old := s.batches[at]; len(old) > 0 {
		prev := old[len(old)-1]
		b.Version, b.PreviousChainHash = prev.GetVersion()+1, prev.GetChainHash()
		b.FirstEventNumber = prev.GetFirstEventNumber() + uint64(len(prev.GetEvents()))
	} else {
		s.order = append(s.order, at)
	}
	for i, e := range w.GetEvents() {
		b.Events = append(b.Events, &pb.Event{ClientSeq: e.GetClientSeq(), EventId: e.GetEventId(), Type: e.GetType(), Schema: e.GetSchema(), OccurredAt: e.GetOccurredAt(),
			Payload: e.GetPayload(), ContentType: e.GetContentType(), Metadata: e.GetMetadata(), EventNumber: b.GetFirstEventNumber() + uint64(i)})
	}
	b.ChainHash = chainHash(b)
	s.batches[at] = append(s.batches[at], b)
	return b
}

func result(b *pb.Batch) *pb.WriteResult {
	return &pb.WriteResult{Aggregate: b.GetAggregate(), Version: b.GetVersion(), Incarnation: 1, Position: b.GetPosition(), CommittedAt: b.GetCommittedAt(),
		FirstEventNumber: b.GetFirstEventNumber(), ChainHash: b.GetChainHash()}
}

// stream is a read's answer.
type stream struct {
	grpc.ServerStreamingClient[pb.ReadResponse]
	batches []*pb.Batch
}

func (s *stream) Recv() (*pb.ReadResponse, error) {
	if s.batches == nil {
		return nil, io.EOF
	}
	out := &pb.ReadResponse{Batches: s.batches}
	s.batches = nil
	return out, nil
}

func (s *server) Read(_ context.Context, req *pb.ReadRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[pb.ReadResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := s.batches[name(req.GetAggregate())]
	at := slices.IndexFunc(all, func(b *pb.Batch) bool { return b.GetVersion() >= req.GetFromVersion() })
	if at < 0 {
		at = len(all)
	}
	return &stream{batches: slices.Clone(all[at:])}, nil
}

// loaded is a set that has written to a server until the answers stopped.
func loaded(t *testing.T, landed bool) (*Set, *server) {
	t.Helper()
	set, s := New("set", 3, 20), newServer()
	s.answers, s.landed = 20, landed
	for _, e := range set.Run(t.Context(), []pb.EventStoreServiceClient{s}, nil) {
		if e.Err == nil || e.Definite {
			t.Fatalf("writer %s ended with %v", e.Writer, e.Err)
		}
	}
	s.answers = 1 << 30
	if set.Acknowledged() != 400 || set.Unknown() != 20 {
		t.Fatalf("%d acknowledged and %d unknown, expected 400 and 20", set.Acknowledged(), set.Unknown())
	}
	return set, s
}

// all does everything that a suite does after a restart.
func (s *Set) all(t *testing.T, server *server) error {
	t.Helper()
	steps := []func(context.Context, pb.EventStoreServiceClient) error{s.Retry, s.Check, s.Settle, s.Check}
	for _, step := range steps {
		if err := step(t.Context(), server); err != nil {
			return err
		}
	}
	s.Recheck()
	return s.Check(t.Context(), server)
}

func TestAnHonestServerPasses(t *testing.T) {
	for _, landed := range []bool{false, true} {
		set, s := loaded(t, landed)
		if err := set.all(t, s); err != nil {
			t.Errorf("unanswered writes landed %t: %v", landed, err)
		}
		if set.Unknown() != 0 {
			t.Errorf("%d requests are still unknown", set.Unknown())
		}
	}
}

// last is the newest batch of the first writer of a kind.
func (s *server) last(set *Set, of kind) (at string, b *pb.Batch) {
	at = name(set.writers[int(of)].aggregates[0].key)
	all := s.batches[at]
	return at, all[len(all)-1]
}

func TestEveryLieIsFound(t *testing.T) {
	for _, tc := range []struct {
		name string
		lie  func(set *Set, s *server)
		want string
	}{
		{"an acknowledged batch is gone", func(set *Set, s *server) {
			at, _ := s.last(set, plain)
			s.batches[at] = s.batches[at][:len(s.batches[at])-1]
		}, "expected ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION"},
		{"an acknowledged aggregate is gone", func(set *Set, s *server) {
			w := set.writers[plain]
			delete(s.batches, name(w.aggregates[0].key))
			w.requests = w.requests[:0] // retries do not notice
		}, "is followed by"},
		{"a batch is there twice", func(set *Set, s *server) {
			at, b := s.last(set, plain)
			again := proto.Clone(b).(*pb.Batch)
			s.position++
			again.Version, again.Position, again.CommitFirstPosition, again.PreviousChainHash = b.GetVersion()+1, s.position, s.position, b.GetChainHash()
			again.FirstEventNumber++
			again.Events[0].EventNumber++
			again.ChainHash = chainHash(again)
			s.batches[at] = append(s.batches[at], again)
		}, "expected"},
		{"a byte of a payload has changed", func(set *Set, s *server) {
			at := name(set.writers[chunked].aggregates[0].key)
			b := s.batches[at][0]
			b.Events[1].Payload[7] ^= 1
			b.ChainHash = chainHash(b)
		}, "event 1 (number 2) is client_seq"},
		{"a chain hash is not that of the content", func(set *Set, s *server) {
			_, b := s.last(set, plain)
			b.ChainHash[3] ^= 1
		}, "chain hash"},
		{"a batch does not follow its predecessor", func(set *Set, s *server) {
			b := s.batches[name(set.writers[plain].aggregates[0].key)][1]
			b.PreviousChainHash = make([]byte, 32)
			b.ChainHash = chainHash(b)
		}, "previous chain hash"},
		{"half of a request without an answer", func(set *Set, s *server) {
			w := set.writers[multi]
			n := len(w.requests) - 1
			m := w.message(n, w.requests[n], true, pb.OnDuplicate_ON_DUPLICATE_REJECT)
			s.record(m, m.GetWrites()[0], s.position+1)
		}, "not on all"},
		{"a sequence is skipped", func(set *Set, s *server) {
			at := name(set.writers[plain].aggregates[0].key)
			all := s.batches[at]
			s.batches[at] = []*pb.Batch{all[0]}
			for _, b := range all[2:] {
				b.Version, b.FirstEventNumber, b.PreviousChainHash = b.GetVersion()-1, b.GetFirstEventNumber()-1, s.batches[at][len(s.batches[at])-1].GetChainHash()
				b.Events[0].EventNumber--
				b.ChainHash = chainHash(b)
				s.batches[at] = append(s.batches[at], b)
			}
		}, "expected"},
		{"a write that nobody sent", func(set *Set, s *server) {
			w := set.writers[plain]
			w.requests = w.requests[:len(w.requests)-1]
			m := w.message(len(w.requests), w.next(), true, pb.OnDuplicate_ON_DUPLICATE_REJECT)
			s.record(m, m.GetWrites()[0], s.position+1)
		}, "sent only"},
		{"a position is skipped", func(set *Set, s *server) {
			s.position++
			w := set.writers[plain]
			n := len(w.requests) - 1
			m := w.message(n, w.requests[n], true, pb.OnDuplicate_ON_DUPLICATE_REJECT)
			s.record(m, m.GetWrites()[0], s.position+1)
		}, "is followed by"},
		{"an answer named another position", func(set *Set, _ *server) {
			set.writers[plain].requests[0].results[0].Position++
		}, "was answered with"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			set, s := loaded(t, false)
			tc.lie(set, s)
			err := set.all(t, s)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("found %v, expected an error that says %q", err, tc.want)
			}
		})
	}
}

// lying answers every append with an error or an answer of its own.
type lying struct {
	*server
	answer func(*pb.AppendResponse, error) (*pb.AppendResponse, error)
}

func (l lying) Append(ctx context.Context, req *pb.AppendRequest, o ...grpc.CallOption) (*pb.AppendResponse, error) {
	return l.answer(l.server.Append(ctx, req, o...))
}

func TestWrongAnswersToRetriesAreFound(t *testing.T) {
	for name, answer := range map[string]func(*pb.AppendResponse, error) (*pb.AppendResponse, error){
		"a holder at another version": func(r *pb.AppendResponse, err error) (*pb.AppendResponse, error) {
			if f, ok := api.DetailOf[*pb.AppendFailure](err); ok {
				f.Holder.Version++
			}
			return r, err
		},
		"a refusal without details": func(r *pb.AppendResponse, err error) (*pb.AppendResponse, error) {
			if err != nil {
				err = api.Errorf(api.CodeOf(err), "no")
			}
			return r, err
		},
		"a confirmation of another version": func(r *pb.AppendResponse, err error) (*pb.AppendResponse, error) {
			if r != nil {
				r.Results[0].Version++
			}
			return r, err
		},
		"a confirmation that claims to be new": func(r *pb.AppendResponse, err error) (*pb.AppendResponse, error) {
			if r != nil {
				r.Results[0].AlreadyCommitted = false
			}
			return r, err
		},
		"no answer": func(*pb.AppendResponse, error) (*pb.AppendResponse, error) {
			return nil, errors.New("gone")
		},
	} {
		t.Run(name, func(t *testing.T) {
			set, s := loaded(t, false)
			if err := set.Retry(t.Context(), lying{s, answer}); err == nil {
				t.Error("found nothing")
			}
		})
	}
}
