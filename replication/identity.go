package replication

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// identityFile says which cluster a directory belongs to.
const identityFile = "identity.json"

// identity is written once, when a directory is founded, before anything else.
type identity struct {
	Format    int    `json:"format"`
	ClusterID string `json:"cluster_id"` // 32 hex digits
	Timeline  string `json:"timeline"`   // 32 hex digits
	NodeID    string `json:"node_id"`
}

const identityFormat = 1

// loadIdentity reads the directory's identity, or founds a new cluster in an empty one.
func loadIdentity(dir, nodeID string) (identity, error) {
	path := filepath.Join(dir, identityFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return found(dir, path, nodeID)
	}
	if err != nil {
		return identity{}, fmt.Errorf("read %s: %w", path, err)
	}
	var id identity
	if err := json.Unmarshal(b, &id); err != nil {
		return id, fmt.Errorf("%w: %s (%w): it is written once when a cluster is created; put back a copy", ErrDamaged, path, err)
	}
	switch {
	case id.Format != identityFormat:
		return id, fmt.Errorf("%s has format %d, this version reads %d: start the version that wrote it", path, id.Format, identityFormat)
	case !isHexID(id.ClusterID) || !isHexID(id.Timeline) || id.NodeID == "":
		return id, fmt.Errorf("%w: %s: expected a cluster id and a timeline of 32 hex digits and a node id, found %q, %q and %q; put back a copy", ErrDamaged, path, id.ClusterID, id.Timeline, id.NodeID)
	case id.NodeID != nodeID:
		return id, fmt.Errorf("%s belongs to node %q, this node is %q (--node-id): start it with --node-id %s, or give this node a directory of its own", dir, id.NodeID, nodeID, id.NodeID)
	}
	return id, nil
}

// found makes a new identity in a directory that holds no data yet.
func found(dir, path, nodeID string) (identity, error) {
	for _, name := range []string{"tail", "raft.db", "history", "snapshots"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return identity{}, fmt.Errorf("%w: %s is missing but %s is there: this is the directory of a cluster that cannot be named; put the file back", ErrDamaged, path, filepath.Join(dir, name))
		}
	}
	id := identity{Format: identityFormat, ClusterID: newHexID(), Timeline: newHexID(), NodeID: nodeID}
	b, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return id, err
	}
	return id, writeFileDurably(path, append(b, '\n'))
}

func newHexID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return hex.EncodeToString(b[:])
}

func isHexID(s string) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == 16
}

// writeFileDurably writes a file whole or not at all, and not before it is on disk.
func writeFileDurably(path string, b []byte) error {
	tmp := path + ".tmp"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// makeDir makes a directory, and those above it, durably: what is flushed in a directory
// whose own name is not flushed goes with the name when the power does.
func makeDir(dir string) error {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	// One that is there already may owe that to a start which was cut short here.
	made := []string{dir}
	for d := filepath.Dir(dir); ; d = filepath.Dir(d) {
		if _, err := os.Stat(d); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		made = append(made, d)
	}
	_, err = os.Stat(dir)
	isNew := errors.Is(err, fs.ErrNotExist)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, d := range made {
		// Whoever prepared the directory for us may keep the one above it to himself.
		if err := syncDir(filepath.Dir(d)); err != nil && (isNew || !errors.Is(err, fs.ErrPermission)) {
			return err
		}
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ErrDamaged is returned when the data directory lacks files or holds some that do not
// belong together. The text says which, and what to do; nothing was changed.
var ErrDamaged = errors.New("the data directory is damaged")

// ErrInUse is returned when another process has the data directory open.
var ErrInUse = errors.New("data directory is in use")

// dirLock holds a directory against other processes until it is released or the process
// ends.
type dirLock struct{ f *os.File }

func lockDir(dir string) (*dirLock, error) {
	path := filepath.Join(dir, "LOCK")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("data directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = f.Close()
		return nil, fmt.Errorf("%w: another process holds %s (%v); stop it, or give this node a directory of its own (--data-dir)", ErrInUse, path, err)
	}
	return &dirLock{f}, nil
}

func (l *dirLock) release() error { return l.f.Close() }
