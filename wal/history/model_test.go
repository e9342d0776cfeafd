package history

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"

	"github.com/tidemark-db/tidemark/wal/record"
)

// workload invents entries the way Apply would, and remembers every key and value that each
// one puts, so that the state at any applied index can be told.
type workload struct {
	rng     *rand.Rand
	applied Applied
	heads   map[record.Key]Head
	marks   map[string]uint64 // writer prefix -> mark
	puts    []map[string]string
}

func newWorkload(seed uint64) *workload {
	return &workload{
		rng:   rand.New(rand.NewPCG(seed, 1)),
		heads: map[record.Key]Head{},
		marks: map[string]uint64{},
		// Entry 0 is the empty store.
		puts: []map[string]string{{}},
	}
}

// dropped is the value, in puts, of a key that is removed.
const dropped = "dropped"

// state is what the store must hold at an applied index.
func (w *workload) state(index uint64) map[string]string {
	all := map[string]string{}
	for _, puts := range w.puts[:index+1] {
		maps.Copy(all, puts)
	}
	maps.DeleteFunc(all, func(_, value string) bool { return value == dropped })
	return all
}

// entry adds one entry to b and to the model.
func (w *workload) entry(b *Batch) {
	puts := map[string]string{}
	var changes []Change
	first := w.applied.Position + 1
	for range w.rng.IntN(8) { // none: a raft entry that is not ours
		k := record.MakeKey("acme", "orders", fmt.Sprint(w.rng.IntN(40)))
		position := first + uint64(len(changes))
		h := w.heads[k]
		live := h.Version > 0 && !h.Deleted
		switch n := w.rng.IntN(20); {
		case live && n == 0:
			w.drop(b, puts, k, &h, h.Version+1)
			if w.rng.IntN(3) == 0 {
				w.forget(b, puts, k, &h)
			}
			h.Deleted, h.Recreatable, h.Restart = true, true, w.rng.IntN(2) == 0
			h.Position = position
			changes = append(changes, Change{Key: k, Incarnation: h.Incarnation, Version: h.Version, Kind: ChangeDelete})
		case live && n < 3 && h.Version > h.Floor:
			to := h.Floor + 1 + w.rng.Uint64N(h.Version-h.Floor)
			w.drop(b, puts, k, &h, to)
			h.Floor, h.Position = to, position
			changes = append(changes, Change{Key: k, Incarnation: h.Incarnation, Version: to, Kind: ChangeTrim})
		default:
			w.write(b, puts, k, &h, position)
			changes = append(changes, Change{Key: k, Incarnation: h.Incarnation, Version: h.Version, Kind: ChangeBatch})
		}
		w.heads[k] = h
		b.PutHead(k, &h)
		puts[string(appendHeadKey(nil, k))] = string(appendHead(nil, &h))
	}
	if len(changes) > 0 {
		b.PutChanges(first, changes)
		puts[string(appendPositionKey(nil, first))] = string(appendChanges(nil, changes))
	}
	w.applied.Index++
	w.applied.Term = 3
	w.applied.Position += uint64(len(changes))
	w.applied.CommittedAt += w.rng.Int64N(1000)
	w.applied.Timeline = strings.Repeat("0123456789abcdef", 2)
	w.applied.Digest[0]++
	puts[keyApplied] = string(appendApplied(nil, &w.applied))
	b.SetApplied(w.applied)
	w.puts = append(w.puts, puts)
}

// drop removes the batches below to.
func (w *workload) drop(b *Batch, puts map[string]string, k record.Key, h *Head, to uint64) {
	b.DropBatches(k, h.Incarnation, h.Floor, to)
	for v := h.Floor; v < to; v++ {
		puts[string(appendBatchKey(nil, k, h.Incarnation, v))] = dropped
	}
}

