package replication

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tidemark-db/tidemark/mark"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// Heads of contract 2.3's aggregate, in the lives that it can have.
var (
	never       = mark.Head{}
	live3       = mark.Head{Exists: true, Head: history.Head{Version: 3}}
	goneForGood = mark.Head{Exists: true, Head: history.Head{Version: 3, Deleted: true}}
	goesOn      = mark.Head{Exists: true, Head: history.Head{Version: 3, Deleted: true, Recreatable: true}}
	restarts    = mark.Head{Exists: true, Head: history.Head{Version: 3, Deleted: true, Recreatable: true, Restart: true}}
)

// write builds a write from words: seq=8, expect=3, prev=7, create, enforce.
func write(t *testing.T, words string) record.Write {
	t.Helper()
	var w record.Write
	for _, word := range strings.Fields(words) {
		name, value, _ := strings.Cut(word, "=")
		var n uint64
		if value != "" {
			if _, err := fmt.Sscan(value, &n); err != nil {
				t.Fatal(err)
			}
		}
		switch name {
		case "seq":
			w.Lowest, w.Highest = n, n
		case "expect":
			w.Flags |= record.FlagHasExpected
			w.Expected = n
		case "prev":
			w.Flags |= record.FlagHasPrevious
			w.Previous = n
		case "create":
			w.Flags |= record.FlagAllowCreate
		case "enforce":
			w.Flags |= record.FlagEnforce
		default:
			t.Fatalf("word %q", word)
		}
	}
	return w
}

// TestChecks walks through contract 2.1 and 2.2 for one write.
func TestChecks(t *testing.T) {
	for _, c := range []struct {
		name  string
		state writeState
		write string
		want  verdict
	}{
		{"existence: never existed", writeState{head: never}, "seq=1 enforce", verdict{code: 2005}},
		{"existence: never existed, expected_version 0", writeState{head: never}, "seq=1 expect=0 enforce", verdict{code: 2005}},
		{"existence: never existed, allow_create", writeState{head: never}, "seq=1 create enforce", verdict{}},
		{"existence: deleted for good", writeState{head: goneForGood, mark: 7}, "seq=8 create expect=0 enforce", verdict{code: 2006}},
		{"existence: deleted, recreatable, no allow_create; a seq used", writeState{head: goesOn, mark: 7}, "seq=7 enforce", verdict{code: 2005}},
		{"existence comes before a guard that fails", writeState{head: never}, "seq=1 expect=5 enforce", verdict{code: 2005}},
		{"existence: a create in flight counts", writeState{head: never, inFlight: 1}, "seq=1 enforce", verdict{}},

		{"guard: equal", writeState{head: live3, mark: 7}, "seq=8 expect=3 enforce", verdict{}},
		{"guard: behind", writeState{head: live3, mark: 7}, "seq=8 expect=2 enforce", verdict{code: 2003}},
		{"guard: ahead", writeState{head: live3, mark: 7}, "seq=8 expect=4 enforce", verdict{code: 2003}},
		{"guard: 0 on a live aggregate", writeState{head: live3, mark: 7}, "seq=8 expect=0 create enforce", verdict{code: 2003}},
		{"guard comes before a sequence that is used", writeState{head: live3, mark: 7}, "seq=7 expect=2 enforce", verdict{code: 2003}},
		{"guard: deleted and recreatable, expect the old version", writeState{head: goesOn}, "seq=1 create expect=3 enforce", verdict{code: 2003}},
		{"guard: deleted and recreatable, expect 0", writeState{head: goesOn}, "seq=1 create expect=0 enforce", verdict{}},
		{"guard: deleted with restart_versions, expect 0", writeState{head: restarts}, "seq=1 create expect=0 enforce", verdict{}},
		{"guard: deleted with restart_versions, expect the old version", writeState{head: restarts}, "seq=1 create expect=3 enforce", verdict{code: 2003}},

		{"idempotency: above the mark", writeState{head: live3, mark: 7}, "seq=9 enforce", verdict{}},
		{"idempotency: at the mark", writeState{head: live3, mark: 7}, "seq=7 enforce", verdict{code: 2002}},
		{"idempotency: below the mark", writeState{head: live3, mark: 7}, "seq=3 enforce", verdict{code: 2002}},
		{"idempotency: not enforced", writeState{head: live3, mark: 7}, "seq=3", verdict{}},
		{"idempotency: marks outlive delete", writeState{head: goesOn, mark: 7}, "seq=7 create enforce", verdict{code: 2002}},
		{"previous_client_seq: the mark", writeState{head: live3, mark: 7}, "seq=8 prev=7 enforce", verdict{}},
		{"previous_client_seq: not the mark", writeState{head: live3, mark: 7}, "seq=9 prev=8 enforce", verdict{code: 2030}},
		{"previous_client_seq: 0 for a new writer", writeState{head: live3}, "seq=1 prev=0 enforce", verdict{}},
		{"previous_client_seq: the mark in flight", writeState{head: live3, mark: 7, inFlight: 1, inFlightMark: 8}, "seq=9 prev=8 enforce", verdict{}},
		{"previous_client_seq: the committed mark, with one in flight", writeState{head: live3, mark: 7, inFlight: 1, inFlightMark: 8}, "seq=9 prev=7 enforce", verdict{code: 2030}},
		{"previous_client_seq: a duplicate is told first", writeState{head: live3, mark: 7}, "seq=7 prev=6 enforce", verdict{code: 2002}},
		{"sent behind one that is not recorded", writeState{head: live3, mark: 7, afterMissing: true}, "seq=9 enforce", verdict{code: 2030, after: true}},
		{"sent behind one that is not recorded: a duplicate is told first", writeState{head: live3, mark: 7, afterMissing: true}, "seq=7 enforce", verdict{code: 2002}},

		{"in flight: the same again", writeState{head: live3, mark: 7, inFlight: 1, inFlightMark: 8}, "seq=8 expect=3 enforce", verdict{code: 2013}},
		{"in flight: the same again, no guard", writeState{head: live3, mark: 7, inFlight: 1, inFlightMark: 8}, "seq=8 enforce", verdict{code: 2013}},
		{"in flight: pipelined behind it", writeState{head: live3, mark: 7, inFlight: 1, inFlightMark: 8}, "seq=9 expect=4 enforce", verdict{}},
		{"in flight: another writer expects the committed version", writeState{head: live3, inFlight: 1}, "seq=1 expect=3 enforce", verdict{code: 2003, open: true}},
		{"in flight: another writer expects a version between", writeState{head: live3, inFlight: 3}, "seq=1 expect=5 enforce", verdict{code: 2003, open: true}},
		{"in flight: another writer expects the version ahead", writeState{head: live3, inFlight: 3}, "seq=1 expect=6 enforce", verdict{}},
		{"in flight: beyond what is ahead", writeState{head: live3, inFlight: 3}, "seq=1 expect=7 enforce", verdict{code: 2003}},
		{"in flight: below the committed version is definite", writeState{head: live3, mark: 7, inFlight: 1, inFlightMark: 8}, "seq=8 expect=2 enforce", verdict{code: 2003}},
		{"in flight: covered by the committed mark", writeState{head: live3, mark: 7, inFlight: 1, inFlightMark: 8}, "seq=7 expect=3 enforce", verdict{code: 2002}},
		{"in flight: the committed mark is tested first", writeState{head: live3, mark: 7, inFlight: 1, inFlightMark: 5}, "seq=6 enforce", verdict{code: 2002}},
		{"in flight: not enforced inside the range", writeState{head: live3, mark: 7, inFlight: 1, inFlightMark: 8}, "seq=8 expect=3", verdict{code: 2003, open: true}},
		{"in flight: a create, expect 0 by another", writeState{head: never, inFlight: 1}, "seq=1 create expect=0 enforce", verdict{code: 2003, open: true}},
		{"in flight: a create, the same again", writeState{head: never, inFlight: 1, inFlightMark: 1}, "seq=1 create expect=0 enforce", verdict{code: 2013}},
		{"in flight: a recreation, expect 0", writeState{head: goesOn, inFlight: 1}, "seq=1 create expect=0 enforce", verdict{code: 2003, open: true}},
		{"in flight: a recreation, expect what it makes", writeState{head: goesOn, inFlight: 1}, "seq=1 expect=4 enforce", verdict{}},
		{"in flight: a recreation with restart_versions makes 1", writeState{head: restarts, inFlight: 1}, "seq=1 expect=1 enforce", verdict{}},
		{"in flight: a recreation with restart_versions, the old version", writeState{head: restarts, inFlight: 1}, "seq=1 expect=3 enforce", verdict{code: 2003}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := decide([]record.Write{write(t, c.write)}, []writeState{c.state})
			if got != c.want {
				t.Fatalf("%s on %+v: %+v, want %+v", c.write, c.state, got, c.want)
			}
		})
	}
}

