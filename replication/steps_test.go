package replication

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/pebble/v2/vfs"
	"google.golang.org/protobuf/encoding/protojson"
	"pgregory.net/rapid"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/mark"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// cut says how a log is applied: how many requests an entry holds, how many entries a step
// has, how large Apply's caches are, and how often the processor begins anew from the store,
// as after a crash, with some old entries handed to it again.
type cut struct {
	requests, entries, cache, restart func(i int) int
}

// plain is the way without cleverness: a request an entry, an entry a step, no caches, so
// that every decision is made from what is committed alone.
var plain = cut{
	requests: func(int) int { return 1 }, entries: func(int) int { return 1 },
	cache: func(int) int { return 0 }, restart: func(int) int { return 0 },
}

// drawBelow draws from 0..n-1, each as likely.
func drawBelow(t *rapid.T, n int) int {
	v := 0
	for range 8 {
		v <<= 1
		if rapid.Bool().Draw(t, "bit") {
			v++
		}
	}
	return v * n >> 8
}

// drawRequests draws requests that nobody has admitted: many are doomed, and only Apply can
// say so. Few names and small numbers make them meet.
func drawRequests(t *rapid.T) []drawn {
	var out []drawn
	for range 1 + drawBelow(t, 40) {
		switch drawBelow(t, 10) {
		case 8:
			out = append(out, drawn{change: drawTrim(t)})
			continue
		case 9:
			out = append(out, drawn{change: drawDeletes(t)})
			continue
		}
		r := &pb.AppendRequest{ClientId: []string{"a", "aa", "b"}[drawBelow(t, 3)]}
		first := drawBelow(t, 3)
		for i := range []int{1, 1, 1, 2, 2, 3}[drawBelow(t, 6)] {
			w := &pb.Write{Aggregate: key([]string{"1", "11", "2"}[(first+i)%3]), AllowCreate: drawBelow(t, 5) > 0, EnforceClientIdempotency: drawBelow(t, 3) > 0}
			seq := uint64(1 + drawBelow(t, 12))
			for range 1 + drawBelow(t, 3) {
				w.Events = append(w.Events, &pb.NewEvent{ClientSeq: seq, EventId: fmt.Sprint("e", drawBelow(t, 3)), Type: "t", Payload: []byte{byte(drawBelow(t, 3))}})
				if seq++; !w.EnforceClientIdempotency {
					seq = uint64(1 + drawBelow(t, 12))
				}
			}
			if drawBelow(t, 3) == 0 {
				v := uint64(drawBelow(t, 6))
				w.ExpectedVersion = &v
			}
			if w.EnforceClientIdempotency && drawBelow(t, 6) == 0 {
				v := uint64(drawBelow(t, 6))
				w.PreviousClientSeq = &v
			}
			r.Writes = append(r.Writes, w)
		}
		out = append(out, drawn{append: r})
	}
	return out
}

// drawn is an append, or an encoded trim or delete.
type drawn struct {
	append *pb.AppendRequest
	change []byte
}

func (d drawn) pending() *pending {
	if d.append != nil {
		return newPending(d.append)
	}
	return newChange("change", bytes.Clone(d.change), nil)
}

func drawTrim(t *rapid.T) []byte {
	r := record.Trim{Key: record.MakeKey("acme", "orders", []string{"1", "11", "2"}[drawBelow(t, 3)]), KeepFrom: uint64(drawBelow(t, 6))}
	if r.HasExpected = drawBelow(t, 4) == 0; r.HasExpected {
		r.Expected = uint64(drawBelow(t, 6))
	}
	return record.AppendTrim(nil, 0, &r)
}

func drawDeletes(t *rapid.T) []byte {
	first := drawBelow(t, 3)
	var ds []record.Delete
	for i := range 1 + drawBelow(t, 2) {
		d := record.Delete{Key: record.MakeKey("acme", "orders", []string{"1", "11", "2"}[(first+i)%3])}
		if d.HasExpected = drawBelow(t, 4) == 0; d.HasExpected {
			d.Expected = uint64(drawBelow(t, 6))
		}
		d.Recreatable = drawBelow(t, 8) > 0
		d.Restart = d.Recreatable && drawBelow(t, 2) == 0
		d.Forget = drawBelow(t, 2) == 0
		ds = append(ds, d)
	}
	return record.AppendDeletes(nil, 0, ds)
}

