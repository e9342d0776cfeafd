package tail

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/tidwall/wal"
)

// ops is what a test replaces to make a disk fail or to stop half way. Everything else goes
// to the file system directly.
type ops struct {
	write    func(*wal.Log, *wal.Batch) error
	flush    func(*os.File) error // data and size; on return they survive a power loss
	syncDir  func(path string) error
	truncate func(f *os.File, size int64) error
	boot     func() [16]byte
	// step is called between the steps of what must survive a crash half way; an error
	// stops right there.
	step func(name string) error
}

func realOps() *ops {
	return &ops{
		write:    (*wal.Log).WriteBatch,
		flush:    flushFile,
		syncDir:  syncDir,
		truncate: (*os.File).Truncate,
		boot:     bootID,
		step:     func(string) error { return nil },
	}
}

// syncDir makes the creation, renaming and removal of files in a directory durable.
func syncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("flush a directory: %w", err)
	}
	if err := errors.Join(d.Sync(), d.Close()); err != nil {
		return fmt.Errorf("flush a directory: %w", err)
	}
	return nil
}

// bootID tells one boot of the machine from the next where the system offers that (Linux),
// and is zero elsewhere.
func bootID() (id [16]byte) {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return id
	}
	b, err := hex.DecodeString(strings.ReplaceAll(strings.TrimSpace(string(text)), "-", ""))
	if err != nil || len(b) != len(id) {
		return [16]byte{}
	}
	return [16]byte(b)
}

const (
	logPrefix = "log-"
	newSuffix = ".new"
)

// logDirName is the name of the directory of the log's n-th incarnation.
func logDirName(n uint64) string { return fmt.Sprintf("%s%010d", logPrefix, n) }

// segmentName is tidwall's name of the segment file that begins with index base.
func segmentName(base uint64) string { return fmt.Sprintf("%020d", base) }

// unmadeError is why createLog made nothing but an unfinished directory, which counts for nothing.
type unmadeError struct{ err error }

func (e *unmadeError) Error() string { return e.err.Error() }
func (e *unmadeError) Unwrap() error { return e.err }

// createLog makes a log in the directory of incarnation n: one segment, which begins with index
// base, of the whole records given, and the state that goes with them. It exists after a crash
// either whole or not at all: the rename decides. An unmadeError is from before that.
func (o *ops) createLog(root string, n, base uint64, records []byte, st state) error {
	final := filepath.Join(root, logDirName(n))
	dir := final + newSuffix
	if err := o.fillLog(dir, base, records, st); err != nil {
		return &unmadeError{fmt.Errorf("create the log: %w", err)}
	}
	if err := os.Rename(dir, final); err != nil {
		return fmt.Errorf("create the log: %w", err)
	}
	if err := o.step("renamed directory"); err != nil {
		return err
	}
	return o.syncDir(root)
}

// fillLog makes the directory of a new log.
func (o *ops) fillLog(dir string, base uint64, records []byte, st state) error {
	if err := os.Mkdir(dir, 0o750); err != nil {
		return err
	}
	if err := o.step("created directory"); err != nil {
		return err
	}
	seg, err := os.OpenFile(filepath.Join(dir, segmentName(base)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	_, err = seg.Write(records)
	if err := errors.Join(err, o.flush(seg), seg.Close()); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(dir, stateName), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o640)
	if err != nil {
		return err
	}
	err = o.writeState(f, st)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := o.syncDir(dir); err != nil {
		return err
	}
	return o.step("filled directory")
}

// findLog returns the newest incarnation in root, 0 if there is none, after removing what a
// crash may have left of older and of unfinished ones.
func (o *ops) findLog(root string) (uint64, error) {
	entries, err := os.ReadDir(root)
	if err != nil {
		return 0, fmt.Errorf("list the log's directory: %w", err)
	}
	var newest uint64
	for _, e := range entries {
		n, ok := parseLogDir(e.Name())
		if ok && e.IsDir() {
			newest = max(newest, n)
		}
	}
	// The newest may owe its place to a rename that is not durable yet. Nothing older may
	// go before it is.
	if err := o.syncDir(root); err != nil {
		return 0, err
	}
	removed := false
	for _, e := range entries {
		n, ok := parseLogDir(strings.TrimSuffix(e.Name(), newSuffix))
		if !ok || !e.IsDir() || e.Name() == logDirName(newest) {
			continue
		}
		if strings.HasSuffix(e.Name(), newSuffix) || n < newest {
			if err := os.RemoveAll(filepath.Join(root, e.Name())); err != nil {
				return 0, fmt.Errorf("remove an old log: %w", err)
			}
			removed = true
		}
	}
	if removed {
		return newest, o.syncDir(root)
	}
	return newest, nil
}

func parseLogDir(name string) (uint64, bool) {
	digits, ok := strings.CutPrefix(name, logPrefix)
	if !ok || len(digits) != 10 {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 64)
	return n, err == nil && n > 0
}

// listSegments returns the segments in dir, lowest first.
func listSegments(dir string) ([]*segment, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the log's segments: %w", err)
	}
	var segs []*segment
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if len(e.Name()) < 20 {
			continue
		}
		base, err := strconv.ParseUint(e.Name()[:20], 10, 64)
		if err != nil {
			continue
		}
		// tidwall would delete other segments on seeing one of its .START or .END files. We
		// never let it make one.
		if len(e.Name()) != 20 || base == 0 || !e.Type().IsRegular() {
			return nil, &DamageError{File: path, Reason: "expected segment files named by their first index, found this",
				Advice: "move the file away if you know where it is from, else " + adviceRestore}
		}
		segs = append(segs, &segment{base: base, path: path})
	}
	if len(segs) == 0 {
		return nil, &DamageError{File: dir, Reason: "expected at least one segment file, found none", Advice: adviceRestore}
	}
	slices.SortFunc(segs, func(a, b *segment) int {
		if a.base < b.base {
			return -1
		}
		return 1
	})
	return segs, nil
}
