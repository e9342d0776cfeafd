// Package history is the second tier of the log: committed batches sorted by aggregate, on
// Pebble.
package history
