// Package record defines the bytes of Tidemark: aggregate keys, the canonical encoding of
// events and batches (which is also what is stored and what the audit chain hashes), and
// the entries of the replicated log.
//
// It owns formats and nothing else: no I/O, no clocks, no policy. It may import api.
//
// Invariants:
//   - An encoding is a pure function of its input: metadata is sorted, defaults are filled
//     in, integers are big-endian and of fixed size, strings carry a u32 length.
//   - A decoder never panics and never allocates more than a small multiple of its input,
//     whatever the bytes; it answers ErrCorrupt.
//   - Decoders that run in Apply return slices of their input instead of copies.
//
// The formats are documented byte by byte in wal/DESIGN.md.
//
// BLAKE3 comes from lukechampine.com/blake3: pure Go with assembly for amd64, no cgo,
// maintained, and one call hashes a contiguous buffer without allocating.
package record
