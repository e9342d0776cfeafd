package powerloss

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/wal/record"
)

// flagNodeBudget is small because a node takes an election to open.
var flagNodeBudget = flag.Int("node-budget", 120, "about how many crashes of a whole node to try; 0 = all")

// flagRestoreBudget is the same of a node that is sent snapshots, which needs no election.
var flagRestoreBudget = flag.Int("restore-budget", 200, "about how many crashes of a node that is sent snapshots to try; 0 = all")

const (
	nodeWriters = 4
	// nodeLeast is how many writes each writer makes at least, and after the first snapshot.
	nodeLeast = 60
	// nodeLongest bounds the program, in case no snapshot comes.
	nodeLongest = 8 * time.Second
)

// openNode opens a whole shard, small enough that a short run flushes memtables, takes
// snapshots and truncates the log.
func openNode(root string) (*replication.Shard, error) {
	return replication.Open(replication.Options{
		Dir: filepath.Join(root, "shard"), SegmentBytes: segmentSize,
		BlockCacheBytes: 4 << 20, MemTableBytes: 256 << 10, HeadCacheBytes: 1 << 20, MarkCacheBytes: 1 << 20,
		SnapshotLogBytes: 256 << 10, TrailingLogBytes: 128 << 10, MinFreeDiskBytes: -1,
	})
}

// nodeWrite is the n-th request of a writer, from 1. The last writer writes to two
// aggregates at once, which must both have it or neither.
func nodeWrite(w, n int) *pb.AppendRequest {
	client := fmt.Sprintf("writer-%d", w)
	req := &pb.AppendRequest{ClientId: client, RequestId: fmt.Sprint(n)}
	aggregates := 1
	if w == nodeWriters-1 {
		aggregates = 2
	}
	for a := range aggregates {
		rng := rand.New(rand.NewPCG(uint64(w)<<32|uint64(a), uint64(n)))
		size := rng.IntN(300)
		if n%23 == 0 {
			size = 20 << 10
		}
		payload := make([]byte, size)
		for i := range payload {
			payload[i] = byte(rng.Uint32())
		}
		version := uint64(n - 1)
		req.Writes = append(req.Writes, &pb.Write{
			Aggregate:       nodeAggregate(w, a),
			Events:          []*pb.NewEvent{{ClientSeq: uint64(n), EventId: fmt.Sprintf("%s/%d", client, n), Type: "Recorded", Payload: payload}},
			ExpectedVersion: &version, AllowCreate: true, EnforceClientIdempotency: true,
		})
	}
	return req
}

func nodeAggregate(w, a int) *pb.AggregateKey {
	return &pb.AggregateKey{Org: "acme", Type: "orders", Id: fmt.Sprintf("%d-%d", w, a)}
}

// runNode is the program: writers with one write in flight each, which print what was
// acknowledged and where it went.
func runNode(root string) error {
	s, err := openNode(root)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := awaitReady(ctx, s); err != nil {
		return err
	}
	end := time.Now().Add(nodeLongest)
	var all sync.WaitGroup
	errs := make([]error, nodeWriters)
	for w := range nodeWriters {
		all.Go(func() { errs[w] = writeNode(ctx, s, root, w, end) })
	}
	all.Wait()
	return errors.Join(errors.Join(errs...), s.Stop(ctx))
}

func writeNode(ctx context.Context, s *replication.Shard, root string, w int, end time.Time) error {
	after := 0 // writes since the first snapshot was there
	for n := 1; time.Now().Before(end) && (n < nodeLeast || after < nodeLeast); n++ {
		resp, err := s.Append(ctx, nodeWrite(w, n))
		if err != nil {
			return fmt.Errorf("writer %d write %d: %w", w, n, err)
		}
		// One write call a line, so that each has its moment.
		if _, err := fmt.Fprintf(os.Stdout, "ack %d %d %d\n", w, n, resp.GetResults()[0].GetPosition()); err != nil {
			return err
		}
		if after > 0 || (n%10 == 0 && hasSnapshot(root)) {
			after++
		}
	}
	return nil
}

func hasSnapshot(root string) bool {
	found, err := filepath.Glob(filepath.Join(root, "shard", "snapshots", "*[0-9]"))
	return err == nil && len(found) > 0
}

func awaitReady(ctx context.Context, s *replication.Shard) error {
	for {
		ready, changed := s.Leading()
		if ready {
			return nil
		}
		select {
		case <-changed:
		case err := <-s.Fatal():
			return err
		case <-ctx.Done():
			return fmt.Errorf("the node does not lead: %w", ctx.Err())
		}
	}
}

