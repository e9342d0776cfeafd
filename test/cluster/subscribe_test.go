package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/follow"
	"github.com/tidemark-db/tidemark/internal/leader"
)

// store is a client of the cluster that finds the leader.
func (c *Cluster) store(t *testing.T) pb.EventStoreServiceClient {
	var seeds []string
	for _, n := range c.Members() {
		seeds = append(seeds, c.Network.Host(n.Number)+":7440")
	}
	conn := leader.New(seeds, grpc.WithContextDialer(c.Network.Dial))
	t.Cleanup(func() { _ = conn.Close() })
	return pb.NewEventStoreServiceClient(conn)
}

// Every subscriber sees every committed batch of its scope exactly once and in order, whatever
// becomes of the nodes that serve it: killed, stopped, deposed, paused.
func TestSubscribersSeeEverythingOnce(t *testing.T) {
	c := Start(t, Options{Nodes: 3, Args: []string{"--memtable-bytes", "1MiB", "--block-cache-bytes", "8MiB", "--subscription-ring-bytes", "64KiB"}})
	orgs := []string{"a", "b"}
	ids := []string{"1", "2", "3"}
	var writing sync.WaitGroup
	ctx, stopWriting := context.WithCancel(t.Context())
	defer stopWriting()
	var written atomic.Int64
	for w := range 4 {
		client := c.store(t)
		writing.Go(func() {
			for seq := uint64(1); ctx.Err() == nil; seq++ {
				// What becomes of a write that fails is not asked: the log says. A node that is
				// paused answers nothing.
				call, cancel := context.WithTimeout(ctx, statusTimeout)
				_, err := client.Append(call, &pb.AppendRequest{ClientId: fmt.Sprint("w", w), Writes: []*pb.Write{{
					Aggregate: &pb.AggregateKey{Org: orgs[seq%2], Type: "t", Id: ids[int(seq)%3]}, AllowCreate: true,
					Events: []*pb.NewEvent{{ClientSeq: seq, Type: fmt.Sprint("T", seq%5), Payload: make([]byte, 300)}},
				}}})
				if cancel(); err == nil {
					written.Add(1)
				}
			}
		})
	}
	reach := func(n int64) {
		c.Until("writes", func() bool { return written.Load() >= n })
	}
	reach(50)

	scopes := []*pb.SubscribeRequest{
		{Scope: &pb.SubscribeRequest_All{All: &pb.AllScope{}}},
		{Scope: &pb.SubscribeRequest_Org{Org: "a"}},
		{Scope: &pb.SubscribeRequest_Aggregates{Aggregates: &pb.AggregatesScope{Aggregates: []*pb.AggregateKey{{Org: "b", Type: "t", Id: "1"}}}}},
		{Scope: &pb.SubscribeRequest_All{All: &pb.AllScope{}}, Filter: &pb.Filter{EventTypes: []string{"T1"}}},
		{Scope: &pb.SubscribeRequest_All{All: &pb.AllScope{}}, Filter: &pb.Filter{EventTypes: []string{"none"}}},
		{Scope: &pb.SubscribeRequest_All{All: &pb.AllScope{}}, Consistency: pb.Consistency_CONSISTENCY_ANY},
	}
	type subscriber struct {
		got         []string
		reconnected int
		err         error
	}
	subscribers := make([]subscriber, len(scopes))
	var last atomic.Uint64 // where the subscribers end; 0 = not yet
	var following sync.WaitGroup
	followCtx, stopFollowing := context.WithCancel(t.Context())
	defer stopFollowing()
	for i, req := range scopes {
		req.Start = &pb.SubscribeRequest_FromPosition{FromPosition: 1}
		client := c.store(t)
		s := &subscribers[i]
		following.Go(func() {
			s.err = follow.Run(followCtx, client, req, follow.Options{Reconnected: func(uint64) { s.reconnected++ }},
				func(m *pb.SubscribeResponse, next uint64) error {
					for _, b := range m.GetBatches() {
						s.got = append(s.got, fmt.Sprint(b.GetPosition(), " ", b.GetAggregate().GetOrg(), b.GetAggregate().GetId(), " ", b.GetVersion()))
					}
					if end := last.Load(); end != 0 && next > end {
						return io.EOF
					}
					return nil
				})
		})
	}
	for round := range int64(2) {
		l := c.Leader()
		l.Kill()
		c.Leader(c.Others(l)...)
		reach(written.Load() + 100)
		l.Launch()
		c.Settle()
		l = c.Leader()
		if _, err := pb.NewClusterServiceClient(l.Conn()).TransferLeadership(t.Context(), &pb.TransferLeadershipRequest{}); err != nil {
			t.Fatal(err)
		}
		reach(written.Load() + 100)
		c.Settle()
		l = c.Leader()
		l.Stop()
		c.Leader(c.Others(l)...)
		reach(written.Load() + 100)
		l.Launch()
		c.Settle()
		if round == 0 {
			l = c.Leader()
			l.Pause()
			c.Leader(c.Others(l)...)
			reach(written.Load() + 50)
			l.Resume()
			c.Settle()
		}
	}
	// The writers go on until everybody has got past the end, so that checkpoints come.
	status, err := c.Leader().Status()
	if err != nil {
		t.Fatal(err)
	}
	last.Store(status.GetLastPosition())
	done := make(chan struct{})
	go func() { // ends with the subscribers, or with the test
		following.Wait()
		close(done)
	}()
	c.Until("the subscribers", func() bool {
		select {
		case <-done:
			return true
		default:
			return false
		}
	})
	stopWriting()
	writing.Wait()

	for i, req := range scopes {
		s := &subscribers[i]
		if s.err != nil {
			t.Fatalf("subscriber %d: %v", i, s.err)
		}
		want := c.logged(t, req)
		// Those that end at a message may have got a little more.
		if len(s.got) > len(want) || !slices.Equal(s.got, want[:len(s.got)]) {
			t.Errorf("subscriber %d: got %d batches that are not the first of %d", i, len(s.got), len(want))
			continue
		}
		for _, line := range want[len(s.got):] {
			var p uint64
			if _, err := fmt.Sscan(line, &p); err != nil || p <= last.Load() {
				t.Errorf("subscriber %d: never got %s", i, line)
				break
			}
		}
		t.Logf("subscriber %d: %d batches over %d streams", i, len(s.got), s.reconnected+1)
		if s.reconnected == 0 && req.GetConsistency() != pb.Consistency_CONSISTENCY_ANY {
			t.Errorf("subscriber %d never had to go on elsewhere", i)
		}
	}
}

// logged is the log of a scope, as ReadAll has it.
func (c *Cluster) logged(t *testing.T, req *pb.SubscribeRequest) (lines []string) {
	t.Helper()
	read := &pb.ReadAllRequest{Filter: req.GetFilter(), Consistency: pb.Consistency_CONSISTENCY_LINEARIZABLE}
	if req.GetOrg() != "" {
		read.Orgs = []string{req.GetOrg()}
	}
	stream, err := pb.NewEventStoreServiceClient(c.Leader().Conn()).ReadAll(t.Context(), read)
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return lines
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, b := range m.GetBatches() {
			if only := req.GetAggregates().GetAggregates(); only != nil && (b.GetAggregate().GetOrg() != only[0].GetOrg() || b.GetAggregate().GetId() != only[0].GetId()) {
				continue
			}
			lines = append(lines, fmt.Sprint(b.GetPosition(), " ", b.GetAggregate().GetOrg(), b.GetAggregate().GetId(), " ", b.GetVersion()))
		}
	}
}
