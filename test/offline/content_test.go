package offline

import (
	"strings"
	"testing"

	"github.com/tidemark-db/tidemark/internal/inspect"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// TestContentThatDoesNotFit writes into a history what its node never would, with checksums that
// are right, and expects it to be found, by the key that it is under.
func TestContentThatDoesNotFit(t *testing.T) {
	key := record.MakeKey("acme", "orders", "1")
	for name, c := range map[string]struct {
		change func(b *history.Batch, h *history.Head)
		key    string
	}{
		"event count":  {func(b *history.Batch, h *history.Head) { h.EventCount++; b.PutHead(key, h) }, `"h/acme`},
		"mark":         {func(b *history.Batch, h *history.Head) { h.LastMark++; b.PutHead(key, h) }, `"h/acme`},
		"first live":   {func(b *history.Batch, h *history.Head) { h.FirstLive++; b.PutHead(key, h) }, `"h/acme`},
		"chain":        {func(b *history.Batch, h *history.Head) { h.Chain[0]++; b.PutHead(key, h) }, `"h/acme`},
		"newest batch": {func(b *history.Batch, h *history.Head) { b.DropBatches(key, h.Incarnation, h.Version, h.Version+1) }, `"h/acme`},
		"a batch":      {func(b *history.Batch, h *history.Head) { b.DropBatches(key, h.Incarnation, h.Version-1, h.Version) }, `"b/acme`},
		"rows":         {func(b *history.Batch, _ *history.Head) { b.DropRows(key) }, `"w/acme`},
		"a position": {func(b *history.Batch, h *history.Head) {
			b.PutChanges(h.Position+1000, []history.Change{{Key: key, Incarnation: h.Incarnation, Version: h.Version, Kind: history.ChangeBatch}})
		}, `"p/`},
		"a schema's revision": {func(b *history.Batch, _ *history.Head) {
			b.PutSchema(&history.Schema{Org: "acme", Type: "orders", EventType: "X", Major: 1, Format: 1, Revision: 9, Definition: []byte("{}")})
		}, `"s/acme\x00orders\x00`},
		"another schema": {func(b *history.Batch, _ *history.Head) {
			b.PutSchema(&history.Schema{Org: "acme", Type: "orders", EventType: "X", Major: 1, Format: 1, Revision: 1, Definition: []byte("{}")})
		}, `"s/acme\x00orders\x00X`},
		"another row": {func(b *history.Batch, h *history.Head) {
			b.PutRow(&history.Row{Key: key, Client: "nobody", ClientSeq: 1, Position: h.Position, Version: h.Version, Incarnation: h.Incarnation,
				FirstSeq: 1, LastSeq: 1, EventCount: 1, CommitFirst: h.Position, CommitCount: 1})
		}, `"w/acme`},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, small(dir))
			newWriter().writes(t, s, 45)
			end(t, s, true)
			sound(t, dir)
			d, err := inspect.Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := d.Close(); err != nil {
				t.Fatal(err)
			}
			store, err := history.Open(history.Options{Dir: d.History})
			if err != nil {
				t.Fatal(err)
			}
			v := store.View()
			h, ok, err := v.Head(key)
			v.Release()
			if err != nil || !ok || h.Version < 3 {
				t.Fatalf("expected an aggregate with some versions, found %+v, %t, %v", h, ok, err)
			}
			b := store.NewBatch()
			c.change(b, &h)
			b.SetApplied(store.Applied())
			if err := store.Commit(b); err != nil {
				t.Fatal(err)
			}
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
			findings, r := verify(t, dir)
			named := false
			for _, f := range findings {
				named = named || f.Damage && f.File == d.History && strings.HasPrefix(f.Key, c.key)
			}
			if !named {
				t.Errorf("found %v (%+v), expected damage at a key %s...", findings, r, c.key)
			}
		})
	}
}
