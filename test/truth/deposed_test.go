package truth

import (
	"context"
	"errors"
	"io"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// Contract 2.4, "A definite refusal is definite", and 5, LINEARIZABLE. A leader stands still
// while another one is elected and commits what the old one had on its own disk, and more.
// When it wakes up it believes that it leads, in the old term and with the old state, and by
// that state most of what it is asked is to be refused, or is not there. It must not say so.
func TestDeposedLeaderCannotMislead(t *testing.T) {
	t.Parallel()
	// Leaders send a heartbeat every tenth to fifth of their lease; the others' timeout lies
	// between that and the lease, which so outlives the election.
	c, old, others := form(t, 8*time.Second, 2*time.Second)
	c.prepare(t, old)
	var (
		moved    = write{aggregate: "moved", client: "b", seq: 1}
		chained  = write{aggregate: "chained", client: "a", seq: 7}
		skipping = write{aggregate: "skipping", client: "a", seq: 7}
	)
	for _, w := range []write{moved, chained, skipping} {
		old.settled(t, w.request()).ok(t, 1)
	}
	known := old.landed(t, guardedFirst, 1)
	term := old.state(t).Term

	old.hold(t, pointStepDown)
	timedOut := old.begin(t, guarded.request(), 500*time.Millisecond)
	if a := await(t, timedOut); status.Code(a.err) != codes.DeadlineExceeded {
		t.Fatalf("a write that cannot be replicated was answered with %v", a)
	}
	freeze(t, old)
	leader := c.leader(t, others...)
	leader.settled(t, guarded.request()).ok(t, 2)
	leader.settled(t, write{aggregate: "moved", client: "c", seq: 1, expect: version(1)}.request()).ok(t, 2)
	leader.settled(t, write{aggregate: "chained", client: "a", seq: 8, expect: version(1)}.request()).ok(t, 2)
	last := leader.settled(t, write{aggregate: "created", client: "a", seq: 1}.request()).ok(t, 1)

	thaw(t, old)
	stillLeads := func() {
		t.Helper()
		if s := old.state(t); s.Role != "leader" || s.Term != term || !s.Ready {
			t.Fatalf("the fault point does not hold: the old leader is %s in term %d, ready: %t; expected the ready leader in term %d", s.Role, s.Term, s.Ready, term)
		}
	}
	stillLeads()
	existing := write{aggregate: "created", client: "b", seq: 1}.request()
	existing.Writes[0].AllowCreate = false
	var all sync.WaitGroup
	for name, want := range map[string]struct {
		request *pb.AppendRequest
		refusal *pb.AppendFailure // nil = NotLeader
	}{
		// These would mislead: by its state the old leader would say what is in the comment.
		"the guard of the next write":         {write{aggregate: "moved", client: "d", seq: 1, expect: version(2)}.request(), nil},     // 2003
		"the guard of a write in flight":      {write{aggregate: "guarded", client: "d", seq: 1, expect: version(1)}.request(), nil},   // 2003, in flight
		"the guard of a landed write":         {write{aggregate: "guarded", client: "a", seq: 7, expect: version(0)}.request(), nil},   // 2003 with holder
		"an aggregate made since":             {existing, nil},                                                                         // 2005
		"a skipped sequence":                  {write{aggregate: "skipping", client: "a", seq: 5}.request(), nil},                      // 2002 without holder
		"the same, to be confirmed":           {write{aggregate: "skipping", client: "a", seq: 5}.confirm(), nil},                      // 2002 without holder
		"a chain":                             {write{aggregate: "chained", client: "a", seq: 9, previous: version(8)}.request(), nil}, // 2030
		"a guard that fails, to be confirmed": {write{aggregate: "moved", client: "d", seq: 1, expect: version(2)}.confirm(), nil},     // 2003
		// These are true whoever leads.
		"what is in flight here":            {guarded.request(), in2013(guarded)},
		"what is in flight here, unguarded": {guarded.unguarded().request(), in2013(guarded.unguarded())},
		"what landed before":                {guardedFirst.request(), withInFlight(guardedFirst.held(used, 1, 7, known), 8)},
	} {
		all.Go(func() {
			for range 5 {
				a := old.ask(t, want.request)
				if want.refusal == nil {
					if a.code() != notLeader || a.failure() != nil {
						t.Errorf("%s: the deposed leader answered %v", name, a)
					}
					if d, ok := api.DetailOf[*pb.NotLeader](a.err); ok && d.GetLeaderId() == old.id {
						t.Errorf("%s: the deposed leader sends its clients to itself: %v", name, d)
					}
					continue
				}
				if !a.refusedAs(want.refusal) {
					t.Errorf("%s: the deposed leader answered %v, expected %v", name, a, want.refusal)
				}
			}
		})
	}
	for name, read := range linearizableReads(old) {
		all.Go(func() {
			for range 5 {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				if err := read(ctx); api.CodeOf(err) != notLeader {
					t.Errorf("%s: the deposed leader answered %v, expected NotLeader", name, err)
				}
				cancel()
			}
		})
	}
	all.Wait()
	stillLeads()

	old.release(t, pointStepDown)
	c.same(t, last.GetPosition(), "guarded", "moved", "chained", "created", "skipping")
	leader.landed(t, guarded, 2)
}

func withInFlight(f *pb.AppendFailure, mark uint64) *pb.AppendFailure {
	f.InFlightMark = &mark
	return f
}

// linearizableReads are all reads that prove that they are not stale, some by default.
func linearizableReads(n *node) map[string]func(context.Context) error {
	k := key("created")
	return map[string]func(context.Context) error{
		"Read": func(ctx context.Context) error {
			s, err := n.Read(ctx, &pb.ReadRequest{Aggregate: k, Consistency: linearizable})
			for err == nil {
				_, err = s.Recv()
			}
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		},
		"GetAggregate": func(ctx context.Context) error {
			_, err := n.GetAggregate(ctx, &pb.GetAggregateRequest{Aggregate: k, Consistency: linearizable})
			return err
		},
		"GetMark": func(ctx context.Context) error {
			_, err := n.GetMark(ctx, &pb.GetMarkRequest{Aggregate: k, ClientId: "a"})
			return err
		},
		"ListMarks": func(ctx context.Context) error {
			_, err := n.ListMarks(ctx, &pb.ListMarksRequest{Aggregate: k})
			return err
		},
		"FindEvent": func(ctx context.Context) error {
			_, err := n.FindEvent(ctx, &pb.FindEventRequest{Aggregate: k, ClientId: "a", ClientSeq: 1})
			return err
		},
		"GetSchema": func(ctx context.Context) error {
			_, err := n.GetSchema(ctx, &pb.GetSchemaRequest{Org: k.Org, Type: k.Type, EventType: "t", Consistency: linearizable})
			return err
		},
		"ListSchemas": func(ctx context.Context) error {
			_, err := n.ListSchemas(ctx, &pb.ListSchemasRequest{Org: k.Org, Consistency: linearizable})
			return err
		},
		"ListAggregates": func(ctx context.Context) error {
			_, err := n.ListAggregates(ctx, &pb.ListAggregatesRequest{Org: k.Org, Type: k.Type, Consistency: linearizable})
			return err
		},
		"ListOrgs": func(ctx context.Context) error {
			_, err := n.ListOrgs(ctx, &pb.ListOrgsRequest{Consistency: linearizable})
			return err
		},
		"ListTypes": func(ctx context.Context) error {
			_, err := n.ListTypes(ctx, &pb.ListTypesRequest{Org: k.Org, Consistency: linearizable})
			return err
		},
	}
}
