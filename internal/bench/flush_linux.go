package bench

import (
	"os"
	"syscall"
)

func flush(file *os.File) error { return syscall.Fdatasync(int(file.Fd())) }
