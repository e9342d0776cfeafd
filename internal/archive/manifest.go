package archive

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"
)

// Manifest says what an archive holds.
type Manifest struct {
	// ID names the backup: 32 hex digits.
	ID        string    `json:"id"`
	CreatedAt time.Time `json:"created_at"`
	ClusterID string    `json:"cluster_id"`
	Timeline  string    `json:"timeline"`
	Shard     uint32    `json:"shard"`
	NodeID    string    `json:"node_id"`
	// Version of the program that made it.
	Version string `json:"version"`
	// AppliedIndex and AppliedTerm are those of the newest log entry in it.
	AppliedIndex uint64 `json:"applied_index"`
	AppliedTerm  uint64 `json:"applied_term"`
	// LastPosition is the position of the newest change in it; 0 = there is none.
	LastPosition uint64 `json:"last_position"`
	// CommittedAt is that of the newest batch; nil = there is none.
	CommittedAt *time.Time `json:"committed_at,omitempty"`
	// Confirmed: everything that was acknowledged before the backup was asked for is in it,
	// which a majority of voters has confirmed. Otherwise it is what one node had.
	Confirmed bool `json:"confirmed"`
	// Files in the order of their contents.
	Files []File `json:"files"`
}

// File is one file of an archive.
type File struct {
	// Name is history/NAME.
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// Bounds of a manifest. Names of a store's files have about 20 bytes.
const (
	maxManifest = 64 << 20
	maxFiles    = 1 << 20
	maxName     = 128
	// maxFileSize keeps every offset of an archive far from the end of an int64.
	maxFileSize = 1 << 42
)

// Directory is where the names of all files begin.
const Directory = "history/"

// encode checks a manifest and makes its bytes.
func (m *Manifest) encode() ([]byte, error) {
	if err := m.check(); err != nil {
		return nil, err
	}
	b, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("archive: encode the manifest: %w", err)
	}
	if len(b) > maxManifest {
		return nil, fmt.Errorf("archive: the manifest has %d bytes, expected at most %d", len(b), maxManifest)
	}
	return b, nil
}

func decodeManifest(b []byte) (*Manifest, error) {
	m := &Manifest{}
	if err := json.Unmarshal(b, m); err != nil {
		return nil, err
	}
	return m, m.check()
}

// check refuses a list of files that could not be unpacked, or that leads elsewhere.
func (m *Manifest) check() error {
	if len(m.Files) > maxFiles {
		return fmt.Errorf("archive: expected at most %d files, found %d", maxFiles, len(m.Files))
	}
	names := make(map[string]struct{}, len(m.Files))
	for _, f := range m.Files {
		if !validName(f.Name) || f.Size < 0 || f.Size > maxFileSize {
			return fmt.Errorf("archive: expected files named %sNAME of at most %d bytes, found %.200q of %d bytes", Directory, int64(maxFileSize), f.Name, f.Size)
		}
		if _, twice := names[f.Name]; twice {
			return fmt.Errorf("archive: expected each file once, found %q twice", f.Name)
		}
		names[f.Name] = struct{}{}
	}
	return nil
}

func validName(name string) bool {
	base, ok := strings.CutPrefix(name, Directory)
	if !ok || base == "" || base[0] == '.' || len(name) > maxName {
		return false
	}
	return strings.IndexFunc(base, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '.' && r != '-' && r != '_'
	}) < 0
}

// Bytes is what the files have together.
func (m *Manifest) Bytes() int64 {
	var n int64
	for _, f := range m.Files {
		n += f.Size
	}
	return n
}

// contentSize is what a file takes in an archive.
func (f File) contentSize() int64 { return contentSize(f.Size) }

func contentSize(size int64) int64 {
	blocks := (size + blockSize - 1) / blockSize
	return size + blocks*crcSize
}

// endSize is the length of an end for n files.
func endSize(n int) int64 { return int64(magicSize + digestSize + n*digestSize + 8 + crcSize) }

// sizeOf is the length of an archive whose manifest takes encoded bytes.
func (m *Manifest) sizeOf(encoded int) int64 {
	size := int64(fixedSize+encoded+crcSize) + endSize(len(m.Files))
	for _, f := range m.Files {
		size += f.contentSize()
	}
	return size
}
