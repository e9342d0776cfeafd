//go:build !race

package replication

// simDefaultSeeds are a quarter of a minute of one core.
const simDefaultSeeds = 2000
