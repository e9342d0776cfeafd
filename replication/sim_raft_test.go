package replication

import (
	"fmt"
	"slices"

	"github.com/hashicorp/raft"
)

// This file is a model of raft's safety, small enough to be checked by eye: terms, votes
// with the check of the log, appending with the check of the entry before and truncation of
// a conflicting tail, and commitment of entries of the leader's own term by a majority of
// persisted copies. It has no timers: the adversary says when somebody stands for election,
// replicates, or notices something. What it promises about futures is what hashicorp/raft
// promises.

const (
	simNodes    = 3
	simMajority = 2
	nobody      = -1
)

type simRole int

const (
	simFollower simRole = iota
	simCandidate
	simLeader
)

// simEntry is a log entry. It is shared by the logs that hold it and never changes.
type simEntry struct {
	term, index uint64
	kind        raft.LogType
	data        []byte
	proposal    *simProposal // of a command
}

// simProposal is what the simulation knows of a command beside its bytes.
type simProposal struct {
	tenure *simTenure
	g      *proposal
	ops    []*simOp // in the order of g.requests
}

// simFuture is something handed to raft's main loop, and its fate.
type simFuture struct {
	kind     raft.LogType
	data     []byte
	proposal *simProposal
	entry    *simEntry // once it is in the log
	tenure   *simTenure
	resolved bool
	err      error
}

// simRaft is the raft of one node.
type simRaft struct {
	id int
	s  *sim

	// On disk: a restart keeps it.
	term uint64
	vote int
	log  []*simEntry // log[i] has the index i+1

	// In memory.
	role     simRole
	leader   int
	commit   uint64 // known to be committed
	handed   uint64 // handed to the FSM
	votes    [simNodes]bool
	next     [simNodes]uint64
	match    [simNodes]uint64
	queue    []*simFuture // not yet taken up by the main loop
	inFlight []*simFuture // appended as leader, not yet known to be committed
	applying []*simFuture // committed, not yet applied here
	notices  []bool       // of leadership won and lost, not yet read
}

type simMsgKind int

const (
	simAskVote simMsgKind = iota
	simVote
	simAppend
	simAppended
	simAskTerm
	simTerm
)

func (k simMsgKind) String() string {
	return [...]string{"ask-vote", "vote", "append", "appended", "ask-term", "term"}[k]
}

// simMsg is a message between two nodes.
type simMsg struct {
	kind     simMsgKind
	from, to int
	term     uint64
	// Of the newest entry, or the one before entries; the match of simAppended.
	index, logTerm uint64
	entries        []*simEntry
	commit         uint64
	ok             bool
	round          *simRound
}

func (m *simMsg) String() string {
	text := fmt.Sprintf("%s %s->%s term %d", m.kind, simNodeName(m.from), simNodeName(m.to), m.term)
	switch m.kind {
	case simAppend:
		text += fmt.Sprintf(" after %d/%d: %d entries, commit %d", m.logTerm, m.index, len(m.entries), m.commit)
	case simVote, simAppended:
		text += fmt.Sprintf(" %v", m.ok)
	}
	return text
}

func (r *simRaft) send(m *simMsg) {
	m.from = r.id
	r.s.net = append(r.s.net, m)
}

func (r *simRaft) last() (index, term uint64) {
	if n := len(r.log); n > 0 {
		return uint64(n), r.log[n-1].term
	}
	return 0, 0
}

func (r *simRaft) termAt(index uint64) uint64 {
	if index == 0 {
		return 0
	}
	return r.log[index-1].term
}

// stepDown ends leadership or candidacy; a newer term is taken over. What is in flight and
// not known to be committed is resolved the way raft does it.
func (r *simRaft) stepDown(term uint64) {
	if r.role == simLeader {
		for _, f := range r.inFlight {
			f.resolve(raft.ErrLeadershipLost)
		}
		r.inFlight = nil
		r.notices = append(r.notices, false)
		r.leader = nobody
	}
	if term > r.term {
		r.term, r.vote, r.leader = term, nobody, nobody
	}
	r.role = simFollower
}

func (f *simFuture) resolve(err error) {
	if !f.resolved {
		f.resolved, f.err = true, err
	}
}

func (r *simRaft) campaign() {
	r.stepDown(r.term)
	r.term++
	r.vote, r.leader, r.role = r.id, nobody, simCandidate
	r.votes = [simNodes]bool{}
	r.votes[r.id] = true
	index, logTerm := r.last()
	for to := range simNodes {
		if to != r.id {
			r.send(&simMsg{kind: simAskVote, to: to, term: r.term, index: index, logTerm: logTerm})
		}
	}
}

func (r *simRaft) becomeLeader() {
	r.role, r.leader = simLeader, r.id
	for i := range simNodes {
		r.next[i], r.match[i] = uint64(len(r.log))+1, 0
	}
	r.notices = append(r.notices, true)
	r.appendOwn(&simFuture{kind: raft.LogNoop})
}

// appendOwn appends and persists an entry as leader.
func (r *simRaft) appendOwn(f *simFuture) {
	f.entry = &simEntry{term: r.term, index: uint64(len(r.log)) + 1, kind: f.kind, data: f.data, proposal: f.proposal}
	r.log = append(r.log, f.entry)
	r.match[r.id] = f.entry.index
	r.inFlight = append(r.inFlight, f)
	if f.proposal != nil {
		for _, o := range f.proposal.ops {
			o.entry = f.entry
		}
	}
}

