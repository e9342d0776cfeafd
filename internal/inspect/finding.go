package inspect

import (
	"fmt"
	"strings"
)

// Finding is one thing that is wrong, or worth a note.
type Finding struct {
	// Damage: it is not what was written, or does not belong with the rest. Otherwise it is
	// what a crash may leave and the next start repairs.
	Damage bool `json:"damage"`
	// File is the file it is in.
	File string `json:"file"`
	// Offset is where in the file, -1 if that is not known.
	Offset int64 `json:"offset"`
	// Index is the entry of the log that it is about, 0 if none.
	Index uint64 `json:"index,string,omitempty"`
	// Key is the key of the history or of the stable store that it is about, quoted; empty if
	// none.
	Key string `json:"key,omitempty"`
	// Text says what was expected and what was found.
	Text string `json:"text"`
}

// String is the finding as one line.
func (f Finding) String() string {
	var at []string
	if f.Key != "" {
		at = append(at, "key "+f.Key)
	}
	if f.Offset >= 0 {
		at = append(at, fmt.Sprintf("offset %d", f.Offset))
	}
	if f.Index > 0 {
		at = append(at, fmt.Sprintf("entry %d", f.Index))
	}
	where := f.File
	if len(at) > 0 {
		where += ": " + strings.Join(at, ", ")
	}
	return where + ": " + f.Text
}

// finding describes a place of the tail that is not a whole record; torn says that a crash may
// have left it so.
func (t *tail) finding(b broken) (f Finding, torn bool) {
	torn, why := t.judge(b)
	return Finding{Damage: !torn, File: b.segment.path, Offset: int64(b.offset), Index: b.index, Text: b.problem + "; " + why}, torn
}

func (p stableProblem) finding(path string) Finding {
	f := Finding{Damage: true, File: path, Offset: p.offset, Text: p.text}
	if p.key != "" {
		f.Key = fmt.Sprintf("%q", p.key)
	}
	return f
}
