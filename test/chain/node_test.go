package chain

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/server"
)

// node is a node in this process.
type node struct {
	t        *testing.T
	store    pb.EventStoreServiceClient
	cluster  pb.ClusterServiceClient
	timeline string
}

func start(t *testing.T) *node {
	t.Helper()
	shard, err := replication.Open(replication.Options{Dir: t.TempDir(), MinFreeDiskBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.After(20 * time.Second)
	for ready, changed := shard.Leading(); !ready; ready, changed = shard.Leading() {
		select {
		case <-changed:
		case <-deadline:
			t.Fatal("expected a node that takes writes within 20 s")
		}
	}
	s, err := server.New(server.Options{Shard: shard})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }() // ends with Stop below
	conn, err := grpc.NewClient(l.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		s.Stop(context.Background())
		if err := errors.Join(<-served, shard.Stop(context.Background())); err != nil {
			t.Error(err)
		}
	})
	return &node{t: t, store: pb.NewEventStoreServiceClient(conn), cluster: pb.NewClusterServiceClient(conn)}
}

var key = &pb.AggregateKey{Org: "acme", Type: "orders", Id: "ä"}

// write appends events and returns the result.
func (n *node) write(client string, events ...*pb.NewEvent) *pb.WriteResult {
	n.t.Helper()
	resp, err := n.store.Append(n.t.Context(), &pb.AppendRequest{ClientId: client, Writes: []*pb.Write{{Aggregate: key, AllowCreate: true, Events: events}}})
	if err != nil {
		n.t.Fatal(err)
	}
	n.timeline = resp.GetTimeline()
	return resp.GetResults()[0]
}

// expect checks what is said of the aggregate, by GetAggregate and in a list, and that what can
// be read of it is versions from.. with a chain that goes on from before and ends as is said.
func (n *node) expect(want *pb.GetAggregateResponse, before []byte) {
	n.t.Helper()
	want.Aggregate, want.Timeline = key, n.timeline
	got, err := n.store.GetAggregate(n.t.Context(), &pb.GetAggregateRequest{Aggregate: key})
	if err != nil || !proto.Equal(got, want) {
		n.t.Errorf("found %v, %v, expected\n%v", got, err, want)
	}
	list, err := n.store.ListAggregates(n.t.Context(), &pb.ListAggregatesRequest{Org: "acme", IncludeDeleted: true})
	if wantList := (&pb.ListAggregatesResponse{Aggregates: []*pb.GetAggregateResponse{want}}); err != nil || !proto.Equal(list, wantList) {
		n.t.Errorf("found %v, %v, expected\n%v", list, err, wantList)
	}
	live, err := n.store.ListAggregates(n.t.Context(), &pb.ListAggregatesRequest{Org: "acme"})
	if err != nil || len(live.GetAggregates()) != map[bool]int{false: 1}[want.GetDeleted()] {
		n.t.Errorf("without the deleted: found %v, %v", live, err)
	}
	n.verified()
	if want.GetDeleted() {
		return
	}
	version, event := want.GetFirstVersion(), uint64(0)
	for _, b := range n.read() {
		o := objectOf(n.t, b)
		if hash := chainHash(o); !bytes.Equal(hash, b.GetChainHash()) {
			n.t.Errorf("version %d: the documentation makes %x, the node says %x", b.GetVersion(), hash, b.GetChainHash())
		}
		if b.GetVersion() != version || !bytes.Equal(b.GetPreviousChainHash(), before) || event != 0 && b.GetFirstEventNumber() != event {
			n.t.Errorf("found version %d with event %d behind %x, expected %d with %d behind %x", b.GetVersion(), b.GetFirstEventNumber(), b.GetPreviousChainHash(), version, event, before)
		}
		version, before, event = version+1, b.GetChainHash(), b.GetFirstEventNumber()+uint64(len(b.GetEvents()))
	}
	if version != want.GetVersion()+1 || !bytes.Equal(before, want.GetChainHash()) || event != want.GetEventCount()+1 {
		n.t.Errorf("the chain ends below version %d and event %d with %x", version, event, before)
	}
}

