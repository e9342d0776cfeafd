// Command docgen writes the documentation that is derived from code: docs/errors.md,
// docs/configuration.md and docs/metrics.md, whole, and the code table inside docs/contract.md,
// between two marker comments. Run it from anywhere in the repository, or through `make generate`:
//
//	go run ./internal/docgen
//
// It may import whatever it documents. Its test fails while a file differs from what it
// would write, so a code or a setting cannot change without its documentation.
package main
