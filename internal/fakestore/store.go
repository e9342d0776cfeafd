package fakestore

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// Timeline is the fake's timeline.
const Timeline = "00000000000000000000000000000001"

// Store is the fake. The hooks may be set before it serves.
type Store struct {
	pb.UnimplementedEventStoreServiceServer

	// Before is called with every append and its number, from 1, before it is judged; an
	// error is the answer, and nothing is written.
	Before func(n int, req *pb.AppendRequest) error
	// After is called when an append was written; an error is the answer although it was.
	After func(n int, req *pb.AppendRequest) error

	mu       sync.Mutex
	calls    int
	position uint64
	// aggregates by text form; the order of keys is made when it is asked for.
	aggregates map[string]*aggregate
	reads      int
	// BreakReads ends every stream of this many batches with UNAVAILABLE; 0 = never.
	BreakReads int
}

type aggregate struct {
	batches []*pb.Batch
	// marks by client id.
	marks map[string]uint64
}

// New returns an empty store.
func New() *Store { return &Store{aggregates: make(map[string]*aggregate)} }

// Serve serves s until the test ends and returns a client.
func Serve(t *testing.T, s *Store) pb.EventStoreServiceClient {
	t.Helper()
	return pb.NewEventStoreServiceClient(Dial(t, s))
}

// Dial serves s until the test ends and returns a connection to it.
func Dial(t *testing.T, s *Store, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.MaxRecvMsgSize(64 << 20))
	pb.RegisterEventStoreServiceServer(server, s)
	var serving sync.WaitGroup // ends with server.Stop
	serving.Go(func() { _ = server.Serve(listener) })
	conn, err := grpc.NewClient("passthrough:///fake", append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDisableRetry(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64 << 20)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		serving.Wait()
	})
	return conn
}

func text(k *pb.AggregateKey) string { return k.GetOrg() + "/" + k.GetType() + "/" + k.GetId() }

// Batches returns all batches, by aggregate in key order.
func (s *Store) Batches() []*pb.Batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*pb.Batch
	for _, key := range s.keys() {
		all = append(all, s.aggregates[key].batches...)
	}
	return all
}

// Appends is how many appends were called.
func (s *Store) Appends() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// keys is in the byte order of (org, type, id), which is not that of the text: '/' is not
// the lowest byte that a part can hold.
func (s *Store) keys() []string {
	keys := make([]string, 0, len(s.aggregates))
	for key := range s.aggregates {
		keys = append(keys, key)
	}
	slices.SortFunc(keys, func(a, b string) int {
		return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
	})
	return keys
}

// AppendStream answers each message with one, every request in it as Append does. It knows no
// chains. An error of Before that has no code of Tidemark's ends the stream.
func (s *Store) AppendStream(stream grpc.BidiStreamingServer[pb.AppendStreamRequest, pb.AppendStreamResponse]) error {
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		out := &pb.AppendStreamResponse{}
		for _, req := range m.GetAppends() {
			a := &pb.AppendAnswer{RequestId: req.GetRequestId()}
			resp, err := s.Append(stream.Context(), req)
			switch {
			case err == nil:
				a.Outcome = &pb.AppendAnswer_Response{Response: resp}
			case api.CodeOf(err) == pb.ErrorCode_ERROR_CODE_UNSPECIFIED:
				return err
			default:
				a.Outcome = &pb.AppendAnswer_Error{Error: status.Convert(err).Proto()}
			}
			out.Answers = append(out.Answers, a)
		}
		if err := stream.Send(out); err != nil {
			return err
		}
	}
}

