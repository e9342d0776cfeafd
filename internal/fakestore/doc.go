// Package fakestore is an event store in memory for the tests of clients: the part of the
// contract that import, export and bench depend on, with answers that can be lost or
// refused on demand.
//
// It is used by tests only. It may import api. It knows no raft, no disk and nothing in
// flight: every request is decided at once, under one lock.
package fakestore
