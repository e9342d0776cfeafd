//go:build !faultpoints

package main

import "github.com/tidemark-db/tidemark/replication"

// addFaultPoints does nothing: only a binary that is built with -tags faultpoints has fault
// points, see faultpoints.go.
func addFaultPoints(*replication.Options) (serve func(*replication.Shard) error) {
	return func(*replication.Shard) error { return nil }
}