// Append judges one write: existence, guard, idempotency, CONFIRM.
func (s *Store) Append(_ context.Context, req *pb.AppendRequest) (*pb.AppendResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	if s.Before != nil {
		if err := s.Before(s.calls, req); err != nil {
			return nil, err
		}
	}
	if len(req.GetWrites()) != 1 {
		return nil, api.Invalid("writes", "the fake takes one write, found %d", len(req.GetWrites()))
	}
	w := req.GetWrites()[0]
	if req.GetOnDuplicate() == pb.OnDuplicate_ON_DUPLICATE_CONFIRM {
		for _, e := range w.GetEvents() {
			if !w.GetEnforceClientIdempotency() || e.GetEventId() == "" {
				return nil, api.Invalid("on_duplicate", "CONFIRM needs enforcement and event ids")
			}
		}
	}
	a := s.aggregates[text(w.GetAggregate())]
	if err := a.judge(req, w); err != nil {
		if req.GetOnDuplicate() == pb.OnDuplicate_ON_DUPLICATE_CONFIRM {
			if b := a.same(req.GetClientId(), w); b != nil {
				return answer(req, b, true), nil
			}
		}
		return nil, err
	}
	if a == nil {
		a = &aggregate{marks: make(map[string]uint64)}
		s.aggregates[text(w.GetAggregate())] = a
	}
	b := s.write(a, req.GetClientId(), w)
	if s.After != nil {
		if err := s.After(s.calls, req); err != nil {
			return nil, err
		}
	}
	return answer(req, b, false), nil
}

// judge answers like the contract's checks; a nil aggregate does not exist.
func (a *aggregate) judge(req *pb.AppendRequest, w *pb.Write) error {
	if a == nil {
		if !w.GetAllowCreate() {
			return api.Errorf(pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_EXISTS, "no aggregate %s", text(w.GetAggregate()))
		}
		a = &aggregate{}
	}
	version := uint64(len(a.batches))
	first := w.GetEvents()[0].GetClientSeq()
	failure := &pb.AppendFailure{
		Aggregate: w.GetAggregate(), ExpectedVersion: w.ExpectedVersion, CurrentVersion: version,
		AttemptedSeq: first, Mark: a.marks[req.GetClientId()], Holder: a.holder(req.GetClientId(), w),
	}
	refuse := func(code pb.ErrorCode, format string, args ...any) error {
		failure.Code = code
		return api.Errorf(code, format, args...).With(failure)
	}
	if w.ExpectedVersion != nil && w.GetExpectedVersion() != version {
		return refuse(pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION, "expected version %d, found %d", w.GetExpectedVersion(), version)
	}
	if !w.GetEnforceClientIdempotency() {
		return nil
	}
	if first <= failure.Mark {
		return refuse(pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION, "sequence %d is at or below the mark %d", first, failure.Mark)
	}
	if w.PreviousClientSeq != nil && w.GetPreviousClientSeq() != failure.Mark {
		return refuse(pb.ErrorCode_ERROR_CODE_CLIENT_SEQUENCE_GAP, "previous sequence %d is not the mark %d", w.GetPreviousClientSeq(), failure.Mark)
	}
	for last, i := uint64(0), 0; i < len(w.GetEvents()); i++ {
		seq := w.GetEvents()[i].GetClientSeq()
		if seq <= last {
			return api.Errorf(pb.ErrorCode_ERROR_CODE_CLIENT_SEQ_NOT_INCREASING, "sequence %d after %d", seq, last)
		}
		last = seq
	}
	return nil
}

// holder is the newest batch of the writer that recorded the write's first sequence.
func (a *aggregate) holder(client string, w *pb.Write) *pb.Holder {
	for _, b := range slices.Backward(a.batches) {
		if b.GetClientId() != client {
			continue
		}
		for i, e := range b.GetEvents() {
			if e.GetClientSeq() == w.GetEvents()[0].GetClientSeq() {
				same := i < len(w.GetEvents()) && proto.Equal(e, recorded(w.GetEvents()[0], e.GetEventNumber()))
				return &pb.Holder{
					Version: b.GetVersion(), ClientSeq: e.GetClientSeq(), EventId: e.GetEventId(),
					EventCount:     uint32(len(b.GetEvents())),
					ContentDiffers: e.GetEventId() == w.GetEvents()[0].GetEventId() && !same,
				}
			}
		}
	}
	return nil
}

// same finds the batch that a write recorded before.
func (a *aggregate) same(client string, w *pb.Write) *pb.Batch {
	if a == nil {
		return nil
	}
	for _, b := range slices.Backward(a.batches) {
		if b.GetClientId() != client || len(b.GetEvents()) != len(w.GetEvents()) {
			continue
		}
		same := true
		for i, e := range b.GetEvents() {
			same = same && proto.Equal(e, recorded(w.GetEvents()[i], e.GetEventNumber()))
		}
		if same {
			return b
		}
	}
	return nil
}