func (n *node) read() (out []*pb.Batch) {
	n.t.Helper()
	stream, err := n.store.Read(n.t.Context(), &pb.ReadRequest{Aggregate: key})
	for err == nil {
		var m *pb.ReadResponse
		if m, err = stream.Recv(); err == nil {
			out = append(out, m.GetBatches()...)
		}
	}
	if !errors.Is(err, io.EOF) {
		n.t.Fatal(err)
	}
	return out
}

// verified expects the node to find nothing wrong with itself.
func (n *node) verified() {
	n.t.Helper()
	stream, err := n.cluster.Verify(n.t.Context(), &pb.VerifyRequest{})
	done := false
	for err == nil {
		var m *pb.VerifyResponse
		if m, err = stream.Recv(); err == nil {
			done = m.GetProgress().GetDone()
			if len(m.GetFindings()) > 0 {
				n.t.Errorf("found %v in what nothing is wrong with", m.GetFindings())
			}
		}
	}
	if !errors.Is(err, io.EOF) || !done {
		n.t.Errorf("found done: %t, and %v", done, err)
	}
}

// TestChainOfWhatReadsReturn computes the chain from what a node's reads return, by the documentation
// alone, through trims, deletes and new lives, and checks what is said of the aggregate.
func TestChainOfWhatReadsReturn(t *testing.T) {
	n := start(t)
	none := make([]byte, 32)
	first := n.write("a", &pb.NewEvent{ClientSeq: 1, Type: "T"})
	full := &pb.NewEvent{
		ClientSeq: 2, EventId: "e", Type: "Placed", Schema: &pb.SchemaVersion{Major: 2, Minor: 7}, OccurredAt: &timestamppb.Timestamp{Seconds: -1, Nanos: 999_999_999},
		ContentType: "application/json", Payload: []byte{0, 0xff}, Metadata: map[string]string{"\U0001F600": "3", "\uFF5E": "4", "a": ""},
		Encryption: &pb.Encryption{Scheme: "s", KeyId: "k", Nonce: []byte{9}},
	}
	second := n.write("b", full, &pb.NewEvent{ClientSeq: 2, Type: "T", Encryption: &pb.Encryption{}, OccurredAt: &timestamppb.Timestamp{}})
	third := n.write("a", &pb.NewEvent{ClientSeq: 3, Type: "T"})
	want := &pb.GetAggregateResponse{
		Version: 3, Incarnation: 1, FirstVersion: 1, EventCount: 4, CreatedAt: first.GetCommittedAt(), LastCommittedAt: third.GetCommittedAt(), LastClientId: "a",
		Position: 3, ChainHash: third.GetChainHash(),
	}
	n.expect(want, none)

	if _, err := n.store.Trim(t.Context(), &pb.TrimRequest{Aggregate: key, KeepFromVersion: 3}); err != nil {
		t.Fatal(err)
	}
	want.FirstVersion, want.Position = 3, 4
	n.expect(want, second.GetChainHash())

	remove := func(restart bool) {
		t.Helper()
		if _, err := n.store.Delete(t.Context(), &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{{Aggregate: key, AllowRecreate: true, RestartVersions: restart}}}); err != nil {
			t.Fatal(err)
		}
	}
	remove(false)
	want.Deleted, want.AllowRecreate, want.Position = true, true, 5
	n.expect(want, nil)

	// It goes on.
	fourth := n.write("b", &pb.NewEvent{ClientSeq: 9, Type: "T"}, &pb.NewEvent{ClientSeq: 10, Type: "T"})
	want = &pb.GetAggregateResponse{
		Version: 4, Incarnation: 2, FirstVersion: 4, EventCount: 6, CreatedAt: fourth.GetCommittedAt(), LastCommittedAt: fourth.GetCommittedAt(), LastClientId: "b",
		Position: 6, ChainHash: fourth.GetChainHash(),
	}
	n.expect(want, third.GetChainHash())

	// It begins anew.
	remove(true)
	want.Deleted, want.AllowRecreate, want.Position = true, true, 7
	n.expect(want, nil)
	fifth := n.write("a", &pb.NewEvent{ClientSeq: 11, Type: "T"})
	want = &pb.GetAggregateResponse{
		Version: 1, Incarnation: 3, FirstVersion: 1, EventCount: 1, CreatedAt: fifth.GetCommittedAt(), LastCommittedAt: fifth.GetCommittedAt(), LastClientId: "a",
		Position: 8, ChainHash: fifth.GetChainHash(),
	}
	n.expect(want, none)
}
