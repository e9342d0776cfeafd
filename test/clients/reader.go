package clients

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"google.golang.org/grpc/status"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/test/linear"
)

// reader asks, at every level of consistency.
type reader struct{ client }

// newest is how many batches a read returns at most.
const newest = 5

func (r *reader) run() {
	for r.pause(r.load.stopping, r.load.options.Pause) {
		r.ask()
	}
}

// ask asks for something once. Only answers are recorded.
func (r *reader) ask() {
	a := r.load.pick(r.rng, 1)[0]
	r.load.mu.Lock()
	version, position := a.placed, a.position
	r.load.mu.Unlock()
	ctx, cancel := context.WithTimeout(r.load.stopping, 2*time.Second)
	defer cancel()
	op := linear.Op{Client: r.id, Aggregate: a.name, Fresh: true}
	target, consistency := r.target(), pb.Consistency_CONSISTENCY_LINEARIZABLE
	switch n := r.rng.IntN(10); {
	case n < 4:
		if n == 0 {
			target = r.any()
		}
	case n < 6:
		consistency, op.Fresh = pb.Consistency_CONSISTENCY_LEADER, false
	default:
		target, consistency, op.Fresh = r.any(), pb.Consistency_CONSISTENCY_ANY, false
		if position > 0 && r.rng.IntN(3) > 0 {
			op.AtLeast = version
		}
	}
	level := level{consistency: consistency}
	if op.AtLeast > 0 {
		level.position, level.timeline = position, r.load.options.Timeline
	}
	op.Node, op.Call = target.ID, r.load.recorder.Now()
	client := pb.NewEventStoreServiceClient(target.Conn)
	var err error
	switch r.rng.IntN(4) {
	case 0:
		op.Kind, op.Writer = linear.Mark, r.writer()
		err = mark(ctx, client, a.key, level, &op)
	case 1:
		op.Kind, op.Writer = linear.Find, r.writer()
		r.load.mu.Lock()
		op.Seq = 1 + uint64(r.rng.Int64N(int64(a.marks[op.Writer])+2))
		r.load.mu.Unlock()
		err = find(ctx, client, a.key, level, &op)
	default:
		op.Kind = linear.Read
		err = read(ctx, client, a.key, level, &op)
	}
	op.Return = r.load.recorder.Now()
	switch n, notLeader := api.DetailOf[*pb.NotLeader](err); {
	case err == nil:
		r.load.record(op)
	case notLeader && consistency == pb.Consistency_CONSISTENCY_ANY && strings.Contains(status.Convert(err).Message(), "not a member of a cluster yet"):
		// It was wiped, and has nothing to read.
	case notLeader && consistency == pb.Consistency_CONSISTENCY_ANY:
		r.load.problem("%s: %s answers 2011 to a read at ANY", r.id, target.ID)
	case notLeader:
		r.follow(n.GetLeaderAddress())
	case errors.As(err, new(*nonsense)):
		r.load.problem("%s at %s: %w", r.id, target.ID, err)
	}
}

func (r *reader) writer() string {
	return fmt.Sprintf("%s-w%d", r.load.options.Name, r.rng.IntN(r.load.options.Writers))
}

// level is how consistent an answer must be.
type level struct {
	consistency pb.Consistency
	position    uint64
	timeline    string
}

// nonsense is an answer that contradicts itself.
type nonsense struct{ text string }

func (n *nonsense) Error() string { return n.text }

func mark(ctx context.Context, c pb.EventStoreServiceClient, k *pb.AggregateKey, l level, op *linear.Op) error {
	resp, err := c.GetMark(ctx, &pb.GetMarkRequest{Aggregate: k, ClientId: op.Writer, Consistency: l.consistency, MinPosition: l.position, Timeline: l.timeline})
	if err != nil {
		return err
	}
	op.Seq, op.Holder = resp.GetMark(), holderOf(resp.GetHolder())
	return nil
}

func find(ctx context.Context, c pb.EventStoreServiceClient, k *pb.AggregateKey, l level, op *linear.Op) error {
	resp, err := c.FindEvent(ctx, &pb.FindEventRequest{Aggregate: k, ClientId: op.Writer, ClientSeq: op.Seq, Consistency: l.consistency, MinPosition: l.position, Timeline: l.timeline})
	if err != nil {
		return err
	}
	op.Holder = holderOf(resp.GetHolder())
	if resp.GetFound() != (op.Holder != nil) || resp.GetBatch().GetVersion() != resp.GetHolder().GetVersion() {
		return &nonsense{fmt.Sprintf("FindEvent returns found %t, holder %v, batch version %d", resp.GetFound(), op.Holder, resp.GetBatch().GetVersion())}
	}
	if op.Holder != nil && resp.GetBatch().GetEvents()[resp.GetEventIndex()].GetClientSeq() != op.Seq {
		return &nonsense{fmt.Sprintf("FindEvent of %d returns event index %d of %v", op.Seq, resp.GetEventIndex(), op.Holder)}
	}
	return nil
}

// read reads the newest batches.
func read(ctx context.Context, c pb.EventStoreServiceClient, k *pb.AggregateKey, l level, op *linear.Op) error {
	stream, err := c.Read(ctx, &pb.ReadRequest{
		Aggregate: k, Direction: pb.Direction_DIRECTION_BACKWARD, Limit: newest, Consistency: l.consistency, MinPosition: l.position, Timeline: l.timeline,
	})
	if err != nil {
		return err
	}
	for {
		m, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case api.CodeOf(err) == pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_FOUND:
			return nil // version 0
		case err != nil:
			return err
		}
		for _, b := range m.GetBatches() {
			op.Batches = append(op.Batches, batchOf(b))
		}
		if end := m.GetEnd(); end != nil {
			op.Version = end.GetCurrentVersion()
			if n := len(op.Batches); n != int(min(op.Version, newest)) || n > 0 && op.Batches[0].Version != op.Version {
				return &nonsense{fmt.Sprintf("a read of the newest %d batches at version %d returns %+v", newest, op.Version, op.Batches)}
			}
		}
	}
}

// batchOf is a batch as it is remembered.
func batchOf(b *pb.Batch) linear.Batch {
	out := linear.Batch{
		Version: b.GetVersion(), Position: b.GetPosition(), CommitFirst: b.GetCommitFirstPosition(), CommitCount: b.GetCommitCount(),
		Incarnation: b.GetIncarnation(), Writer: b.GetClientId(), FirstNumber: b.GetFirstEventNumber(), Events: uint64(len(b.GetEvents())),
	}
	if n := len(b.GetEvents()); n > 0 {
		first := b.GetEvents()[0]
		out.First, out.Last = first.GetClientSeq(), b.GetEvents()[n-1].GetClientSeq()
		out.ID, _, _ = strings.Cut(first.GetEventId(), "/")
	}
	return out
}
