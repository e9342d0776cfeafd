package replication

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"strings"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
	"lukechampine.com/blake3"
)

// maxSchemas is how many schemas a cluster takes. Every node keeps how many each aggregate type
// has in memory, so there is a bound; Apply counts, so changing it needs a new kind of request.
const maxSchemas = 100_000

// RegisterSchema makes events of a type and version match a schema; the shape of req is valid.
// After an error that is 2014, or a deadline or a cancellation, it may have been registered or
// may still be; the same may be asked for again.
func (s *Shard) RegisterSchema(ctx context.Context, req *pb.RegisterSchemaRequest) (*pb.RegisterSchemaResponse, error) {
	if err := s.checkTimeline(req.GetTimeline()); err != nil {
		return nil, err
	}
	if err := s.leads(); err != nil {
		return nil, err // before the definition is looked at: only a leader spends that
	}
	r := record.Schema{
		Org: req.GetOrg(), Type: req.GetType(), EventType: req.GetEventType(),
		Format: byte(req.GetFormat()), Message: req.GetMessage(), Definition: req.GetDefinition(),
	}
	r.Major, r.Minor = versionOf(req.GetSchema())
	if err := s.prepareSchema(ctx, &r); err != nil {
		return nil, err
	}
	o, err := s.commitChange(ctx, newRegistration(&r))
	if err != nil {
		return nil, err
	}
	out := SchemaMessage(o.schema)
	out.Definition = nil
	return &pb.RegisterSchemaResponse{Schema: out, AlreadyRegistered: o.already, Timeline: s.identity().Timeline}, nil
}

// leads answers 2011 or 2015 unless this node leads and is ready.
func (s *Shard) leads() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leading()
}

func versionOf(v *pb.SchemaVersion) (major, minor uint32) {
	if v == nil {
		return 1, 0
	}
	return v.GetMajor(), v.GetMinor()
}

// newRegistration makes a pending request of a registration. Writes to its type wait for it.
func newRegistration(r *record.Schema) *pending {
	p := newChange("registration", record.AppendSchema(nil, 0, r), nil)
	p.registers = r.Org + "\x00" + r.Type + "\x00"
	p.gone = make(chan struct{})
	return p
}

// SchemaMessage is a registered schema as answers give it.
func SchemaMessage(s *history.Schema) *pb.Schema {
	return &pb.Schema{
		Org: s.Org, Type: s.Type, EventType: s.EventType, Schema: &pb.SchemaVersion{Major: s.Major, Minor: s.Minor},
		Format: pb.SchemaFormat(s.Format), Definition: s.Definition, Message: s.Message, DefinitionBytes: uint32(len(s.Definition)),
		RegisteredAt: record.Timestamp(s.RegisteredAt), Revision: s.Revision,
	}
}

// schemas is what the processor knows of schemas.
type schemas struct {
	// revisions says how many schemas each org and type has: that is its revision.
	revisions map[string]uint64
	total     uint64
	// fresh are those that the step has registered, by their places: they are not in view yet.
	fresh map[string]*history.Schema
	// changed are the types of those.
	changed []string
	// bugs are the step's entries that were validated against other schemas than there are.
	bugs []error
}

// load takes over what a history holds.
func (p *schemas) load(v *history.View) error {
	counts, err := v.SchemaCounts()
	p.revisions, p.fresh, p.total = counts, make(map[string]*history.Schema), 0
	for _, n := range counts {
		p.total += n
	}
	return err
}

// loadSchemas is load for a shard that is being opened.
func (s *Shard) loadSchemas() error {
	if err := s.proc.schemas.load(s.view); err != nil {
		return fmt.Errorf("schemas: %w", err)
	}
	s.revisions = maps.Clone(s.proc.schemas.revisions)
	return nil
}

// end forgets the step.
func (p *schemas) end() {
	clear(p.fresh)
	clear(p.changed)
	p.changed, p.bugs = p.changed[:0], nil
}

// register decides over the registration of a schema and, if it passes, does it. Whether the
// definition makes sense was judged by the leader that admitted it: validators may differ
// between versions of this program, and this must not.
func (p *processor) register(req *record.Request) (outcome, error) {
	r := &req.Schema
	s := &history.Schema{
		Org: r.Org, Type: r.Type, EventType: r.EventType, Major: r.Major, Minor: r.Minor,
		Format: r.Format, Message: r.Message, Definition: bytes.Clone(r.Definition),
	}
	typ, place := r.Org+"\x00"+r.Type+"\x00", s.Place()
	have, ok := p.schemas.fresh[place]
	if !ok {
		stored, found, err := p.view.Schema(s.Org, s.Type, s.EventType, s.Major, s.Minor)
		if err != nil {
			return outcome{}, err
		}
		have, ok = &stored, found
	}
	revision := p.schemas.revisions[typ]
	switch {
	case ok && have.Format == s.Format && have.Message == s.Message && bytes.Equal(have.Definition, s.Definition):
		p.digestNothing(record.Key(place))
		return outcome{kind: committed, schema: have, already: true}, nil
	case ok:
		p.digestRefusal(pb.ErrorCode_ERROR_CODE_REGISTER_SCHEMA_ALREADY_EXISTS, 0, revision, 0)
		return outcome{kind: refused, failure: api.Errorf(pb.ErrorCode_ERROR_CODE_REGISTER_SCHEMA_ALREADY_EXISTS,
			"version %d.%d of %q on %s/%s: expected the schema that is registered (%s), found %s",
			s.Major, s.Minor, s.EventType, s.Org, s.Type, describeSchema(have), describeSchema(s))}, nil
	case p.schemas.total >= maxSchemas:
		p.digestRefusal(pb.ErrorCode_ERROR_CODE_INVALID_REQUEST, 0, revision, 0)
		return outcome{kind: refused, failure: api.Invalid("definition", "would be one schema more than the %d that a cluster takes", maxSchemas)}, nil
	}
	p.applied.CommittedAt = max(req.CommittedAt, p.applied.CommittedAt)
	s.Revision, s.RegisteredAt = revision+1, p.applied.CommittedAt
	key, value := p.batch.PutSchema(s)
	p.schemas.revisions[typ] = s.Revision
	p.schemas.total++
	p.schemas.fresh[place] = s
	p.schemas.changed = append(p.schemas.changed, typ)
	p.digestSchema(key, value)
	return outcome{kind: committed, schema: s}, nil
}

// digestSchema is for a schema that was registered: its key and value are in the digest.
func (p *processor) digestSchema(key, value []byte) {
	p.scratch = append(p.scratch[:0], p.applied.Digest[:]...)
	p.scratch = append(p.scratch, 5)
	p.scratch = append(append(p.scratch, key...), value...)
	p.applied.Digest = blake3.Sum256(p.scratch)
}

// describeSchema tells two schemas apart for a person.
func describeSchema(s *history.Schema) string {
	text := fmt.Sprintf("%s, %d bytes, BLAKE3 %x", formatName(s.Format), len(s.Definition), blake3.Sum256(s.Definition))
	if s.Message != "" {
		text += ", message " + s.Message
	}
	return text
}

func formatName(format byte) string {
	return strings.ToLower(strings.TrimPrefix(pb.SchemaFormat(format).String(), "SCHEMA_FORMAT_"))
}