// checkNode opens what a crash left as a whole node, and holds it against what was
// acknowledged.
func checkNode(c Crash) error {
	acked := make([]int, nodeWriters)
	positions := make([]map[int]uint64, nodeWriters)
	for i := range positions {
		positions[i] = map[int]uint64{}
	}
	for _, l := range c.Lines {
		var w, n int
		var position uint64
		if _, err := fmt.Sscanf(l, "ack %d %d %d", &w, &n, &position); err != nil {
			return fmt.Errorf("line %q: %w", l, err)
		}
		acked[w] = max(acked[w], n)
		positions[w][n] = position
	}
	if err := rebooted(filepath.Join(c.Dir, "shard", "tail")); err != nil {
		return err
	}
	s, err := openNode(c.Dir)
	if err != nil {
		return fmt.Errorf("open with %v acknowledged: %w", acked, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = awaitReady(ctx, s)
	for w := range nodeWriters {
		if err == nil {
			err = checkWriter(ctx, s, w, acked[w], positions[w])
		}
	}
	return errors.Join(err, s.Abandon())
}

func checkWriter(ctx context.Context, s *replication.Shard, w, acked int, positions map[int]uint64) error {
	view, err := s.Read(ctx, replication.ReadOptions{Consistency: pb.Consistency_CONSISTENCY_LEADER})
	if err != nil {
		return err
	}
	defer view.Release()
	there := -1
	for a, wr := range nodeWrite(w, 1).GetWrites() {
		k := wr.GetAggregate()
		batches := view.Batches(record.MakeKey(k.GetOrg(), k.GetType(), k.GetId()), 1, 1, 0, false)
		n := 0
		for err == nil && batches.Next() {
			n++
			err = checkNodeBatch(batches.Value(), w, n, a, positions)
		}
		if err = errors.Join(err, batches.Err(), batches.Close()); err != nil {
			return fmt.Errorf("writer %d aggregate %d version %d: %w", w, a, n, err)
		}
		if n < acked || n > acked+1 {
			return fmt.Errorf("writer %d aggregate %d: %d batches, %d acknowledged and one more sent", w, a, n, acked)
		}
		if there >= 0 && n != there {
			return fmt.Errorf("writer %d: %d batches on one aggregate and %d on the other of the same requests", w, there, n)
		}
		there = n
	}
	if there == 0 {
		return nil
	}
	_, err = s.Append(ctx, nodeWrite(w, there))
	f, ok := api.DetailOf[*pb.AppendFailure](err)
	if !ok || f.GetCode() != pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION || f.GetHolder().GetVersion() != uint64(there) || f.GetMark() != uint64(there) {
		return fmt.Errorf("writer %d sent write %d again: %v with %v, expected 2003 that holds version %d", w, there, err, f, there)
	}
	resp, err := s.Append(ctx, nodeWrite(w, there+1))
	if err != nil || resp.GetResults()[0].GetVersion() != uint64(there)+1 {
		return fmt.Errorf("writer %d goes on with write %d: %v, %w", w, there+1, resp, err)
	}
	return nil
}

func checkNodeBatch(b []byte, w, n, a int, positions map[int]uint64) error {
	if err := record.VerifyBatch(b); err != nil {
		return err
	}
	got, err := record.DecodeBatch(b)
	if err != nil {
		return err
	}
	want := nodeWrite(w, n).GetWrites()[a].GetEvents()[0]
	e := got.GetEvents()[0]
	sent := &pb.NewEvent{ClientSeq: e.GetClientSeq(), EventId: e.GetEventId(), Type: e.GetType(), Payload: e.GetPayload()}
	if !proto.Equal(sent, want) || len(got.GetEvents()) != 1 || got.GetVersion() != uint64(n) {
		return fmt.Errorf("it is version %d with %d events, the first %v, expected %v alone", got.GetVersion(), len(got.GetEvents()), sent, want)
	}
	if p, ok := positions[n]; ok && p+uint64(a) != got.GetPosition() {
		return fmt.Errorf("it is at position %d, the answer said %d", got.GetPosition(), p+uint64(a))
	}
	return nil
}

func nodeOptions() Options {
	o := options()
	// Most of a check is waiting for an election.
	o.Budget, o.Samples, o.Workers = *flagNodeBudget, 16, 8
	return o
}

func recordNode(t *testing.T) (calls []Call, root string) {
	t.Helper()
	calls, root = recorded(t, "node")
	acks := 0
	for _, l := range replay(t, calls, root).Lines {
		if strings.HasPrefix(l.Text, "ack ") {
			acks++
		}
	}
	if acks < nodeWriters*nodeLeast {
		t.Fatalf("the program made %d writes, expected at least %d", acks, nodeWriters*nodeLeast)
	}
	if !hasSnapshot(root) {
		t.Fatalf("the program ended after %d writes without a snapshot, so the log was never truncated", acks)
	}
	return calls, root
}

func TestAWholeNodeSurvivesPowerLoss(t *testing.T) {
	calls, root := recordNode(t)
	t.Run("as it is", func(t *testing.T) {
		if stats, err := explore(t, replay(t, calls, root), nodeOptions(), checkNode); err != nil {
			t.Errorf("%v: %v", stats, err)
		}
	})
	// And it is not the exploration that is blind.
	faulty := func(name string, edited []Call, changed int) {
		t.Run(name+" is found", func(t *testing.T) {
			if changed == 0 {
				t.Fatal("the program makes no such call")
			}
			_, err := explore(t, replay(t, edited, root), nodeOptions(), checkNode)
			if err == nil || !strings.Contains(err.Error(), "after a power loss") {
				t.Errorf("%d calls were changed, and what was found is: %v", changed, err)
			}
		})
	}
	edited, n := WithoutFlushes(calls, Under("/shard/tail/log-"))
	faulty("a tail without fsync", edited, n)
	edited, n = WithoutFlushes(calls, Under("/shard/history/"))
	faulty("a history without fsync, once the log is truncated", edited, n)
	edited, n = AnswersFirst(calls, "ack ")
	faulty("answering before fsync", edited, n)
}
