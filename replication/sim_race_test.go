//go:build race

package replication

// simDefaultSeeds: there is one goroutine, and nothing for the race detector to find.
const simDefaultSeeds = 50
