// Package metrics tests that every series on /metrics moves when it should: rows_test.go lists
// each series of internal/metric's table with the step that moves it and what it must be then,
// or with the test that does so elsewhere. A series without a row fails.
//
// The steps run on one node in this process, whose disk, entries and cluster a test can hold,
// and on three nodes in processes of their own (test/cluster). It also measures a scrape under
// load, see BenchmarkScrape.
package metrics
