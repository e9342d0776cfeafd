package replication

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tidemark-db/tidemark/api"
	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
	"github.com/tidemark-db/tidemark/internal/schema"
	"github.com/tidemark-db/tidemark/wal/history"
	"github.com/tidemark-db/tidemark/wal/record"
)

// Payloads are validated by the call's goroutine, outside the shard's lock, against the schemas
// of one view. What comes of it holds for the revisions of that view: admission judges again
// afterwards, takes the request in only if they are still the newest, and the entry carries them.
// No registration can come between: a write waits for the ones in flight, and entries are in the
// order of admission. So Apply finds the same revisions, or there is a bug.

// validated is what validation made of a request.
type validated struct {
	// revisions are those of the writes' types; nil = nothing is validated yet.
	revisions []uint64
	// violation is the first one, nil if there is none, in write index.
	violation *pb.SchemaViolation
	text      string
	index     int
}

// current says whether a request was validated against the schemas that are published; one
// whose types have none needs no validation. Shard.mu is held.
func (s *Shard) current(p *pending) bool {
	if len(s.revisions) == 0 {
		return p.validated.revisions == nil
	}
	for i := range p.writes {
		seen := uint64(0)
		if p.validated.revisions != nil {
			seen = p.validated.revisions[i]
		}
		if s.revisions[p.writes[i].Key.OfType()] != seen {
			return false
		}
	}
	return true
}

// revisionsOf are the published revisions of a request's types. Shard.mu is held.
func (s *Shard) revisionsOf(p *pending) []uint64 {
	out := make([]uint64, len(p.writes))
	for i := range p.writes {
		out[i] = s.revisions[p.writes[i].Key.OfType()]
	}
	return out
}

// validate validates a request's payloads against the schemas of view, whose revisions are
// given. An error is a definite no.
func (s *Shard) validate(ctx context.Context, view *history.View, revisions []uint64, p *pending) error {
	p.validated = validated{}
	var done ValidatorStats
	defer func() { s.validators.count(&done) }()
	for i := range p.writes {
		if revisions[i] == 0 {
			continue
		}
		org, typ, _, _ := p.writes[i].Key.Parts()
		for j, e := range p.asked[i].GetEvents() {
			if err := ctx.Err(); err != nil {
				return s.notAdmitted(ctx)
			}
			found, err := s.validateEvent(ctx, view, org, typ, e, &done)
			if err != nil {
				return err
			}
			if found != nil {
				major, minor := versionOf(e.GetSchema())
				p.validated = validated{revisions: revisions, index: i, text: found.Text, violation: &pb.SchemaViolation{
					EventIndex: uint32(j), EventType: e.GetType(), Schema: &pb.SchemaVersion{Major: major, Minor: minor}, Path: found.Path, Rule: found.Rule,
				}}
				return nil
			}
		}
	}
	p.validated = validated{revisions: revisions}
	p.stamp(revisions)
	return nil
}

func (s *Shard) validateEvent(ctx context.Context, view *history.View, org, typ string, e *pb.NewEvent, done *ValidatorStats) (*schema.Violation, error) {
	if e.GetEncryption() != nil {
		done.Encrypted++
		return nil, nil
	}
	if strings.IndexByte(e.GetType(), 0) >= 0 { // no schema has such a type
		done.Unregistered++
		return nil, nil
	}
	v, err := s.validator(ctx, view, org, typ, e)
	if err != nil {
		if errors.Is(err, record.ErrCorrupt) {
			return nil, s.damaged(err)
		}
		return nil, err
	}
	if v == nil {
		done.Unregistered++
		return nil, nil
	}
	found, err := v.Validate(e.GetPayload())
	if err != nil {
		return nil, api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL, "%w: nothing was written", err)
	}
	if found != nil {
		done.Invalid++
	} else {
		done.Valid++
	}
	return found, nil
}

// count adds what one request's events came to.
func (v *validators) count(done *ValidatorStats) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.stats.Valid += done.Valid
	v.stats.Invalid += done.Invalid
	v.stats.Unregistered += done.Unregistered
	v.stats.Encrypted += done.Encrypted
}

// stamp encodes the request anew, with the revisions that it was validated against.
func (p *pending) stamp(revisions []uint64) {
	buf := record.AppendRequestHeader(make([]byte, 0, len(p.buf)+8*len(p.writes)), 0, p.client, uint32(len(p.writes)))
	for i := range p.writes {
		w := &p.writes[i]
		w.Flags &^= record.FlagHasSchema
		if w.SchemaRevision = revisions[i]; w.SchemaRevision != 0 {
			w.Flags |= record.FlagHasSchema
		}
		if p.sent != nil {
			p.sent.starts[i] = len(buf)
		}
		buf, *w = record.AppendWrite(buf, w)
	}
	record.FinishRequest(buf, 0)
	p.buf = buf
}

// withViolation completes the refusal of a request whose payload does not match.
func (r *refusal) withViolation(v *validated) {
	r.failure.Violation = v.violation
	r.violated = v.text
}

func violationText(v *pb.SchemaViolation, text string) string {
	at := "the payload"
	if v.Path != "" {
		at = v.Path
	}
	return fmt.Sprintf("event %d does not match the schema of %q %d.%d: at %s, rule %s: %s",
		v.EventIndex, v.EventType, v.Schema.GetMajor(), v.Schema.GetMinor(), at, v.Rule, text)
}

// schemaMismatch is the write of an entry that was validated against other schemas than there
// are, -1 if there is none. It can only be this program's mistake.
func (p *processor) schemaMismatch(req *record.Request) int {
	for i := range req.Writes {
		w := &req.Writes[i]
		if w.SchemaRevision == 0 && len(p.schemas.revisions) == 0 {
			continue
		}
		if p.schemas.revisions[w.Key.OfType()] != w.SchemaRevision {
			return i
		}
	}
	return -1
}

// refuseMismatch refuses such a request on every node, so that they stay the same.
func (p *processor) refuseMismatch(req *record.Request, i int) outcome {
	w := &req.Writes[i]
	revision := p.schemas.revisions[w.Key.OfType()]
	p.digestRefusal(pb.ErrorCode_ERROR_CODE_INTERNAL, i, revision, 0)
	e := api.Errorf(pb.ErrorCode_ERROR_CODE_INTERNAL,
		"bug: write %d, %s: validated against revision %d of its type's schemas, found revision %d where it was applied: nothing was written", i, w.Key, w.SchemaRevision, revision)
	p.schemas.bugs = append(p.schemas.bugs, e)
	return outcome{kind: refused, failure: e}
}
