package main

import (
	"context"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// fakeStore is an event store that answers what a test says and keeps what it was asked.
// Calls that a test gave no answer for are answered UNIMPLEMENTED, and so fail it.
type fakeStore struct {
	pb.UnimplementedEventStoreServiceServer
	append    func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error)
	read      func(*pb.ReadRequest, grpc.ServerStreamingServer[pb.ReadResponse]) error
	subscribe func(*pb.SubscribeRequest, grpc.ServerStreamingServer[pb.SubscribeResponse]) error
	aggregate func(*pb.GetAggregateRequest) (*pb.GetAggregateResponse, error)
	mark      func(*pb.GetMarkRequest) (*pb.GetMarkResponse, error)
	marks     func(*pb.ListMarksRequest) (*pb.ListMarksResponse, error)
	find      func(*pb.FindEventRequest) (*pb.FindEventResponse, error)

	orgs       func(*pb.ListOrgsRequest) (*pb.ListOrgsResponse, error)
	types      func(*pb.ListTypesRequest) (*pb.ListTypesResponse, error)
	aggregates func(*pb.ListAggregatesRequest) (*pb.ListAggregatesResponse, error)

	cluster pb.ClusterServiceServer // may be nil

	mu       sync.Mutex
	requests []proto.Message

	address string
	server  *grpc.Server
}

// start serves the store on a loopback port until the test ends.
func (f *fakeStore) start(t *testing.T) string {
	t.Helper()
	return f.startAs(t, f)
}

// startAs is start for a store that is built on this one.
func (f *fakeStore) startAs(t *testing.T, store pb.EventStoreServiceServer) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f.server = grpc.NewServer()
	pb.RegisterEventStoreServiceServer(f.server, store)
	if f.cluster != nil {
		pb.RegisterClusterServiceServer(f.server, f.cluster)
	}
	done := make(chan struct{})
	go func() { // ends when Stop closes the listener
		defer close(done)
		_ = f.server.Serve(listener)
	}()
	t.Cleanup(func() {
		f.server.Stop()
		<-done
	})
	f.address = listener.Addr().String()
	return f.address
}

func (f *fakeStore) note(m proto.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests = append(f.requests, proto.Clone(m))
}

// calls is how often the store was asked anything.
func (f *fakeStore) calls() int { return len(f.all()) }

// all is what the store was asked.
func (f *fakeStore) all() []proto.Message {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.requests)
}

// asked checks that the store was asked exactly this.
func (f *fakeStore) asked(t *testing.T, want ...proto.Message) {
	t.Helper()
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.requests) != len(want) {
		t.Errorf("the server was asked %d times, want %d: %v", len(f.requests), len(want), f.requests)
		return
	}
	for i := range want {
		if !proto.Equal(f.requests[i], want[i]) {
			t.Errorf("request %d:\n got %v\nwant %v", i, f.requests[i], want[i])
		}
	}
}

var errNoAnswer = status.Error(codes.Unimplemented, "the test gave no answer")

func (f *fakeStore) Append(ctx context.Context, req *pb.AppendRequest) (*pb.AppendResponse, error) {
	f.note(req)
	if f.append == nil {
		return nil, errNoAnswer
	}
	return f.append(ctx, req)
}

func (f *fakeStore) Subscribe(req *pb.SubscribeRequest, stream grpc.ServerStreamingServer[pb.SubscribeResponse]) error {
	if f.subscribe == nil {
		return f.UnimplementedEventStoreServiceServer.Subscribe(req, stream)
	}
	f.note(req)
	return f.subscribe(req, stream)
}

func (f *fakeStore) Read(req *pb.ReadRequest, stream grpc.ServerStreamingServer[pb.ReadResponse]) error {
	f.note(req)
	if f.read == nil {
		return errNoAnswer
	}
	return f.read(req, stream)
}

func (f *fakeStore) GetAggregate(_ context.Context, req *pb.GetAggregateRequest) (*pb.GetAggregateResponse, error) {
	f.note(req)
	if f.aggregate == nil {
		return nil, errNoAnswer
	}
	return f.aggregate(req)
}

func (f *fakeStore) GetMark(_ context.Context, req *pb.GetMarkRequest) (*pb.GetMarkResponse, error) {
	f.note(req)
	if f.mark == nil {
		return nil, errNoAnswer
	}
	return f.mark(req)
}

func (f *fakeStore) ListMarks(_ context.Context, req *pb.ListMarksRequest) (*pb.ListMarksResponse, error) {
	f.note(req)
	if f.marks == nil {
		return nil, errNoAnswer
	}
	return f.marks(req)
}

func (f *fakeStore) FindEvent(_ context.Context, req *pb.FindEventRequest) (*pb.FindEventResponse, error) {
	f.note(req)
	if f.find == nil {
		return nil, errNoAnswer
	}
	return f.find(req)
}

func (f *fakeStore) ListOrgs(_ context.Context, req *pb.ListOrgsRequest) (*pb.ListOrgsResponse, error) {
	f.note(req)
	return f.orgs(req)
}

func (f *fakeStore) ListTypes(_ context.Context, req *pb.ListTypesRequest) (*pb.ListTypesResponse, error) {
	f.note(req)
	return f.types(req)
}

func (f *fakeStore) ListAggregates(_ context.Context, req *pb.ListAggregatesRequest) (*pb.ListAggregatesResponse, error) {
	f.note(req)
	return f.aggregates(req)
}

// at is a moment of the day that all tests happen on.
func at(hour int) *timestamppb.Timestamp {
	return timestamppb.New(time.Date(2026, 1, 31, hour, 0, 0, 0, time.UTC))
}

func order() *pb.AggregateKey {
	return &pb.AggregateKey{Org: "acme", Type: "orders", Id: "4821"}
}
