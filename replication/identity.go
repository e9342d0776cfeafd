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
	"slices"
	"syscall"

	"github.com/hashicorp/raft"

	"github.com/tidemark-db/tidemark/replication/peer"
)

// identityFile says which cluster a directory belongs to.
const identityFile = "identity.json"

// identity is a directory's own: which cluster it belongs to, and which of that cluster's
// members it is.
type identity struct {
	Format int    `json:"format"`
	NodeID string `json:"node_id"`
	// Generation is made with the directory. It tells a node from the one that had its name
	// before its directory was lost, which may have voted: see serverID.
	Generation string `json:"generation"` // 8 hex digits
	State      state  `json:"state"`
	// ClusterID and Timeline are empty while State is.
	ClusterID string `json:"cluster_id,omitempty"` // 32 hex digits
	Timeline  string `json:"timeline,omitempty"`   // 32 hex digits
	// Founders are the voters that the cluster began with; empty in a node that was added
	// later.
	Founders []founder `json:"founders,omitempty"`
	// LogBegun: a member's log was not empty any more. One that is empty later was lost, with
	// what this node acknowledged.
	LogBegun bool `json:"log_begun,omitempty"`
}

// state says how far a directory is on its way into a cluster.
type state string

const (
	// stateEmpty: it belongs to none, and never voted.
	stateEmpty state = "empty"
	// stateFounding: it holds what its cluster will begin with, and never voted.
	stateFounding state = "founding"
	// stateMember: its raft may run and vote.
	stateMember state = "member"
)

// founder is a voter that the cluster begins with.
type founder struct {
	NodeID        string `json:"node_id"`
	Generation    string `json:"generation"`
	RaftAddress   string `json:"raft_address"`
	ClientAddress string `json:"client_address"`
}

func (f *founder) serverID() raft.ServerID { return serverID(f.NodeID, f.Generation) }

// serverID names a member in raft's configuration. The generation is in it, so that nothing
// that is meant for a node whose directory was lost reaches the one that took its place:
// voting with lost memory could undo acknowledged writes.
func serverID(nodeID, generation string) raft.ServerID {
	return peer.Identity{NodeID: nodeID, Generation: generation}.ServerID()
}

func (id *identity) serverID() raft.ServerID { return serverID(id.NodeID, id.Generation) }

// founds says whether this directory is one of the founders of its cluster.
func (id *identity) founds() bool {
	return slices.ContainsFunc(id.Founders, func(f founder) bool { return f.serverID() == id.serverID() })
}

const identityFormat = 2

// loadIdentity reads the directory's identity, or makes one for an empty directory.
func loadIdentity(dir, nodeID string) (identity, error) {
	path := filepath.Join(dir, identityFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newIdentity(dir, path, nodeID)
	}
	if err != nil {
		return identity{}, fmt.Errorf("read %s: %w", path, err)
	}
	var id identity
	if err := json.Unmarshal(b, &id); err != nil {
		return id, fmt.Errorf("%w: %s (%w): it says which cluster the directory belongs to; put back a copy", ErrDamaged, path, err)
	}
	if id.Format != identityFormat {
		return id, fmt.Errorf("%s has format %d, this version reads %d: start the version that wrote it", path, id.Format, identityFormat)
	}
	if err := id.check(); err != nil {
		return id, fmt.Errorf("%w: %s: %w; put back a copy", ErrDamaged, path, err)
	}
	if id.NodeID != nodeID {
		return id, fmt.Errorf("%s belongs to node %q, this node is %q (--node-id): start it with --node-id %s, or give this node a directory of its own", dir, id.NodeID, nodeID, id.NodeID)
	}
	if id.State != stateMember {
		return id, nil
	}
	for _, name := range []string{"tail", "raft.db"} {
		if _, err := os.Stat(filepath.Join(dir, name)); errors.Is(err, fs.ErrNotExist) {
			return id, fmt.Errorf("%w: %s says that this node is a member of cluster %s, but %s is missing: what the node promised its cluster is lost; put it back, or empty the whole directory and let the node join again", ErrDamaged, path, id.ClusterID, filepath.Join(dir, name))
		}
	}
	return id, nil
}

// check returns what is wrong with an identity that was read.
func (id *identity) check() error {
	if id.NodeID == "" || !isHex(id.Generation, 4) {
		return fmt.Errorf("expected a node id and a generation of 8 hex digits, found %q and %q", id.NodeID, id.Generation)
	}
	named := isHex(id.ClusterID, 16) && isHex(id.Timeline, 16)
	switch id.State {
	case stateEmpty:
		if id.ClusterID == "" && id.Timeline == "" && len(id.Founders) == 0 {
			return nil
		}
	case stateFounding:
		if named && id.founds() {
			return nil
		}
	case stateMember:
		if named {
			return nil
		}
	}
	return fmt.Errorf("expected a cluster id and a timeline of 32 hex digits, as state %q has them, found %q and %q", id.State, id.ClusterID, id.Timeline)
}

// newIdentity makes the identity of a directory that holds no data yet.
func newIdentity(dir, path, nodeID string) (identity, error) {
	for _, name := range []string{"tail", "raft.db", "history", "snapshots"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			return identity{}, fmt.Errorf("%w: %s is missing but %s is there: this is the directory of a cluster that cannot be named; put the file back", ErrDamaged, path, filepath.Join(dir, name))
		}
	}
	id := identity{Format: identityFormat, NodeID: nodeID, Generation: newHexID(4), State: stateEmpty}
	return id, id.write(dir)
}

// write makes the identity durable.
func (id *identity) write(dir string) error {
	b, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return err
	}
	return writeFileDurably(filepath.Join(dir, identityFile), append(b, '\n'))
}

// newHexID returns n random bytes in hex.
func newHexID(n int) string {
	b := make([]byte, n)
	_, _ = rand.Read(b) // never fails (crypto/rand)
	return hex.EncodeToString(b)
}

// isHex says whether s is n bytes in hex.
func isHex(s string, n int) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == n
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
