//go:build !linux

package main

import "syscall"

// childAttributes: Ctrl-C on a terminal reaches "tidemark dev" alone, which stops its nodes in
// order. Nodes outlive a "tidemark dev" that is killed.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true}
}
