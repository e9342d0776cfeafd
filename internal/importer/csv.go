package importer

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// csvSource reads rows of RFC 4180 CSV with a header line. A line break within quotes is
// read as \n even where the file has \r\n; that is encoding/csv's rule.
type csvSource struct {
	r     *csv.Reader
	limit *recordLimit
	rows  *rows
	hash  *rowHash
	line  int64 // where the row read last begins

	names []string
	// keys holds, for each column that goes into the payload, its name as JSON with a colon.
	keys [][]byte
	// Indexes of the columns with a use of their own; -1 = none.
	id, eventType, time, eventID int
}

func newCSVSource(r io.Reader, opts *Options) (*csvSource, error) {
	text, err := openText(r)
	if err != nil {
		return nil, err
	}
	s := &csvSource{limit: &recordLimit{r: text}, rows: newRows(opts), hash: newRowHash()}
	s.r = csv.NewReader(s.limit)
	s.r.FieldsPerRecord = -1 // counted here, so that the message can say what to do
	s.r.ReuseRecord = true
	header, err := s.r.Read()
	switch {
	case errors.Is(err, io.EOF):
		return nil, errors.New("the file is empty; expected a header line with the names of the columns")
	case err != nil:
		return nil, fmt.Errorf("the header line is not CSV: %w", err)
	}
	return s, s.readHeader(header, &opts.Columns)
}

// readHeader names the columns and finds those that the options name.
func (s *csvSource) readHeader(header []string, columns *Columns) error {
	seen := make(map[string]int, len(header))
	for i, name := range header {
		if !utf8.ValidString(name) {
			return fmt.Errorf("the header line is not UTF-8 (column %d is %q); convert the file first, for example with iconv -f LATIN1 -t UTF-8", i, clip(name))
		}
		if name == "" {
			name = "column_" + strconv.Itoa(i)
		}
		if j, twice := seen[name]; twice {
			return fmt.Errorf("the header line has two columns %q (columns %d and %d, counting from 0); rename one of them", name, j, i)
		}
		seen[name] = i
		s.names = append(s.names, strings.Clone(name))
	}
	find := func(flag, name string) (int, error) {
		if name == "" {
			return -1, nil
		}
		i, ok := seen[name]
		if !ok {
			return -1, fmt.Errorf("%s: the file has no column %q; its columns are %q", flag, name, s.names)
		}
		return i, nil
	}
	var errs [4]error
	s.id, errs[0] = find("--id-column", columns.ID)
	s.eventType, errs[1] = find("--event-type-column", columns.EventType)
	s.time, errs[2] = find("--time-column", columns.Time)
	s.eventID, errs[3] = find("--event-id-column", columns.EventID)
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	s.keys = make([][]byte, len(s.names))
	for i, name := range s.names {
		if i != s.id && i != s.eventType && i != s.time && i != s.eventID {
			s.keys[i] = append(appendString(nil, name), ':')
		}
	}
	return nil
}

func (s *csvSource) next() (*unit, error) {
	s.limit.restart()
	record, err := s.r.Read()
	if err != nil {
		return nil, s.readError(err)
	}
	line, _ := s.r.FieldPos(0)
	s.line = int64(line)
	r := row{line: s.line}
	if len(record) != len(s.names) {
		// What stands in the id column may be another column's value.
		return nil, stop(r.line, "the row has %d columns, the header has %d; look for a missing or an unquoted comma", len(record), len(s.names))
	}
	r.id = record[s.id]
	if err := s.rows.checkID(&r); err != nil {
		return nil, err
	}
	for i, field := range record {
		if !utf8.ValidString(field) {
			return s.rows.bad(&r, "column %q is not valid UTF-8: %q; convert the file, for example with iconv -f LATIN1 -t UTF-8", s.names[i], clip(field)), nil
		}
	}
	r.eventType = record[s.eventType]
	if s.time >= 0 {
		r.time = record[s.time]
	}
	if s.eventID >= 0 {
		r.eventID = record[s.eventID]
	}
	if r.eventID == "" {
		for _, field := range record {
			s.hash.add(field)
		}
		r.hash = s.hash.sum()
	}
	r.payload = s.payload(record)
	return s.rows.unit(&r), nil
}

func (s *csvSource) offset() int64 { return s.r.InputOffset() }

// readError sorts what encoding/csv reports.
func (s *csvSource) readError(err error) error {
	if s.limit.exceeded {
		return fmt.Errorf("the row after line %d: %w", s.line, errRowTooLong)
	}
	if parse := (*csv.ParseError)(nil); errors.As(err, &parse) {
		return stop(int64(parse.StartLine), "not CSV at line %d, column %d: %s; a field that holds a quote must be in quotes, and the quote doubled",
			parse.Line, parse.Column, parse.Err)
	}
	if errors.Is(err, io.EOF) {
		return io.EOF
	}
	return fmt.Errorf("cannot read the input after line %d: %w", s.line, err)
}

// payload makes the JSON object of a row.
func (s *csvSource) payload(record []string) []byte {
	size := 2
	for i, key := range s.keys {
		if key != nil {
			size += len(key) + len(record[i]) + 3
		}
	}
	dst := append(make([]byte, 0, size), '{')
	for i, key := range s.keys {
		if key == nil {
			continue
		}
		if len(dst) > 1 {
			dst = append(dst, ',')
		}
		dst = append(dst, key...)
		dst = appendString(dst, record[i])
	}
	return append(dst, '}')
}

// recordLimit bounds what encoding/csv reads for one record: without it a quote that is
// never closed would take the rest of the file into memory.
type recordLimit struct {
	r        io.Reader
	n        int
	exceeded bool
}

func (l *recordLimit) restart() { l.n = 0 }

func (l *recordLimit) Read(p []byte) (int, error) {
	if l.n > maxRowBytes {
		l.exceeded = true
		return 0, errRowTooLong
	}
	n, err := l.r.Read(p)
	l.n += n
	return n, err
}

var errRowTooLong = fmt.Errorf("the row has more than %d MiB; most likely a quote at its beginning is never closed", maxRowBytes>>20)
