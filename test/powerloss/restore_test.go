package powerloss

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/wal/record"
	"github.com/tidemark-db/tidemark/wal/tail"
)

// openSmall opens a node that truncates its log soon and keeps nothing of it. It closes the
// listener.
func openSmall(dir, id string, l net.Listener, peers []replication.Peer) (*replication.Shard, error) {
	return replication.Open(replication.Options{
		Dir: dir, NodeID: id, Listener: l, RaftAddress: l.Addr().String(), Peers: peers,
		SegmentBytes: segmentSize, BlockCacheBytes: 1 << 20, MemTableBytes: 256 << 10, HeadCacheBytes: 1 << 20, MarkCacheBytes: 1 << 20,
		SnapshotLogBytes: 8 << 10, TrailingLogBytes: 1, MinFreeDiskBytes: -1, HeartbeatTimeout: time.Second,
	})
}

// restoreWrite is the write at position n.
func restoreWrite(n uint64) *pb.AppendRequest {
	return &pb.AppendRequest{ClientId: "w", Writes: []*pb.Write{{
		Aggregate: restoreAggregate(n), AllowCreate: true, EnforceClientIdempotency: true,
		Events: []*pb.NewEvent{{ClientSeq: n, EventId: fmt.Sprint(n), Type: "Recorded", Payload: []byte(strings.Repeat(fmt.Sprint(n, " "), 40))}},
	}}}
}

func restoreAggregate(n uint64) *pb.AggregateKey {
	return &pb.AggregateKey{Org: "acme", Type: "orders", Id: fmt.Sprint(n % 3)}
}

// runRestore is the program. Its directory is a node's that is sent a snapshot when it is
// new, and another one after it was away; the other node's is elsewhere. It prints how far
// the first one's log was.
func runRestore(root string) (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	elsewhere, err := os.MkdirTemp("", "leader-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(elsewhere)) }()
	l1, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	peers := []replication.Peer{{ID: "n1", Address: l1.Addr().String()}}
	leader, err := openSmall(elsewhere, "n1", l1, peers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, leader.Abandon()) }()
	if err := awaitReady(ctx, leader); err != nil {
		return err
	}
	position := uint64(0)
	write := func(n int) error {
		for range n {
			position++
			if _, err := leader.Append(ctx, restoreWrite(position)); err != nil {
				return err
			}
		}
		return nil
	}
	var seen string
	address := ""
	// The second time it is more than is kept for the node that was sent the first snapshot.
	for _, n := range []int{50, 200} {
		if err := write(n); err != nil {
			return err
		}
		if seen, err = newSnapshot(ctx, elsewhere, seen); err != nil {
			return err
		}
		l2, err := listenAgain(address)
		if err != nil {
			return err
		}
		node, err := openSmall(filepath.Join(root, "shard"), "n2", l2, peers)
		if err != nil {
			return err
		}
		if address == "" {
			address = l2.Addr().String()
			if err := leader.AddNode(ctx, "n2", address, ""); err != nil {
				return errors.Join(err, node.Abandon())
			}
		}
		err = caughtUp(ctx, node, position)
		if err == nil {
			if err = write(5); err == nil {
				err = caughtUp(ctx, node, position)
			}
		}
		// What it has applied by now came from its log.
		fmt.Println("logged", node.Status().AppliedIndex)
		if err := errors.Join(err, node.Abandon()); err != nil {
			return err
		}
	}
	return nil
}

func listenAgain(address string) (net.Listener, error) {
	if address == "" {
		address = "127.0.0.1:0"
	}
	return net.Listen("tcp", address)
}

func caughtUp(ctx context.Context, s *replication.Shard, position uint64) error {
	v, err := s.Read(ctx, replication.ReadOptions{Consistency: pb.Consistency_CONSISTENCY_ANY, MinPosition: position})
	// A node that is not taken in yet answers that it does not lead.
	for code := api.CodeOf(err); code == pb.ErrorCode_ERROR_CODE_NOT_LEADER && ctx.Err() == nil; code = api.CodeOf(err) {
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
		v, err = s.Read(ctx, replication.ReadOptions{Consistency: pb.Consistency_CONSISTENCY_ANY, MinPosition: position})
	}
	if err != nil {
		return fmt.Errorf("wait for position %d: %w, status %+v", position, err, s.Status())
	}
	v.Release()
	return nil
}

// newSnapshot waits for a snapshot other than the one seen before.
func newSnapshot(ctx context.Context, dir, seen string) (string, error) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		found, err := filepath.Glob(filepath.Join(dir, "snapshots", "*[0-9]"))
		if err != nil {
			return "", err
		}
		if len(found) == 1 && found[0] != seen {
			return found[0], nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return "", fmt.Errorf("no new snapshot in %s: %w", dir, ctx.Err())
		}
	}
}