// loop is a turn of the main loop: it takes up what was handed to it.
func (r *simRaft) loop() {
	for _, f := range r.queue {
		if r.role == simLeader {
			r.appendOwn(f)
		} else {
			f.resolve(raft.ErrNotLeader)
		}
	}
	r.queue = nil
}

// replicate sends a follower what it lacks, or nothing: a heartbeat.
func (r *simRaft) replicate(to int) {
	next := r.next[to]
	m := &simMsg{kind: simAppend, to: to, term: r.term, index: next - 1, logTerm: r.termAt(next - 1), commit: r.commit}
	m.entries = slices.Clone(r.log[next-1:])
	r.send(m)
}

// receive handles a message.
func (r *simRaft) receive(m *simMsg) {
	if m.kind == simAskTerm {
		r.send(&simMsg{kind: simTerm, to: m.from, term: r.term, round: m.round})
		return
	}
	if m.kind == simTerm {
		m.round.answer(m.from, m.term)
		return
	}
	if m.term > r.term {
		r.stepDown(m.term)
	}
	switch m.kind {
	case simAskVote:
		index, term := r.last()
		upToDate := m.logTerm > term || m.logTerm == term && m.index >= index
		ok := m.term == r.term && (r.vote == nobody || r.vote == m.from) && (upToDate || r.s.broken == breakVoteCheck)
		if ok {
			r.vote = m.from
		}
		r.send(&simMsg{kind: simVote, to: m.from, term: r.term, ok: ok})
	case simVote:
		if r.role != simCandidate || m.term != r.term || !m.ok {
			return
		}
		r.votes[m.from] = true
		n := 0
		for _, v := range r.votes {
			if v {
				n++
			}
		}
		if n >= simMajority {
			r.becomeLeader()
		}
	case simAppend:
		r.appendFrom(m)
	case simAppended:
		if r.role != simLeader || m.term != r.term {
			return
		}
		if !m.ok {
			r.next[m.from] = max(1, min(r.next[m.from]-1, m.index+1))
			return
		}
		r.match[m.from] = max(r.match[m.from], m.index)
		r.next[m.from] = max(r.next[m.from], m.index+1)
		r.advance()
	}
}

// appendFrom handles a leader's entries.
func (r *simRaft) appendFrom(m *simMsg) {
	answer := &simMsg{kind: simAppended, to: m.from, term: r.term}
	if m.term < r.term {
		r.send(answer)
		return
	}
	if r.role == simLeader {
		r.s.bug("raft model: two leaders in term %d", r.term)
		return
	}
	r.role, r.leader = simFollower, m.from
	if m.index > uint64(len(r.log)) || r.termAt(m.index) != m.logTerm {
		answer.index = min(uint64(len(r.log)), m.index-1)
		r.send(answer)
		return
	}
	for i, e := range m.entries {
		if e.index <= uint64(len(r.log)) {
			if r.log[e.index-1].term == e.term {
				continue
			}
			r.log = r.log[:e.index-1] // conflicts: it and all that follows goes
		}
		r.log = append(r.log, m.entries[i])
	}
	answer.ok, answer.index = true, m.index+uint64(len(m.entries))
	r.committed(min(m.commit, answer.index))
	r.send(answer)
}

// advance commits what a majority has persisted, if its newest entry is of the own term.
func (r *simRaft) advance() {
	sorted := r.match
	slices.Sort(sorted[:])
	index := sorted[simNodes-simMajority]
	if index > r.commit && (r.termAt(index) == r.term || r.s.broken == breakOldTermCommit) {
		r.committed(index)
	}
}

// committed notes what is committed, here and in the one true log.
func (r *simRaft) committed(index uint64) {
	if index <= r.commit {
		return
	}
	r.commit = index
	for i := range index {
		e := r.log[i]
		if i < uint64(len(r.s.log)) {
			if r.s.log[i] != e {
				r.s.violated("committed entry lost", "entry %d of term %d was committed, and %s has one of term %d there", i+1, r.s.log[i].term, simNodeName(r.id), e.term)
				return
			}
			continue
		}
		r.s.log = append(r.s.log, e)
		r.s.model.apply(r.s, e)
	}
	done := 0
	for done < len(r.inFlight) && r.inFlight[done].entry.index <= index {
		done++
	}
	r.applying = append(r.applying, r.inFlight[:done]...)
	r.inFlight = r.inFlight[done:]
}

// applied resolves what is applied here now.
func (r *simRaft) applied(index uint64) {
	r.handed = index
	for len(r.applying) > 0 && r.applying[0].entry.index <= index {
		r.applying[0].resolve(nil)
		r.applying = r.applying[1:]
	}
}

// restart forgets what is not on disk.
func (r *simRaft) restart() {
	*r = simRaft{id: r.id, s: r.s, term: r.term, vote: r.vote, log: r.log, leader: nobody}
}

// simRound is one round of asking the other voters for their term.
type simRound struct {
	term    uint64
	running bool
	from    int
	yes, no [simNodes]bool
	done    bool
	err     error
}

func (r *simRound) answer(from int, term uint64) {
	if r.done {
		return
	}
	if term == r.term {
		r.yes[from] = true
	} else {
		r.no[from] = true
	}
	yes, no := 1, 0 // the asking node counts
	for i := range simNodes {
		if r.yes[i] {
			yes++
		} else if r.no[i] {
			no++
		}
	}
	switch {
	case yes >= simMajority:
		r.done = true
	case no > simNodes-simMajority:
		r.end(fmt.Errorf("no majority of voters confirmed term %d", r.term))
	}
}

func (r *simRound) end(err error) {
	if !r.done {
		r.done, r.err = true, err
	}
}
