package replication

import (
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/mark"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// applier feeds requests to a processor, each in an entry of its own, without raft.
type applier struct {
	t     *testing.T
	store *history.Store
	proc  *processor
	index uint64
}

func newApplier(t *testing.T) *applier {
	t.Helper()
	store, err := history.Open(history.Options{Dir: "history", FS: vfs.NewMem(), BlockCacheBytes: 1 << 20, MemTableBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return &applier{t: t, store: store, proc: newProcessor(0, store, mark.NewCache(1<<20, 1<<20))}
}

// step applies requests in one step and returns what became of them.
func (a *applier) step(requests ...[]byte) []outcome {
	a.t.Helper()
	view := a.store.View()
	defer view.Release()
	a.proc.begin(view)
	var out []outcome
	for _, r := range requests {
		a.index++
		res, err := a.proc.entry(a.index, 1, append(record.AppendEntryHeader(nil, 1, 1, 1), r...), func(uint64, uint64) bool { return true })
		if err != nil {
			a.t.Fatal(err)
		}
		out = append(out, res.outcomes...)
	}
	if err := a.store.Commit(a.proc.finish()); err != nil {
		a.t.Fatal(err)
	}
	a.proc.end()
	return out
}

// sent is an enforced append of one event, sent behind the sequence after on its stream.
func sent(key record.Key, client string, seq, after uint64) []byte {
	w := record.Write{Key: key, Flags: record.FlagAllowCreate | record.FlagEnforce, After: after}
	if after > 0 {
		w.Flags |= record.FlagHasAfter
	}
	b := record.AppendRequestHeader(nil, 0, client, 1)
	b, _ = record.EncodeWrite(b, &w, []*pb.NewEvent{{ClientSeq: seq, Type: "t"}})
	record.FinishRequest(b, 0)
	return b
}

// A write on a stream lands only if the one before it on the stream has (contract 5): a writer
// that pipelines can never skip a sequence.
func TestWriteBehindOneThatIsNotRecorded(t *testing.T) {
	k := record.MakeKey("acme", "orders", "1")
	a := newApplier(t)
	check := func(name string, o outcome, want string) {
		t.Helper()
		got := "ok"
		if o.kind == refused {
			got = o.refusal.text()
		} else if o.kind != committed {
			t.Fatalf("%s: outcome %d", name, o.kind)
		}
		if !strings.HasSuffix(got, want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
	gap := func(after, mark string) string {
		return `write 0, acme/orders/1: it was sent behind client_seq ` + after + ` of writer "a" on its stream, and that is not recorded; the mark is ` + mark
	}
	check("the first, behind one that never came", a.step(sent(k, "a", 2, 1))[0], gap("1", "0"))
	got := a.step(sent(k, "a", 1, 0), sent(k, "a", 2, 1), sent(k, "a", 4, 3), sent(k, "a", 5, 2))
	check("1", got[0], "ok")
	check("2 behind 1, in the same step", got[1], "ok")
	check("4 behind 3, which did not land", got[2], gap("3", "2"))
	check("5 behind 2", got[3], "ok")
	check("6 behind 2, which is recorded below the mark", a.step(sent(k, "a", 6, 2))[0], "ok")
	check("7 behind 4, which was skipped", a.step(sent(k, "a", 7, 4))[0], gap("4", "6"))
	check("1 behind 5: a duplicate is told first", a.step(sent(k, "a", 1, 5))[0], "client_seq 1 of writer \"a\" is at or below its mark 6; client_seq 1 was recorded at version 1")
	check("another writer's sequences do not count", a.step(sent(k, "b", 3, 2))[0],
		`it was sent behind client_seq 2 of writer "b" on its stream, and that is not recorded; the mark is 0`)
}
