package linear

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

const ms = time.Millisecond

// story is a history under construction. Its good version is one that a correct cluster can
// produce; the tests below change it.
type story struct {
	ops     []Op
	batches map[string][]Batch
}

func v(n uint64) *uint64 { return &n }

// put adds what is there at the end: one commit over some aggregates.
func (s *story) put(writer string, position, first, last uint64, id string, aggregates ...string) {
	for i, a := range aggregates {
		before := s.batches[a]
		number := uint64(1)
		for _, b := range before {
			number += b.Events
		}
		s.batches[a] = append(before, Batch{
			Version: uint64(len(before)) + 1, Position: position + uint64(i), CommitFirst: position, CommitCount: uint32(len(aggregates)), Incarnation: 1,
			Writer: writer, First: first, Last: last, ID: id, FirstNumber: number, Events: last - first + 1,
		})
	}
}

// add adds an operation and returns its number.
func (s *story) add(call, back time.Duration, op Op) int {
	op.Call, op.Return, op.Client, op.Node = call*ms, back*ms, "c", "n1"
	s.ops = append(s.ops, op)
	return len(s.ops) - 1
}

func request(writer string, writes ...Write) *Request {
	return &Request{Writer: writer, Writes: writes}
}

func (s *story) ok(call, back time.Duration, r *Request, results ...Result) int {
	return s.add(call, back, Op{Request: r, Results: results})
}

func (s *story) refused(call, back time.Duration, code int, r *Request, f Failure) int {
	return s.add(call, back, Op{Request: r, Code: code, Failure: &f})
}

func (s *story) unknown(call, back time.Duration, r *Request) int {
	return s.add(call, back, Op{Request: r, Code: Unknown})
}

func (s *story) marked(call, back time.Duration, writer string, seq uint64, h *Holder) int {
	return s.add(call, back, Op{Kind: Mark, Aggregate: "x", Fresh: true, Writer: writer, Seq: seq, Holder: h})
}

func (s *story) read(call, back time.Duration, fresh bool, version uint64) int {
	op := Op{Kind: Read, Aggregate: "x", Fresh: fresh, Version: version}
	if n := uint64(len(s.batches["x"])); version > 0 && version <= n {
		op.Batches = s.batches["x"][:version:version]
	}
	return s.add(call, back, op)
}

// The requests of the story. Aggregate x ends at version 4, y at version 1.
var (
	a1 = request("a", Write{Aggregate: "x", First: 1, Last: 1, ID: "a1", Create: true, Expected: v(0)})
	b1 = request("b", Write{Aggregate: "x", First: 1, Last: 2, ID: "b1", Create: true})
	// a2 is the one with a bad time: unknown, in flight, landed.
	a2 = request("a", Write{Aggregate: "x", First: 2, Last: 2, ID: "a2", Expected: v(2)})
	// m1 writes to both aggregates.
	m1 = request("m", Write{Aggregate: "x", First: 1, Last: 1, ID: "m1", Create: true, Previous: v(0)}, Write{Aggregate: "y", First: 1, Last: 1, ID: "m1", Create: true})
	// lost never lands.
	lost = request("z", Write{Aggregate: "x", First: 1, Last: 1, ID: "z1", Expected: v(2)})
)

func held(version, position, first, last uint64, id string) *Holder {
	return &Holder{Version: version, Position: position, First: first, Last: last, ID: id}
}

// Numbers of the story's operations that the tests change.
type marks struct {
	a1, b1, a2Unknown, a2InFlight, a2Used, a2Conflict, m1, zUnknown, zConflict, fresh, stale, mark int
}

