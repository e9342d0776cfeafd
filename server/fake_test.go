package server

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/replication"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// fakeShard is a shard without raft: tests put batches into a real history, and say how
// appends are answered.
type fakeShard struct {
	store *history.Store
	batch *history.Batch
	heads map[record.Key]history.Head

	feed    *replication.Feed
	logged  []replication.LogChange // of the batch that is being made
	stopped chan struct{}

	mu       sync.Mutex    // guards what follows
	moved    chan struct{} // closed when the shard does not lead any more
	append   func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error)
	readErr  error
	reads    []replication.ReadOptions // as they were asked for
	inFlight map[string]uint64         // by key and client
	status   replication.Status
	checks   []replication.Check
	stats    replication.Stats
	leading  bool
	changed  chan struct{}
	fakeCluster
}

// newFakeShard opens a history in memory. At the end of the test it must close, which it
// refuses while a view is held: no test may leak one.
func newFakeShard(t testing.TB) *fakeShard {
	t.Helper()
	store, err := history.Open(history.Options{
		Dir: "history", FS: vfs.NewMem(), BlockCacheBytes: 8 << 20, MemTableBytes: 8 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Errorf("close the history: %v", err)
		}
	})
	f := &fakeShard{
		store: store, batch: store.NewBatch(), heads: map[record.Key]history.Head{},
		inFlight: map[string]uint64{}, changed: make(chan struct{}),
		status: replication.Status{NodeID: "n1", Role: "leader", Term: 1, Ready: true, LeaderID: "n1"},
	}
	f.moved, f.stopped = make(chan struct{}), make(chan struct{})
	f.feed = replication.NewFeed(replication.FeedOptions{
		RingBytes: 1 << 20, RingChanges: 1000, View: f.view, Leader: func() string { return "elsewhere:1" }, Stopped: f.stopped,
	})
	ran := make(chan struct{})
	go func() { // ends with the test
		defer close(ran)
		f.feed.Run()
	}()
	t.Cleanup(func() {
		close(f.stopped)
		<-ran
	})
	f.append = func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error) {
		return &pb.AppendResponse{Timeline: testTimeline}, nil
	}
	return f
}

// put commits one batch of the writer on the aggregate, as if it had been appended at the
// given second, and returns its version.
func (f *fakeShard) put(t testing.TB, key record.Key, client string, second int64, events ...*pb.NewEvent) uint64 {
	t.Helper()
	f.batch.Reset()
	v := f.stage(key, client, second, events...)
	f.commit(t)
	return v
}

// stage is put without the commit, for tests that need many batches.
func (f *fakeShard) stage(key record.Key, client string, second int64, events ...*pb.NewEvent) uint64 {
	applied := f.store.Applied()
	h, found := f.heads[key]
	if !found {
		h = history.Head{Incarnation: 1, Floor: 1, CreatedAt: second * 1e9}
	}
	position := h.Position
	for _, other := range f.heads {
		position = max(position, other.Position)
	}
	position = max(position, applied.Position) + 1
	if !found {
		h.FirstLive = position
	}
	header := record.BatchHeader{
		Key: key, Incarnation: h.Incarnation, Version: h.Version + 1, Position: position,
		CommitFirst: position, CommitCount: 1, ClientID: client, CommittedAt: second * 1e9,
		FirstEventNumber: h.EventCount + 1, EventCount: uint32(len(events)),
	}
	var encoded []byte
	first, last := events[0].GetClientSeq(), uint64(0)
	for _, e := range events {
		encoded = record.AppendEvent(encoded, e)
		first, last = min(first, e.GetClientSeq()), max(last, e.GetClientSeq())
	}
	h.Chain = f.batch.PutBatch(&header, h.Chain, encoded)
	for i, e := range events {
		f.batch.PutRow(&history.Row{
			Key: key, Client: client, ClientSeq: e.GetClientSeq(), Position: position,
			Version: header.Version, Incarnation: h.Incarnation, EventIndex: uint32(i),
			EventNumber: header.FirstEventNumber + uint64(i), CommittedAt: header.CommittedAt,
			FirstSeq: first, LastSeq: last, EventCount: header.EventCount,
			CommitFirst: position, CommitCount: 1, EventID: e.GetEventId(),
			Content: record.ContentHash(record.AppendEvent(nil, e)),
		})
	}
	f.log(position, history.Change{Key: key, Incarnation: h.Incarnation, Version: header.Version, Kind: history.ChangeBatch}, f.batch.Stored(f.staged()))
	f.batch.PutChanges(position, []history.Change{{Key: key, Incarnation: h.Incarnation, Version: header.Version, Kind: history.ChangeBatch}})
	h.Version, h.Position = header.Version, position
	h.EventCount += uint64(len(events))
	h.CommittedAt, h.LastClient, h.LastMark = header.CommittedAt, client, last
	f.setHead(key, h)
	f.batch.SetApplied(history.Applied{Index: max(position, applied.Index+1), Term: 1, Position: position, CommittedAt: header.CommittedAt, Timeline: testTimeline})
	return h.Version
}