// TestOrderOverWrites: any existence failure comes before any guard failure, which comes
// before any idempotency failure, whatever the order of the writes (contract 2.1).
func TestOrderOverWrites(t *testing.T) {
	type in struct {
		state writeState
		write string
	}
	missing := in{writeState{head: never}, "seq=1 enforce"}
	conflict := in{writeState{head: live3}, "seq=1 expect=2 enforce"}
	open := in{writeState{head: live3, inFlight: 1}, "seq=1 expect=3 enforce"}
	used := in{writeState{head: live3, mark: 7}, "seq=7 enforce"}
	inFlight := in{writeState{head: live3, mark: 7, inFlight: 1, inFlightMark: 8}, "seq=8 expect=3 enforce"}
	fine := in{writeState{head: live3}, "seq=1 expect=3 enforce"}
	for i, c := range []struct {
		writes []in
		want   verdict
	}{
		{[]in{fine, fine}, verdict{}},
		{[]in{used, conflict, missing}, verdict{code: 2005, index: 2}},
		{[]in{used, conflict}, verdict{code: 2003, index: 1}},
		{[]in{inFlight, used, open}, verdict{code: 2003, index: 2, open: true}},
		{[]in{open, conflict}, verdict{code: 2003, index: 0, open: true}},
		{[]in{fine, inFlight, used}, verdict{code: 2013, index: 1}},
		{[]in{used, inFlight}, verdict{code: 2002, index: 0}},
		{[]in{missing, missing}, verdict{code: 2005, index: 0}},
	} {
		var ws []record.Write
		var ss []writeState
		for _, w := range c.writes {
			ws = append(ws, write(t, w.write))
			ss = append(ss, w.state)
		}
		if got := decide(ws, ss); got != c.want {
			t.Errorf("case %d: %+v, want %+v", i, got, c.want)
		}
	}
}
