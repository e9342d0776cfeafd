package offline

import (
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/inspect"
	"github.com/tidemark-db/tidemark/wal/record"
)

// What entries trim, delete or forget that the history had not applied when the node ended was
// listed all the same, and gone once the node had started.
func TestWhatTheTailWillRemoveIsNotListed(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	s := open(t, small(dir))
	w := newWriter()
	w.untilSnapshot(t, s, dir)
	batches := func(id string, seqs ...uint64) {
		for _, seq := range seqs {
			appendOne(t, s, record.MakeKey("acme", "pending", id), "svc", seq)
		}
	}
	key := func(id string) *pb.AggregateKey { return &pb.AggregateKey{Org: "acme", Type: "pending", Id: id} }
	batches("trimmed", 1, 2, 3, 4)
	batches("deleted", 1, 2)
	batches("forgotten", 1, 2)
	w.untilSnapshot(t, s, dir) // the history has them on disk
	batches("trimmed", 5, 6)
	_, err := s.Trim(t.Context(), &pb.TrimRequest{Aggregate: key("trimmed"), KeepFromVersion: 4})
	if err == nil {
		_, err = s.Delete(t.Context(), &pb.DeleteRequest{Deletes: []*pb.AggregateDelete{
			{Aggregate: key("deleted"), AllowRecreate: true}, {Aggregate: key("forgotten"), AllowRecreate: true, RestartVersions: true, ForgetWriters: true},
		}})
	}
	if err != nil {
		t.Fatal(err)
	}
	batches("forgotten", 1)
	end(t, s, false)

	before := Read(t, dir)
	for id, want := range map[string][]uint64{"trimmed": {4, 5, 6}, "deleted": nil, "forgotten": {1}} {
		var versions []uint64
		for _, b := range before.Batches[inspect.AggregateOf(key(id))] {
			versions = append(versions, b.GetVersion())
		}
		if !slices.Equal(versions, want) {
			t.Errorf("%s: found versions %v, expected %v", id, versions, want)
		}
	}
	s = open(t, small(dir))
	end(t, s, true)
	after := Read(t, dir)
	if before.FromTail == 0 || after.FromTail != 0 {
		t.Fatalf("%d batches were in the tail, and %d when the node had stopped: expected some, and none", before.FromTail, after.FromTail)
	}
	same := func(a, b *pb.Batch) bool { return proto.Equal(a, b) }
	for _, a := range slices.Sorted(maps.Keys(before.Batches)) {
		if !slices.EqualFunc(before.Batches[a], after.Batches[a], same) {
			t.Errorf("%s: %d batches were listed, and %d when the node had started", a, len(before.Batches[a]), len(after.Batches[a]))
		}
	}
	if len(before.Batches) != len(after.Batches) {
		t.Errorf("%d aggregates had batches, and %d when the node had started", len(before.Batches), len(after.Batches))
	}
	order := func(a, b inspect.Row) int {
		if c := strings.Compare(string(a.Aggregate)+a.Client, string(b.Aggregate)+b.Client); c != 0 {
			return c
		}
		return int(a.ClientSeq+100000*a.Position) - int(b.ClientSeq+100000*b.Position)
	}
	slices.SortFunc(before.Rows, order)
	slices.SortFunc(after.Rows, order)
	if !slices.Equal(before.Rows, after.Rows) {
		t.Errorf("%d rows were listed, and other %d when the node had started", len(before.Rows), len(after.Rows))
	}
}
