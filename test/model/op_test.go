package model

import (
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// An op is one line of a script: what the random tests draw, what they print when they
// fail, and what testdata/ holds. Its text form round-trips, so a failure pastes into a
// script as it is.
//
//	append CLIENT [confirm] [timeline=T] WRITE [+ WRITE]...
//	    WRITE = AGGREGATE EVENT[,EVENT]... [create] [loose] [expect=V] [prev=N]
//	    EVENT = SEQ[:ID[:VARIANT]]      (the id defaults to eSEQ; "loose" = not enforced)
//	read AGGREGATE [from=V] [to=V] [limit=N] [backward] [FILTER=...]
//	readall [from=POSITION] [limit=N] [backward] [FILTER=...]
//	aggregate AGGREGATE | mark AGGREGATE CLIENT | marks AGGREGATE | find AGGREGATE CLIENT SEQ
//	hold | release                      what is admitted stays in flight in between
//	lose                                releases, but the oldest in flight is in no log
//	restart | crash | rebuild [cache=N] the last: the history directory is removed in between
//	compact                             space is reclaimed, the log dropped behind a snapshot
//	trim AGGREGATE V [expect=V]         this and the next one not while anything is held
//	delete DELETE [+ DELETE]...
//	    DELETE = AGGREGATE [expect=V] [recreatable] [restart] [forget]
type op struct {
	verb string
	args []string // what comes before the writes
	// writes are the words of each write of an append, or of each delete.
	writes [][]string
}

func (o op) String() string {
	words := append([]string{o.verb}, o.args...)
	for i, w := range o.writes {
		if i > 0 {
			words = append(words, "+")
		}
		words = append(words, w...)
	}
	return strings.Join(words, " ")
}

// GoString is what rapid prints for a drawn op.
func (o op) GoString() string { return o.String() }

func parseOp(line string) (op, error) {
	words := strings.Fields(line)
	if len(words) == 0 {
		return op{}, fmt.Errorf("an op needs a verb")
	}
	o := op{verb: words[0]}
	words = words[1:]
	if o.verb != "append" && o.verb != "delete" {
		o.args = words
		return o, nil
	}
	for o.verb == "append" && len(words) > 0 && (len(o.args) == 0 || words[0] == "confirm" || strings.HasPrefix(words[0], "timeline=")) {
		o.args, words = append(o.args, words[0]), words[1:]
	}
	for len(words) > 0 {
		n := 0
		for n < len(words) && words[n] != "+" {
			n++
		}
		o.writes = append(o.writes, words[:n])
		words = words[min(n+1, len(words)):]
	}
	return o, nil
}

// flag says whether a bare word is there.
func flag(words []string, name string) bool {
	for _, w := range words {
		if w == name {
			return true
		}
	}
	return false
}

// value is what follows name=.
func value(words []string, name string) (string, bool) {
	for _, w := range words {
		if v, ok := strings.CutPrefix(w, name+"="); ok {
			return v, true
		}
	}
	return "", false
}

func number(words []string, name string) uint64 {
	v, _ := value(words, name)
	n, _ := strconv.ParseUint(v, 10, 64)
	return n
}

func optional(words []string, name string) *uint64 {
	if _, ok := value(words, name); !ok {
		return nil
	}
	return proto.Uint64(number(words, name))
}

func list(words []string, name string) []string {
	v, ok := value(words, name)
	if !ok {
		return nil
	}
	return strings.Split(v, ",")
}

func key(org, id string) *pb.AggregateKey { return &pb.AggregateKey{Org: org, Type: "orders", Id: id} }

// request builds the message of an append to aggregates of org.
func (o op) request(org string) *pb.AppendRequest {
	req := &pb.AppendRequest{RequestId: "request of " + o.args[0], ClientId: o.args[0]}
	if flag(o.args, "confirm") {
		req.OnDuplicate = pb.OnDuplicate_ON_DUPLICATE_CONFIRM
	}
	req.Timeline, _ = value(o.args, "timeline")
	for _, words := range o.writes {
		w := &pb.Write{
			Aggregate: key(org, words[0]), AllowCreate: flag(words, "create"), ExpectedVersion: optional(words, "expect"),
			EnforceClientIdempotency: !flag(words, "loose"), PreviousClientSeq: optional(words, "prev"),
		}
		if len(words) > 1 && words[1] != "none" {
			for _, e := range strings.Split(words[1], ",") {
				w.Events = append(w.Events, newEvent(e))
			}
		}
		req.Writes = append(req.Writes, w)
	}
	return req
}

// variants are contents that differ from each other in one field each, but for the second,
// which only says aloud what the first leaves to the default.
var variants = []func(e *pb.NewEvent){
	func(*pb.NewEvent) {},
	func(e *pb.NewEvent) { e.Schema = &pb.SchemaVersion{Major: 1} },
	func(e *pb.NewEvent) { e.Payload = []byte("other") },
	func(e *pb.NewEvent) { e.Type = "Shipped" },
	func(e *pb.NewEvent) { e.Schema = &pb.SchemaVersion{Major: 2, Minor: 1} },
	func(e *pb.NewEvent) { e.OccurredAt = &timestamppb.Timestamp{Seconds: 1_700_000_000, Nanos: 7} },
	func(e *pb.NewEvent) { e.OccurredAt = &timestamppb.Timestamp{Seconds: -5} },
	func(e *pb.NewEvent) { e.Metadata = map[string]string{"z": "", "a": "1", "": "2"} },
	func(e *pb.NewEvent) { e.Metadata = map[string]string{"a": "1"} },
	func(e *pb.NewEvent) { e.ContentType = "text/plain" },
	func(e *pb.NewEvent) { e.Encryption = &pb.Encryption{Scheme: "s", KeyId: "k", Nonce: []byte{0, 1}} },
	func(e *pb.NewEvent) { e.Payload = nil },
	func(e *pb.NewEvent) { e.Type = "" }, // the shape check's
}

func newEvent(text string) *pb.NewEvent {
	parts := strings.SplitN(text, ":", 3)
	seq, _ := strconv.ParseUint(parts[0], 10, 64)
	e := &pb.NewEvent{ClientSeq: seq, EventId: "e" + parts[0], Type: "Placed", Payload: []byte("payload")}
	if len(parts) > 1 {
		e.EventId = parts[1]
	}
	if len(parts) > 2 {
		v, _ := strconv.Atoi(parts[2])
		variants[v](e)
	}
	return e
}

// read builds the message of a read. committed=LO..HI names the versions whose times bound
// the read, occurred=LO..HI gives seconds; either end may be empty.
func (o op) read(org string, m *Model) *pb.ReadRequest {
	words := o.args
	req := &pb.ReadRequest{
		Aggregate: key(org, words[0]), FromVersion: number(words, "from"), ToVersion: number(words, "to"), Limit: uint32(number(words, "limit")),
		Consistency: consistency(words),
	}
	if flag(words, "backward") {
		req.Direction = pb.Direction_DIRECTION_BACKWARD
	}
	req.Filter = filter(words)
	f := &pb.Filter{
		CommittedFrom: m.committedAt(key(org, words[0]), number(words, "committed-from")), CommittedTo: m.committedAt(key(org, words[0]), number(words, "committed-to")),
	}
	if proto.Size(f) > 0 {
		if req.Filter == nil {
			req.Filter = &pb.Filter{}
		}
		proto.Merge(req.Filter, f)
	}
	if n := number(words, "min"); n > 0 {
		req.MinPosition, req.Timeline = min(n, m.position), m.Timeline
	}
	return req
}

// readAll builds the message of a read of the log, of this world's aggregates. Positions count
// from base.
func (o op) readAll(org string, m *Model, base uint64) *pb.ReadAllRequest {
	words := o.args
	req := &pb.ReadAllRequest{
		Orgs: []string{org}, Limit: uint32(number(words, "limit")), Filter: filter(words),
		Consistency: consistency(words), Timeline: m.Timeline,
	}
	if n := number(words, "from"); n > 0 {
		req.FromPosition = base + n
	}
	if flag(words, "backward") {
		req.Direction = pb.Direction_DIRECTION_BACKWARD
	}
	return req
}

// filter is the filter that the words say, nil if they say none.
func filter(words []string) *pb.Filter {
	f := &pb.Filter{
		EventTypes: list(words, "types"), ClientIds: list(words, "clients"), ExcludeClientIds: list(words, "exclude"),
		EventIds: list(words, "ids"), ClientSeqFrom: number(words, "seq-from"), ClientSeqTo: number(words, "seq-to"),
	}
	if _, ok := value(words, "occurred-from"); ok {
		f.OccurredFrom = &timestamppb.Timestamp{Seconds: int64(number(words, "occurred-from"))}
	}
	if _, ok := value(words, "occurred-to"); ok {
		f.OccurredTo = &timestamppb.Timestamp{Seconds: int64(number(words, "occurred-to"))}
	}
	if proto.Size(f) == 0 {
		return nil
	}
	return f
}

func consistency(words []string) pb.Consistency {
	switch v, _ := value(words, "consistency"); v {
	case "leader":
		return pb.Consistency_CONSISTENCY_LEADER
	case "linearizable":
		return pb.Consistency_CONSISTENCY_LINEARIZABLE
	case "any":
		return pb.Consistency_CONSISTENCY_ANY
	}
	return pb.Consistency_CONSISTENCY_UNSPECIFIED
}

// committedAt is the time of a version, nil if there is none.
func (m *Model) committedAt(k *pb.AggregateKey, version uint64) *timestamppb.Timestamp {
	a := m.aggregates[name(k)]
	if a == nil {
		return nil
	}
	for _, b := range a.batches {
		if b.GetVersion() == version {
			return b.GetCommittedAt()
		}
	}
	return nil
}