// forget removes all rows of an aggregate.
func (w *workload) forget(b *Batch, puts map[string]string, k record.Key, h *Head) {
	b.DropRows(k)
	prefix := tagRow + string(k)
	for _, earlier := range append(slices.Clone(w.puts), puts) {
		for key := range earlier {
			if strings.HasPrefix(key, prefix) {
				puts[key] = dropped
			}
		}
	}
	for writer := range w.marks {
		if strings.HasPrefix(writer, prefix) {
			delete(w.marks, writer)
		}
	}
	h.LastClient, h.LastMark = "", 0
}

// write adds one batch with its rows.
func (w *workload) write(b *Batch, puts map[string]string, k record.Key, h *Head, position uint64) {
	if h.Incarnation == 0 || h.Deleted {
		if h.Restart {
			h.Version = 0
		}
		h.Incarnation++
		h.Floor, h.FirstLive = h.Version+1, position
		h.Deleted, h.Recreatable, h.Restart = false, false, false
	}
	if h.Version >= h.Floor && w.rng.IntN(3) == 0 {
		// No batch is ever written twice, but one that is leaves a value that nobody refers to,
		// as one that is dropped does, and Pebble rewrites the blob files that hold those.
		header := record.BatchHeader{Key: k, Incarnation: h.Incarnation, Version: h.Version, ClientID: "again"}
		b.PutBatch(&header, h.Chain, make([]byte, 200))
		value, _ := record.AppendBatch(nil, &header, h.Chain, make([]byte, 200))
		puts[string(appendBatchKey(nil, k, h.Incarnation, h.Version))] = string(value)
	}
	h.Version++
	client := fmt.Sprintf("writer-%d", w.rng.IntN(3))
	n := 1 + w.rng.IntN(3)
	var events []byte
	writer := string(appendWriterPrefix(nil, k, client))
	rows := make([]Row, n)
	for i := range n {
		seq := w.marks[writer] + 1
		if w.rng.IntN(10) == 0 { // an unenforced write, at or below the mark
			seq = 1 + w.rng.Uint64N(seq)
		}
		w.marks[writer] = max(w.marks[writer], seq)
		rows[i] = Row{Key: k, Client: client, ClientSeq: seq, Position: position, EventID: fmt.Sprint("event-", seq)}
		payload := make([]byte, w.rng.IntN(300))
		for j := range payload {
			payload[j] = byte(w.rng.Uint32())
		}
		events = append(events, payload...)
	}
	header := record.BatchHeader{
		Key: k, Incarnation: h.Incarnation, Version: h.Version, Position: position, CommitFirst: position, CommitCount: 1,
		ClientID: client, CommittedAt: w.applied.CommittedAt, FirstEventNumber: h.EventCount + 1, EventCount: uint32(n),
	}
	prev := h.Chain
	h.Chain = b.PutBatch(&header, prev, events)
	value, _ := record.AppendBatch(nil, &header, prev, events)
	puts[string(appendBatchKey(nil, k, h.Incarnation, h.Version))] = string(value)
	for i := range rows {
		r := &rows[i]
		r.Version, r.Incarnation = h.Version, h.Incarnation
		r.EventIndex, r.EventNumber, r.EventCount = uint32(i), h.EventCount+1+uint64(i), uint32(n)
		r.FirstSeq, r.LastSeq = rows[0].ClientSeq, rows[n-1].ClientSeq
		r.CommitFirst, r.CommitCount = position, 1
		r.Content = record.ContentHash([]byte(r.EventID))
		b.PutRow(r)
		puts[string(appendRowKey(nil, k, client, r.ClientSeq, position))] = string(appendRow(nil, r, r.EventID))
	}
	h.EventCount += uint64(n)
	h.Position, h.LastClient, h.LastMark = position, client, w.marks[writer]
}

// commit applies up to n entries in one Commit.
func (w *workload) commit(t testing.TB, s *Store, b *Batch, n int) {
	t.Helper()
	b.Reset()
	for range 1 + w.rng.IntN(n) {
		w.entry(b)
	}
	if err := s.Commit(b); err != nil {
		t.Fatal(err)
	}
}

