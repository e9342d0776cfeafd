package powerloss

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/tidemark-db/tidemark/wal/stable"
	"github.com/tidemark-db/tidemark/wal/tail"
)

// Flags of a longer run: go test ./test/powerloss -args -seed 7 -budget 0 -steps 400.
var (
	flagSeed   = flag.Uint64("seed", 1, "seed of what the programs write and of what is sampled")
	flagBudget = flag.Int("budget", 2500, "about how many crashes to try of each run; 0 = all")
	flagSteps  = flag.Int("steps", 90, "how many durable calls the raft log program makes")
	flagKeep   = flag.String("keep", "", "an existing directory in which a failed crash is left")
)

// segmentSize is small, so that a short run fills several segments.
const segmentSize = 64 << 10

// raft's keys in its StableStore.
var (
	keyTerm     = []byte("CurrentTerm")
	keyVoteTerm = []byte("LastVoteTerm")
	keyVoteCand = []byte("LastVoteCand")
)

type stepKind int

const (
	stepAppend stepKind = iota
	stepFront           // delete the oldest entries, as raft does after a snapshot
	stepBack            // delete the newest entries, as raft does when a leader overrules it
	stepEmpty           // delete all and go on at a later index, as after a snapshot was installed
	stepTerm
	stepVote
)

// step is one durable call of the program, or the two calls of a vote.
type step struct {
	kind     stepKind
	entries  []*raft.Log
	min, max uint64
	term     uint64
	vote     string
}

// plan is what the program does. It is a function of the seed alone, so that the check
// knows it too. before[i] is the state before step i, before[len(steps)] that at the end.
type plan struct {
	steps  []step
	before []raftState
}

// raftState is what must be there. first == 0 means that the log is empty.
type raftState struct {
	first, last uint64
	entries     map[uint64]*raft.Log
	term        uint64
	voteTerm    uint64
	vote        string
}

func (s raftState) clone() raftState {
	c := s
	c.entries = make(map[uint64]*raft.Log, len(s.entries))
	for i, e := range s.entries {
		c.entries[i] = e
	}
	return c
}

func makePlan(seed uint64, steps int) *plan {
	rng := rand.New(rand.NewPCG(seed, 1))
	p := &plan{}
	s := raftState{entries: map[uint64]*raft.Log{}}
	next := uint64(1)
	for i := range steps {
		p.before = append(p.before, s.clone())
		st := step{kind: stepAppend}
		switch roll := rng.IntN(20); {
		case i > 0 && i%30 == 0 && s.first != 0:
			st.kind = stepEmpty
		case roll < 2 && s.last > s.first:
			st.kind = stepFront
		case roll < 4 && s.last > s.first:
			st.kind = stepBack
		case roll < 5 || i == 0:
			st.kind = stepTerm
		case roll < 6 || i == 1:
			st.kind = stepVote
		}
		switch st.kind {
		case stepAppend:
			for range 1 + rng.IntN(4) {
				e := &raft.Log{Index: next, Term: s.term, Type: raft.LogCommand, Data: randomData(rng)}
				st.entries = append(st.entries, e)
				next++
			}
		case stepFront:
			st.min, st.max = s.first, s.first+rng.Uint64N(s.last-s.first)
		case stepBack:
			st.min, st.max = s.first+1+rng.Uint64N(s.last-s.first), s.last
			next = st.min
		case stepEmpty:
			st.min, st.max = s.first, s.last
			next = s.last + 1 + rng.Uint64N(50)
		case stepTerm:
			st.term = s.term + 1
		case stepVote:
			st.term, st.vote = s.term, fmt.Sprintf("candidate-%d", i)
		}
		s = s.after(st)
		p.steps = append(p.steps, st)
	}
	p.before = append(p.before, s)
	return p
}

// randomData is mostly small; some spans pages, little fills a segment alone.
func randomData(rng *rand.Rand) []byte {
	n := rng.IntN(400)
	switch roll := rng.IntN(12); {
	case roll < 2:
		n = 4096 + rng.IntN(12<<10)
	case roll < 3:
		n = segmentSize/2 + rng.IntN(segmentSize)
	}
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// after is the state once the step is done.
func (s raftState) after(st step) raftState {
	s = s.clone()
	switch st.kind {
	case stepAppend:
		for _, e := range st.entries {
			s.entries[e.Index] = e
			s.last = e.Index
			if s.first == 0 {
				s.first = e.Index
			}
		}
	case stepFront, stepBack, stepEmpty:
		for i := st.min; i <= st.max; i++ {
			delete(s.entries, i)
		}
		switch {
		case len(s.entries) == 0:
			s.first, s.last = 0, 0
		case st.kind == stepFront:
			s.first = st.max + 1
		default:
			s.last = st.min - 1
		}
	case stepTerm:
		s.term = st.term
	case stepVote:
		s.voteTerm, s.vote = st.term, st.vote
	}
	return s
}

// raftStores are the two stores of one directory.
type raftStores struct {
	log    *tail.Log
	stable *stable.Store
}

func openStores(root string) (*raftStores, error) {
	l, err := tail.Open(tail.Options{Dir: filepath.Join(root, "tail"), SegmentSize: segmentSize})
	if err != nil {
		return nil, fmt.Errorf("open the tail: %w", err)
	}
	s, err := stable.Open(stable.Options{Path: filepath.Join(root, "stable.db")})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the stable store: %w", err), l.Close())
	}
	return &raftStores{log: l, stable: s}, nil
}