// vanished commits a batch of one event that is not there any more; its head says otherwise
// until something is done about that.
func (f *fakeShard) vanished(t testing.TB, key record.Key, client string) {
	t.Helper()
	f.change(t, key, history.ChangeBatch, f.heads[key].Version+1, func(h *history.Head) {
		if h.Incarnation == 0 {
			*h = history.Head{Incarnation: 1, Floor: 1}
		}
		h.Version, h.LastClient = h.Version+1, client
	})
}

// change commits a change of an aggregate that is no batch.
func (f *fakeShard) change(t testing.TB, key record.Key, kind history.ChangeKind, version uint64, change func(*history.Head)) {
	t.Helper()
	f.batch.Reset()
	a := f.store.Applied()
	a.Position++
	a.Index, a.Timeline = a.Index+1, testTimeline
	h := f.heads[key]
	from := max(h.Floor, 1)
	switch {
	case kind == history.ChangeTrim && from < version:
		f.batch.DropBatches(key, h.Incarnation, from, version)
	case kind == history.ChangeDelete && from <= version:
		f.batch.DropBatches(key, h.Incarnation, from, version+1)
	}
	change(&h)
	h.Position = a.Position
	f.setHead(key, h)
	f.log(a.Position, history.Change{Key: key, Incarnation: h.Incarnation, Version: version, Kind: kind}, nil)
	f.batch.PutChanges(a.Position, []history.Change{{Key: key, Incarnation: h.Incarnation, Version: version, Kind: kind}})
	f.batch.SetApplied(a)
	f.commit(t)
}

func (f *fakeShard) setHead(key record.Key, h history.Head) {
	f.heads[key] = h
	f.batch.PutHead(key, &h)
}

// changeHead commits a change of a head alone, such as what a trim or a delete does to it.
func (f *fakeShard) changeHead(t testing.TB, key record.Key, change func(*history.Head)) {
	t.Helper()
	f.batch.Reset()
	h := f.heads[key]
	change(&h)
	f.setHead(key, h)
	a := f.store.Applied()
	a.Index++
	f.batch.SetApplied(a)
	f.commit(t)
}

func (f *fakeShard) commit(t testing.TB) {
	t.Helper()
	if err := f.store.Commit(f.batch); err != nil {
		t.Fatal(err)
	}
	f.feed.Publish(f.logged)
	f.logged = nil
}

// log notes a change for those who follow.
func (f *fakeShard) log(position uint64, c history.Change, stored []byte) {
	f.logged = append(f.logged, replication.LogChange{
		Change: c, Position: position, Stored: slices.Clone(stored), Created: c.Kind == history.ChangeBatch && c.Version == 1,
	})
}

// staged is how many batches were staged before this one.
func (f *fakeShard) staged() (n int) {
	for _, c := range f.logged {
		if c.Stored != nil {
			n++
		}
	}
	return n
}

// view is the newest view; nil once the shard has stopped.
func (f *fakeShard) view() *history.View {
	select {
	case <-f.stopped:
		return nil
	default:
		return f.store.View()
	}
}

func (f *fakeShard) Follow(ctx context.Context, o replication.ReadOptions, scope replication.FollowScope) (*replication.Follower, uint64, error) {
	v, err := f.Read(ctx, o)
	if err != nil {
		return nil, 0, err
	}
	defer v.Release()
	f.mu.Lock()
	defer f.mu.Unlock()
	moved := f.moved
	if o.Consistency == pb.Consistency_CONSISTENCY_ANY {
		moved = nil
	}
	return f.feed.Follow(scope, moved), v.Applied().Position + 1, nil
}

// loseLeadership ends what goes on only while the shard leads.
func (f *fakeShard) loseLeadership() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.moved)
	f.moved = make(chan struct{})
}

