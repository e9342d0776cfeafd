package importer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"
)

// objectSource reads NDJSON: one object a line, its keys used as columns. The values of the
// payload keep the bytes that they have in the file.
type objectSource struct {
	lines lineReader
	opts  *Options
	rows  *rows
	hash  *rowHash
	seen  map[string]bool
}

func newObjectSource(r io.Reader, opts *Options) (*objectSource, error) {
	text, err := openText(r)
	if err != nil {
		return nil, err
	}
	return &objectSource{
		lines: lineReader{r: text}, opts: opts, rows: newRows(opts), hash: newRowHash(), seen: make(map[string]bool),
	}, nil
}

func (s *objectSource) next() (*unit, error) {
	text, err := s.lines.next()
	if errors.Is(err, errLineTooLong) {
		return nil, stop(s.lines.line, "%s", err)
	}
	if err != nil {
		return nil, err
	}
	r := row{line: s.lines.line}
	switch {
	case !utf8.Valid(text):
		return nil, stop(r.line, "not valid UTF-8; convert the file, for example with iconv -f LATIN1 -t UTF-8")
	case !json.Valid(text):
		return nil, stop(r.line, "not JSON; expected one object on one line: %q", clip(string(text)))
	}
	found, idErr, err := s.read(text, &r)
	if idErr == nil && !found.id {
		idErr = fmt.Errorf("the object has no %q, which names the aggregate", s.opts.Columns.ID)
	}
	if idErr != nil {
		return nil, stop(r.line, "%s", idErr)
	}
	if err := s.rows.checkID(&r); err != nil {
		return nil, err
	}
	if err == nil && !found.eventType {
		err = fmt.Errorf("the object has no %q; every event needs a type", s.opts.Columns.EventType)
	}
	if err != nil {
		return s.rows.bad(&r, "%s", err), nil
	}
	if r.eventID == "" {
		s.hash.add(string(bytes.TrimSpace(text)))
		r.hash = s.hash.sum()
	}
	return s.rows.unit(&r), nil
}

func (s *objectSource) offset() int64 { return s.lines.bytes }

// present says which columns an object had.
type present struct{ id, eventType bool }

// read takes a valid line of JSON apart, in order. idErr says why the aggregate cannot be
// told; err is about the rest, and the row can keep its rank.
func (s *objectSource) read(text []byte, r *row) (found present, idErr, err error) {
	dec := json.NewDecoder(bytes.NewReader(text))
	if token, err := dec.Token(); err != nil || token != json.Delim('{') {
		return found, fmt.Errorf("expected one object on the line, found %q", clip(string(text))), nil
	}
	clear(s.seen)
	columns := &s.opts.Columns
	payload := append(make([]byte, 0, len(text)), '{')
	fail := func(e error) {
		if err == nil {
			err = e
		}
	}
	for dec.More() {
		before := dec.InputOffset()
		token, e := dec.Token()
		if e != nil {
			return found, e, nil
		}
		key, _ := token.(string)
		rawKey := bytes.TrimLeft(text[before:dec.InputOffset()], ", \t\r")
		var value json.RawMessage
		if e := dec.Decode(&value); e != nil {
			return found, e, nil
		}
		if s.seen[key] {
			twice := fmt.Errorf("the object has %q twice", key)
			if key == columns.ID {
				idErr = twice
			}
			fail(twice)
			continue
		}
		s.seen[key] = true
		switch key {
		case "":
			payload = appendMember(payload, rawKey, value)
		case columns.ID:
			found.id = true
			if e := scalar(key, value, &r.id); e != nil {
				idErr = e
			}
		case columns.EventType:
			found.eventType = true
			fail(scalar(key, value, &r.eventType))
		case columns.Time:
			fail(scalar(key, value, &r.time))
		case columns.EventID:
			fail(scalar(key, value, &r.eventID))
		default:
			payload = appendMember(payload, rawKey, value)
		}
	}
	r.payload = append(payload, '}')
	return found, idErr, err
}

// appendMember appends one member of an object that has been opened.
func appendMember(dst, key, value []byte) []byte {
	if len(dst) > 1 {
		dst = append(dst, ',')
	}
	dst = append(dst, key...)
	dst = append(dst, ':')
	return append(dst, value...)
}

// scalar reads a value that is used as text: a string, a number as it is written, true or
// false. null is no value.
func scalar(key string, value json.RawMessage, dst *string) error {
	switch value[0] {
	case '"':
		return json.Unmarshal(value, dst)
	case '{', '[':
		return fmt.Errorf("%q is an object or a list; expected a string or a number", key)
	case 'n':
		*dst = ""
	default:
		*dst = string(value)
	}
	return nil
}
