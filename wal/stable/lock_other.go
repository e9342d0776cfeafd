//go:build !(darwin || dragonfly || freebsd || linux || netbsd || openbsd)

package stable

import (
	"os"
	"time"
)

// lockFile leaves locking to bbolt: a second process may be told of damage, and not that the
// directory is in use.
func lockFile(*os.File, time.Duration) error { return nil }
