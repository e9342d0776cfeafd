package replication

import (
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/mark"
	"github.com/tidemark-db/tidemark/wal/record"
)

// This file holds the one function that decides over a write, for admission and for Apply
// alike. Admission passes what is in flight along with the committed state; Apply passes
// committed state alone. Everything here is a pure function of its arguments.

// writeState is what the checks need to know of one write's aggregate and writer, all as
// of one applied position.
type writeState struct {
	head mark.Head
	// mark is the writer's committed mark.
	mark uint64
	// inFlight is how many writes the aggregate has in flight; each adds one version.
	inFlight int
	// inFlightMark is the highest sequence this writer has in flight there; 0 = none, since
	// a client_seq is at least 1.
	inFlightMark uint64
	// afterMissing: the sequence that the write was sent after, on a stream, is not recorded.
	// Only Apply can tell: admission took that sequence in, and its entry comes first.
	afterMissing bool
	// broken: on the write's stream the chain of this writer on the aggregate is broken. Only
	// admission can tell.
	broken bool
}

// live says whether the aggregate exists as committed.
func (s *writeState) live() bool { return s.head.Exists && !s.head.Deleted }

// version is the version that counts for guards and for current_version: 0 if the
// aggregate never existed, or if it was deleted with restart_versions.
func (s *writeState) version() uint64 {
	if !s.head.Exists || (s.head.Deleted && s.head.Restart) {
		return 0
	}
	return s.head.Version
}

// ahead is the version that the aggregate will have if everything in flight commits
// (contract 2.2: A).
func (s *writeState) ahead() uint64 { return s.version() + uint64(s.inFlight) }

// guardState is what the version guard says of a write.
type guardState int

const (
	guardPasses guardState = iota
	// guardFails: no outcome of what is in flight makes it pass, or nothing is in flight.
	guardFails
	// guardOpen: it would pass if none, or only a first part, of what is in flight commits.
	guardOpen
)

// guard applies contract 2.1 "version guard" and 2.2.
func (s *writeState) guard(w *record.Write) guardState {
	if w.Flags&record.FlagHasExpected == 0 {
		return guardPasses
	}
	if s.inFlight == 0 {
		if s.live() {
			return passes(w.Expected == s.version())
		}
		return passes(w.Expected == 0)
	}
	switch {
	case w.Expected == s.ahead():
		return guardPasses
	case s.version() <= w.Expected && w.Expected < s.ahead():
		return guardOpen
	case w.Expected == 0 && !s.live():
		return guardOpen
	}
	return guardFails
}

func passes(ok bool) guardState {
	if ok {
		return guardPasses
	}
	return guardFails
}

// existence applies contract 2.1 "existence" as of the version ahead; 0 = passes.
func (s *writeState) existence(w *record.Write) pb.ErrorCode {
	switch {
	case s.inFlight > 0 || s.live():
		return 0
	case s.head.Exists && !s.head.Recreatable:
		return pb.ErrorCode_ERROR_CODE_AGGREGATE_RECREATE_NOT_ALLOWED
	case w.Flags&record.FlagAllowCreate == 0:
		return pb.ErrorCode_ERROR_CODE_AGGREGATE_NOT_EXISTS
	}
	return 0
}

// covered says which mark covers an enforced write's lowest sequence; 0 = none. The
// committed mark is tested first.
func (s *writeState) covered(w *record.Write) pb.ErrorCode {
	switch {
	case w.Flags&record.FlagEnforce == 0:
		return 0
	case w.Lowest <= s.mark:
		return pb.ErrorCode_ERROR_CODE_CLIENT_IDEMPOTENCY_VIOLATION
	case w.Lowest <= s.inFlightMark:
		return pb.ErrorCode_ERROR_CODE_INFLIGHT_DUPLICATE_WRITE
	}
	return 0
}

// verdict is the decision over a request; code 0 means that it passes.
type verdict struct {
	code  pb.ErrorCode
	index int // of the refused write
	// open: a 2003 that is not definite, the one that carries in_flight_version.
	open bool
	// after: a 2030 because of the sequence sent before it on its stream.
	after bool
	// broken: a 2030 because the chain is broken on its stream.
	broken bool
}

// decide applies contract 2.1 and 2.2 to the writes of one request: existence for all,
// then the guard for all, then idempotency for all. states[i] belongs to writes[i].
func decide(writes []record.Write, states []writeState) verdict {
	for i := range writes {
		if code := states[i].existence(&writes[i]); code != 0 {
			return verdict{code: code, index: i}
		}
	}
	for i := range writes {
		switch g := states[i].guard(&writes[i]); {
		case g == guardFails:
			return verdict{code: pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION, index: i}
		case g == guardOpen && states[i].covered(&writes[i]) == 0:
			return verdict{code: pb.ErrorCode_ERROR_CODE_OPTIMISTIC_CONCURRENCY_VIOLATION, index: i, open: true}
		}
	}
	for i := range writes {
		w, s := &writes[i], &states[i]
		if code := s.covered(w); code != 0 {
			return verdict{code: code, index: i}
		}
		if w.Flags&record.FlagHasPrevious != 0 && w.Flags&record.FlagEnforce != 0 &&
			w.Previous != max(s.mark, s.inFlightMark) {
			return verdict{code: pb.ErrorCode_ERROR_CODE_CLIENT_SEQUENCE_GAP, index: i}
		}
		if s.broken && w.Flags&record.FlagEnforce != 0 && w.Flags&record.FlagHasPrevious == 0 {
			return verdict{code: pb.ErrorCode_ERROR_CODE_CLIENT_SEQUENCE_GAP, index: i, broken: true}
		}
		if s.afterMissing {
			return verdict{code: pb.ErrorCode_ERROR_CODE_CLIENT_SEQUENCE_GAP, index: i, after: true}
		}
	}
	return verdict{}
}
