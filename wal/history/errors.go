package history

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidemark-db/tidemark/wal/record"
)

// ErrClosed is returned by a Store, and by reads of a View taken from it, after Close.
var ErrClosed = errors.New("history: store is closed")

// ErrViewsHeld is returned by Close while views have not been released; the text says how
// many.
var ErrViewsHeld = errors.New("history: views are still held")

// repair is what an operator can do about damaged files.
const repair = "check the disk, stop the node, and move history/ away, that one directory of the data directory and nothing else: " +
	"the next start rebuilds it from the newest snapshot and the log, or refuses to start if they do not reach back far enough; then restore from a backup"

// storageError wraps an error of Pebble's: damage is marked with record.ErrCorrupt and names
// the file if Pebble knows it.
func storageError(doing string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, pebble.ErrClosed) {
		return ErrClosed
	}
	if !pebble.IsCorruptionError(err) && !errors.Is(err, record.ErrCorrupt) {
		return fmt.Errorf("history: %s: %w", doing, err)
	}
	where := ""
	if info := pebble.ExtractDataCorruptionInfo(err); info != nil {
		where = " in " + info.Path
	}
	return &damage{text: fmt.Sprintf("history: %s: damage%s: %s; %s", doing, where, firstLine(err), repair), cause: err}
}

// damage is Pebble's corruption error under this package's sentinel. Its text leaves out the
// details that Pebble joins to an error for its own use.
type damage struct {
	text  string
	cause error
}

func (d *damage) Error() string { return d.text }

// Unwrap matches record.ErrCorrupt and whatever the cause is.
func (d *damage) Unwrap() []error {
	if d.cause == nil {
		return []error{record.ErrCorrupt}
	}
	return []error{record.ErrCorrupt, d.cause}
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
