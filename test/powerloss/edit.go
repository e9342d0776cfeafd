package powerloss

import (
	"bytes"
	"strings"
)

// The edits turn the record of a correct run into that of a program with a fault, so that
// the exploration can be shown to find it.

// WithoutFlushes is the record of a program that never flushes the files whose path match
// accepts.
func WithoutFlushes(calls []Call, match func(path string) bool) (edited []Call, removed int) {
	for _, c := range calls {
		if isFlush(&c) {
			if _, p, err := c.FD(0); err == nil && match(p) {
				removed++
				continue
			}
		}
		edited = append(edited, c)
	}
	return edited, removed
}

// AnswersFirst is the record of a program that prints its acknowledgements before the
// flush that they wait for: each line that begins with prefix moves to the beginning of
// the last flush before it.
func AnswersFirst(calls []Call, prefix string) (edited []Call, moved int) {
	flush := -1
	for _, c := range calls {
		if isFlush(&c) {
			flush = c.Start
		} else if fd, _, err := c.FD(0); err == nil && c.Name == "write" && fd == 1 && flush >= 0 {
			if b, err := c.Bytes(1); err == nil && bytes.HasPrefix(b, []byte(prefix)) {
				c.Start, c.End = flush, flush
				moved++
			}
		}
		edited = append(edited, c)
	}
	return edited, moved
}

// Under accepts paths that hold part.
func Under(part string) func(string) bool {
	return func(path string) bool { return strings.Contains(path, part) }
}

func isFlush(c *Call) bool { return c.Name == "fsync" || c.Name == "fdatasync" }
