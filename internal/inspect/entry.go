package inspect

import "fmt"

// RequestKind is what a request asks for.
type RequestKind uint8

// The kinds of requests.
const (
	RequestAppend         RequestKind = 1
	RequestTrim           RequestKind = 2
	RequestDelete         RequestKind = 3
	RequestRegisterSchema RequestKind = 4
)

// String names the kind.
func (k RequestKind) String() string {
	switch k {
	case RequestAppend:
		return "append"
	case RequestTrim:
		return "trim"
	case RequestDelete:
		return "delete"
	case RequestRegisterSchema:
		return "register_schema"
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Request is one request of an entry.
type Request struct {
	Kind        RequestKind
	CommittedAt int64 // Unix nanoseconds, the leader's clock
	// Client and Writes are an append's: they land together or not at all.
	Client string
	Writes []Write
	// Trim is a trim's, Deletes a delete's, Schema a register_schema's.
	Trim    *Trim
	Deletes []Delete
	Schema  *Schema
}

// Write is one write of an append.
type Write struct {
	Aggregate   Aggregate
	AllowCreate bool
	Enforce     bool
	// Expected, Previous, After and SchemaRevision are nil if the write does not say.
	Expected, Previous, After, SchemaRevision *uint64
	Events                                    []Event
	// Hashes are the content hashes as the entry gives them.
	Hashes []Hash
	raw    []byte // the canonical events
}

// Trim asks for the batches of an aggregate below a version to go.
type Trim struct {
	Aggregate Aggregate
	Expected  *uint64
	KeepFrom  uint64
}

// Delete asks for an aggregate to go.
type Delete struct {
	Aggregate                           Aggregate
	Expected                            *uint64
	Recreatable, Restart, ForgetWriters bool
}

// Schema is a schema to register.
type Schema struct {
	Org, Type, EventType string
	Major, Minor         uint32
	Format               uint8
	Message              string
	Definition           []byte
}

// Command is what an entry of type command holds.
type Command struct {
	Format   uint8
	Term     uint64 // of admission
	Ticket   uint64
	Requests []Request
}

// parseCommand reads the data of an entry of type command.
func parseCommand(data []byte) (Command, error) {
	c := cursor{b: data}
	cmd := Command{Format: c.format(1, 2), Term: c.u64(), Ticket: c.u64()}
	for range c.u32() {
		r := cursor{b: c.bytes()}
		if c.bad != "" {
			break
		}
		cmd.Requests = append(cmd.Requests, r.request(cmd.Format))
		if err := r.end("a request"); err != nil {
			c.fail("%v", err)
		}
	}
	return cmd, c.end("the entry")
}

func (c *cursor) request(format uint8) Request {
	r := Request{Kind: RequestAppend}
	if format > 1 {
		r.Kind = RequestKind(c.u8())
	}
	r.CommittedAt = c.i64()
	switch r.Kind {
	case RequestAppend:
		r.Client = c.str()
		for range c.u32() {
			if c.bad != "" {
				break
			}
			r.Writes = append(r.Writes, c.write(format))
		}
	case RequestTrim:
		t := &Trim{Aggregate: c.aggregate()}
		t.Expected = c.optional(c.flags(1) != 0)
		t.KeepFrom = c.u64()
		r.Trim = t
	case RequestDelete:
		for range c.u32() {
			if c.bad != "" {
				break
			}
			d := Delete{Aggregate: c.aggregate()}
			flags := c.flags(15)
			d.Expected = c.optional(flags&1 != 0)
			d.Recreatable, d.Restart, d.ForgetWriters = flags&2 != 0, flags&4 != 0, flags&8 != 0
			r.Deletes = append(r.Deletes, d)
		}
		if len(r.Deletes) == 0 {
			c.fail("expected aggregates to delete, found none")
		}
	case RequestRegisterSchema:
		r.Schema = &Schema{Org: c.str(), Type: c.str(), EventType: c.str(), Major: c.u32(), Minor: c.u32(), Format: c.u8(), Message: c.str(), Definition: copied(c.bytes())}
	default:
		c.fail("expected a kind of request from 1 to 4, found %d", uint8(r.Kind))
	}
	return r
}

// aggregate reads the stored form of a key.
func (c *cursor) aggregate() Aggregate {
	a := Aggregate(c.str())
	if _, _, _, ok := a.parts(); !ok {
		c.fail("expected an aggregate of three strings, found %q", string(a))
	}
	return a
}

// flags reads flags of which only some are known.
func (c *cursor) flags(known uint8) uint8 {
	flags := c.u8()
	if flags&^known != 0 {
		c.fail("expected no flags but %d, found %d", known, flags)
	}
	return flags
}

// optional reads a number that counts if it is flagged, and is 0 if not.
func (c *cursor) optional(flagged bool) *uint64 {
	n := c.u64()
	if flagged {
		return &n
	}
	if n != 0 {
		c.fail("expected 0 in the place of a number that is not given, found %d", n)
	}
	return nil
}

func (c *cursor) write(format uint8) Write {
	w := Write{Aggregate: c.aggregate()}
	known := uint8(15)
	if format > 1 {
		known = 63
	}
	flags := c.flags(known)
	w.AllowCreate, w.Enforce = flags&1 != 0, flags&2 != 0
	w.Expected, w.Previous = c.optional(flags&4 != 0), c.optional(flags&8 != 0)
	if flags&16 != 0 {
		w.After = c.optional(true)
	}
	if flags&32 != 0 {
		w.SchemaRevision = c.optional(true)
	}
	n := c.u32()
	if n == 0 {
		c.fail("expected events, found none")
	}
	for range n {
		if c.bad != "" {
			break
		}
		w.Hashes = append(w.Hashes, c.hash())
	}
	w.raw = c.bytes()
	events := cursor{b: w.raw, bad: c.bad}
	for range n {
		if events.bad != "" {
			break
		}
		w.Events = append(w.Events, events.event())
	}
	if err := events.end("the events"); err != nil {
		c.fail("%v", err)
	}
	return w
}
