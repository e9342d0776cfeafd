// Package listing checks lists that are read page by page while aggregates are created, deleted and
// created again: what exists throughout is in them exactly once.
//
// listing.go fills a store, keeps changing what is around, and checks a list against what stayed; the
// test here does so on one node and through its restart, test/cluster through failovers.
//
// It may import anything; of it, only listing.go is imported, by test/cluster.
package listing
