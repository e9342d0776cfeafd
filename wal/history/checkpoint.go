package history

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/vfs"
	"go.uber.org/zap"
)

// CheckpointApplied says which state a directory that Checkpoint made holds. It opens the
// store there for reading and changes nothing in it, but for an empty LOCK.
func CheckpointApplied(fs vfs.FS, dir string) (a Applied, err error) {
	p := (&Options{FS: fs, Dir: dir}).pebbleOptions(new(atomic.Int32))
	p.ReadOnly = true
	p.Logger = pebbleLogger{&Store{dir: dir, log: zap.NewNop()}}
	cache := pebble.NewCache(checkpointCache)
	defer cache.Unref()
	p.Cache = cache
	db, err := pebble.Open(dir, p)
	if err != nil {
		return a, fmt.Errorf("history: open the checkpoint in %s: %w", dir, err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return (&Store{dir: dir, db: db}).recoverApplied()
}

// checkpointCache is what looking up one key may keep in memory.
const checkpointCache = 1 << 20
