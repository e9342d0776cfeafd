// Package tidemark is the root of the Tidemark module: an event store whose retries are
// safe. It holds no code; see README.md, and docs/contract.md for what clients may rely on.
package tidemark