// checkRestore opens what a crash left of the node, alone, and looks at all that it holds.
func checkRestore(c Crash) error {
	dir := filepath.Join(c.Dir, "shard")
	if err := rebooted(filepath.Join(dir, "tail")); err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	s, err := openSmall(dir, "n2", listener, []replication.Peer{{ID: "n1", Address: "127.0.0.1:1"}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	err = checkPositions(ctx, s)
	if api.CodeOf(err) == pb.ErrorCode_ERROR_CODE_NOT_LEADER && len(c.Lines) == 0 {
		err = nil // the crash came before it was taken in: there is nothing to read
	}
	if err := errors.Join(err, s.Abandon()); err != nil {
		return err
	}
	log, err := tail.Open(tail.Options{Dir: filepath.Join(dir, "tail"), SegmentSize: segmentSize})
	if err != nil {
		return err
	}
	last, err := log.LastIndex()
	if err := errors.Join(err, log.Close()); err != nil {
		return err
	}
	for _, l := range c.Lines {
		var logged uint64
		if _, err := fmt.Sscanf(l, "logged %d", &logged); err != nil {
			return fmt.Errorf("line %q: %w", l, err)
		}
		if last < logged {
			return fmt.Errorf("the log ends at %d, the node had applied %d from it", last, logged)
		}
	}
	return nil
}

// checkPositions wants every position up to the last to hold what was written there.
func checkPositions(ctx context.Context, s *replication.Shard) error {
	view, err := s.Read(ctx, replication.ReadOptions{Consistency: pb.Consistency_CONSISTENCY_ANY})
	if err != nil {
		return err
	}
	defer view.Release()
	next := uint64(1)
	for e, err := range view.Positions(1) {
		if err != nil {
			return err
		}
		for _, ch := range e.Changes {
			b, ok, err := view.Batch(ch.Key, ch.Incarnation, ch.Version)
			if err != nil || !ok {
				return fmt.Errorf("position %d: batch %d of %s: %v, %w", next, ch.Version, ch.Key, ok, err)
			}
			got, err := record.DecodeBatch(b)
			if err != nil {
				return fmt.Errorf("position %d: %w", next, err)
			}
			want := restoreWrite(next).GetWrites()[0].GetEvents()[0]
			if ev := got.GetEvents(); got.GetPosition() != next || len(ev) != 1 || ev[0].GetClientSeq() != next || string(ev[0].GetPayload()) != string(want.GetPayload()) {
				return fmt.Errorf("position %d holds %v", next, got)
			}
			next++
		}
	}
	if last := view.Applied().Position; next != last+1 {
		return fmt.Errorf("positions up to %d are there, the history says %d", next-1, last)
	}
	return nil
}

func restoreOptions() Options {
	o := options()
	o.Budget, o.Samples, o.Workers = *flagRestoreBudget, 16, 4
	return o
}

func TestANodeThatIsSentSnapshotsSurvivesPowerLoss(t *testing.T) {
	calls, root := recorded(t, "restore")
	lines := replay(t, calls, root).Lines
	if len(lines) != 2 {
		t.Fatalf("the program printed %v, expected two lines", lines)
	}
	if found, err := filepath.Glob(filepath.Join(root, "shard", "history", "*")); err != nil || len(found) != 1 || filepath.Base(found[0]) != "0000000003" {
		t.Fatalf("the history is %v (%v), expected the third one, after two snapshots were restored", found, err)
	}
	if stats, err := explore(t, replay(t, calls, root), restoreOptions(), checkRestore); err != nil {
		t.Errorf("%v: %v", stats, err)
	}
	for name, match := range map[string]func(string) bool{
		"received files":           Under("/shard/snapshots/"),
		"the directory of receipt": func(path string) bool { return strings.HasSuffix(path, "/shard/snapshots") },
		"the log":                  Under("/shard/tail/log-"),
	} {
		edited, n := WithoutFlushes(calls, match)
		if n == 0 {
			t.Errorf("%s: the program makes no such flush", name)
			continue
		}
		o := restoreOptions()
		o.Budget *= 4 // it ends with the first finding
		_, err := explore(t, replay(t, edited, root), o, checkRestore)
		if err == nil || !strings.Contains(err.Error(), "after a power loss") {
			t.Errorf("%s: %d flushes were taken out, and what was found is: %v", name, n, err)
		}
	}
}