// recorded is the event as it is kept.
func recorded(e *pb.NewEvent, number uint64) *pb.Event {
	schema := e.GetSchema()
	if schema == nil {
		schema = &pb.SchemaVersion{Major: 1}
	}
	kept := &pb.Event{
		ClientSeq: e.GetClientSeq(), EventId: e.GetEventId(), Type: e.GetType(), Schema: schema, OccurredAt: e.GetOccurredAt(),
		Payload: e.GetPayload(), ContentType: e.GetContentType(), Metadata: e.GetMetadata(), Encryption: e.GetEncryption(),
		EventNumber: number,
	}
	if len(kept.GetPayload()) == 0 {
		kept.Payload = nil
	}
	return kept
}

func (s *Store) write(a *aggregate, client string, w *pb.Write) *pb.Batch {
	s.position++
	number := uint64(1)
	for _, b := range a.batches {
		number += uint64(len(b.GetEvents()))
	}
	b := &pb.Batch{
		Aggregate: w.GetAggregate(), Version: uint64(len(a.batches)) + 1, Incarnation: 1, Position: s.position,
		ClientId: client, FirstEventNumber: number, CommittedAt: timestamppb.New(time.Unix(int64(s.position), 0)),
	}
	for i, e := range w.GetEvents() {
		b.Events = append(b.Events, recorded(e, number+uint64(i)))
		a.marks[client] = max(a.marks[client], e.GetClientSeq())
	}
	a.batches = append(a.batches, b)
	return b
}

func answer(req *pb.AppendRequest, b *pb.Batch, already bool) *pb.AppendResponse {
	return &pb.AppendResponse{RequestId: req.GetRequestId(), Timeline: Timeline, Results: []*pb.WriteResult{{
		Aggregate: b.GetAggregate(), Version: b.GetVersion(), Incarnation: 1, Position: b.GetPosition(),
		CommittedAt: b.GetCommittedAt(), FirstEventNumber: b.GetFirstEventNumber(), AlreadyCommitted: already,
	}}}
}

// Read streams the batches of an aggregate, two a message.
func (s *Store) Read(req *pb.ReadRequest, stream grpc.ServerStreamingServer[pb.ReadResponse]) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	a := s.aggregates[text(req.GetAggregate())]
	if a == nil {
		return api.Errorf(pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND, "no aggregate %s", text(req.GetAggregate()))
	}
	var batches []*pb.Batch
	for _, b := range a.batches {
		if b.GetVersion() >= req.GetFromVersion() && (req.GetToVersion() == 0 || b.GetVersion() <= req.GetToVersion()) {
			batches = append(batches, b)
		}
	}
	for part := range slices.Chunk(batches, 2) {
		if err := stream.Send(&pb.ReadResponse{Batches: part}); err != nil {
			return err
		}
		if s.reads += len(part); s.BreakReads > 0 && s.reads >= s.BreakReads {
			s.reads = 0
			return api.Errorf(pb.ErrorCode_ERROR_CODE_LEADER_NOT_READY, "the stream was broken on purpose")
		}
	}
	return stream.Send(&pb.ReadResponse{End: &pb.ReadEnd{CurrentVersion: uint64(len(a.batches))}})
}

// ListAggregates lists in key order, at most two a page, whatever was asked for.
func (s *Store) ListAggregates(_ context.Context, req *pb.ListAggregatesRequest) (*pb.ListAggregatesResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	resp := &pb.ListAggregatesResponse{}
	after := strings.Split(req.GetPageToken(), "/")
	for _, key := range s.keys() {
		parts := strings.Split(key, "/")
		switch {
		case req.GetPageToken() != "" && slices.Compare(parts, after) <= 0,
			req.GetOrg() != "" && parts[0] != req.GetOrg(),
			req.GetType() != "" && parts[1] != req.GetType(),
			!strings.HasPrefix(parts[2], req.GetIdPrefix()):
			continue
		}
		if len(resp.GetAggregates()) == 2 {
			resp.NextPageToken = text(resp.GetAggregates()[1].GetAggregate())
			break
		}
		resp.Aggregates = append(resp.Aggregates, &pb.GetAggregateResponse{
			Aggregate: &pb.AggregateKey{Org: parts[0], Type: parts[1], Id: parts[2]},
			Version:   uint64(len(s.aggregates[key].batches)), Timeline: Timeline,
		})
	}
	return resp, nil
}
