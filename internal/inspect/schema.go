package inspect

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"lukechampine.com/blake3"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// maxSchemas is how many schemas a cluster takes.
const maxSchemas = 100_000

// Registered is a schema in a history.
type Registered struct {
	Schema
	Revision     uint64
	RegisteredAt int64 // Unix nanoseconds
}

func schemaKey(s *Schema) []byte {
	k := append([]byte(tagSchema), schemaType(s)...)
	k = append(append(k, s.EventType...), 0)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(k, s.Major), s.Minor)
}

// schemaType is the org and the type that a schema is of, each followed by a zero byte.
func schemaType(s *Schema) string { return s.Org + "\x00" + s.Type + "\x00" }

func parseSchema(key, value []byte) (s Registered, err error) {
	a, _, rest, err := keyParts(key, tagSchema)
	if err == nil && len(rest) != 8 {
		err = fmt.Errorf("the key is %w: expected 8 bytes behind the event type, found %d", errForm, len(rest))
	}
	if err != nil {
		return s, err
	}
	s.Org, s.Type, s.EventType, _ = a.parts() // three strings, like an aggregate
	s.Major, s.Minor = binary.BigEndian.Uint32(rest), binary.BigEndian.Uint32(rest[4:])
	c := cursor{b: value}
	c.format(1)
	s.Format, s.Revision, s.RegisteredAt = c.u8(), c.uv(math.MaxUint64), c.i64()
	s.Message, s.Definition = string(c.shortBytes()), bytes.Clone(c.shortBytes())
	return s, c.end("the schema")
}

func encodeSchema(s *Registered) []byte {
	b := binary.AppendUvarint([]byte{1, s.Format}, s.Revision)
	b = binary.BigEndian.AppendUint64(b, uint64(s.RegisteredAt))
	b = append(binary.AppendUvarint(b, uint64(len(s.Message))), s.Message...)
	return append(binary.AppendUvarint(b, uint64(len(s.Definition))), s.Definition...)
}

// said is a hash of what a schema says, whenever it was registered.
func (s *Registered) said() Hash { return blake3.Sum256(encodeSchema(&Registered{Schema: s.Schema})) }

// eachSchema calls fn for every schema in a history. broken is told of what is none.
func (s *store) eachSchema(fn func(key []byte, r *Registered) error, broken func(key []byte, err error) error) error {
	return s.each([]byte(tagSchema), func(key, value []byte) error {
		r, err := parseSchema(key, value)
		if err != nil {
			return broken(key, err)
		}
		return fn(key, &r)
	})
}

// schemas checks that the schemas of a type have the revisions 1 to as many as there are.
func (c *contentCheck) schemas() error {
	typ, seen := "", map[uint64]bool{}
	complete := func() {
		for n := range uint64(len(seen)) {
			if !seen[n+1] {
				c.damage([]byte(tagSchema+typ), "expected schemas of the revisions 1 to %d, found none of revision %d", len(seen), n+1)
				return
			}
		}
	}
	err := c.s.eachSchema(func(key []byte, r *Registered) error {
		if t := schemaType(&r.Schema); t != typ {
			complete()
			typ = t
			clear(seen)
		}
		if seen[r.Revision] {
			c.damage(key, "expected a revision of its own, found %d, which another schema of the type has", r.Revision)
		}
		seen[r.Revision] = true
		return nil
	}, func(key []byte, err error) error {
		c.damage(key, "%v", err)
		return nil
	})
	complete()
	return err
}

// register decides over the registration of a schema.
func (r *replay) register(req *Request) error {
	if err := r.loadSchemas(); err != nil {
		return err
	}
	s := Registered{Schema: *req.Schema}
	key, typ := schemaKey(&s.Schema), schemaType(&s.Schema)
	have, ok := r.schemas[string(key)]
	switch {
	case ok && have == s.said():
		r.nothing(Aggregate(key[len(tagSchema):]))
		return nil
	case ok:
		r.refuse(pb.ErrorCode_ERROR_CODE_REGISTER_SCHEMA_ALREADY_EXISTS, 0, r.revisions[typ], 0)
		return nil
	case len(r.schemas) >= maxSchemas:
		r.refuse(pb.ErrorCode_ERROR_CODE_INVALID_REQUEST, 0, r.revisions[typ], 0)
		return nil
	}
	r.applied.CommittedAt = max(req.CommittedAt, r.applied.CommittedAt)
	r.revisions[typ]++
	s.Revision, s.RegisteredAt = r.revisions[typ], r.applied.CommittedAt
	r.schemas[string(key)] = s.said()
	d := append(r.applied.Digest[:], 5)
	d = append(append(d, key...), encodeSchema(&s)...)
	r.applied.Digest = blake3.Sum256(d)
	return nil
}

// loadSchemas reads what the history below has, once.
func (r *replay) loadSchemas() error {
	if r.schemas != nil {
		return nil
	}
	r.schemas, r.revisions = map[string]Hash{}, map[string]uint64{}
	if r.base == nil {
		return nil
	}
	return r.base.eachSchema(func(key []byte, s *Registered) error {
		r.schemas[string(key)] = s.said()
		r.revisions[schemaType(&s.Schema)]++
		return nil
	}, r.base.keyError)
}

// schemaMismatch says whether a write that passed was validated against another revision of its
// type's schemas than there is: the node's bug.
func (r *replay) schemaMismatch(w *Write) (revision uint64, mismatch bool, err error) {
	if err := r.loadSchemas(); err != nil {
		return 0, false, err
	}
	org, typ, _, _ := w.Aggregate.parts()
	revision = r.revisions[org+"\x00"+typ+"\x00"]
	seen := uint64(0)
	if w.SchemaRevision != nil {
		seen = *w.SchemaRevision
	}
	return revision, seen != revision, nil
}