// onAppend says how appends are answered from now on.
func (f *fakeShard) onAppend(answer func(context.Context, *pb.AppendRequest) (*pb.AppendResponse, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.append = answer
}

func (f *fakeShard) setLeading(leading bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.leading = leading
	close(f.changed)
	f.changed = make(chan struct{})
}

func (f *fakeShard) lastRead() replication.ReadOptions {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.reads[len(f.reads)-1]
}

func (f *fakeShard) Append(ctx context.Context, req *pb.AppendRequest) (*pb.AppendResponse, error) {
	f.mu.Lock()
	answer := f.append
	f.mu.Unlock()
	return answer(ctx, req)
}

// Trim and Delete say what they were asked: how they are judged is the shard's to test.
// OpenStream: streams are tested on a real shard.
func (f *fakeShard) OpenStream(context.Context) *replication.Stream { return nil }

func (f *fakeShard) Trim(_ context.Context, req *pb.TrimRequest) (*pb.TrimResponse, error) {
	return &pb.TrimResponse{FirstVersion: req.GetKeepFromVersion(), Timeline: testTimeline}, nil
}

// RegisterSchema says what it was asked.
func (f *fakeShard) RegisterSchema(_ context.Context, req *pb.RegisterSchemaRequest) (*pb.RegisterSchemaResponse, error) {
	return &pb.RegisterSchemaResponse{Timeline: testTimeline, Schema: &pb.Schema{
		Org: req.GetOrg(), Type: req.GetType(), EventType: req.GetEventType(), Schema: req.GetSchema(), Format: req.GetFormat(),
		Message: req.GetMessage(), DefinitionBytes: uint32(len(req.GetDefinition())), Revision: 1,
	}}, nil
}

func (f *fakeShard) Delete(_ context.Context, req *pb.DeleteRequest) (*pb.DeleteResponse, error) {
	resp := &pb.DeleteResponse{Timeline: testTimeline}
	for i, d := range req.GetDeletes() {
		resp.Results = append(resp.Results, &pb.DeleteResult{Aggregate: d.GetAggregate(), Position: uint64(i + 1)})
	}
	return resp, nil
}

func (f *fakeShard) Compact(context.Context) (*pb.CompactResponse, error) {
	return &pb.CompactResponse{NodeId: "n1", BytesBefore: 9, BytesAfter: 4}, nil
}

func (f *fakeShard) Read(_ context.Context, o replication.ReadOptions) (*history.View, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads = append(f.reads, o)
	if f.readErr != nil {
		return nil, f.readErr
	}
	return f.store.View(), nil
}

func (f *fakeShard) ReadMark(ctx context.Context, o replication.ReadOptions, k record.Key, client string) (*history.View, *uint64, error) {
	v, err := f.Read(ctx, o)
	if err != nil {
		return nil, nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if m, ok := f.inFlight[string(k)+client]; ok {
		return v, &m, nil
	}
	return v, nil, nil
}

func (f *fakeShard) Holder(v *history.View, k record.Key, client string, seq uint64) (*pb.Holder, error) {
	var h *pb.Holder
	head, _, err := v.Head(k)
	if err != nil {
		return nil, err
	}
	for row, err := range v.Rows(k, client, seq) {
		if err != nil {
			return nil, err
		}
		if h != nil {
			h.Others = true
			break
		}
		h = &pb.Holder{
			Version: row.Version, Incarnation: row.Incarnation, Position: row.Position,
			CommittedAt: record.Timestamp(row.CommittedAt), ClientSeq: seq, EventId: row.EventID,
			FirstClientSeq: row.FirstSeq, LastClientSeq: row.LastSeq, EventCount: row.EventCount,
			Trimmed: head.Deleted || row.Version < head.Floor,
		}
	}
	return h, nil
}

func (f *fakeShard) Status() replication.Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.status
}

func (f *fakeShard) Checks() []replication.Check {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.checks
}

func (f *fakeShard) setChecks(checks ...replication.Check) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checks = checks
}

func (f *fakeShard) Stats() replication.Stats {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.stats
}

func (f *fakeShard) Leading() (bool, <-chan struct{}) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.leading, f.changed
}

func (f *fakeShard) refuseReads(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.readErr = err
}

func (f *fakeShard) setStatus(s replication.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.status = s
}

func (f *fakeShard) setStats(s replication.Stats) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stats = s
}
