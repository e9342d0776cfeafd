package replication

import (
	"context"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

func withWrite(id string, seq uint64) mod {
	return func(r *pb.AppendRequest) {
		r.Writes = append(r.Writes, appendOf(r.ClientId, id, seqs(seq)).Writes...)
	}
}

func unenforced(r *pb.AppendRequest) {
	for _, w := range r.Writes {
		w.EnforceClientIdempotency = false
	}
}

// A writer without sequences of its own records one of them over and over. CONFIRM used to
// walk over all of its rows again for each.
func TestConfirmAmongManyRecordsOfOneSequence(t *testing.T) {
	s := openShard(t, Options{Dir: t.TempDir()})
	defer func() { _ = s.Stop(context.Background()) }()
	original := mustAppend(t, s, appendOf("a", "1", seqs(1), withWrite("2", 1), unenforced))
	calls := make([]*call, 3000)
	for i := range calls {
		calls[i] = goAppend(context.Background(), s, appendOf("a", "1", seqs(1), withWrite("2", 1), unenforced))
	}
	for _, c := range calls {
		if _, err := c.wait(t); err != nil {
			t.Fatal(err)
		}
	}
	for _, reorder := range []bool{false, true} {
		r := appendOf("a", "1", seqs(1), withWrite("2", 1), confirmRequest)
		want := []*pb.WriteResult{proto.Clone(original.Results[0]).(*pb.WriteResult), proto.Clone(original.Results[1]).(*pb.WriteResult)}
		if reorder {
			r.Writes[0], r.Writes[1] = r.Writes[1], r.Writes[0]
			want[0], want[1] = want[1], want[0]
		}
		resp := mustAppend(t, s, r)
		for i, w := range want {
			w.AlreadyCommitted = true
			if !proto.Equal(resp.Results[i], w) {
				t.Errorf("result %d: %v, want %v", i, resp.Results[i], w)
			}
		}
	}
	// One commit holds exactly these batches: a part of them is another request.
	_, err := s.Append(context.Background(), appendOf("a", "1", seqs(1), confirmRequest))
	wantCode(t, err, pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION)
}
