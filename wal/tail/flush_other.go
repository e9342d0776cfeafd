//go:build !linux

package tail

import "os"

// flushFile makes a file's data and size durable.
func flushFile(f *os.File) error { return f.Sync() }
