// Package archive is the format of a backup: one stream, which can be written to a file or a
// pipe, of the files of a store and of what they are.
//
// It owns that format and nothing else; DESIGN.md shows it byte by byte. It knows nothing of
// what is in the files. It may import nothing of this module.
//
// Invariants:
//   - Every byte of an archive is under a checksum that is compared when it is read: a byte
//     that was changed anywhere, an end that is missing and bytes that were added are found,
//     and named by the part and the range that they are in.
//   - Where each part begins follows from the manifest at the front, so that damage in one
//     part does not hide what is in the next ones.
//   - Writing and reading take memory for one block and for the list of files, whatever the
//     size of the archive.
//   - A reader never panics, and allocates no more than it has read or than a constant,
//     whatever the bytes.
//
// BLAKE3 comes from lukechampine.com/blake3, like the hashes of the log.
package archive
