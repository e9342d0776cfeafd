package main

import "syscall"

// childAttributes: Ctrl-C on a terminal reaches "tidemark dev" alone, which stops its nodes in
// order, and the kernel kills a node whose "tidemark dev" is gone. It does so when the thread
// that started the node ends, so that thread must last; see devNode.run.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
