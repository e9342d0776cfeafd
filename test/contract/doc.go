// Package contract holds whole nodes against sections 4 and 5 of docs/contract.md: what
// every code looks like on the wire, and every limit from both sides.
//
// It owns the scripts in testdata/, which are meant to be read: a line is a call as a client
// makes it, what follows the dashes is the whole answer, status, text and details. Truth
// table 2.3 and the rules about writes in flight are in test/model.
//
// A node here is a shard and a server in this process behind a loopback connection. It may
// import anything, being a test. github.com/cockroachdb/datadriven reads the scripts, and
// writes the answers into them with -rewrite.
package contract