// rewind returns the workload as it was at a, to go on from there on another course.
func (w *workload) rewind(t testing.TB, a Applied) *workload {
	t.Helper()
	r := newWorkload(w.rng.Uint64())
	r.applied = a
	r.puts = slices.Clone(w.puts[:a.Index+1])
	for k, value := range r.state(a.Index) {
		switch k[:tagSize] {
		case tagHead:
			h, err := decodeHead([]byte(value))
			if err != nil {
				t.Fatal(err)
			}
			r.heads[record.Key(k[tagSize:])] = h
		case tagRow:
			row, err := parseRowKey([]byte(k))
			if err != nil {
				t.Fatal(err)
			}
			writer := k[:len(k)-rowSuffix]
			r.marks[writer] = max(r.marks[writer], row.ClientSeq)
		}
	}
	return r
}

// check compares everything in the view with the model, at the view's own applied index.
func (w *workload) check(v *View) error {
	index := v.Applied().Index
	if index >= uint64(len(w.puts)) {
		return fmt.Errorf("the store says it is at index %d, the last one applied was %d", index, len(w.puts)-1)
	}
	got, err := dump(v)
	if err != nil {
		return err
	}
	if diff := difference(got, w.state(index)); diff != "" {
		return fmt.Errorf("at index %d: %s", index, diff)
	}
	if index > 0 {
		if a, err := decodeApplied([]byte(got[keyApplied])); err != nil || a != v.Applied() {
			return fmt.Errorf("view is at %v, m/applied says %v (%v)", v.Applied(), a, err)
		}
	}
	return nil
}

// dump reads all keys and values.
func dump(v *View) (map[string]string, error) {
	if v.unusable != nil {
		return nil, v.unusable
	}
	it, err := v.snap.NewIter(nil)
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for ok := it.First(); ok; ok = it.Next() {
		value, err := it.ValueAndErr()
		if err != nil {
			return nil, errors.Join(err, it.Close())
		}
		all[string(it.Key())] = string(value)
	}
	return all, errors.Join(it.Error(), it.Close())
}

func difference(got, want map[string]string) string {
	if maps.Equal(got, want) {
		return ""
	}
	keys := slices.Sorted(maps.Keys(got))
	keys = append(keys, slices.Sorted(maps.Keys(want))...)
	for _, k := range keys {
		g, okG := got[k]
		w, okW := want[k]
		switch {
		case !okG:
			return fmt.Sprintf("%q is missing; %d keys, want %d", k, len(got), len(want))
		case !okW:
			return fmt.Sprintf("%q should not be there; %d keys, want %d", k, len(got), len(want))
		case g != w:
			return fmt.Sprintf("%q has value %q, want %q", k, g, w)
		}
	}
	return ""
}

// small makes flushes, compactions, blob files and rewrites of them happen within a few
// hundred commits.
func small(p *pebble.Options) {
	p.L0CompactionThreshold = 2
	p.LBaseMaxBytes = 64 << 10
	for i := range p.TargetFileSizes {
		p.TargetFileSizes[i] = 16 << 10
	}
	p.FlushSplitBytes = 8 << 10
	policy := p.Experimental.ValueSeparationPolicy()
	policy.MaxBlobReferenceDepth = 2
	policy.RewriteMinimumAge = time.Nanosecond
	policy.TargetGarbageRatio = 0.05
	p.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy { return policy }
}

// open opens a store that is closed when the test ends.
func open(t testing.TB, o Options) *Store {
	t.Helper()
	if o.FS == nil && o.Dir == "" {
		o.FS, o.Dir = vfs.NewMem(), "history"
	}
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func key(id string) record.Key { return record.MakeKey("acme", "orders", id) }

// commit applies what fill puts, as the next index.
func commit(t testing.TB, s *Store, fill func(*Batch)) {
	t.Helper()
	b := s.NewBatch()
	fill(b)
	if !b.hasApplied {
		a := s.Applied()
		a.Index++
		b.SetApplied(a)
	}
	if err := s.Commit(b); err != nil {
		t.Fatal(err)
	}
}

func equalBytes(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Errorf("%s:\n got %q\nwant %q", what, got, want)
	}
}
