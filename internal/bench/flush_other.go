//go:build !linux

package bench

import "os"

func flush(file *os.File) error { return file.Sync() }