func good() (*story, marks) {
	s := &story{batches: map[string][]Batch{}}
	s.put("a", 1, 1, 1, "a1", "x")
	s.put("b", 2, 1, 2, "b1", "x")
	s.put("a", 3, 2, 2, "a2", "x")
	s.put("m", 4, 1, 1, "m1", "x", "y")
	var m marks
	s.refused(0, 5, codeNotExists, request("a", Write{Aggregate: "x", First: 1, Last: 1, ID: "a0"}), Failure{})
	m.a1 = s.ok(0, 10, a1, Result{Version: 1, Position: 1})
	m.b1 = s.ok(5, 30, b1, Result{Version: 2, Position: 2})
	s.marked(31, 32, "b", 2, held(2, 2, 1, 2, "b1"))
	m.a2Unknown = s.unknown(40, 50, a2)
	m.zUnknown = s.unknown(40, 50, lost)
	m.a2InFlight = s.refused(51, 52, codeInFlight, a2, Failure{Current: 2, Mark: 1, InFlightMark: v(2)})
	s.refused(51, 53, codeConflict, lost, Failure{Current: 2, InFlight: v(3)})
	m.a2Used = s.refused(60, 70, codeUsed, request("a", Write{Aggregate: "x", First: 2, Last: 2, ID: "a2"}), Failure{Current: 3, Mark: 2, Holder: held(3, 3, 2, 2, "a2")})
	m.zConflict = s.refused(71, 72, codeConflict, lost, Failure{Current: 3})
	m.a2Conflict = s.refused(71, 80, codeConflict, a2, Failure{Current: 3, Mark: 2, Holder: held(3, 3, 2, 2, "a2")})
	s.refused(75, 80, codeGap, request("a", Write{Aggregate: "x", First: 4, Last: 4, ID: "a4", Previous: v(3)}), Failure{Current: 3, Mark: 2})
	m.m1 = s.ok(81, 90, m1, Result{Version: 4, Position: 4}, Result{Version: 1, Position: 5})
	m.fresh = s.read(91, 92, true, 4)
	m.stale = s.read(91, 92, false, 2)
	m.mark = s.marked(91, 92, "a", 2, held(3, 3, 2, 2, "a2"))
	s.ok(95, 99, &Request{Writer: "a", Writes: a2.Writes, Confirm: true}, Result{Version: 3, Position: 3, Already: true})
	return s, m
}

func (s *story) check() error { return Check(s.ops, s.batches, 10*time.Second) }