// applied is everything that applying a log leaves behind.
type applied struct {
	end      history.Applied
	outcomes []string // one per request
	state    string   // heads, batches, rows and changes
	last     int64    // committed_at of the newest batch
}

// differsFrom names the first difference.
func (a applied) differsFrom(want applied) string {
	first := func(what string, got, want []string) string {
		for i := range max(len(got), len(want)) {
			if i >= len(got) || i >= len(want) || got[i] != want[i] {
				return fmt.Sprintf("%s from line %d on\n%s\nwant\n%s", what, i, strings.Join(got[min(i, len(got)):], "\n"), strings.Join(want[min(i, len(want)):], "\n"))
			}
		}
		return ""
	}
	if d := first("outcomes", a.outcomes, want.outcomes); d != "" {
		return d
	}
	if d := first("state", strings.Split(a.state, "\n"), strings.Split(want.state, "\n")); d != "" {
		return d
	}
	if a.end != want.end {
		return fmt.Sprintf("applied %+v, want %+v", a.end, want.end)
	}
	return ""
}

// apply runs requests through processors on a store of their own. Stamps go back and forth,
// as the clocks of successive leaders may; a request may be fenced.
func apply(requests []drawn, stamps []int64, fenced []bool, c cut) (res applied, err error) {
	store, err := history.Open(history.Options{Dir: "history", FS: vfs.NewMem(), BlockCacheBytes: 1 << 20, MemTableBytes: 1 << 20})
	if err != nil {
		return res, err
	}
	defer func() {
		if e := store.Close(); err == nil {
			err = e
		}
	}()
	type entry struct {
		term uint64 // that raft gave it
		data []byte
	}
	var log []entry
	for i := 0; i < len(requests); {
		g := &proposal{ticket: uint64(len(log) + 1)}
		was := fenced[i]
		for n := c.requests(len(log)); n > 0 && i < len(requests) && fenced[i] == was; n-- {
			p := requests[i].pending()
			record.SetCommittedAt(p.buf, stamps[i])
			g.requests = append(g.requests, p)
			i++
		}
		e := entry{term: 1, data: g.entry(1)}
		if was {
			e.term = 2
		}
		log = append(log, e)
	}
	newProc := func(step int) *processor {
		bytes := int64(c.cache(step)) * 400
		p := newProcessor(0, store, mark.NewCache(bytes, bytes))
		p.applied.Timeline = "t"
		return p
	}
	proc := newProc(0)
	for step, at := 0, 0; at < len(log); step++ {
		from := at
		if back := c.restart(step); back > 0 && step > 0 {
			proc = newProc(step)
			from = max(0, at-back+1)
		}
		at = min(len(log), at+c.entries(step))
		if err := applyStep(store, proc, from, at, func(i int) (uint64, []byte) { return log[i].term, log[i].data }, &res); err != nil {
			return res, err
		}
	}
	res.end = store.Applied()
	res.state, err = dump(store)
	return res, err
}

// applyStep applies entries from..to of a log in one step.
func applyStep(store *history.Store, proc *processor, from, to int, at func(i int) (uint64, []byte), res *applied) error {
	view := store.View()
	defer view.Release()
	proc.begin(view)
	for i := from; i < to; i++ {
		term, data := at(i)
		r, err := proc.entry(uint64(i+1), term, data, func(uint64, uint64) bool { return true })
		if err != nil {
			return err
		}
		for _, o := range r.outcomes {
			out := fmt.Sprint(o.kind, o.results, o.changed, o.failure)
			if o.refusal != nil {
				out = fmt.Sprint(o.kind, " ", o.refusal.failure)
				if text, err := protojson.Marshal(o.refusal.failure); err == nil {
					out = fmt.Sprint(o.kind, " ", strings.ReplaceAll(string(text), " ", ""))
				}
			}
			for _, w := range o.results {
				if w.committedAt < res.last {
					return fmt.Errorf("committed_at %d of position %d lies before %d", w.committedAt, w.position, res.last)
				}
				res.last = w.committedAt
			}
			res.outcomes = append(res.outcomes, out)
		}
	}
	if err := store.Commit(proc.finish()); err != nil {
		return err
	}
	proc.end()
	return nil
}

