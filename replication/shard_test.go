package replication

import (
	"context"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"
	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// openShard opens a shard and waits until it takes writes.
func openShard(t *testing.T, o Options) *Shard {
	t.Helper()
	o.Logger = zaptest.NewLogger(t)
	if o.MinFreeDiskBytes == 0 {
		o.MinFreeDiskBytes = -1
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	waitReady(t, s)
	return s
}

func waitReady(t *testing.T, s *Shard) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		ready, changed := s.Leading()
		if ready {
			return
		}
		select {
		case <-changed:
		case err := <-s.Fatal():
			t.Fatal(err)
		case <-deadline:
			t.Fatal("not ready after 20 s")
		}
	}
}

func key(id string) *pb.AggregateKey { return &pb.AggregateKey{Org: "acme", Type: "orders", Id: id} }

type mod func(*pb.AppendRequest)

func expect(v uint64) mod {
	return func(r *pb.AppendRequest) { r.Writes[0].ExpectedVersion = proto.Uint64(v) }
}
func confirmRequest(r *pb.AppendRequest) { r.OnDuplicate = pb.OnDuplicate_ON_DUPLICATE_CONFIRM }

// appendOf is an enforced write of one event per sequence that may create its aggregate.
func appendOf(client, id string, seqs []uint64, mods ...mod) *pb.AppendRequest {
	w := &pb.Write{Aggregate: key(id), AllowCreate: true, EnforceClientIdempotency: true}
	for _, s := range seqs {
		w.Events = append(w.Events, &pb.NewEvent{ClientSeq: s, EventId: client + "-" + string(rune('0'+s%10)), Type: "t", Payload: []byte("p")})
	}
	r := &pb.AppendRequest{ClientId: client, Writes: []*pb.Write{w}}
	for _, m := range mods {
		m(r)
	}
	return r
}

func seqs(s ...uint64) []uint64 { return s }

func mustAppend(t *testing.T, s *Shard, r *pb.AppendRequest) *pb.AppendResponse {
	t.Helper()
	resp, err := s.Append(context.Background(), r)
	if err != nil {
		t.Fatalf("append: %v", err)
	}
	return resp
}

func wantFailure(t *testing.T, s *Shard, r *pb.AppendRequest, want *pb.AppendFailure) *pb.AppendFailure {
	t.Helper()
	resp, err := s.Append(context.Background(), r)
	if err == nil {
		t.Fatalf("append: ok %v, want %v", resp, want)
	}
	got, ok := api.DetailOf[*pb.AppendFailure](err)
	if !ok {
		t.Fatalf("append: %v without AppendFailure", err)
	}
	clean := proto.Clone(got).(*pb.AppendFailure)
	if clean.Holder != nil {
		clean.Holder.CommittedAt = nil
	}
	if !proto.Equal(clean, want) {
		t.Fatalf("refusal\n got %v\nwant %v", clean, want)
	}
	return got
}

func TestAppendRetryAndStaleGuard(t *testing.T) {
	dir := t.TempDir()
	s := openShard(t, Options{Dir: dir})
	first := mustAppend(t, s, appendOf("a", "1", seqs(7), expect(0)))
	if r := first.Results[0]; r.Version != 1 || r.Position != 1 || r.FirstEventNumber != 1 || r.Incarnation != 1 || len(r.ChainHash) != 32 {
		t.Fatalf("first result: %v", r)
	}
	holder := &pb.Holder{Version: 1, Incarnation: 1, Position: 1, ClientSeq: 7, EventId: "a-7", FirstClientSeq: 7, LastClientSeq: 7, EventCount: 1}
	dup := &pb.AppendFailure{Code: 2002, Aggregate: key("1"), CurrentVersion: 1, AttemptedSeq: 7, Mark: 7, Holder: holder}
	stale := &pb.AppendFailure{Code: 2003, Aggregate: key("1"), ExpectedVersion: proto.Uint64(0), CurrentVersion: 1, AttemptedSeq: 7, Mark: 7, Holder: holder}
	wantFailure(t, s, appendOf("a", "1", seqs(7)), dup)
	wantFailure(t, s, appendOf("a", "1", seqs(7), expect(0)), stale)
	resp := mustAppend(t, s, appendOf("a", "1", seqs(7), expect(0), confirmRequest))
	want := proto.Clone(first.Results[0]).(*pb.WriteResult)
	want.AlreadyCommitted = true
	if !proto.Equal(resp.Results[0], want) {
		t.Fatalf("confirmed:\n got %v\nwant %v", resp.Results[0], want)
	}

	for _, how := range []func() error{func() error { return s.Stop(context.Background()) }, func() error { return s.Abandon() }} {
		if err := how(); err != nil {
			t.Fatal(err)
		}
		s = openShard(t, Options{Dir: dir})
		wantFailure(t, s, appendOf("a", "1", seqs(7)), dup)
	}
	if err := s.Abandon(); err != nil {
		t.Fatal(err)
	}
}
