//go:build !race

package process

// Race says that the tests run under the race detector. The nodes then do too, and what they
// report fails the test.
const Race = false
