package schema

import (
	"encoding/binary"
	"errors"
	"math"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/descriptorpb"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

const (
	jsonFormat  = pb.SchemaFormat_SCHEMA_FORMAT_JSON_SCHEMA
	protoFormat = pb.SchemaFormat_SCHEMA_FORMAT_PROTOBUF
	avroFormat  = pb.SchemaFormat_SCHEMA_FORMAT_AVRO
)

// payloads of one schema and what is said of each; an empty Violation = it matches.
type payloads []struct {
	name    string
	payload []byte
	want    Violation
}

func (ps payloads) check(t *testing.T, v *Validator) {
	t.Helper()
	for _, p := range ps {
		got, err := v.Validate(p.payload)
		if err != nil {
			t.Errorf("%s: %v", p.name, err)
			continue
		}
		if got == nil {
			got = &Violation{}
		}
		if *got != p.want {
			t.Errorf("%s:\n got %+v\nwant %+v", p.name, *got, p.want)
		}
	}
}

func mustCompile(t *testing.T, format pb.SchemaFormat, message, eventType string, definition []byte) *Validator {
	t.Helper()
	v, err := Compile(format, message, eventType, definition)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestJSONSchema(t *testing.T) {
	v := mustCompile(t, jsonFormat, "", "Placed", []byte(`{
		"type": "object", "required": ["amount"], "additionalProperties": false,
		"properties": {
			"amount": {"type": "number", "minimum": 0.5},
			"lines": {"type": "array", "prefixItems": [{"$ref": "#/$defs/line"}]},
			"a/b": {"pattern": "^x+$"},
			"next": {"$ref": "#"}
		},
		"$defs": {"line": {"type": "object", "properties": {"n": {"const": 9007199254740993}}}}
	}`))
	deep := `{"amount":1,"next":` + strings.Repeat(`{"amount":1,"next":`, maxNesting) + `{"amount":1}` + strings.Repeat("}", maxNesting+1)
	payloads{
		{"a match", []byte(`{"amount": 1, "lines": [{"n": 9007199254740993}], "a/b": "xx", "next": {"amount": 2}}`), Violation{}},
		{"no JSON", []byte(`{"amount": `), Violation{Rule: "json", Text: "expected JSON: unexpected EOF"}},
		{"nothing", nil, Violation{Rule: "json", Text: "expected JSON: found nothing"}},
		{"two values", []byte(`{"amount":1} {}`), Violation{Rule: "json", Text: "expected JSON: found more behind the value"}},
		{"another type", []byte(`[1]`), Violation{Rule: "/type", Text: "got array, want object"}},
		{"a field too few", []byte(`{}`), Violation{Rule: "/required", Text: "missing property 'amount'"}},
		{"a field too many", []byte(`{"amount":1,"x":1}`), Violation{Rule: "/additionalProperties", Text: "additional properties 'x' not allowed"}},
		{"too small", []byte(`{"amount":0.25}`), Violation{Path: "/amount", Rule: "/properties/amount/minimum", Text: "minimum: got 0.25, want 0.5"}},
		{"a number that a double cannot tell", []byte(`{"amount":1,"lines":[{"n":9007199254740992}]}`),
			Violation{Path: "/lines/0/n", Rule: "/$defs/line/properties/n/const", Text: "value must be 9007199254740993"}},
		{"a path with a slash", []byte(`{"amount":1,"a/b":"y"}`), Violation{Path: "/a~1b", Rule: "/properties/a~1b/pattern", Text: "'y' does not match pattern '^x+$'"}},
		{"a schema that refers to itself", []byte(`{"amount":1,"next":{"next":{}}}`), Violation{Path: "/next/next", Rule: "/required", Text: "missing property 'amount'"}},
		{"deeper than anything should be", []byte(deep), Violation{Rule: "json", Text: "expected JSON: found values nested deeper than 200"}},
	}.check(t, v)
}

// A violation is small, whatever the payload.
func TestViolationsAreShort(t *testing.T) {
	v := mustCompile(t, jsonFormat, "", "", []byte(`{"additionalProperties": {"pattern": "^x$"}}`))
	got, err := v.Validate([]byte(`{"` + strings.Repeat("ä", 1<<20) + `":"` + strings.Repeat("y\\n", 1<<20) + `"}`))
	if err != nil || got == nil || len(got.Path) > maxPath || len(got.Text) > maxText || strings.ContainsAny(got.Text, "\n") || !strings.HasSuffix(got.Path, "ä...") {
		t.Errorf("%d bytes of path, text %q, %v", len(got.Path), got.Text, err)
	}
}

func TestWhatIsNoSchema(t *testing.T) {
	for _, c := range []struct {
		name       string
		format     pb.SchemaFormat
		definition string
		want       string
		is         error
	}{
		{"a format of later", 9, "{}", "unsupported schema format: 9; this version knows 1 (JSON Schema), 2 (Protobuf) and 3 (Avro)", ErrUnsupported},
		{"no format", 0, "{}", "unsupported schema format: 0; this version knows 1 (JSON Schema), 2 (Protobuf) and 3 (Avro)", ErrUnsupported},
		{"no JSON", jsonFormat, "{", "invalid schema: expected JSON: unexpected EOF", ErrInvalid},
		{"a keyword's wrong type", jsonFormat, `{"type": 1}`, "", ErrInvalid},
		{"a pattern that is none", jsonFormat, `{"pattern": "("}`, "", ErrInvalid},
		{"a URL", jsonFormat, `{"$ref": "http://127.0.0.1:1/x.json"}`, "expected references within the definition alone, found one to http://127.0.0.1:1/x.json", ErrInvalid},
		{"a file", jsonFormat, `{"$ref": "file:///etc/hostname"}`, "expected references within the definition alone, found one to file:///etc/hostname", ErrInvalid},
		{"a relative file", jsonFormat, `{"$ref": "other.json"}`, "expected references within the definition alone, found one to /other.json", ErrInvalid},
		{"a metaschema of somebody's", jsonFormat, `{"$schema": "https://example.com/x"}`, "expected references within the definition alone, found one to https://example.com/x", ErrInvalid},
		{"JSON nested too deep", jsonFormat, strings.Repeat(`{"not":`, 300) + "{}" + strings.Repeat("}", 300), "nested deeper than 200", ErrInvalid},
		{"no descriptors", protoFormat, "\x0a", "expected a google.protobuf.FileDescriptorSet", ErrInvalid},
		{"an empty set", protoFormat, "\x7a\x00", `expected one message named "Placed", like the event type, found 0`, ErrInvalid},
		{"no Avro", avroFormat, `{"type":"record"}`, "", ErrInvalid},
		{"an unknown Avro type", avroFormat, `{"type":"record","name":"A","fields":[{"name":"b","type":"Nope"}]}`, "", ErrInvalid},
		{"Avro nested too deep", avroFormat, strings.Repeat(`{"type":"array","items":`, 300) + `"int"` + strings.Repeat("}", 300), "nested deeper than 200", ErrInvalid},
	} {
		v, err := Compile(c.format, "", "Placed", []byte(c.definition))
		if v != nil || !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 3*maxText {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func field(name string, number int32, typ descriptorpb.FieldDescriptorProto_Type, label descriptorpb.FieldDescriptorProto_Label, of string) *descriptorpb.FieldDescriptorProto {
	f := &descriptorpb.FieldDescriptorProto{Name: &name, Number: &number, Type: &typ, Label: &label}
	if of != "" {
		f.TypeName = &of
	}
	return f
}

// orders is a set of two files: lines.proto, and orders.proto, which imports it.
func orders(t *testing.T, imports bool) []byte {
	const (
		one  = descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL
		must = descriptorpb.FieldDescriptorProto_LABEL_REQUIRED
		many = descriptorpb.FieldDescriptorProto_LABEL_REPEATED
		str  = descriptorpb.FieldDescriptorProto_TYPE_STRING
		num  = descriptorpb.FieldDescriptorProto_TYPE_INT64
		msg  = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE
	)
	lines := &descriptorpb.FileDescriptorProto{
		Name: proto.String("lines.proto"), Package: proto.String("acme"), Syntax: proto.String("proto2"),
		MessageType: []*descriptorpb.DescriptorProto{{Name: proto.String("Line"), Field: []*descriptorpb.FieldDescriptorProto{field("count", 1, num, must, "")}}},
	}
	placed := &descriptorpb.FileDescriptorProto{
		Name: proto.String("orders.proto"), Package: proto.String("acme"), Syntax: proto.String("proto3"), Dependency: []string{"lines.proto"},
		MessageType: []*descriptorpb.DescriptorProto{{Name: proto.String("Placed"), Field: []*descriptorpb.FieldDescriptorProto{
			field("id", 1, str, one, ""), field("lines", 2, msg, many, ".acme.Line"),
		}}},
	}
	set := &descriptorpb.FileDescriptorSet{File: []*descriptorpb.FileDescriptorProto{placed}}
	if imports {
		set.File = []*descriptorpb.FileDescriptorProto{lines, placed}
	}
	b, err := proto.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestProtobuf(t *testing.T) {
	set := orders(t, true)
	for _, c := range []struct{ message, eventType, want string }{
		{"", "acme.Placed", "acme.Placed"},
		{"", "Placed", "acme.Placed"},
		{"", "Line", "acme.Line"},
		{"", "order placed", "acme.Placed"}, // the only message of the last file
		{"acme.Line", "Placed", "acme.Line"},
	} {
		if got := mustCompile(t, protoFormat, c.message, c.eventType, set).Message(); got != c.want {
			t.Errorf("message %q, event type %q: %q, want %q", c.message, c.eventType, got, c.want)
		}
	}
	for message, definition := range map[string][]byte{"acme.Nope": set, "Line": set, "": orders(t, false)} {
		if v, err := Compile(protoFormat, message, "Placed", definition); v != nil || !errors.Is(err, ErrInvalid) {
			t.Errorf("message %q: %v", message, err)
		}
	}
	line := protowire.AppendVarint(protowire.AppendTag(nil, 1, protowire.VarintType), 5)
	id := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "x")
	with := func(line []byte) []byte {
		return protowire.AppendBytes(protowire.AppendTag(id[:len(id):len(id)], 2, protowire.BytesType), line)
	}
	unknown := protowire.AppendVarint(protowire.AppendTag(nil, 3, protowire.VarintType), 5)
	payloads{
		{"nothing", nil, Violation{}},
		{"a match", with(line), Violation{}},
		{"cut short", with(line)[:4], Violation{Rule: "acme.Placed", Text: "expected a message acme.Placed: cannot parse invalid wire-format data"}},
		{"no UTF-8", []byte{0x0a, 1, 0xff}, Violation{Rule: "acme.Placed", Text: "expected a message acme.Placed: field acme.Placed.id contains invalid UTF-8"}},
		{"an unknown field", append(with(line), unknown...), Violation{Path: "/3", Rule: "acme.Placed", Text: "expected fields of acme.Placed, found number 3, which it has not, or has with other values"}},
		{"an unknown field inside", with(append(line, unknown...)), Violation{Path: "/lines/0/3", Rule: "acme.Line", Text: "expected fields of acme.Line, found number 3, which it has not, or has with other values"}},
		{"another type", []byte{0x08, 1}, Violation{Path: "/1", Rule: "acme.Placed", Text: "expected fields of acme.Placed, found number 1, which it has not, or has with other values"}},
		{"a required field missing", with(nil), Violation{Path: "/lines/0/count", Rule: "acme.Line.count", Text: "expected the required field acme.Line.count, found none"}},
	}.check(t, mustCompile(t, protoFormat, "", "Placed", set))
}

func TestAvro(t *testing.T) {
	v := mustCompile(t, avroFormat, "", "Placed", []byte(`{"type":"record","name":"Placed","namespace":"acme","fields":[
		{"name":"id","type":"string"},
		{"name":"kind","type":{"type":"enum","name":"Kind","symbols":["a","b"]}},
		{"name":"lines","type":{"type":"array","items":["null","int","Kind"]}},
		{"name":"tags","type":{"type":"map","values":"bytes"}},
		{"name":"hash","type":{"type":"fixed","name":"Hash","size":2}},
		{"name":"flag","type":"boolean"},
		{"name":"rate","type":"double"},
		{"name":"next","type":["null","Placed"]}
	]}`))
	long := func(b []byte, n int64) []byte { return binary.AppendVarint(b, n) }
	str := func(b []byte, s string) []byte { return append(long(b, int64(len(s))), s...) }
	head := func() []byte { return str(nil, "x") }
	tail := append([]byte{7, 7, 1}, make([]byte, 8)...) // hash, flag, rate
	noLists := func() []byte { return append(append(long(head(), 1), 0, 0), tail...) }
	full := long(head(), 0)
	full = long(long(long(full, 2), 1), -5) // two lines: an int -5,
	full = long(long(full, 2), 1)           // and Kind b,
	full = long(full, 0)
	full = str(str(long(long(full, -1), 4), "k"), "v") // one tag, in a block with its size
	full = append(long(full, 0), tail...)
	full = append(long(full, 1), append(noLists(), 0)...) // another one inside
	payloads{
		{"a match", append(noLists(), 0), Violation{}},
		{"everything", full, Violation{}},
		{"nothing", nil, Violation{Path: "/id", Rule: "string", Text: "expected a whole number, found the payload's end or more than 64 bits"}},
		{"more", append(noLists(), 0, 9), Violation{Rule: "length", Text: "expected the payload to end with its value, found 1 more bytes"}},
		{"cut short", noLists()[:9], Violation{Path: "/rate", Rule: "double", Text: "expected 8 bytes more, found the payload's last 1"}},
		{"no UTF-8", []byte{2, 0xff}, Violation{Path: "/id", Rule: "string", Text: "expected UTF-8, found other bytes"}},
		{"a length below 0", []byte{1}, Violation{Path: "/id", Rule: "string", Text: "expected a length, found -1"}},
		{"a length beyond the end", long(nil, math.MaxInt64), Violation{Path: "/id", Rule: "string", Text: "expected 9223372036854775807 bytes more, found the payload's last 0"}},
		{"no such symbol", long(head(), 2), Violation{Path: "/kind", Rule: "enum", Text: "expected one of 2 symbols, found number 2"}},
		{"no such branch", long(long(long(head(), 1), 1), 3), Violation{Path: "/lines/0", Rule: "union", Text: "expected one of 3 branches, found number 3"}},
		{"an int of 64 bits", long(long(long(long(head(), 1), 1), 1), 1<<40), Violation{Path: "/lines/0", Rule: "int", Text: "expected 32 bits, found 1099511627776"}},
		{"a block of another size", append(str(str(long(long(append(long(head(), 1), 0), -1), 5), "k"), "v"), tail...),
			Violation{Path: "/tags", Rule: "map", Text: "expected a block of 5 bytes, as it says, found 4"}},
		{"a boolean of 2", append(append(long(head(), 1), 0, 0), 7, 7, 2), Violation{Path: "/flag", Rule: "boolean", Text: "expected 0 or 1, found 2"}},
	}.check(t, v)
	endless := long(long(nil, 1<<60), 0)
	payloads{{"items that take nothing", endless, Violation{Rule: "array", Text: "found more than 1048576 items without content"}}}.
		check(t, mustCompile(t, avroFormat, "", "", []byte(`{"type":"array","items":"null"}`)))
	payloads{{"a list without end", []byte(strings.Repeat("\x02", maxNesting+2)), Violation{Path: strings.Repeat("/a", maxNesting+1), Rule: "nesting", Text: "found values nested deeper than 200"}}}.
		check(t, mustCompile(t, avroFormat, "", "", []byte(`{"type":"record","name":"R","fields":[{"name":"a","type":["null","R"]}]}`)))
}
