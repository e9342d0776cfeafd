package replication

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// ErrForeign is returned by Open when the directory holds files that are not a node's, and no
// node's identity. Nothing was changed.
var ErrForeign = errors.New("the data directory belongs to something else")

// isNodeFile says whether a node makes this name in its directory, identityFile aside, or
// whoever prepared the directory for it.
func isNodeFile(name string) bool {
	switch name {
	case "LOCK", "tail", "raft.db", "history", "snapshots", "backups",
		restoringFile, // of a restore that was cut short
		restoringFile + ".tmp",
		identityFile + ".tmp", // of a start that was cut short
		"disk-probe",          // serve's, which looks for a disk that hangs
		"lost+found":          // the root of a file system has it
		return true
	}
	return false
}

// checkForeign refuses a directory that has no identity but files of somebody else: it was
// named by mistake, and a node that moves in there mixes its files with those.
func checkForeign(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("data directory: %w", err)
	}
	var found []string
	for _, e := range entries {
		if e.Name() == identityFile {
			return nil
		}
		if !isNodeFile(e.Name()) {
			found = append(found, e.Name())
		}
	}
	if len(found) == 0 {
		return nil
	}
	const most = 5
	more := ""
	if len(found) > most {
		more = fmt.Sprintf(" and %d others", len(found)-most)
		found = found[:most]
	}
	return fmt.Errorf("%w: expected %s, or nothing but what a node makes, in %s, found %s%s; give this node a directory of its own (--data-dir), or move these away",
		ErrForeign, identityFile, filepath.Clean(dir), strings.Join(found, ", "), more)
}
