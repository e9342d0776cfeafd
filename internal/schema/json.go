package schema

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"golang.org/x/text/language"
	"golang.org/x/text/message"
)

// schemaURL names the definition. Relative references in it become URLs of this scheme.
const schemaURL = "schema:///definition"

// offline loads nothing: a definition that refers to a URL or a file would make the node fetch
// it. The drafts' own metaschemas are built into the library and do not come here.
type offline struct{}

// Load fails.
func (offline) Load(url string) (any, error) {
	return nil, fmt.Errorf("expected references within the definition alone, found one to %s", cut(strings.TrimPrefix(url, "schema://"), maxText))
}

func compileJSON(definition []byte) (*Validator, error) {
	doc, err := decodeJSON(definition)
	if err != nil {
		return nil, fmt.Errorf("expected JSON: %w", err)
	}
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	c.UseLoader(offline{})
	if err := c.AddResource(schemaURL, doc); err != nil {
		return nil, plain(err)
	}
	s, err := c.Compile(schemaURL)
	if err != nil {
		return nil, plain(err)
	}
	printer := message.NewPrinter(language.English)
	return &Validator{validate: func(payload []byte) *Violation {
		value, err := decodeJSON(payload)
		if err != nil {
			return &Violation{Rule: "json", Text: "expected JSON: " + err.Error()}
		}
		err = s.Validate(value)
		if err == nil {
			return nil
		}
		failed := (*jsonschema.ValidationError)(nil)
		if !errors.As(err, &failed) {
			return &Violation{Rule: "schema", Text: err.Error()}
		}
		failed = deepest(failed)
		rule := failed.SchemaURL
		if _, fragment, ok := strings.Cut(rule, "#"); ok {
			rule = strings.TrimSuffix(fragment, "/")
		}
		return &Violation{
			Path: pointer(failed.InstanceLocation),
			Rule: rule + pointer(failed.ErrorKind.KeywordPath()),
			Text: failed.ErrorKind.LocalizedString(printer),
		}
	}}, nil
}

// deepest follows the first cause down to the rule itself. Where one of several alternatives
// had to match, the alternative that the payload comes furthest into is the one to tell about;
// the library lists causes in the schema's order, so the choice is the same every time.
func deepest(e *jsonschema.ValidationError) *jsonschema.ValidationError {
	for len(e.Causes) > 0 {
		best := e.Causes[0]
		for _, c := range e.Causes[1:] {
			if len(c.InstanceLocation) > len(best.InstanceLocation) {
				best = c
			}
		}
		e = best
	}
	return e
}

// plain is an error without the name that this package gave the definition.
func plain(err error) error {
	return errors.New(strings.ReplaceAll(err.Error(), schemaURL, ""))
}

// decodeJSON reads one JSON value, keeping numbers as they are written.
func decodeJSON(b []byte) (any, error) {
	if err := checkNesting(b); err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, errors.New("found nothing")
		}
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("found more behind the value")
	}
	return v, nil
}

// checkNesting refuses what is nested deeper than a recursive schema should be asked to follow.
func checkNesting(b []byte) error {
	depth, quoted := 0, false
	for i := 0; i < len(b); i++ {
		switch c := b[i]; {
		case quoted:
			if c == '\\' {
				i++
			} else if c == '"' {
				quoted = false
			}
		case c == '"':
			quoted = true
		case c == '{' || c == '[':
			if depth++; depth > maxNesting {
				return fmt.Errorf("found values nested deeper than %d", maxNesting)
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return nil
}
