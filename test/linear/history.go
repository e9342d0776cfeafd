package linear

import (
	"fmt"
	"sync"
	"time"
)

// Request is one append request. Its copies are sent until it is resolved, so that several
// operations may name the same Request.
type Request struct {
	Writer string
	Writes []Write
	// Confirm asks for the original result instead of a refusal if it is there already.
	Confirm bool
}

// Write is one write of a request, always enforced.
type Write struct {
	Aggregate   string
	First, Last uint64 // its lowest and highest client_seq
	ID          string // event id of its first event; it tells what was sent
	Create      bool
	Expected    *uint64 // version guard
	Previous    *uint64 // previous_client_seq
}

// Kind is what a call asked for.
type Kind int

// The kinds of operations.
const (
	Append Kind = iota
	Read        // the aggregate's version and newest batches
	Mark        // a writer's mark
	Find        // the batch that recorded a sequence
)

// Unknown is the Code of an answer that leaves open whether a write landed.
const Unknown = -1

// Op is one call and its answer.
type Op struct {
	Client       string // who called
	Node         string // who answered
	Call, Return time.Duration
	Kind         Kind

	// Append.
	Request *Request
	Code    int      // 0 = OK, Unknown, or a code of the contract
	Results []Result // if OK, one for each write
	Failure *Failure // if a refusal came with one

	// Read, Mark, Find.
	Aggregate string
	Fresh     bool   // LINEARIZABLE: as of a moment within the call
	AtLeast   uint64 // the version that min_position stands for
	Version   uint64 // Read: the aggregate's version; 0 = there is none
	Batches   []Batch
	Writer    string // Mark, Find
	Seq       uint64 // Find: asked for; Mark: the answer
	Holder    *Holder
}

// Result is what an acknowledgement says of one write.
type Result struct {
	Version, Position uint64
	Already           bool
}

// Failure is what a refusal says.
type Failure struct {
	Write        int // index in the request
	Current      uint64
	InFlight     *uint64 // in_flight_version
	Mark         uint64
	InFlightMark *uint64
	Holder       *Holder
}

// Holder is the batch that recorded a sequence.
type Holder struct {
	Version, Position uint64
	First, Last       uint64
	ID                string
}

// Batch is a batch as a read returned it.
type Batch struct {
	Version, Position   uint64
	CommitFirst         uint64
	CommitCount         uint32
	Incarnation         uint32
	Writer              string
	First, Last         uint64
	ID                  string
	FirstNumber, Events uint64
}

func (o *Op) String() string {
	s := fmt.Sprintf("%v..%v %s at %s: ", o.Call.Round(time.Microsecond), o.Return.Round(time.Microsecond), o.Client, o.Node)
	fresh := map[bool]string{true: "linearizable", false: "stale"}[o.Fresh]
	switch o.Kind {
	case Read:
		return s + fmt.Sprintf("%s read of %s (at least version %d): version %d, %d batches", fresh, o.Aggregate, o.AtLeast, o.Version, len(o.Batches))
	case Mark:
		return s + fmt.Sprintf("%s mark of %s on %s: %d, holder %v", fresh, o.Writer, o.Aggregate, o.Seq, o.Holder)
	case Find:
		return s + fmt.Sprintf("%s search of %s's sequence %d on %s: %v", fresh, o.Writer, o.Seq, o.Aggregate, o.Holder)
	}
	s += "append by " + o.Request.Writer
	if o.Request.Confirm {
		s += " (confirm)"
	}
	for _, w := range o.Request.Writes {
		s += fmt.Sprintf(" %v", w)
	}
	switch {
	case o.Code == Unknown:
		return s + ": outcome unknown"
	case o.Code == 0:
		return s + fmt.Sprintf(": ok %v", o.Results)
	case o.Failure == nil:
		return s + fmt.Sprintf(": %d", o.Code)
	}
	return s + fmt.Sprintf(": %d %v", o.Code, *o.Failure)
}

func (w Write) String() string {
	s := fmt.Sprintf("[%s seq %d..%d %q", w.Aggregate, w.First, w.Last, w.ID)
	if w.Expected != nil {
		s += fmt.Sprintf(" expect %d", *w.Expected)
	}
	if w.Previous != nil {
		s += fmt.Sprintf(" previous %d", *w.Previous)
	}
	if w.Create {
		s += " create"
	}
	return s + "]"
}

func (f Failure) String() string {
	s := fmt.Sprintf("about write %d: version %d, mark %d", f.Write, f.Current, f.Mark)
	if f.InFlight != nil {
		s += fmt.Sprintf(", in flight version %d", *f.InFlight)
	}
	if f.InFlightMark != nil {
		s += fmt.Sprintf(", in flight mark %d", *f.InFlightMark)
	}
	return s + fmt.Sprintf(", holder %v", f.Holder)
}

func (h *Holder) String() string {
	if h == nil {
		return "none"
	}
	return fmt.Sprintf("version %d at position %d, seq %d..%d %q", h.Version, h.Position, h.First, h.Last, h.ID)
}

// Recorder collects the operations of all clients of a run, with times of one clock.
type Recorder struct {
	began time.Time
	limit int

	mu  sync.Mutex
	ops []Op
}

// NewRecorder makes a recorder that holds up to limit operations.
func NewRecorder(limit int) *Recorder { return &Recorder{began: time.Now(), limit: limit} }

// Now is the time to put into an operation.
func (r *Recorder) Now() time.Duration { return time.Since(r.began) }

// Add records an operation. It returns false once there is no room: a history with holes
// proves nothing, so the clients must stop.
func (r *Recorder) Add(op Op) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.ops) >= r.limit {
		return false
	}
	r.ops = append(r.ops, op)
	return true
}

// Ops are the operations recorded so far.
func (r *Recorder) Ops() []Op {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.ops[:len(r.ops):len(r.ops)]
}
