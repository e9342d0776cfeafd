package powerloss

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Call is one system call of the recorded process, in the order in which the calls ended.
type Call struct {
	// Start and End are moments: lines of the trace. A call that nothing interrupted has
	// Start == End-1, so that every moment belongs to one call only.
	Start, End int
	Name       string
	Args       []string
	Ret        int64
	// Failed is set when the call returned an error or never returned.
	Failed bool
}

// maxTraceLine bounds one line of a trace: a write of 16 MiB, four characters a byte.
const maxTraceLine = 16<<20*4 + 1<<16

// ParseTrace reads the output of strace -f -y -xx.
func ParseTrace(r io.Reader) ([]Call, error) {
	type begun struct {
		start int
		name  string
		text  string
	}
	open := map[string]begun{} // by thread
	var calls []Call
	in := bufio.NewScanner(r)
	in.Buffer(make([]byte, 1<<20), maxTraceLine)
	moment := 0
	for line := 1; in.Scan(); line++ {
		moment += 2
		tid, rest, ok := strings.Cut(in.Text(), " ")
		if !ok {
			return nil, fmt.Errorf("trace line %d: expected a thread id and a call, found %.80q", line, in.Text())
		}
		rest = strings.TrimLeft(rest, " ")
		if strings.HasPrefix(rest, "+++") || strings.HasPrefix(rest, "---") {
			continue // exits and signals
		}
		start := moment - 1
		if after, ok := strings.CutPrefix(rest, "<... "); ok {
			name, tail, ok := strings.Cut(after, " resumed>")
			b, was := open[tid]
			if !ok || !was || b.name != name {
				return nil, fmt.Errorf("trace line %d: thread %s resumes %.80q, which it has not begun", line, tid, rest)
			}
			delete(open, tid)
			rest, start = b.text+tail, b.start
		} else if text, ok := strings.CutSuffix(rest, " <unfinished ...>"); ok {
			name, _, _ := strings.Cut(text, "(")
			open[tid] = begun{start: moment, name: name, text: text}
			continue
		}
		c, err := parseCall(rest)
		if err != nil {
			return nil, fmt.Errorf("trace line %d: %w", line, err)
		}
		c.Start, c.End = start, moment
		calls = append(calls, c)
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	// Threads that the end of the process cut off in a call. Whether it had an effect is
	// found out by comparing the model's last state with the real directory.
	for _, b := range open {
		c, err := parseCall(b.text + ") = ?")
		if err != nil {
			return nil, err
		}
		moment += 2
		c.Start, c.End = b.start, moment
		calls = append(calls, c)
	}
	return calls, nil
}

// parseCall reads "name(arg, arg) = ret rest".
func parseCall(s string) (Call, error) {
	name, rest, ok := strings.Cut(s, "(")
	if !ok {
		return Call{}, fmt.Errorf("expected name(arguments) = result, found %.80q", s)
	}
	// Strings are in hex, so the last "=" is the result's.
	i := strings.LastIndex(rest, ") ")
	eq := strings.LastIndex(rest, " = ")
	for i >= 0 && strings.Trim(rest[i+1:eq+1], " ") != "" {
		i = strings.LastIndex(rest[:i], ") ")
	}
	if i < 0 || eq < i {
		return Call{}, fmt.Errorf("%s: expected \") = result\", found %.80q", name, lastBytes(rest, 80))
	}
	c := Call{Name: name, Args: splitArgs(rest[:i])}
	ret, _, _ := strings.Cut(rest[eq+3:], " ")
	ret, _, _ = strings.Cut(ret, "<")
	if ret == "?" {
		c.Failed = true
		return c, nil
	}
	n, err := strconv.ParseInt(ret, 0, 64)
	if err != nil {
		u, uerr := strconv.ParseUint(ret, 0, 64)
		if uerr != nil {
			return Call{}, fmt.Errorf("%s: result %q is not a number", name, ret)
		}
		n = int64(u)
	}
	c.Ret, c.Failed = n, n == -1
	return c, nil
}

func lastBytes(s string, n int) string { return s[max(0, len(s)-n):] }

// splitArgs splits at the commas outside brackets. Strings and paths are in hex and hold
// neither.
func splitArgs(s string) []string {
	var out []string
	depth, from := 0, 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '[', '{':
			depth++
		case ']', '}':
			depth--
		case ',':
			if depth == 0 {
				out = append(out, strings.TrimSpace(s[from:i]))
				from = i + 1
			}
		}
	}
	if rest := strings.TrimSpace(s[from:]); rest != "" {
		out = append(out, rest)
	}
	return out
}