// dump writes down all that a store holds, positions one by one.
func dump(store *history.Store) (string, error) {
	v := store.View()
	defer v.Release()
	return dumpView(v)
}

func dumpView(v *history.View) (string, error) {
	var out strings.Builder
	for a, err := range v.Aggregates("", "") {
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "%s %+v\n", a.Key, a.Head)
		for life := uint32(1); life <= a.Head.Incarnation; life++ {
			batches := v.Batches(a.Key, life, 1, 0, false)
			for batches.Next() {
				fmt.Fprintf(&out, "  %d %d %x\n", life, batches.Version(), batches.Value())
			}
			if err := batches.Close(); err != nil {
				return "", err
			}
		}
		for _, client := range []string{"a", "aa", "b"} {
			m, err := v.Mark(a.Key, client)
			if err != nil {
				return "", err
			}
			fmt.Fprintf(&out, "  %s mark %d\n", client, m)
			for seq := uint64(1); seq <= m; seq++ {
				for r, err := range v.Rows(a.Key, client, seq) {
					if err != nil {
						return "", err
					}
					fmt.Fprintf(&out, "    %+v\n", r)
				}
			}
		}
	}
	for e, err := range v.Positions(1) {
		if err != nil {
			return "", err
		}
		for i, c := range e.Changes {
			fmt.Fprintf(&out, "%d %+v\n", e.First+uint64(i), c)
		}
	}
	return out.String(), nil
}

// The decision that counts depends on the log alone: not on how raft cuts it into entries
// and steps, not on what Apply has cached, not on where a restart fell (decision 1 and the
// digest of architecture.md).
func TestApplyDependsOnTheLogAlone(t *testing.T) {
	refused, landed := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		requests := drawRequests(t)
		stamps, fenced := make([]int64, len(requests)), make([]bool, len(requests))
		for i := range requests {
			stamps[i], fenced[i] = int64(1000+10*i-drawBelow(t, 30)), drawBelow(t, 20) == 19
		}
		want, err := apply(requests, stamps, fenced, plain)
		if err != nil {
			t.Fatal(err)
		}
		for i, o := range want.outcomes {
			if strings.HasPrefix(o, fmt.Sprint(committed)) {
				landed++
			} else if !fenced[i] {
				refused++
			}
		}
		draw := func(n, of int) func(int) int {
			v := make([]int, 1+len(requests))
			for i := range v {
				v[i] = n + drawBelow(t, of)
			}
			return func(i int) int { return v[i] }
		}
		always := func(n int) func(int) int { return func(int) int { return n } }
		for _, v := range []struct {
			name string
			cut
		}{
			{"one step, no caches", cut{always(1), always(1 << 20), always(0), always(0)}},
			{"random steps, large caches", cut{always(1), draw(1, 5), always(1 << 20), always(0)}},
			{"random entries, steps, caches", cut{draw(1, 4), draw(1, 4), draw(0, 4), always(0)}},
			{"restarts that replay", cut{draw(1, 3), draw(1, 3), draw(0, 4), draw(0, 4)}},
		} {
			got, err := apply(requests, stamps, fenced, v.cut)
			if err != nil {
				t.Fatalf("%s: %v", v.name, err)
			}
			got.end.Index, got.end.Term = want.end.Index, want.end.Term // entries are counted differently
			if d := got.differsFrom(want); d != "" {
				t.Fatalf("%s: %s", v.name, d)
			}
		}
	})
	if n := refused + landed; n > 1000 && (refused < n/5 || landed < n/5) {
		t.Errorf("of %d requests %d landed and %d were refused: too few of one to mean anything", n, landed, refused)
	}
}
