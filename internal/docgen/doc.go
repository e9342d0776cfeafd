// Command docgen writes the documentation that is derived from code: docs/errors.md, whole,
// and the code table inside docs/contract.md, between two marker comments. Run it from
// anywhere in the repository, or through `make generate`:
//
//	go run ./internal/docgen
//
// It may import api. Its test fails while a file differs from what it would write, so a
// code cannot change without its documentation.
package main
