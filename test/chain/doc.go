// Package chain holds the audit chain against its documentation: encode.go computes it from
// docs/chain.md alone, out of the JSON of what reads return, with nothing of the server's but the hash
// function. The tests hold that against docs/chain-vectors.json, which the server's encoder
// makes, and against what a node answers through trims, deletes and new lives.
//
// It may import anything; nothing imports it. lukechampine.com/blake3 is the hash.
package chain
