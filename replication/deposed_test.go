package replication

import (
	"context"
	"testing"

	"github.com/hashicorp/raft"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// deposedGroup knows that it does not lead any more; the notice of that has not been read.
type deposedGroup struct{ group }

func (deposedGroup) leads(uint64) bool { return false }

// A node whose leadership had ended, and that had not read raft's notice yet, confirmed a
// write that the next leader had committed and it had applied first; the next leader, which
// had not, then said that the aggregate was at an older version. Found by the simulation.
func TestDeposedNodeConfirmsWhatTheNextLeaderHasNotApplied(t *testing.T) {
	s := openShard(t, Options{Dir: t.TempDir()})
	defer func() { _ = s.Stop(context.Background()) }()
	mustAppend(t, s, appendOf("a", "1", seqs(1), expect(0)))
	s.mu.Lock()
	s.tenure.group = deposedGroup{s.tenure.group}
	s.mu.Unlock()
	for _, r := range []*pb.AppendRequest{
		appendOf("a", "1", seqs(1), expect(0), confirmRequest),
		appendOf("a", "1", seqs(1)),
		appendOf("a", "1", seqs(2)),
	} {
		_, err := s.Append(context.Background(), r)
		wantCode(t, err, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
	}
	_, err := s.Read(context.Background(), ReadOptions{Consistency: pb.Consistency_CONSISTENCY_LEADER})
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_NOT_LEADER)
}

// A linearizable read waits for the newest entry with requests. Where the log began behind a
// snapshot, it used to wait for an entry that was in no log, until the next write came.
func TestNewestEntryWithRequests(t *testing.T) {
	logs := raft.NewInmemStore()
	for i, kind := range []raft.LogType{raft.LogConfiguration, raft.LogCommand, raft.LogNoop, raft.LogBarrier, raft.LogCommand, raft.LogNoop} {
		if err := logs.StoreLog(&raft.Log{Index: uint64(10 + i), Type: kind}); err != nil {
			t.Fatal(err)
		}
	}
	for committed, want := range map[uint64]uint64{0: 0, 9: 0, 10: 0, 11: 11, 12: 11, 13: 11, 14: 14, 15: 14} {
		if got := newestRequests(logs, committed); got != want {
			t.Errorf("up to %d: %d, want %d", committed, got, want)
		}
	}
}
