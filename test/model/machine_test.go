package model

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// machine is one random run: a world, what was drawn for it, and the script so far.
type machine struct {
	w      *world
	d      *drawer
	script []op
	seen   map[string]int
	failed error
}

func newMachine(w *world, restarts int, holds bool) *machine {
	return &machine{w: w, d: &drawer{w: w, restarts: restarts, holds: holds}, seen: map[string]int{}}
}

// step draws one op and runs it on both sides. After a difference the run is over, and the
// ops that rapid still draws do nothing.
func (m *machine) step(t *rapid.T) {
	if m.failed != nil {
		return
	}
	o := m.d.next().Draw(t, "op")
	if o.verb == "append" {
		m.seen[outcome(m.w.m, o.request(m.w.org))]++
	}
	m.d.made(o)
	m.script = append(m.script, o)
	_, m.failed = m.w.run(o)
}

// TestDrawsCollide holds the generator to its purpose: every kind of answer that the model
// knows comes up in a few thousand ops (in fewer, by flag, some may not).
func TestDrawsCollide(t *testing.T) {
	seen, total := map[string]int{}, 0
	rapid.Check(t, func(t *rapid.T) {
		w, err := newWorld(nil, "acme", 0)
		if err != nil {
			t.Fatal(err)
		}
		m := newMachine(w, 4, true)
		t.Repeat(map[string]func(*rapid.T){"op": m.step})
		for k, n := range m.seen {
			seen[k] += n
			total += n
		}
	})
	for _, k := range []string{
		"admitted", "confirmed", "waits", "2002", "2002 holder", "2002 holder others", "2002 holder differs", "2003", "2003 holder",
		"2003 in_flight_version", "2005", "2013", "2016", "2019", "2030",
	} {
		if seen[k] == 0 && total > 1000 {
			t.Errorf("no append was ever told %q; seen: %v", k, seen)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(seen)) {
		t.Logf("%6d %s", seen[k], k)
	}
}

// host is a node that one world after the other uses, each with an org of its own: to found
// a node costs as much as hundreds of ops.
type host struct {
	t      *testing.T
	dir    string
	n      *node
	worlds int
}

func newHost(t *testing.T) *host {
	h := &host{t: t, dir: t.TempDir()} // removed after the node is closed, which needs it
	t.Cleanup(func() {
		if h.n == nil {
			return
		}
		if err := h.n.close(false); err != nil {
			t.Error(err)
		}
	})
	return h
}

// world is an empty one, on the last world's node if that still serves.
func (h *host) world() *world {
	if h.n != nil && !h.n.up {
		h.n = nil
	}
	if h.n == nil {
		n, err := startNode(filepath.Join(h.dir, strconv.Itoa(h.worlds)), new(clock).now)
		if err != nil {
			h.t.Fatalf("no node: %v", err)
		}
		h.n = n
	}
	h.worlds++
	w, err := newWorld(h.n, fmt.Sprintf("acme%d", h.worlds), h.n.shard.Status().LastPosition)
	if err != nil {
		h.t.Fatalf("no world: %v", err)
	}
	return w
}

// replay runs a script in a new world.
func (h *host) replay(script []op) error {
	w := h.world()
	for _, o := range script {
		if _, err := w.run(o); err != nil {
			return errors.Join(err, w.abort())
		}
	}
	return errors.Join(w.finish(), w.abort())
}

// differ ends the test with the shortest script that shows a difference.
func (h *host) differ(script []op, err error) {
	h.t.Helper()
	short := minimize(script, 30*time.Second, func(s []op) bool { return h.replay(s) != nil })
	if now := h.replay(short); now != nil {
		h.t.Fatalf("server and contract differ at the end of\n\n%s\n\n%v", lines(short), now)
	}
	h.t.Fatalf("server and contract differed, once, at the end of\n\n%s\n\n%v", lines(script), err)
}

// TestRandomOps runs random scripts on a server and on the model and compares every answer:
// appends of all kinds, reads, writes held in flight, restarts, crashes, and starts with
// small or no caches or without the history directory.
func TestRandomOps(t *testing.T) {
	h := newHost(t)
	rapid.Check(t, func(rt *rapid.T) {
		m := newMachine(h.world(), 16, true)
		defer func() {
			if err := m.w.abort(); err != nil { // rapid may give up on a run in the middle
				t.Error(err)
			}
		}()
		rt.Repeat(map[string]func(*rapid.T){"op": m.step})
		if m.failed == nil {
			m.failed = m.w.finish()
		}
		if m.failed != nil {
			h.differ(m.script, errors.Join(m.failed, m.w.abort()))
		}
	})
}
