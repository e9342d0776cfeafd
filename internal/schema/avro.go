package schema

import (
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/twmb/avro"
)

// maxEmptyItems bounds the items of a payload that take no bytes: nulls, records without fields.
// Any number of those can be claimed in a few bytes.
const maxEmptyItems = 1 << 20

func compileAvro(definition []byte) (*Validator, error) {
	if !utf8.Valid(definition) {
		return nil, fmt.Errorf("expected JSON in UTF-8")
	}
	if err := checkNesting(definition); err != nil {
		return nil, err
	}
	s, err := avro.Parse(string(definition))
	if err != nil {
		return nil, err
	}
	root := s.Root()
	types := map[string]*avro.SchemaNode{}
	collect(types, root)
	return &Validator{validate: func(payload []byte) *Violation {
		w := avroWalk{rest: payload, types: types}
		w.value(root, "")
		if w.found == nil && len(w.rest) > 0 {
			w.fail("length", "expected the payload to end with its value, found %d more bytes", len(w.rest))
		}
		return w.found
	}}, nil
}

// fullName is the name that references to a named type use.
func fullName(n *avro.SchemaNode, namespace string) (name, within string) {
	for i := len(n.Name) - 1; i >= 0; i-- {
		if n.Name[i] == '.' {
			return n.Name, n.Name[:i]
		}
	}
	if n.Namespace == "" {
		return n.Name, ""
	}
	return n.Namespace + "." + n.Name, n.Namespace
}

// collect notes the named types of a schema.
func collect(types map[string]*avro.SchemaNode, n *avro.SchemaNode) {
	switch n.Type {
	case "record", "error", "enum", "fixed":
		name, _ := fullName(n, "")
		if types[name] != nil {
			return
		}
		types[name] = n
	}
	for i := range n.Fields {
		collect(types, &n.Fields[i].Type)
	}
	for i := range n.Branches {
		collect(types, &n.Branches[i])
	}
	if n.Items != nil {
		collect(types, n.Items)
	}
	if n.Values != nil {
		collect(types, n.Values)
	}
}

// avroWalk goes through one payload.
type avroWalk struct {
	rest  []byte
	types map[string]*avro.SchemaNode
	path  []string
	empty int // items that took no bytes
	found *Violation
}

func (w *avroWalk) fail(rule, format string, args ...any) {
	if w.found == nil {
		w.found = &Violation{Path: pointer(w.path), Rule: rule, Text: fmt.Sprintf(format, args...)}
	}
}

// value reads one value of n's type. within is the namespace that n stands in.
func (w *avroWalk) value(n *avro.SchemaNode, within string) {
	if len(w.path) > maxNesting {
		w.fail("nesting", "found values nested deeper than %d", maxNesting)
	}
	if w.found != nil {
		return
	}
	switch n.Type {
	case "null":
	case "boolean":
		if b := w.take(1, "boolean"); b != nil && b[0] > 1 {
			w.fail("boolean", "expected 0 or 1, found %d", b[0])
		}
	case "int":
		if v := w.long("int"); v < math.MinInt32 || v > math.MaxInt32 {
			w.fail("int", "expected 32 bits, found %d", v)
		}
	case "long":
		w.long("long")
	case "float":
		w.take(4, "float")
	case "double":
		w.take(8, "double")
	case "bytes":
		w.bytes("bytes")
	case "string":
		if s := w.bytes("string"); !utf8.Valid(s) {
			w.fail("string", "expected UTF-8, found other bytes")
		}
	case "fixed":
		w.take(uint64(n.Size), "fixed")
	case "enum":
		if i := w.long("enum"); w.found == nil && (i < 0 || i >= int64(len(n.Symbols))) {
			w.fail("enum", "expected one of %d symbols, found number %d", len(n.Symbols), i)
		}
	case "record", "error":
		_, inner := fullName(n, within)
		for i := range n.Fields {
			w.within(n.Fields[i].Name, &n.Fields[i].Type, inner)
		}
	case "array":
		at := 0
		w.blocks("array", func() {
			w.within(strconv.Itoa(at), n.Items, within)
			at++
		})
	case "map":
		w.blocks("map", func() {
			key := w.bytes("map")
			if !utf8.Valid(key) {
				w.fail("map", "expected a key in UTF-8, found other bytes")
			}
			w.within(string(key), n.Values, within)
		})
	case "union":
		i := w.long("union")
		if w.found != nil {
			return
		}
		if i < 0 || i >= int64(len(n.Branches)) {
			w.fail("union", "expected one of %d branches, found number %d", len(n.Branches), i)
			return
		}
		w.value(&n.Branches[i], within)
	default:
		w.reference(n.Type, within)
	}
}

// reference reads a value of a named type.
func (w *avroWalk) reference(name, within string) {
	n := w.types[name]
	if n == nil && within != "" {
		n = w.types[within+"."+name]
	}
	if n == nil {
		w.fail(name, "the schema refers to a type %q that it does not define", name)
		return
	}
	w.value(n, within)
}

// within reads a value at one more step of the path.
func (w *avroWalk) within(step string, n *avro.SchemaNode, namespace string) {
	if w.found != nil {
		return
	}
	w.path = append(w.path, step)
	w.value(n, namespace)
	w.path = w.path[:len(w.path)-1]
}

// blocks reads the blocks of an array or a map.
func (w *avroWalk) blocks(rule string, item func()) {
	for w.found == nil {
		n := w.long(rule)
		size := int64(-1)
		if n < 0 {
			if size = w.long(rule); n == math.MinInt64 || size < 0 || size > int64(len(w.rest)) {
				w.fail(rule, "expected a block within the payload, found one of %d items and %d bytes", -n, size)
			}
			n = -n
		}
		if n == 0 || w.found != nil {
			return
		}
		before := len(w.rest)
		for range n {
			left := len(w.rest)
			item()
			if w.found != nil {
				return
			}
			if len(w.rest) == left {
				if w.empty++; w.empty > maxEmptyItems {
					w.fail(rule, "found more than %d items without content", maxEmptyItems)
					return
				}
			}
		}
		if read := int64(before - len(w.rest)); size >= 0 && read != size {
			w.fail(rule, "expected a block of %d bytes, as it says, found %d", size, read)
		}
	}
}

func (w *avroWalk) take(n uint64, rule string) []byte {
	if w.found != nil {
		return nil
	}
	if n > uint64(len(w.rest)) {
		w.fail(rule, "expected %d bytes more, found the payload's last %d", n, len(w.rest))
		return nil
	}
	b := w.rest[:n:n]
	w.rest = w.rest[n:]
	return b
}

func (w *avroWalk) bytes(rule string) []byte {
	n := w.long(rule)
	if n < 0 {
		w.fail(rule, "expected a length, found %d", n)
		return nil
	}
	return w.take(uint64(n), rule)
}

// long reads a zigzag varint of at most ten bytes.
func (w *avroWalk) long(rule string) int64 {
	if w.found != nil {
		return 0
	}
	v, n := binary.Varint(w.rest)
	if n <= 0 {
		w.fail(rule, "expected a whole number, found the payload's end or more than 64 bits")
		return 0
	}
	w.rest = w.rest[n:]
	return v
}