func TestGoodHistoriesPass(t *testing.T) {
	for name, change := range map[string]func(*story, marks){
		"as it is": func(*story, marks) {},
		"an unknown outcome that never landed": func(s *story, _ marks) {
			s.unknown(93, 94, request("q", Write{Aggregate: "x", First: 1, Last: 1, ID: "q"}))
		},
		"an old read that may be old":          func(s *story, m marks) { s.ops[m.stale].Version, s.ops[m.stale].Batches = 1, nil },
		"a read that overlaps a write sees it": func(s *story, m marks) { s.read(6, 9, true, 2) },
		"or does not":                          func(s *story, m marks) { s.read(11, 29, true, 1) },
		"a duplicate of a deposed leader's view": func(s *story, m marks) {
			s.refused(93, 94, codeUsed, request("a", Write{Aggregate: "x", First: 1, Last: 1, ID: "a1"}), Failure{Current: 2, Mark: 1, Holder: held(1, 1, 1, 1, "a1")})
		},
		"a first attempt that lands long after its call": func(s *story, m marks) { s.ops[m.a2Unknown].Return = 41 * ms },
	} {
		s, m := good()
		change(s, m)
		if err := s.check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBadHistoriesAreFound(t *testing.T) {
	const noOrder = "no order explains"
	for _, tc := range []struct {
		name string
		lie  func(*story, marks)
		want string
	}{
		{"a write lands twice", func(s *story, _ marks) { s.put("a", 6, 2, 2, "a2", "x") }, "expected rising sequences"},
		{"a write lands twice and both are acknowledged", func(s *story, _ marks) {
			s.put("b", 6, 1, 2, "b1", "x")
			s.ok(95, 99, b1, Result{Version: 5, Position: 6})
		}, "two OKs for sequence 1 of b"},
		{"two writes pass one guard", func(s *story, _ marks) {
			s.put("c", 6, 1, 1, "c1", "x")
			s.ok(95, 99, request("c", Write{Aggregate: "x", First: 1, Last: 1, ID: "c1", Expected: v(0)}), Result{Version: 5, Position: 6})
		}, "two OKs for expected version 0"},
		{"a write passes a guard that is wrong", func(s *story, _ marks) {
			s.put("c", 6, 1, 1, "c1", "x")
			s.ok(95, 99, request("c", Write{Aggregate: "x", First: 1, Last: 1, ID: "c1", Expected: v(3)}), Result{Version: 5, Position: 6})
		}, noOrder},
		{"a write passes below its mark", func(s *story, m marks) {
			// The copy of a sequence that was skipped.
			s.put("c", 6, 5, 5, "c5", "x")
			s.put("c", 7, 3, 3, "c3", "x")
			s.ok(95, 96, request("c", Write{Aggregate: "x", First: 5, Last: 5, ID: "c5"}), Result{Version: 5, Position: 6})
			s.ok(97, 98, request("c", Write{Aggregate: "x", First: 3, Last: 3, ID: "c3"}), Result{Version: 6, Position: 7})
		}, "expected rising sequences"},
		{"a pipelining writer skips a sequence", func(s *story, m marks) {
			s.ops[m.m1].Request = request("m", Write{Aggregate: "x", First: 1, Last: 1, ID: "m1", Create: true, Previous: v(7)}, m1.Writes[1])
		}, noOrder},
		{"an aggregate comes into being by itself", func(s *story, m marks) {
			s.ops[m.a1].Request = request("a", Write{Aggregate: "x", First: 1, Last: 1, ID: "a1"})
		}, noOrder},
		{"one version is acknowledged twice as new", func(s *story, m marks) { s.ok(95, 96, b1, Result{Version: 2, Position: 2}) }, "acknowledged twice as new"},
		{"an acknowledged write is lost", func(s *story, m marks) {
			s.ok(95, 99, request("c", Write{Aggregate: "x", First: 1, Last: 1, ID: "c1"}), Result{Version: 5, Position: 6})
		}, "was acknowledged and is not there"},
		{"an acknowledged write is another's", func(s *story, m marks) { s.batches["x"][1].ID = "b9" }, "not what was acknowledged"},
		{"an acknowledged write moved", func(s *story, m marks) { s.ops[m.b1].Results[0].Position = 9 }, "not what was acknowledged"},
		{"a write that nobody sent", func(s *story, _ marks) { s.put("c", 6, 1, 1, "c1", "x") }, "no call is known"},
		{"a write lands that was refused for good", func(s *story, m marks) {
			s.ops[m.zUnknown] = s.ops[m.zConflict]
			s.put("z", 6, 1, 1, "z1", "x")
		}, "no call is known"},
		{"an attempt lands after its guard was passed", func(s *story, _ marks) { s.put("z", 6, 1, 1, "z1", "x") }, noOrder},
		{"2002 for something never committed", func(s *story, m marks) {
			s.refused(95, 96, codeUsed, request("c", Write{Aggregate: "x", First: 1, Last: 1, ID: "c1"}), Failure{Current: 4, Mark: 1, Holder: held(5, 6, 1, 1, "c1")})
		}, noOrder},
		{"2002 without holder for something never committed", func(s *story, m marks) {
			s.refused(95, 96, codeUsed, request("c", Write{Aggregate: "x", First: 1, Last: 1, ID: "c1"}), Failure{Current: 4, Mark: 1})
		}, noOrder},
		{"2002 before it was committed", func(s *story, m marks) { s.ops[m.a2Used].Call, s.ops[m.a2Used].Return = 20*ms, 21*ms }, noOrder},
		{"2002 with another holder", func(s *story, m marks) { s.ops[m.a2Used].Failure.Holder.ID = "a9" }, noOrder},
		{"2002 without the holder that there is", func(s *story, m marks) { s.ops[m.a2Used].Failure.Holder = nil }, noOrder},
		{"2002 for a guard that goes first", func(s *story, m marks) { s.ops[m.a2Conflict].Code = codeUsed }, noOrder},
		{"2002 without holder from an older view", func(s *story, m marks) {
			s.put("c", 6, 5, 5, "c5", "x")
			s.put("b", 7, 3, 3, "b3", "x")
			s.ok(95, 96, request("c", Write{Aggregate: "x", First: 5, Last: 5, ID: "c5"}), Result{Version: 5, Position: 6})
			s.ok(97, 98, request("b", Write{Aggregate: "x", First: 3, Last: 3, ID: "b3"}), Result{Version: 6, Position: 7})
			s.refused(99, 100, codeUsed, request("c", Write{Aggregate: "x", First: 4, Last: 4, ID: "c4"}), Failure{Current: 5, Mark: 5})
		}, noOrder},
		{"2002 above the mark", func(s *story, m marks) {
			s.refused(95, 96, codeUsed, request("a", Write{Aggregate: "x", First: 3, Last: 3, ID: "a3"}), Failure{Current: 4, Mark: 2})
		}, noOrder},
		{"2003 without a guard", func(s *story, m marks) {
			s.refused(95, 96, codeConflict, request("a", Write{Aggregate: "x", First: 3, Last: 3, ID: "a3"}), Failure{Current: 4, Mark: 2})
		}, noOrder},
		{"2003 for a guard that what is in flight satisfies", func(s *story, m marks) {
			s.refused(95, 96, codeConflict, request("a", Write{Aggregate: "x", First: 3, Last: 3, ID: "a3", Expected: v(5)}), Failure{Current: 4, InFlight: v(5), Mark: 2})
		}, noOrder},
		{"2005 although it may be created", func(s *story, m marks) {
			s.refused(0, 4, codeNotExists, a1, Failure{})
		}, noOrder},
		{"2013 about something that is not in flight", func(s *story, m marks) { s.ops[m.a2InFlight].Failure.InFlightMark = v(1) }, noOrder},
		{"2003 hides a landing", func(s *story, m marks) { s.ops[m.a2Conflict].Failure.Holder = nil }, noOrder},
		{"2003 from a deposed leader", func(s *story, m marks) {
			s.refused(95, 96, codeConflict, a2, Failure{Current: 3, Mark: 2, Holder: held(3, 3, 2, 2, "a2")})
		}, noOrder},
		{"2003 although the guard passes", func(s *story, m marks) {
			s.ops[m.zConflict].Failure.Current = 2
			s.ops[m.zConflict].Call, s.ops[m.zConflict].Return = 33*ms, 35*ms
		}, noOrder},
		{"2003 with the wrong mark", func(s *story, m marks) { s.ops[m.a2Conflict].Failure.Mark = 1 }, noOrder},
		{"2003 for a duplicate in flight", func(s *story, m marks) {
			s.ops[m.a2InFlight].Code = codeConflict
			s.ops[m.a2InFlight].Failure.InFlight = v(3)
		}, noOrder},
		{"2005 for what exists", func(s *story, m marks) {
			s.refused(95, 96, codeNotExists, request("c", Write{Aggregate: "x", First: 1, Last: 1, ID: "c1"}), Failure{})
		}, noOrder},
		{"2013 about something committed", func(s *story, m marks) { s.ops[m.a2InFlight].Failure.Mark, s.ops[m.a2InFlight].Failure.Current = 2, 3 }, noOrder},
		{"2030 although the sequence follows", func(s *story, m marks) {
			s.refused(95, 96, codeGap, request("a", Write{Aggregate: "x", First: 3, Last: 3, ID: "a3", Previous: v(2)}), Failure{Current: 4, Mark: 2})
		}, noOrder},
		{"a linearizable read is stale", func(s *story, m marks) { s.ops[m.fresh].Version, s.ops[m.fresh].Batches = 3, s.batches["x"][:3] }, noOrder},
		{"a linearizable read sees what is not committed yet", func(s *story, m marks) { s.read(33, 35, true, 3) }, noOrder},
		{"any read sees what is not committed yet", func(s *story, m marks) { s.read(33, 35, false, 3) }, noOrder},
		{"a read sees what is rolled back", func(s *story, m marks) { s.read(95, 96, false, 5) }, noOrder},
		{"a read returns another's content", func(s *story, m marks) {
			b := s.batches["x"][1]
			b.ID = "b9"
			s.ops[m.stale].Batches = []Batch{s.batches["x"][0], b}
		}, noOrder},
		{"a read does not wait for min_position", func(s *story, m marks) { s.ops[m.stale].AtLeast = 3 }, noOrder},
		{"reads go back in time", func(s *story, m marks) { s.read(41, 42, true, 3); s.read(43, 44, true, 2) }, noOrder},
		{"a mark goes down", func(s *story, m marks) { s.ops[m.mark].Seq, s.ops[m.mark].Holder = 1, held(1, 1, 1, 1, "a1") }, noOrder},
		{"a mark of something never committed", func(s *story, m marks) { s.ops[m.mark].Seq = 3 }, noOrder},
		{"a mark with another holder", func(s *story, m marks) { s.ops[m.mark].Holder.Version = 1 }, noOrder},
		{"a mark does not wait for min_position", func(s *story, m marks) {
			s.add(95, 96, Op{Kind: Mark, Aggregate: "x", Writer: "b", Seq: 0, AtLeast: 2})
		}, noOrder},
		{"a search finds nothing of what is there", func(s *story, m marks) {
			s.add(95, 96, Op{Kind: Find, Aggregate: "x", Fresh: true, Writer: "b", Seq: 2})
		}, noOrder},
		{"a search finds what is not there", func(s *story, m marks) {
			s.add(95, 96, Op{Kind: Find, Aggregate: "x", Fresh: true, Writer: "b", Seq: 3, Holder: held(2, 2, 1, 2, "b1")})
		}, noOrder},
		{"half of a request", func(s *story, m marks) {
			s.ops[m.m1] = Op{Request: m1, Code: Unknown, Call: 81 * ms, Return: 90 * ms}
			delete(s.batches, "y")
		}, "half of a request"},
		{"a request in two commits", func(s *story, m marks) {
			s.batches["y"][0].Position, s.batches["y"][0].CommitFirst, s.batches["y"][0].CommitCount = 6, 6, 1
			s.ops[m.m1].Results[1].Position = 6
		}, "half of a request"},
		{"a commit of another size", func(s *story, m marks) { s.batches["x"][1].CommitCount = 2 }, "was write 0 of a request of 1"},
		{"positions against versions", func(s *story, m marks) {
			s.batches["x"][0].Position, s.batches["x"][0].CommitFirst = 2, 2
			s.batches["x"][1].Position, s.batches["x"][1].CommitFirst = 1, 1
		}, "the one before at 2"},
		{"one position twice", func(s *story, m marks) {
			s.batches["y"][0].Position = 3
			s.ops[m.m1].Results[1].Position = 3
		}, "position 3 is version"},
		{"positions against time", func(s *story, m marks) {
			s.put("c", 9, 1, 1, "c1", "w")
			s.put("d", 8, 1, 1, "d1", "u")
			s.ok(93, 94, request("c", Write{Aggregate: "w", First: 1, Last: 1, ID: "c1", Create: true}), Result{Version: 1, Position: 9})
			s.ok(95, 96, request("d", Write{Aggregate: "u", First: 1, Last: 1, ID: "d1", Create: true}), Result{Version: 1, Position: 8})
		}, "has a lower position"},
		{"CONFIRM speaks of a write that is another", func(s *story, m marks) { s.ops[len(s.ops)-1].Results[0].Version = 2 }, "not what was acknowledged"},
		{"CONFIRM confirms before it is there", func(s *story, m marks) { o := &s.ops[len(s.ops)-1]; o.Call, o.Return = 20*ms, 21*ms }, noOrder},
		{"a version is missing", func(s *story, m marks) { s.batches["x"] = append(s.batches["x"][:1:1], s.batches["x"][2:]...) }, "batch 2 is version 3"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, m := good()
			tc.lie(s, m)
			err := s.check()
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("found %v, expected an error that says %q", err, tc.want)
			}
		})
	}
}

