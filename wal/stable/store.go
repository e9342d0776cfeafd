package stable

import raftboltdb "github.com/hashicorp/raft-boltdb/v2"

// Options are the settings of a Store.
type Options struct {
	// Path is the database file; its directory must exist.
	Path string
	// OnFatal is called once, with the first error after which the store refuses every
	// call. The process should end. It may be nil.
	OnFatal func(error)
}

// Store implements raft.StableStore.
type Store struct {
	db *raftboltdb.BoltStore
}

// Open opens the store at o.Path, or creates it.
func Open(o Options) (*Store, error) {
	db, err := raftboltdb.New(raftboltdb.Options{Path: o.Path})
	if err != nil {
		return nil, err
	}
	return &Store{db: db}, nil
}

// Set stores val under key, durably.
func (s *Store) Set(key, val []byte) error { return s.db.Set(key, val) }

// Get returns the value of key; the error of a key that was never set reads "not found".
func (s *Store) Get(key []byte) ([]byte, error) { return s.db.Get(key) }

// SetUint64 stores val under key, durably.
func (s *Store) SetUint64(key []byte, val uint64) error { return s.db.SetUint64(key, val) }

// GetUint64 returns the value of key; the error of a key that was never set reads "not found".
func (s *Store) GetUint64(key []byte) (uint64, error) { return s.db.GetUint64(key) }

// Close closes the store and releases the directory.
func (s *Store) Close() error { return s.db.Close() }
