package inspect

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// ErrInUse is returned by Open when a node has the directory open.
var ErrInUse = errors.New("the data directory is in use")

// ErrNoData is returned by Open when there is no data directory.
var ErrNoData = errors.New("no data directory")

// Directory is a node's data directory, held against nodes until Close. It is for one goroutine.
type Directory struct {
	Path string
	// Identity is what identity.json says; nil if there is none, or it cannot be read.
	Identity *Identity
	// Snapshots, lowest index first.
	Snapshots []Snapshot
	// History is the directory of the history that counts; empty if there is none yet.
	History string

	identityErr error
	lock        *os.File
}

// Identity says which cluster a directory belongs to, and which member of it it is.
type Identity struct {
	Format     int       `json:"format"`
	NodeID     string    `json:"node_id"`
	Generation string    `json:"generation"`
	State      string    `json:"state"`
	ClusterID  string    `json:"cluster_id,omitempty"`
	Timeline   string    `json:"timeline,omitempty"`
	Founders   []Founder `json:"founders,omitempty"`
	LogBegun   bool      `json:"log_begun,omitempty"`
}

// Founder is a voter that a cluster began with.
type Founder struct {
	NodeID        string `json:"node_id"`
	Generation    string `json:"generation"`
	RaftAddress   string `json:"raft_address"`
	ClientAddress string `json:"client_address"`
}

// Open finds what is in a data directory. A damaged file is no error here but where it is read.
func Open(dir string) (*Directory, error) {
	info, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %s does not exist", ErrNoData, dir)
	}
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, fmt.Errorf("%w: %s is not a directory", ErrNoData, dir)
	}
	d := &Directory{Path: dir}
	if !d.holdsData() {
		return nil, fmt.Errorf("%w: expected identity.json, tail, raft.db, history or snapshots in %s, found none of them", ErrNoData, dir)
	}
	if d.lock, err = lockShared(filepath.Join(dir, "LOCK")); err != nil {
		return nil, err
	}
	d.Identity, d.identityErr = readIdentity(d.path("identity.json"))
	if d.History, err = newestHistory(d.path("history")); err == nil {
		err = d.findSnapshots()
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// Close lets nodes use the directory again.
func (d *Directory) Close() error {
	if d.lock == nil {
		return nil
	}
	return d.lock.Close()
}

func (d *Directory) path(name string) string { return filepath.Join(d.Path, name) }

func (d *Directory) holdsData() bool {
	return slices.ContainsFunc([]string{"identity.json", "tail", "raft.db", "history", "snapshots"}, func(name string) bool {
		_, err := os.Lstat(d.path(name))
		return err == nil
	})
}

func readIdentity(path string) (*Identity, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	id := &Identity{}
	if err := strictJSON(b, id); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return id, nil
}

// strictJSON decodes one value and refuses fields that it does not know.
func strictJSON(b []byte, out any) error {
	dec := json.NewDecoder(strings.NewReader(string(b)))
	dec.DisallowUnknownFields()
	if err := dec.Decode(out); err != nil {
		return err
	}
	if dec.More() {
		return errors.New("expected one JSON value, found more behind it")
	}
	return nil
}

// newestHistory returns the history that counts: the one with the highest number.
func newestHistory(dir string) (string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	newest := uint64(0)
	for _, e := range entries {
		if n, err := strconv.ParseUint(e.Name(), 10, 64); err == nil && e.Name() == fmt.Sprintf("%010d", n) {
			newest = max(newest, n)
		}
	}
	if newest == 0 {
		return "", nil
	}
	return filepath.Join(dir, fmt.Sprintf("%010d", newest)), nil
}

// Snapshot is a snapshot that is complete.
type Snapshot struct {
	// Dir is its directory.
	Dir string
	// Meta is what its meta.json says; nil if that cannot be read.
	Meta *SnapshotMeta
	err  error
}

// SnapshotMeta is what a snapshot's meta.json says.
type SnapshotMeta struct {
	Version            int             `json:"Version"`
	ID                 string          `json:"ID"`
	Index              uint64          `json:"Index"`
	Term               uint64          `json:"Term"`
	Peers              json.RawMessage `json:"Peers"`
	Configuration      Configuration   `json:"Configuration"`
	ConfigurationIndex uint64          `json:"ConfigurationIndex"`
	Size               int64           `json:"Size"`
	Format             int             `json:"format"`
	ClusterID          string          `json:"cluster_id"`
	Timeline           string          `json:"timeline"`
	AppliedIndex       uint64          `json:"applied_index"`
	CheckpointIndex    uint64          `json:"checkpoint_index"`
	Received           bool            `json:"received"`
	Pending            bool            `json:"pending"`
}

// Configuration is raft's: the members of the cluster.
type Configuration struct {
	Servers []Member `json:"Servers"`
}

// Member is one member of a configuration. Suffrage is 0 for a voter, 1 for a member without a
// vote, 2 for one that is being made a voter.
type Member struct {
	Suffrage int    `json:"Suffrage"`
	ID       string `json:"ID"` // node#generation
	Address  string `json:"Address"`
}

func (d *Directory) findSnapshots() error {
	dir := d.path("snapshots")
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		// What ends so is unfinished, or half removed.
		if !e.IsDir() || strings.HasSuffix(e.Name(), ".tmp") {
			continue
		}
		s := Snapshot{Dir: filepath.Join(dir, e.Name())}
		b, err := os.ReadFile(s.metaFile())
		if err == nil {
			m := &SnapshotMeta{}
			if err = strictJSON(b, m); err == nil {
				s.Meta = m
			}
		}
		s.err = err
		d.Snapshots = append(d.Snapshots, s)
	}
	slices.SortFunc(d.Snapshots, func(a, b Snapshot) int { return int(int64(a.index()) - int64(b.index())) })
	return nil
}

func (s *Snapshot) metaFile() string { return filepath.Join(s.Dir, "meta.json") }
func (s *Snapshot) history() string  { return filepath.Join(s.Dir, "history") }

func (s *Snapshot) index() uint64 {
	if s.Meta == nil {
		return 0
	}
	return s.Meta.Index
}

// newest returns the snapshot that counts, nil if there is none or it cannot be read.
func (d *Directory) newest() *SnapshotMeta {
	if len(d.Snapshots) == 0 {
		return nil
	}
	return d.Snapshots[len(d.Snapshots)-1].Meta
}