// FD is the descriptor in argument i and the path that strace found behind it.
func (c *Call) FD(i int) (fd int, path string, err error) {
	if i >= len(c.Args) {
		return 0, "", fmt.Errorf("%s: expected a descriptor as argument %d of %d", c.Name, i, len(c.Args))
	}
	num, name, _ := strings.Cut(c.Args[i], "<")
	if j := strings.LastIndexByte(name, '>'); j >= 0 {
		name = name[:j]
	}
	p, err := unhex(name)
	if err != nil {
		return 0, "", err
	}
	if num == "AT_FDCWD" {
		return -100, string(p), nil
	}
	fd, err = strconv.Atoi(num)
	if err != nil {
		return 0, "", fmt.Errorf("%s: argument %d is %.80q, expected a descriptor", c.Name, i, c.Args[i])
	}
	return fd, string(p), nil
}

// Bytes is the string in argument i.
func (c *Call) Bytes(i int) ([]byte, error) {
	if i >= len(c.Args) {
		return nil, fmt.Errorf("%s: expected a string as argument %d of %d", c.Name, i, len(c.Args))
	}
	return unquote(c.Args[i])
}

// Int is the number in argument i.
func (c *Call) Int(i int) (int64, error) {
	if i >= len(c.Args) {
		return 0, fmt.Errorf("%s: expected a number as argument %d of %d", c.Name, i, len(c.Args))
	}
	return strconv.ParseInt(c.Args[i], 0, 64)
}

// Vector is the concatenation of the buffers of a writev in argument i.
func (c *Call) Vector(i int) ([]byte, error) {
	if i >= len(c.Args) {
		return nil, fmt.Errorf("%s: expected buffers as argument %d of %d", c.Name, i, len(c.Args))
	}
	var out []byte
	rest := c.Args[i]
	for {
		_, after, ok := strings.Cut(rest, "iov_base=")
		if !ok {
			return out, nil
		}
		j := strings.Index(after, ", iov_len=")
		if j < 0 {
			return nil, fmt.Errorf("%s: buffer without a length in %.80q", c.Name, rest)
		}
		b, err := unquote(after[:j])
		if err != nil {
			return nil, err
		}
		out, rest = append(out, b...), after[j:]
	}
}

// unquote decodes "\x..\x.."; a string that strace has cut is an error.
func unquote(s string) ([]byte, error) {
	if strings.HasSuffix(s, "...") {
		return nil, fmt.Errorf("strace cut a string of more than %d bytes: raise -s", maxString)
	}
	if len(s) < 2 || s[0] != '"' || s[len(s)-1] != '"' {
		return nil, fmt.Errorf("expected a quoted string, found %.80q", s)
	}
	return unhex(s[1 : len(s)-1])
}

// unhex decodes \x.. and takes anything else as it is.
func unhex(s string) ([]byte, error) {
	var out bytes.Buffer
	out.Grow(len(s) / 4)
	for i := 0; i < len(s); {
		if s[i] != '\\' {
			out.WriteByte(s[i])
			i++
			continue
		}
		if i+4 > len(s) || s[i+1] != 'x' {
			return nil, fmt.Errorf("expected \\x.. at byte %d of %.80q", i, s)
		}
		hi, lo := nibble(s[i+2]), nibble(s[i+3])
		if hi > 15 || lo > 15 {
			return nil, fmt.Errorf("%.4q is not a byte in hex", s[i:])
		}
		out.WriteByte(hi<<4 | lo)
		i += 4
	}
	return out.Bytes(), nil
}

func nibble(c byte) byte {
	switch {
	case c >= '0' && c <= '9':
		return c - '0'
	case c >= 'a' && c <= 'f':
		return c - 'a' + 10
	}
	return 255
}
