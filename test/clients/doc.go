// Package clients is many clients of one cluster that follow the contract's whole recipe
// while the cluster has a bad time, and that remember every call and every answer.
//
// It owns writers (writer.go: what they send; resolve.go: how they find out what became of
// it), readers (reader.go), and the reading of everything on one node afterwards
// (inspect.go). The verdict over what they remember is test/linear's; here only what one
// client alone can see to be wrong is reported.
//
// The recipe of contract 2.4 and 3: an outcome that is unknown is found out by sending the
// same bytes again until they resolve. 2002 and 2003 with this request as the holder: it
// landed. 2013, and 2003 with in_flight_version or a covering in_flight_mark: hold, ask
// again. 2011: ask the leader. A definite 2003: decide afresh, under the same sequence. To
// abandon a sequence, a higher one is written.
//
// Writers race on shared aggregates, with and without guards, over one or several aggregates
// a request, some with CONFIRM, some with previous_client_seq, some send a request twice at
// once, and some ask for what must be refused. All use enforcement.
//
// Invariants:
//   - A writer has one request at a time, and does not drop one before it is resolved.
//   - An aggregate takes part in a bounded number of operations: then a fresh one takes its
//     place, so that the checker can judge each.
//
// It may import anything; only suites under test import it.
package clients