func (r *raftStores) close() error { return errors.Join(r.log.Close(), r.stable.Close()) }

func (r *raftStores) do(st step) error {
	switch st.kind {
	case stepAppend:
		return r.log.StoreLogs(st.entries)
	case stepFront, stepBack, stepEmpty:
		return r.log.DeleteRange(st.min, st.max)
	case stepTerm:
		return r.stable.SetUint64(keyTerm, st.term)
	}
	// As raft's persistVote does it.
	if err := r.stable.SetUint64(keyVoteTerm, st.term); err != nil {
		return err
	}
	return r.stable.Set(keyVoteCand, []byte(st.vote))
}

// runRaftLog is the program: it says what it begins and, once a call has returned, that it
// is done.
func runRaftLog(root string) error {
	p := makePlan(*flagSeed, *flagSteps)
	r, err := openStores(root)
	if err != nil {
		return err
	}
	for i, st := range p.steps {
		fmt.Println("begin", i)
		if err := r.do(st); err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		fmt.Println("ack", i)
	}
	return r.close()
}

// rebooted makes the tail in dir look as if the machine had been started again since: it
// trusts its state file further if only the process has died. wal/DESIGN.md has the format.
func rebooted(dir string) error {
	states, err := filepath.Glob(filepath.Join(dir, "log-*", "state"))
	if err != nil {
		return err
	}
	for _, path := range states {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, at := range []int{0, 4096} {
			if len(b) < at+40 {
				continue
			}
			slot, castagnoli := b[at:at+40], crc32.MakeTable(crc32.Castagnoli)
			if binary.BigEndian.Uint32(slot[4:]) != crc32.Checksum(slot[8:], castagnoli) {
				continue // torn: stays so
			}
			copy(slot[24:], "another boot id.")
			binary.BigEndian.PutUint32(slot[4:], crc32.Checksum(slot[8:], castagnoli))
		}
		if err := os.WriteFile(path, b, 0o640); err != nil {
			return err
		}
	}
	return nil
}

// checkRaftLog opens what a crash left and compares it with what was acknowledged.
func (p *plan) checkRaftLog(c Crash) error {
	done, begun := 0, 0
	for _, l := range c.Lines {
		if strings.HasPrefix(l, "ack ") {
			done++
		} else {
			begun++
		}
	}
	if err := rebooted(filepath.Join(c.Dir, "tail")); err != nil {
		return err
	}
	r, err := openStores(c.Dir)
	if err != nil {
		return fmt.Errorf("after %d of %d steps: %w", done, begun, err)
	}
	before, after := p.before[done], p.before[begun]
	if err := errors.Join(r.checkLog(before, after), r.checkStable(before, after)); err != nil {
		return errors.Join(fmt.Errorf("after %d of %d steps: %w", done, begun, err), r.close())
	}
	return errors.Join(r.goOn(after.term+1), r.close())
}

// checkLog accepts every state from before to after: a call that had not returned may have
// been done in part, but only from the end at which it works.
func (r *raftStores) checkLog(before, after raftState) error {
	first, err := r.log.FirstIndex()
	if err != nil {
		return err
	}
	last, err := r.log.LastIndex()
	if err != nil {
		return err
	}
	between := func(v, a, b uint64) bool { return v >= min(a, b) && v <= max(a, b) }
	switch {
	case before.first == 0 || after.first == 0:
		if first == 0 && last == 0 {
			return nil
		}
		full := before
		if before.first == 0 {
			full = after
		}
		if first < full.first || last > full.last || first > last || (full.first == 0) {
			return fmt.Errorf("the log is %d..%d, expected it empty or within %d..%d", first, last, full.first, full.last)
		}
	case !between(first, before.first, after.first) || !between(last, before.last, after.last):
		return fmt.Errorf("the log is %d..%d, expected %d..%d or %d..%d", first, last, before.first, before.last, after.first, after.last)
	}
	for i := first; i <= last; i++ {
		want := before.entries[i]
		if want == nil {
			want = after.entries[i]
		}
		var got raft.Log
		if err := r.log.GetLog(i, &got); err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		if got.Index != want.Index || got.Term != want.Term || got.Type != want.Type || !bytes.Equal(got.Data, want.Data) {
			return fmt.Errorf("entry %d is of term %d with %d bytes, expected term %d with %d bytes", i, got.Term, len(got.Data), want.Term, len(want.Data))
		}
	}
	return nil
}

