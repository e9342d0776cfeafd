package history

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"strings"

	"github.com/cockroachdb/pebble/v2"
)

// Schema is what events of one type and version, on aggregates of one type, must look like:
// a key and a value under s/. It is put once and never changes.
type Schema struct {
	Org, Type, EventType string
	Major, Minor         uint32

	// Revision says that this is the n-th schema of its org and type.
	Revision uint64
	// RegisteredAt is in Unix nanoseconds.
	RegisteredAt int64
	// Format is the number of the API's SchemaFormat.
	Format byte
	// Message is the full name of a Protobuf message; empty for other formats.
	Message    string
	Definition []byte
}

const (
	schemaFormat = 1
	schemaSuffix = 4 + 4
)

// appendSchemaKey: s/ org 0 type 0 event type 0 | u32 major, u32 minor.
func appendSchemaKey(dst []byte, org, typ, eventType string, major, minor uint32) []byte {
	dst = append(dst, tagSchema...)
	for _, s := range []string{org, typ, eventType} {
		dst = append(append(dst, s...), 0)
	}
	dst = binary.BigEndian.AppendUint32(dst, major)
	return binary.BigEndian.AppendUint32(dst, minor)
}

// parseSchemaKey returns a schema with the fields that are in its key.
func parseSchemaKey(key []byte) (s Schema, err error) {
	if bytes.HasPrefix(key, []byte(tagSchema)) {
		if k, rest, ok := splitAggregate(key[tagSize:]); ok && len(rest) == schemaSuffix {
			// Three strings, like an aggregate.
			s.Org, s.Type, s.EventType, _ = k.Parts()
			s.Major, s.Minor = binary.BigEndian.Uint32(rest), binary.BigEndian.Uint32(rest[4:])
			return s, nil
		}
	}
	return Schema{}, corruptKey(key, "s/<org>/<type>/<event type>/<major>.<minor>")
}

// appendSchema writes what a schema's key does not say:
//
//	u8 form | u8 format | uv revision | i64 registered_at | str message | str definition
func appendSchema(dst []byte, s *Schema) []byte {
	dst = append(dst, schemaFormat, s.Format)
	dst = binary.AppendUvarint(dst, s.Revision)
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.RegisteredAt))
	dst = appendStr(dst, s.Message)
	return appendStr(dst, s.Definition)
}

// decodeSchema fills the fields of s that appendSchema wrote.
func decodeSchema(b []byte, s *Schema) error {
	r := reader{b: b}
	r.format(schemaFormat)
	s.Format = r.u8()
	s.Revision = r.uv()
	s.RegisteredAt = r.i64()
	s.Message = string(r.str())
	s.Definition = bytes.Clone(r.str())
	return r.end("schema")
}

func checkSchema(org, typ, eventType string) error {
	for _, part := range []string{org, typ, eventType} {
		if part == "" || strings.IndexByte(part, 0) >= 0 {
			return fmt.Errorf("history: a schema of org %q, type %q, event type %q: one is empty or holds a zero byte", org, typ, eventType)
		}
	}
	return nil
}

// PutSchema stores a schema. It returns its key and its value, valid until the next Put.
func (b *Batch) PutSchema(s *Schema) (key, value []byte) {
	if err := checkSchema(s.Org, s.Type, s.EventType); err != nil {
		b.fail(err)
		return nil, nil
	}
	at := len(b.buf)
	b.buf = appendSchemaKey(b.buf, s.Org, s.Type, s.EventType, s.Major, s.Minor)
	keyEnd := len(b.buf)
	b.buf = appendSchema(b.buf, s)
	if !b.add(kindSchema, at, keyEnd) {
		return nil, nil
	}
	return b.buf[at:keyEnd], b.buf[keyEnd:]
}

// Schema returns the schema of an event type and version; ok is false if none is registered.
func (v *View) Schema(org, typ, eventType string, major, minor uint32) (s Schema, ok bool, err error) {
	if err := checkSchema(org, typ, eventType); err != nil {
		return Schema{}, false, err
	}
	s = Schema{Org: org, Type: typ, EventType: eventType, Major: major, Minor: minor}
	ok, err = v.get(appendSchemaKey(make([]byte, 0, keySpace), org, typ, eventType, major, minor), func(b []byte) error {
		return decodeSchema(b, &s)
	})
	if err != nil || !ok {
		return Schema{}, false, err
	}
	return s, true, nil
}

// Schemas yields the schemas whose stored org, type and event type start with prefix and that
// come behind after, in key order. prefix is the beginning of those, each followed by a zero
// byte: "acme\x00" for an org. after is the Place of a schema; "" = from the beginning.
func (v *View) Schemas(prefix, after string) iter.Seq2[Schema, error] {
	lower := append([]byte(tagSchema), prefix...)
	upper := upperBound(nil, lower)
	if next := tagSchema + after + "\x00"; after != "" && next > string(lower) {
		lower = []byte(next)
	}
	return func(yield func(Schema, error) bool) {
		err := v.scan(lower, upper, func(it *pebble.Iterator) error {
			for ok := it.First(); ok; ok = it.Next() {
				s, err := parseSchemaKey(it.Key())
				if err != nil {
					return err
				}
				value, err := it.ValueAndErr()
				if err != nil {
					return err
				}
				if err := decodeSchema(value, &s); err != nil {
					return fmt.Errorf("%w (key %q)", err, it.Key())
				}
				if !yield(s, nil) {
					return errStop
				}
			}
			return nil
		})
		if err != nil && !errors.Is(err, errStop) {
			yield(Schema{}, err)
		}
	}
}

// Place is where a schema stands among all: its key without the tag.
func (s *Schema) Place() string {
	return string(appendSchemaKey(nil, s.Org, s.Type, s.EventType, s.Major, s.Minor)[tagSize:])
}

// SchemaCounts says how many schemas each org and type has that has any; the keys are those
// two, each followed by a zero byte. It reads all keys of schemas, and no definition.
func (v *View) SchemaCounts() (map[string]uint64, error) {
	counts := make(map[string]uint64)
	lower := []byte(tagSchema)
	err := v.scan(lower, upperBound(nil, lower), func(it *pebble.Iterator) error {
		for ok := it.First(); ok; ok = it.Next() {
			key := it.Key()
			if _, err := parseSchemaKey(key); err != nil {
				return err
			}
			n := bytes.IndexByte(key[tagSize:], 0) + 1
			n += bytes.IndexByte(key[tagSize+n:], 0) + 1
			counts[string(key[tagSize:tagSize+n])]++
		}
		return nil
	})
	return counts, err
}
