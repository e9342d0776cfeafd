package stable

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

// The keys of raft's vote. raft does not export them.
const (
	keyLastVoteTerm = "LastVoteTerm"
	keyLastVoteCand = "LastVoteCand"
)

// defaultLockTimeout is long enough for a process that is just ending.
const defaultLockTimeout = time.Second

var (
	// ErrClosed is returned by every call after Close.
	ErrClosed = errors.New("the stable store is closed")
	// ErrPoisoned is returned by every call after one failed. The error also wraps what
	// failed first.
	ErrPoisoned = errors.New("the stable store failed and refuses further calls until the process is restarted")
	// ErrDamaged is wrapped by the error of Open or Get that found something other than
	// what was written. Nothing is repaired.
	ErrDamaged = errors.New("the stable store is damaged")
	// ErrInUse is wrapped by the error of Open if another process holds the file.
	ErrInUse = errors.New("the data directory is in use by another process")
)

// Options are the settings of a Store.
type Options struct {
	// Path is the database file; its directory must exist.
	Path string
	// LockTimeout is how long Open waits for another process to release the file; 0 means
	// one second.
	LockTimeout time.Duration
	// OnFatal is called once, with the first error after which the store refuses every
	// call, before the call that met it returns. The process should end. It may be nil.
	OnFatal func(error)
}

// Store implements raft.StableStore. It is safe for concurrent use.
type Store struct {
	o Options

	mu       sync.Mutex
	db       conf
	keys     []string // in keysKey
	bad      error    // the first failure; set once, never cleared
	reported bool
	closed   bool
}

// conf is what a Store needs of raft-boltdb; tests make it fail.
type conf interface {
	Set(key, val []byte) error
	Get(key []byte) ([]byte, error)
	Close() error
}

var _ raft.StableStore = (*Store)(nil)

// Open opens the store at o.Path, after checking all of it, or creates it. While another
// process has it open, the error wraps ErrInUse.
func Open(o Options) (*Store, error) {
	if o.LockTimeout <= 0 {
		o.LockTimeout = defaultLockTimeout
	}
	if err := o.create(); err != nil {
		return nil, err
	}
	s := &Store{o: o}
	db, err := raftboltdb.New(raftboltdb.Options{Path: o.Path, BoltOptions: &bbolt.Options{Timeout: o.LockTimeout, OpenFile: o.checked(&s.keys)}})
	if err != nil {
		return nil, o.openError(err)
	}
	s.db = db
	return s, nil
}

// Set stores val under key. It is durable on return. An empty val is the same as none:
// Get then says that the key was not found.
func (s *Store) Set(key, val []byte) error {
	defer s.report()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return err
	}
	if err := s.set(key, val); err != nil {
		return s.fail(fmt.Errorf("set %s: %w", key, err))
	}
	return nil
}

func (s *Store) set(key, val []byte) (err error) {
	defer s.o.recovered(&err)
	if string(key) == keyLastVoteTerm {
		if err := s.forgetCandidate(val); err != nil {
			return err
		}
	}
	if err := s.db.Set(key, appendFrame(nil, key, val)); err != nil {
		return err
	}
	if slices.Contains(s.keys, string(key)) {
		return nil
	}
	// A crash before this leaves a key that the list does not name, which is no harm: this
	// Set has not returned.
	s.keys = append(s.keys, string(key))
	k := []byte(keysKey)
	return s.db.Set(k, appendFrame(nil, k, appendKeys(nil, s.keys)))
}

// forgetCandidate clears the candidate of an earlier vote before the term of a new one is
// written. raft stores a vote as term, then candidate, and grants a vote again, without
// looking at the candidate's log, if both match. After a crash in between, the old
// candidate would stand beside the new term, and be granted a vote it was never given
// (hashicorp/raft issue 661).
//
// Not when the current term is written: raft writes that at every start, also when it does
// not change, and clearing would let the node vote twice in it. Here the term is another
// than the stored vote's, and raft has already stored it as the current term: nobody asks
// for the old vote again.
func (s *Store) forgetCandidate(term []byte) error {
	old, err := s.get([]byte(keyLastVoteTerm))
	if err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return err
	}
	if err == nil && slices.Equal(old, term) {
		return nil
	}
	k := []byte(keyLastVoteCand)
	if _, err := s.get(k); errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return nil
	} else if err != nil {
		return err
	}
	return s.db.Set(k, appendFrame(nil, k, nil))
}

// Get returns the value of key. If there is none the error is raft-boltdb's ErrKeyNotFound,
// whose text "not found" is what raft looks for.
func (s *Store) Get(key []byte) ([]byte, error) {
	defer s.report()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.usable(); err != nil {
		return nil, err
	}
	val, err := s.get(key)
	if err != nil && !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return nil, s.fail(err)
	}
	return val, err
}

func (s *Store) get(key []byte) (val []byte, err error) {
	defer s.o.recovered(&err)
	b, err := s.db.Get(key)
	if errors.Is(err, raftboltdb.ErrKeyNotFound) {
		if slices.Contains(s.keys, string(key)) {
			return nil, s.o.damaged(string(key), "expected a value, found none")
		}
		return nil, raftboltdb.ErrKeyNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("get %s: %w", key, err)
	}
	val, err = parseFrame(key, b)
	if err != nil {
		return nil, s.o.damaged(string(key), err.Error())
	}
	if len(val) == 0 {
		return nil, raftboltdb.ErrKeyNotFound
	}
	return val, nil
}

// SetUint64 stores val under key. It is durable on return.
func (s *Store) SetUint64(key []byte, val uint64) error {
	return s.Set(key, binary.BigEndian.AppendUint64(nil, val))
}

// GetUint64 returns the value of key, see Get.
func (s *Store) GetUint64(key []byte) (uint64, error) {
	b, err := s.Get(key)
	if err != nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, fmt.Errorf("get %s: expected a number of 8 bytes, found %d bytes", key, len(b))
	}
	return binary.BigEndian.Uint64(b), nil
}

// Close closes the store and releases the file.
func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	s.closed = true
	return errors.Join(s.bad, s.db.Close())
}

func (s *Store) usable() error {
	if s.bad != nil {
		return s.bad
	}
	if s.closed {
		return ErrClosed
	}
	return nil
}

// fail poisons the store and returns the error that did. The caller holds mu.
func (s *Store) fail(err error) error {
	s.bad = fmt.Errorf("%w: %s: %w", ErrPoisoned, s.o.Path, err)
	return s.bad
}

// report tells the owner of a failure, once. It is deferred before mu is taken.
func (s *Store) report() {
	s.mu.Lock()
	first := s.bad != nil && !s.reported
	s.reported = s.reported || first
	s.mu.Unlock()
	if first && s.o.OnFatal != nil {
		s.o.OnFatal(s.bad)
	}
}