// A history of the size that the chaos suite makes must be judged quickly, whether it is right
// or wrong in the last operation.
func TestLargeHistoriesAreJudgedQuickly(t *testing.T) {
	const clients, rounds = 8, 400
	build := func() *story {
		s := &story{batches: map[string][]Batch{}}
		for r := range rounds {
			at := time.Duration(r) * 100
			version := uint64(r) + 1
			writer, id := fmt.Sprint("w", r%clients), fmt.Sprint("e", r)
			seq := uint64(r/clients) + 1
			s.put(writer, version, seq, seq, id, "x")
			w := request(writer, Write{Aggregate: "x", First: seq, Last: seq, ID: id, Create: true})
			if r%5 == 0 { // unknown, told much later by a refusal
				s.unknown(at, at+20, w)
				s.refused(at+90, at+130, codeUsed, w, Failure{Current: version, Mark: seq, Holder: held(version, version, seq, seq, id)})
			} else {
				s.ok(at, at+110, w, Result{Version: version, Position: version})
			}
			for c := range clients { // all of them see this version or the one before
				s.read(at+time.Duration(c), at+95, true, version-uint64(c%2))
			}
			s.unknown(at, at+50, request("never", Write{Aggregate: "x", First: version, Last: version, ID: fmt.Sprint("n", r), Create: true}))
		}
		return s
	}
	if err := build().check(); err != nil {
		t.Error(err)
	}
	wrong := build()
	wrong.read(rounds*100+500, rounds*100+501, true, rounds-1)
	if err := wrong.check(); err == nil || !strings.Contains(err.Error(), "no order explains") {
		t.Errorf("a stale read at the end of a long history: %v", err)
	}
}

func TestNoVerdictIsAFailure(t *testing.T) {
	s, _ := good()
	if err := Check(s.ops, s.batches, 1); err == nil || !strings.Contains(err.Error(), "no verdict") {
		t.Errorf("found %v, expected an error that says that there is no verdict", err)
	}
}

func TestARecorderThatIsFullSaysSo(t *testing.T) {
	r := NewRecorder(1)
	if !r.Add(Op{Client: "first"}) || r.Add(Op{Client: "second"}) || len(r.Ops()) != 1 || r.Ops()[0].Client != "first" {
		t.Errorf("holds %v, expected the first operation alone", r.Ops())
	}
}
