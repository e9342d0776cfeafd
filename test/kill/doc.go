// Package kill kills a real node with SIGKILL at random moments under load, and checks
// after every restart that what it had acknowledged is there.
//
// This proves that nothing is acknowledged before it has left the process, that start-up
// repairs whatever the process leaves behind, and that marks and holders come back cold.
// It proves nothing about fsync, because the page cache survives a kill: that is what
// test/powerloss is for.
//
// It may import anything; nothing imports it.
package kill
