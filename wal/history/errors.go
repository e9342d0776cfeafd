package history

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/cockroachdb/pebble/v2"

	"github.com/tidemark-db/tidemark/wal/record"
)

// ErrClosed is returned by a Store, and by reads of a View taken from it, after Close.
var ErrClosed = errors.New("history: store is closed")

// ErrViewsHeld is returned by Close while views have not been released; the text says how
// many.
var ErrViewsHeld = errors.New("history: views are still held")

// ErrDamaged is matched by every error that is about damaged files of a store, and by none
// about damaged input of its callers. It also matches record.ErrCorrupt.
var ErrDamaged = errors.New("history: the store is damaged")

// repair is what an operator can do about damaged files.
const repair = "check the disk, stop the node, and move history/ away, that one directory of the data directory and nothing else: " +
	"the next start rebuilds it from the newest snapshot and the log, or refuses to start if they do not reach back far enough; " +
	"then, and if the same file is found damaged again, which the snapshot shares, restore from a backup"

// storageError wraps an error of Pebble's: damage is marked with record.ErrCorrupt and names
// the file, or the directory if it is not known which file it is.
func (s *Store) storageError(doing string, err error) error {
	if err == nil {
		return nil
	}
	if errors.Is(err, pebble.ErrClosed) {
		return ErrClosed
	}
	if fatal := s.fatal.Load(); fatal != nil && err == *fatal {
		return err
	}
	if !pebble.IsCorruptionError(err) && !errors.Is(err, record.ErrCorrupt) {
		return fmt.Errorf("history: %s: %w", doing, err)
	}
	text := firstLine(err)
	where := s.dir
	if info := pebble.ExtractDataCorruptionInfo(err); info != nil {
		where = info.Path
	} else if number := between(text, "pebble: file ", ": block "); number != "" {
		// Pebble says of which table a block is, and of a blob file its number only.
		where = filepath.Join(s.dir, number+blobExt)
	}
	return &damage{text: fmt.Sprintf("history: %s: damage in %s: %s; %s", doing, where, text, repair), cause: err}
}

// between is what stands between two parts of a text; empty if they are not in it.
func between(text, before, after string) string {
	if _, rest, ok := strings.Cut(text, before); ok {
		if found, _, ok := strings.Cut(rest, after); ok {
			return found
		}
	}
	return ""
}

// damage is Pebble's corruption error under this package's sentinel. Its text leaves out the
// details that Pebble joins to an error for its own use.
type damage struct {
	text  string
	cause error
}

func (d *damage) Error() string { return d.text }

// Unwrap matches ErrDamaged, record.ErrCorrupt and whatever the cause is.
func (d *damage) Unwrap() []error {
	if d.cause == nil {
		return []error{ErrDamaged, record.ErrCorrupt}
	}
	return []error{ErrDamaged, record.ErrCorrupt, d.cause}
}

func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
