package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"golang.org/x/term"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

const (
	outputTable = "table"
	outputJSON  = "json"
)

// choice is a flag that takes one of a few words.
type choice struct {
	value *string
	words []string
}

func (c choice) String() string { return *c.value }
func (c choice) Type() string   { return strings.Join(c.words, "|") }
func (c choice) Set(s string) error {
	for _, w := range c.words {
		if s == w {
			*c.value = s
			return nil
		}
	}
	return fmt.Errorf("expected %s", strings.Join(c.words, " or "))
}

// registerOutput adds --output to a command.
func registerOutput(cmd *cobra.Command, output *string) {
	*output = outputTable
	cmd.Flags().Var(choice{output, []string{outputTable, outputJSON}}, "output",
		"how to print results (stdout) and errors (stderr)")
}

// outputFormat returns what --output of cmd says; table if the command has no such flag.
func outputFormat(cmd *cobra.Command) string {
	if f := cmd.Flags().Lookup("output"); f != nil {
		return f.Value.String()
	}
	return outputTable
}

// appendJSON appends m as protojson with the proto's names: 64-bit integers are strings,
// zeros are written out, and so are empty lists.
func appendJSON(dst []byte, m proto.Message) ([]byte, error) {
	raw, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return dst, err
	}
	// protojson varies its white space on purpose; ours is to be stable.
	buf := bytes.NewBuffer(dst)
	err = json.Compact(buf, raw)
	return buf.Bytes(), err
}

// writeJSON writes m as one line.
func writeJSON(w io.Writer, m proto.Message) error {
	line, err := appendJSON(nil, m)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}

// tableWindow is how many rows a table looks at before it settles on column widths. A
// table of a million rows is printed as they come, in bounded memory.
const tableWindow = 256

// helpWidth is how wide help text may be: the terminal, within reason.
func helpWidth(w io.Writer) int { return min(max(terminalWidth(w), 60), 120) }

// terminalWidth is how wide the terminal is; 80 if w is none.
func terminalWidth(w io.Writer) int {
	if f, ok := w.(*os.File); ok {
		if columns, _, err := term.GetSize(int(f.Fd())); err == nil && columns > 0 {
			return columns
		}
	}
	return 80
}

// table prints rows in aligned columns. Cells are made safe for a terminal.
type table struct {
	w      io.Writer
	rows   [][]string
	widths []int
	// width is how wide a line should be: the last column is cut to what is left of it, but
	// not below leastColumns. 0 = as wide as it gets.
	width int
}

// leastColumns is what a table leaves of its last column.
const leastColumns = 32

func newTable(w io.Writer, header ...string) *table {
	return &table{w: w, rows: [][]string{header}, widths: make([]int, len(header))}
}

// row adds a row with one cell per column.
func (t *table) row(cells ...any) error {
	row := make([]string, len(cells))
	for i, c := range cells {
		row[i] = printable(fmt.Sprint(c))
	}
	t.rows = append(t.rows, row)
	if len(t.rows) >= tableWindow {
		return t.flush()
	}
	return nil
}

// flush prints what was added. Columns only ever get wider.
func (t *table) flush() error {
	for _, row := range t.rows {
		for i, cell := range row {
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell))
		}
	}
	var out strings.Builder
	last := 0
	for _, w := range t.widths[:len(t.widths)-1] {
		last += w + 2
	}
	last = max(t.width-last, leastColumns)
	for _, row := range t.rows {
		if cell := []rune(row[len(row)-1]); t.width > 0 && len(cell) > last {
			row[len(row)-1] = string(cell[:last-1]) + "…"
		}
		var line strings.Builder
		for i, cell := range row {
			if i == len(row)-1 {
				line.WriteString(cell)
				break
			}
			fmt.Fprintf(&line, "%-*s", t.widths[i]+2, cell)
		}
		out.WriteString(strings.TrimRight(line.String(), " "))
		out.WriteByte('\n')
	}
	t.rows = t.rows[:0]
	_, err := io.WriteString(t.w, out.String())
	return err
}

// fields prints name-value pairs under each other; pairs alternates names and values.
func fields(w io.Writer, pairs ...any) error {
	width := 0
	for i := 0; i < len(pairs); i += 2 {
		width = max(width, len(fmt.Sprint(pairs[i])))
	}
	var out strings.Builder
	for i := 0; i+1 < len(pairs); i += 2 {
		line := fmt.Sprintf("%-*s  %s", width, pairs[i], printable(fmt.Sprint(pairs[i+1])))
		out.WriteString(strings.TrimRight(line, " "))
		out.WriteByte('\n')
	}
	_, err := io.WriteString(w, out.String())
	return err
}

// printable makes a string that came from elsewhere safe to show on a terminal: control
// characters and invalid UTF-8 are escaped as in a Go string.
func printable(s string) string {
	safe := utf8.ValidString(s) && strings.IndexFunc(s, func(r rune) bool {
		return !unicode.IsPrint(r)
	}) < 0
	if safe {
		return s
	}
	var out strings.Builder
	for i := 0; i < len(s); {
		r, size := utf8.DecodeRuneInString(s[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&out, `\x%02x`, s[i])
		case unicode.IsPrint(r):
			out.WriteRune(r)
		case r == '\n':
			out.WriteString(`\n`)
		case r == '\t':
			out.WriteString(`\t`)
		case r == '\r':
			out.WriteString(`\r`)
		default:
			if r > 0xffff {
				fmt.Fprintf(&out, `\U%08x`, r)
			} else {
				fmt.Fprintf(&out, `\u%04x`, r)
			}
		}
		i += size
	}
	return out.String()
}
