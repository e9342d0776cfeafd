package schema

import (
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	pb "github.com/tidemark-db/tidemark/api/tidemark/v1"
)

// maxNesting bounds how deep definitions and payloads may be nested.
const maxNesting = 200

// Most bytes of the parts of a Violation.
const (
	maxPath = 1 << 10
	maxText = 300
)

var (
	// ErrUnsupported is returned by Compile for a format that this version does not know.
	ErrUnsupported = errors.New("unsupported schema format")
	// ErrInvalid is wrapped by what Compile finds wrong with a definition.
	ErrInvalid = errors.New("invalid schema")
)

// Validator says whether payloads match one schema. It may be used by several goroutines.
type Validator struct {
	message  string
	validate func(payload []byte) *Violation
}

// Message is the full name of the Protobuf message that payloads are; empty for other formats.
func (v *Validator) Message() string { return v.message }

// Violation is where and how a payload does not match. Its texts are short, whatever the payload.
type Violation struct {
	// Path is a JSON pointer into the payload; empty = all of it.
	Path string
	// Rule is what is violated: for JSON Schema, where in the schema it is.
	Rule string
	// Text says it in words.
	Text string
}

// Compile makes a validator of a definition. message names a Protobuf message; empty = by
// eventType, see resolve. Errors match ErrUnsupported or ErrInvalid.
func Compile(format pb.SchemaFormat, message, eventType string, definition []byte) (v *Validator, err error) {
	defer func() {
		if p := recover(); p != nil {
			v, err = nil, fmt.Errorf("%w: the definition cannot be read: %v", ErrInvalid, p)
		}
		if err != nil && !errors.Is(err, ErrUnsupported) {
			err = fmt.Errorf("%w: %s", ErrInvalid, cut(strings.TrimPrefix(err.Error(), ErrInvalid.Error()+": "), 2*maxText))
		}
	}()
	switch format {
	case pb.SchemaFormat_SCHEMA_FORMAT_JSON_SCHEMA:
		return compileJSON(definition)
	case pb.SchemaFormat_SCHEMA_FORMAT_PROTOBUF:
		return compileProtobuf(definition, message, eventType)
	case pb.SchemaFormat_SCHEMA_FORMAT_AVRO:
		return compileAvro(definition)
	case pb.SchemaFormat_SCHEMA_FORMAT_UNSPECIFIED:
	}
	return nil, fmt.Errorf("%w: %d; this version knows 1 (JSON Schema), 2 (Protobuf) and 3 (Avro)", ErrUnsupported, format)
}

// Validate returns nil if the payload matches. An error means that the validator failed.
func (v *Validator) Validate(payload []byte) (found *Violation, err error) {
	defer func() {
		if p := recover(); p != nil {
			found, err = nil, fmt.Errorf("schema: the validator failed: %v", p)
		}
	}()
	if found = v.validate(payload); found != nil {
		found.Path, found.Rule, found.Text = cut(found.Path, maxPath), cut(found.Rule, maxPath), cut(found.Text, maxText)
	}
	return found, nil
}

// cut shortens a text to n bytes at most, and makes it one line of UTF-8.
func cut(s string, n int) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.Map(func(r rune) rune {
		if r < ' ' {
			return ' '
		}
		return r
	}, s)
	if len(s) <= n {
		return s
	}
	const more = "..."
	n -= len(more)
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + more
}

// pointer is a JSON pointer.
func pointer(tokens []string) string {
	var b strings.Builder
	for _, t := range tokens {
		b.WriteByte('/')
		b.WriteString(strings.NewReplacer("~", "~0", "/", "~1").Replace(t))
	}
	return b.String()
}