// checkStable accepts, of a vote under way, that neither term nor candidate, the term
// without a candidate, or both are new; never the new term with the old candidate.
func (r *raftStores) checkStable(before, after raftState) error {
	term, err := number(r.stable.GetUint64(keyTerm))
	if err != nil {
		return err
	}
	voteTerm, err := number(r.stable.GetUint64(keyVoteTerm))
	if err != nil {
		return err
	}
	vote, err := r.stable.Get(keyVoteCand)
	if err != nil && err.Error() != "not found" {
		return err
	}
	if term != before.term && term != after.term {
		return fmt.Errorf("the term is %d, expected %d or %d", term, before.term, after.term)
	}
	switch {
	case voteTerm == before.voteTerm && string(vote) == before.vote:
	case voteTerm == after.voteTerm && string(vote) == after.vote:
	case before.vote != after.vote && len(vote) == 0 && (voteTerm == before.voteTerm || voteTerm == after.voteTerm):
	default:
		return fmt.Errorf("the vote is for %q in term %d, expected %q in %d or %q in %d", vote, voteTerm,
			before.vote, before.voteTerm, after.vote, after.voteTerm)
	}
	return nil
}

// number takes a key that was never set as 0.
func number(n uint64, err error) (uint64, error) {
	if err != nil && err.Error() == "not found" {
		return 0, nil
	}
	return n, err
}

// goOn checks that what came back can be written to.
func (r *raftStores) goOn(term uint64) error {
	last, err := r.log.LastIndex()
	if err != nil {
		return err
	}
	want := raft.Log{Index: last + 1, Term: term, Type: raft.LogCommand, Data: []byte("after the crash")}
	if err := r.log.StoreLog(&want); err != nil {
		return fmt.Errorf("append after the crash: %w", err)
	}
	var got raft.Log
	if err := r.log.GetLog(last+1, &got); err != nil || string(got.Data) != string(want.Data) {
		return fmt.Errorf("read back what was appended after the crash: %q, %w", got.Data, err)
	}
	if err := r.stable.SetUint64(keyTerm, term); err != nil {
		return fmt.Errorf("set the term after the crash: %w", err)
	}
	return nil
}

func recordRaftLog(t *testing.T) (calls []Call, root string, p *plan) {
	t.Helper()
	calls, root = recorded(t, "raftlog", fmt.Sprintf("-seed=%d", *flagSeed), fmt.Sprintf("-steps=%d", *flagSteps))
	p = makePlan(*flagSeed, *flagSteps)
	d := replay(t, calls, root)
	if len(d.Lines) != 2*len(p.steps) {
		t.Fatalf("the program printed %d lines, expected two for each of %d steps", len(d.Lines), len(p.steps))
	}
	return calls, root, p
}

func options() Options {
	return Options{Seed: *flagSeed, Budget: *flagBudget, Keep: *flagKeep}
}

func TestTheRaftLogSurvivesPowerLoss(t *testing.T) {
	calls, root, p := recordRaftLog(t)
	if stats, err := explore(t, replay(t, calls, root), options(), p.checkRaftLog); err != nil {
		t.Errorf("%v: %v", stats, err)
	}
}

// The exploration is worth nothing if it would pass a store that does not flush.
func TestTakingFsyncOutIsFound(t *testing.T) {
	calls, root, p := recordRaftLog(t)
	for _, tc := range []struct {
		name  string
		match func(path string) bool
	}{
		{"of the tail's segments", Under("/tail/log-")},
		{"of the stable store", Under("/stable.db")},
		{"of the directory of both", func(path string) bool { return path == root }},
		{"of the tail's directories", func(path string) bool {
			return strings.HasSuffix(path, "/tail") || strings.HasPrefix(filepath.Base(path), "log-")
		}},
	} {
		edited, removed := WithoutFlushes(calls, tc.match)
		if removed == 0 {
			t.Errorf("%s: the program makes no such flush", tc.name)
			continue
		}
		_, err := explore(t, replay(t, edited, root), options(), p.checkRaftLog)
		if err == nil || !strings.Contains(err.Error(), "after a power loss") {
			t.Errorf("%s: %d flushes were taken out, and what was found is: %v", tc.name, removed, err)
		}
	}
}

func TestAnsweringBeforeFsyncIsFound(t *testing.T) {
	calls, root, p := recordRaftLog(t)
	edited, moved := AnswersFirst(calls, "ack ")
	if moved != len(p.steps) {
		t.Fatalf("%d of %d answers were moved before a flush", moved, len(p.steps))
	}
	_, err := explore(t, replay(t, edited, root), options(), p.checkRaftLog)
	if err == nil || !strings.Contains(err.Error(), "after a power loss") {
		t.Errorf("every answer came before its flush, and what was found is: %v", err)
	}
}
